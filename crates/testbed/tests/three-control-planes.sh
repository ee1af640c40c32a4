#!/bin/sh
# Builds a cluster of three control planes, and replaces one, with stock programs alone: curl and jq for Hetzner's API,
# talosctl, kubectl. Nothing in it knows that the servers are simulated.
#
#   three-control-planes.sh up                builds the cluster
#   three-control-planes.sh replace SERVER    replaces one of its control planes by a new server
#   three-control-planes.sh add SERVER        gives it one more server: a worker if it is called CLUSTER-w-…
#
# From the environment: HCLOUD_ENDPOINT and HCLOUD_TOKEN, as hcloud takes them; CLUSTER, the cluster's name; RANGE, where
# its network is; FOLDER, where its files are kept; TALOSCTL and KUBECTL, the programs; WORKERS, how many workers it has
# beside the control planes.
set -eu

: "${HCLOUD_ENDPOINT:?}" "${HCLOUD_TOKEN:?}" "${CLUSTER:?}" "${RANGE:?}" "${FOLDER:?}"
talosctl=${TALOSCTL:-talosctl}
kubectl=${KUBECTL:-kubectl}
workers=${WORKERS:-0}
export TALOSCONFIG="$FOLDER/talosconfig" KUBECONFIG="$FOLDER/kubeconfig"

# METHOD PATH [BODY]: one request; what it began has ended when this returns. The token is in no argument.
api() {
    answer=$(printf 'header = "Authorization: Bearer %s"\n' "$HCLOUD_TOKEN" |
        curl --silent --show-error --fail-with-body --config - --request "$1" --header "Content-Type: application/json" \
            --data "${3:-}" "$HCLOUD_ENDPOINT$2")
    for action in $(printf %s "$answer" | jq --raw-output '[.action, .actions[]?, .next_actions[]?][] | .id? // empty'); do
        await_action "$action"
    done
    printf %s "$answer"
}

await_action() {
    attempts=0
    while true; do
        status=$(printf 'header = "Authorization: Bearer %s"\n' "$HCLOUD_TOKEN" |
            curl --silent --show-error --fail-with-body --config - "$HCLOUD_ENDPOINT/actions/$1" | jq --raw-output .action.status)
        [ "$status" = running ] || break
        attempts=$((attempts + 1))
        [ "$attempts" -lt 600 ] || { echo "action $1 does not end" >&2; exit 1; }
        sleep 0.1
    done
    [ "$status" = success ] || { echo "action $1 ended with $status" >&2; exit 1; }
}

# WHAT COMMAND…: runs it until it succeeds, at most some minutes.
until_it() {
    what=$1
    shift
    attempts=0
    said=$(mktemp "$FOLDER/attempt.XXXXXX")
    until "$@" > "$said" 2>&1; do
        attempts=$((attempts + 1))
        [ "$attempts" -lt 900 ] || { echo "not reached: $what" >&2; cat "$said" >&2; exit 1; }
        sleep 0.2
    done
    rm "$said"
}

# COMMAND NAME…: runs it for all names at once.
for_all() {
    command=$1
    shift
    running=
    for name in "$@"; do
        "$command" "$name" &
        running="$running $!"
    done
    for one in $running; do
        wait "$one"
    done
}

# NAME: what a server is for.
role_of() {
    case $1 in
        "$CLUSTER"-w-*) echo worker ;;
        *) echo control-plane ;;
    esac
}

# NAME: prints "PUBLIC PRIVATE" of a server.
addresses() {
    api GET "/servers?name=$1" | jq --raw-output '.servers[0] | "\(.public_net.ipv4.ip) \(.private_net[0].ip)"'
}

id_of() {
    api GET "/servers?name=$1" | jq --raw-output '.servers[0].id'
}

# NAME: a server in the cluster's network, turned on. It waits for a configuration.
create_server() {
    network=$(api GET "/networks?name=$CLUSTER" | jq '.networks[0].id')
    api POST /servers "$(jq --null-input --arg name "$1" --arg cluster "$CLUSTER" --arg role "$(role_of "$1")" \
        --argjson network "$network" '{
        name: $name, server_type: "cx23", image: "debian-13", location: "fsn1", networks: [$network],
        labels: { cluster: $cluster, role: $role }
    }')" > /dev/null
}

# NAME: gives a server its configuration.
configure() {
    read -r public _private <<EOF
$(addresses "$1")
EOF
    hostname='{"apiVersion": "v1alpha1", "kind": "HostnameConfig", "hostname": "'$1'", "auto": "off"}'
    provider='{"machine": {"kubelet": {"extraArgs": {"provider-id": "hcloud://'$(id_of "$1")'"}}}}'
    file=$(role_of "$1" | tr -d -)
    "$talosctl" machineconfig patch "$FOLDER/$file.yaml" --patch "$hostname" --patch "$provider" \
        --output "$FOLDER/$1.yaml"
    until_it "a configuration for $1" apply "$public" "$FOLDER/$1.yaml"
}

