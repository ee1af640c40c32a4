//! `strata group`. The tests write what the operator and Cluster API would; of Cluster API only the definitions are there.

use std::process::Stdio;

use anyhow::{Context, Result};
use api::machine::{NstanceMachine, NstanceMachinePool, NstanceShardGroup};
use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testbed::{User, capi, until_allowed};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    sync::OnceCell,
};

use super::place::{Place, Said, condition, run, steady, strata};

/// A namespace for groups.
struct Bed {
    place: Place,
    client: Client,
    machine_pools: Api<DynamicObject>,
    cluster_machines: Api<DynamicObject>,
}

impl Bed {
    async fn new() -> Result<Self> {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        let place = Place::new().await?;
        let install = async || -> Result<()> { Ok(capi::install_definitions(place.control_plane).await?) };
        INSTALLED.get_or_try_init(install).await?;
        let client = place.control_plane.client().await?;
        let of = |kind: &str| {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", kind));
            Api::namespaced_with(client.clone(), &place.namespace, &resource)
        };
        Ok(Self { machine_pools: of("MachinePool"), cluster_machines: of("Machine"), client, place })
    }

    async fn group(&self, args: &[&str]) -> Result<Said> {
        self.place.strata(&[&["group"], args].concat()).await
    }

    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.place.namespace)
    }

    async fn put<K>(&self, object: Value, status: Value) -> Result<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug,
        K: Serialize + DeserializeOwned,
    {
        let name = object["metadata"]["name"].as_str().context("a name")?.to_owned();
        self.api::<K>().create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        let patch = Patch::Merge(json!({ "status": status }));
        Ok(self.api::<K>().patch_status(&name, &PatchParams::default(), &patch).await?)
    }

    async fn pool(&self, name: &str, shards: &[&str], status: Value) -> Result<String> {
        let spec = json!({ "group": name, "shards": shards, "template": "small" });
        let pool: NstanceMachinePool = self.put(json!({ "metadata": { "name": name }, "spec": spec }), status).await?;
        pool.metadata.uid.context("a uid")
    }

    async fn machine_pool(&self, name: &str, replicas: i32, annotations: Value) -> Result<()> {
        let reference = json!({ "apiGroup": api::machine::GROUP, "kind": "NstanceMachinePool", "name": name });
        let template =
            json!({ "clusterName": "c--t", "bootstrap": { "dataSecretName": "" }, "infrastructureRef": reference });
        let object = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool",
            "metadata": { "name": name, "annotations": annotations },
            "spec": { "clusterName": "c--t", "replicas": replicas, "template": { "spec": template } },
        });
        self.machine_pools.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    async fn shard_group(&self, pool: &str, uid: &str, shard: &str, size: i32, status: Value) -> Result<()> {
        let metadata = json!({
            "name": format!("{pool}--{shard}"), "labels": { "nstance.dev/group": pool, "nstance.dev/shard": shard },
            "ownerReferences": [owner(pool, uid)],
        });
        let spec = json!({ "group": pool, "shard": shard, "size": size });
        self.put::<NstanceShardGroup>(json!({ "metadata": metadata, "spec": spec }), status).await.map(drop)
    }

    /// A member with its Machine, which has a Node.
    async fn member(&self, pool: &str, uid: &str, name: &str, status: Value) -> Result<()> {
        let labels = json!({ "cluster.x-k8s.io/pool-name": pool, "cluster.x-k8s.io/cluster-name": "c--t" });
        let metadata = json!({ "name": name, "labels": labels, "ownerReferences": [owner(pool, uid)] });
        let spec = json!({ "group": pool, "providerID": format!("process:///a/{name}") });
        self.put::<NstanceMachine>(json!({ "metadata": metadata, "spec": spec }), status).await?;
        let reference = json!({ "apiGroup": api::machine::GROUP, "kind": "NstanceMachine", "name": name });
        let machine = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": { "name": name, "labels": labels },
            "spec": { "clusterName": "c--t", "bootstrap": { "dataSecretName": "" }, "infrastructureRef": reference },
        });
        self.cluster_machines.create(&PostParams::default(), &serde_json::from_value(machine)?).await?;
        let patch = Patch::Merge(json!({ "status": { "nodeRef": { "name": format!("node-{name}") } } }));
        self.cluster_machines.patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn report(&self, name: &str, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api::<NstanceMachinePool>().patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// What Cluster API counts.
    async fn report_ready(&self, name: &str, ready: i32) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": { "replicas": ready, "readyReplicas": ready } }));
        self.machine_pools.patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn replicas(&self, name: &str) -> Result<i64> {
        self.machine_pools.get(name).await?.data["spec"]["replicas"].as_i64().context("replicas")
    }

    /// The MachinePool's generation once it asks for so many.
    async fn until_replicas(&self, name: &str, replicas: i64) -> Result<i64> {
        let is_so = |pool: Option<&DynamicObject>| pool.is_some_and(|pool| pool.data["spec"]["replicas"] == replicas);
        let found = await_condition(self.machine_pools.clone(), name, is_so).await?.context("it is gone")?;
        found.metadata.generation.context("a generation")
    }
}

fn owner(pool: &str, uid: &str) -> Value {
    json!({ "apiVersion": api::machine::API_VERSION, "kind": "NstanceMachinePool", "name": pool, "uid": uid })
}

fn pool_status(replicas: i32, generation: i64, ready: Value) -> Value {
    json!({ "replicas": replicas, "observedOwnerGeneration": generation, "conditions": [ready] })
}

fn reconciled() -> Value {
    condition("Ready", "True", "Reconciled", "all shards have the group as declared")
}

/// Two shards, one silent, and a member whose drain a budget holds.
async fn web(bed: &Bed) -> Result<()> {
    let waiting = condition("Ready", "False", "Reconciling", "not all shards have their share: web--b: silent");
    let uid = bed.pool("web", &["a", "b"], pool_status(2, 1, waiting)).await?;
    bed.machine_pool("web", 3, json!({})).await?;
    bed.report_ready("web", 1).await?;
    let fine = json!({ "replicas": 1, "conditions": [condition("Ready", "True", "SyncSucceeded", "as declared")] });
    bed.shard_group("web", &uid, "a", 1, fine).await?;
    let silent = |kind: &str| condition(kind, "False", "ShardUnreachable", "shard b does not answer; check its server");
    let silent = json!({ "replicas": 1, "conditions": [silent("Ready"), silent("ShardReachable")] });
    bed.shard_group("web", &uid, "b", 2, silent).await?;
    let runs = condition("Ready", "True", "Running", "the instance runs");
    bed.member("web", &uid, "one", json!({ "shard": "a", "ready": true, "conditions": [runs.clone()] })).await?;
    let held = condition("Drained", "False", "BlockedByPDB", "pod shop/web-1: budget shop/web allows no eviction");
    bed.member("web", &uid, "two", json!({ "shard": "b", "ready": true, "conditions": [runs, held] })).await
}