# ADDRESS FILE: once. A server that asks for a certificate has one already, of a call whose answer was lost.
apply() {
    "$talosctl" apply-config --insecure --nodes "$1" --file "$2" 2> "$2.refusal" ||
        grep "certificate required" "$2.refusal" || { cat "$2.refusal"; return 1; }
}

# NAME: a server with its configuration.
add() {
    create_server "$1"
    configure "$1"
}

# NODE COUNT: so many members, all of which vote.
members_are() {
    "$talosctl" etcd members --nodes "$1" > "$FOLDER/members"
    [ "$(awk 'NR > 1 && $NF == "false"' "$FOLDER/members" | wc -l)" -eq "$2" ]
}

# NAME: true once etcd lists no such member; removes one that it lists.
is_no_member() {
    "$talosctl" etcd members > "$FOLDER/members" || return 1
    member=$(awk -v name="$1" '$3 == name { print $2 }' "$FOLDER/members")
    [ -z "$member" ] || { "$talosctl" etcd remove-member "$member"; return 1; }
}

nodes_are_ready() {
    "$kubectl" get nodes --output json |
        jq --exit-status --argjson count "$1" '[.items[].status.conditions[] | select(.type == "Ready" and .status == "True")]
            | length == $count'
}

up() {
    mkdir -p "$FOLDER"
    network=$(api POST /networks "$(jq --null-input --arg name "$CLUSTER" --arg range "$RANGE" '{
        name: $name, ip_range: $range, subnets: [{ type: "cloud", ip_range: $range, network_zone: "eu-central" }]
    }')" | jq .network.id)
    balancer=$(api POST /load_balancers "$(jq --null-input --arg name "$CLUSTER-kube" --arg cluster "$CLUSTER" \
        --argjson network "$network" '{
        name: $name, load_balancer_type: "lb11", location: "fsn1", network: $network, algorithm: { type: "round_robin" },
        targets: [{
            type: "label_selector", label_selector: { selector: "cluster=\($cluster),role=control-plane" },
            use_private_ip: true
        }],
        services: [
            { protocol: "tcp", listen_port: 6443, destination_port: 6443, health_check: {
                protocol: "http", port: 6443, interval: 3, timeout: 2, retries: 2,
                http: { path: "/version", status_codes: ["401"], tls: true }
            } },
            { protocol: "tcp", listen_port: 50000, destination_port: 50000, health_check: {
                protocol: "tcp", port: 50000, interval: 3, timeout: 2, retries: 2
            } }
        ]
    }')" | jq .load_balancer.id)
    read -r public private <<EOF
$(api GET "/load_balancers/$balancer" | jq --raw-output '.load_balancer | "\(.public_net.ipv4.ip) \(.private_net[0].ip)"')
EOF
    "$talosctl" gen secrets --output-file "$FOLDER/secrets.yaml"
    "$talosctl" gen config "$CLUSTER" "https://$private:6443" --with-secrets "$FOLDER/secrets.yaml" \
        --additional-sans "$public" --additional-sans "$private" --output "$FOLDER" --force
    servers="$CLUSTER-cp-1 $CLUSTER-cp-2 $CLUSTER-cp-3"
    number=0
    while [ "$number" -lt "$workers" ]; do
        number=$((number + 1))
        servers="$servers $CLUSTER-w-$number"
    done
    # Names have no spaces.
    # shellcheck disable=SC2086
    for_all add $servers
    read -r first_public first_private <<EOF
$(addresses "$CLUSTER-cp-1")
EOF
    "$talosctl" config endpoint "$first_public"
    "$talosctl" config node "$first_private"
    until_it "bootstrap" "$talosctl" bootstrap
    until_it "three members" members_are "$first_private" 3
    until_it "a kubeconfig" "$talosctl" kubeconfig "$KUBECONFIG" --force
    until_it "all Nodes" nodes_are_ready $((3 + workers))
}

# Removes the member first: this etcd admits no other while one of its voters is out of reach.
replace() {
    read -r _public private <<EOF
$(addresses "$1")
EOF
    others=$(api GET "/servers?label_selector=cluster%3D$CLUSTER%2Crole%3Dcontrol-plane" |
        jq --raw-output --arg name "$1" '[.servers[] | select(.name != $name)][0] | "\(.public_net.ipv4.ip) \(.private_net[0].ip)"')
    read -r other_public other_private <<EOF
$others
EOF
    "$talosctl" config endpoint "$other_public"
    "$talosctl" config node "$other_private"
    api DELETE "/servers/$(id_of "$1")" > /dev/null
    until_it "etcd without $1" is_no_member "$1"
    until_it "no Node $1" "$kubectl" delete node "$1" --ignore-not-found
    add "$CLUSTER-cp-new"
    until_it "three members" members_are "$other_private" 3
    until_it "all Nodes" nodes_are_ready $((3 + workers))
}

"$@"