#[tokio::test]
async fn groups_are_listed_and_one_is_shown_with_what_it_waits_for() -> Result<()> {
    let bed = Bed::new().await?;
    web(&bed).await?;
    bed.pool("batch", &["a"], json!({ "isStatic": true, "replicas": 0, "conditions": [reconciled()] })).await?;
    insta::assert_snapshot!(steady(&bed.group(&["list"]).await?.data()?), @"
    GROUP SHARDS WANTED CURRENT READY STATIC STATUS AGE MESSAGE
    batch a - 0 0 True Reconciled AGO -
    web a,b 3 2 1 False Reconciling AGO not all shards have their share: web--b: silent
    ");
    let list: Value = serde_json::from_str(&bed.group(&["list", "-o", "json"]).await?.data()?)?;
    let namespace = &bed.place.namespace;
    assert_eq!(
        list[1],
        json!({
            "namespace": namespace, "group": "web", "pool": "web", "machinePool": "web", "shards": ["a", "b"],
            "static": false, "paused": false, "wanted": 3, "current": 2, "ready": 1, "status": "False",
            "reason": "Reconciling", "message": "not all shards have their share: web--b: silent",
        })
    );
    let all = bed.place.strata(&["group", "list", "-o", "json", "-l", "not=there"]).await?;
    assert_eq!((all.out.as_str(), all.err.contains("there is no group in namespace")), ("[]\n", true));

    let page = bed.group(&["status", "web"]).await?.data()?;
    insta::assert_snapshot!(steady(&page.replace(namespace.as_str(), "machines")), @"
    GROUP web
    NAMESPACE machines
    POOL NstanceMachinePool web
    MACHINE POOL web of Cluster c--t
    TEMPLATE small
    INSTANCES 2 of 3 instances, 1 ready
    AGE AGO

    SHARD WANTED CURRENT READY SILENT FOR REASON
    a 1 1 1 - -
    b 2 1 1 AGO ShardUnreachable

    CONDITION STATUS REASON SINCE MESSAGE
    Ready False Reconciling AGO not all shards have their share: web--b: silent

    INSTANCE SHARD NODE READY GOING REASON
    one a node-one True - -
    two b node-two True yes BlockedByPDB

    WAITS WHY
    shard b shard b does not answer; check its server
    instance two pod shop/web-1: budget shop/web allows no eviction
    ");
    let one: Value = serde_json::from_str(&bed.group(&["status", "web", "-o", "json"]).await?.data()?)?;
    assert_eq!((&one["group"], &one["shards"][1]["silentSince"]), (&json!("web"), &json!("2026-01-01T00:00:00Z")));
    assert_eq!((&one["instances"][1]["node"], &one["waits"][0]["what"]), (&json!("node-two"), &json!("shard b")));
    let page = bed.group(&["status", "batch"]).await?.data()?;
    assert!(page.contains("no MachinePool refers to it") && page.contains("yes: the shards' configuration"), "{page}");
    Ok(())
}

#[tokio::test]
async fn scaling_is_refused_where_it_would_have_no_effect() -> Result<()> {
    let bed = Bed::new().await?;
    bed.pool("web", &["a"], pool_status(2, 1, reconciled())).await?;
    let answer = bed.group(&["scale", "web", "3"]).await?.refusal(1)?;
    assert!(answer.contains("group web has no MachinePool"), "{answer}");
    assert!(answer.contains("hint: create one whose infrastructureRef names NstanceMachinePool web"), "{answer}");

    bed.machine_pool("web", 2, json!({})).await?;
    for args in [["scale", "wbe", "3"].as_slice(), &["status", "wbe"]] {
        let answer = bed.group(args).await?.refusal(1)?;
        assert!(
            answer.contains("there is no group wbe in namespace") && answer.contains("did you mean web?"),
            "{answer}"
        );
    }
    let mut elsewhere = strata(&["group", "status", "web", "-n", "default", "--kubeconfig"]);
    elsewhere.arg(&bed.place.kubeconfig);
    let answer = run(elsewhere).await?.refusal(1)?;
    assert!(answer.contains("there is no group web in namespace default") && answer.contains("add -n "), "{answer}");

    let paused = json!({ "metadata": { "annotations": { "cluster.x-k8s.io/paused": "" } } });
    let resumed = json!({ "metadata": { "annotations": { "cluster.x-k8s.io/paused": null } } });
    let pools = bed.api::<NstanceMachinePool>();
    pools.patch("web", &PatchParams::default(), &Patch::Merge(&paused)).await?;
    let answer = bed.group(&["scale", "web", "3"]).await?.refusal(1)?;
    assert!(answer.contains("NstanceMachinePool web is paused: group web would not change"), "{answer}");
    let remedy = format!("kubectl annotate nstancemachinepool web -n {} cluster.x-k8s.io/paused-", bed.place.namespace);
    assert!(answer.contains(&remedy), "{answer}");
    pools.patch("web", &PatchParams::default(), &Patch::Merge(&resumed)).await?;
    let mut status = pool_status(2, 1, reconciled());
    let paused = condition("Paused", "True", "Paused", "the object or its Cluster is paused");
    status["conditions"] = json!([reconciled(), paused]);
    bed.report("web", status).await?;
    let answer = bed.group(&["scale", "web", "3"]).await?.refusal(1)?;
    assert!(answer.contains("Cluster c--t is paused") && answer.contains("kubectl patch cluster c--t"), "{answer}");
    assert_eq!(bed.replicas("web").await?, 2, "a refusal changes nothing");

    for replicas in ["-1", "2147483648", "many"] {
        bed.group(&["scale", "web", replicas]).await?.refusal(2)?;
    }
    Ok(())
}

#[tokio::test]
async fn scale_waits_until_so_many_are_ready_and_shows_what_holds_it() -> Result<()> {
    let bed = Bed::new().await?;
    let limits = json!({
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "1",
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "2",
    });
    let uid = bed.pool("web", &["a"], pool_status(2, 1, reconciled())).await?;
    bed.machine_pool("web", 2, limits).await?;
    let silent = condition("Ready", "False", "ShardUnreachable", "shard a does not answer; check its server");
    bed.shard_group("web", &uid, "a", 3, json!({ "replicas": 2, "conditions": [silent] })).await?;
    let mut command = bed.place.command(&["group", "scale", "web", "3", "--wait"]);
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stderr.take().context("piped")?).lines();
    let generation = bed.until_replicas("web", 3).await?;
    let waits = condition("Ready", "False", "Reconciling", "these shards do not answer");
    bed.report("web", pool_status(2, generation, waits)).await?;
    let mut said = Vec::new();
    while let Some(line) = lines.next_line().await? {
        // Once it has shown what holds the group, the shard is back.
        if line.ends_with("web: 2 of 3 instances, 0 ready; shard a: shard a does not answer; check its server") {
            let ready = condition("Ready", "True", "SyncSucceeded", "as declared");
            let fine = json!({ "status": { "replicas": 3, "conditions": [ready] } });
            let shard_groups = bed.api::<NstanceShardGroup>();
            shard_groups.patch_status("web--a", &PatchParams::default(), &Patch::Merge(fine)).await?;
            bed.report("web", pool_status(3, generation, reconciled())).await?;
            bed.report_ready("web", 3).await?;
        }
        said.push(line);
    }
    assert_eq!(child.wait().await?.code(), Some(0), "{said:?}");
    assert_eq!(said[0], "group web scaled from 2 to 3");
    assert!(said[1].ends_with("between 1 and 2 instances; it will bring the number back between them"), "{said:?}");
    assert_eq!(said.last().map(String::as_str), Some("✔ web"), "{said:?}");

    // A shard that refuses the group is nothing to wait for.
    let refused = |kind: &str| condition(kind, "False", "ConfigValidationFailed", "template small is not there");
    let refused = json!({ "status": { "conditions": [refused("Ready"), refused("ConfigValid")] } });
    bed.api::<NstanceShardGroup>().patch_status("web--a", &PatchParams::default(), &Patch::Merge(refused)).await?;
    let operator = async {
        let generation = bed.until_replicas("web", 4).await?;
        bed.report("web", json!({ "observedOwnerGeneration": generation })).await
    };
    let (said, reported) = tokio::join!(bed.group(&["scale", "web", "4", "--wait"]), operator);
    reported?;
    let answer = said?.refusal(1)?;
    assert!(
        answer
            .contains("error: shard a refuses the group: template small is not there\nhint: `strata group status web"),
        "{answer}"
    );

    let answer = bed.group(&["scale", "web", "5", "--wait", "--timeout", "10s"]).await?.refusal(1)?;
    assert!(answer.contains("web is not done after 10s") && answer.contains("is the operator running?"), "{answer}");
    Ok(())
}

#[tokio::test]
async fn scaling_needs_the_right_to_the_subresource_alone() -> Result<()> {
    let bed = Bed::new().await?;
    bed.pool("web", &["a"], pool_status(2, 1, reconciled())).await?;
    bed.machine_pool("web", 2, json!({})).await?;
    let group = "rbac.authorization.k8s.io";
    let read = json!({ "apiGroups": ["*"], "resources": ["nstancemachinepools", "machinepools"], "verbs": ["list"] });
    let scale = json!({ "apiGroups": ["cluster.x-k8s.io"], "resources": ["machinepools/scale"], "verbs": ["patch"] });
    let mut said = Vec::new();
    for (name, rules) in [("group-reader", json!([read])), ("group-scaler", json!([read, scale]))] {
        let metadata = json!({ "name": name, "namespace": bed.place.namespace });
        let (kind, api_version) = ("Role", format!("{group}/v1"));
        let role = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "rules": rules });
        let binding = json!({
            "apiVersion": api_version, "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": group, "kind": kind, "name": name },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": name }],
        });
        bed.place.control_plane.install(&[role, binding]).await?;
        let (client, user) = (bed.place.control_plane.client().await?, User::named(name));
        until_allowed(&client, &user, "list", "cluster.x-k8s.io", "machinepools", &bed.place.namespace).await?;
        let mut command = strata(&["group", "scale", "web", "1", "-n", &bed.place.namespace, "--kubeconfig"]);
        command.arg(bed.place.control_plane.kubeconfig_as(&user).await?);
        said.push(run(command).await?);
    }
    assert_eq!(said[1].code, 0, "{said:?}");
    let answer = said.remove(0).refusal(1)?;
    assert!(
        answer.contains("hint: request the right to patch machinepools.cluster.x-k8s.io/scale in namespace"),
        "{answer}"
    );
    assert_eq!(bed.replicas("web").await?, 1);
    Ok(())
}
