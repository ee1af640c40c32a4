//! What the rest of the layer stands on: configuration, identity, and the operator's Cluster; and the rights for them.

use std::{sync::Arc, time::Duration};

use api::machine::{GROUP, NstanceCluster, NstanceControlPlane};
use k8s_openapi::{
    api::rbac::v1::{ClusterRole, PolicyRule},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use runtime::{
    Cluster, Operator,
    rights::{Account, Right},
};
use tokio::sync::watch;

use crate::{
    capi::CLUSTER_API_GROUP,
    cluster,
    config::{self, Settings, Shards, WORKLOAD_ACCOUNT},
    control_plane::{ApiServer, External},
    identity, secrets,
};

/// Changes when another cluster is reached, or none. A kubeconfig that is exchanged is no other cluster.
pub type Workload = watch::Receiver<Option<Cluster>>;

/// What the rest of the layer uses of it.
pub struct Ground {
    pub shards: watch::Receiver<Arc<Shards>>,
    pub identity: identity::Known,
    pub(crate) clusters: Arc<cluster::Clusters>,
    /// The cluster that the instances join; `None` until the administrator's kubeconfig of another one is there.
    pub workload: Workload,
    /// That cluster, where it is another one than the operator's own.
    pub(crate) external: Option<External>,
}

/// Adds configuration, identity and the operator's Cluster to an operator.
pub fn install(operator: &mut Operator, settings: &Settings, api_server: &ApiServer, resync: Duration) -> Ground {
    let secrets = secrets::watch(operator, &settings.namespace, |_| {});
    let shards = config::Reload::follow(operator, settings);
    let identity = identity::install(operator, settings, &secrets, shards.clone());
    let inputs = cluster::Inputs {
        settings,
        api_server,
        secrets: &secrets,
        shards: shards.clone(),
        identity: &identity,
        resync,
    };
    let (clusters, external) = cluster::install(operator, &inputs);
    let own = || watch::Sender::new(Some(operator.cluster())).subscribe();
    let workload = external.as_ref().map_or_else(own, |external| external.cluster.clone());
    Ground { shards, identity, clusters, workload, external }
}

/// Needed in the namespace of the layer only.
pub const OWN_NAMESPACE: &[Right] = &[
    Right {
        group: "",
        resource: "secrets",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "keep the operator's key, certificate and kubeconfig, and delete the nonce once it was used; lists and \
              watches ask for metadata only",
    },
    Right {
        group: "",
        resource: "configmaps",
        verbs: &["list", "watch"],
        why: "read the shards' CA certificate, and the list of shards where a ConfigMap has it",
    },
    Right {
        group: "",
        // Of WORKLOAD_ACCOUNT.
        resource: "serviceaccounts/nstance-capi-workload/token",
        verbs: &["create"],
        why: "give Cluster API tokens for the workload cluster, in its kubeconfig; of this account only",
    },
    Right {
        group: CLUSTER_API_GROUP,
        resource: "clusters",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "make the operator's Cluster, give one that the original made its control plane, and see whether it is paused",
    },
    Right {
        group: GROUP,
        resource: NstanceCluster::PLURAL,
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "make the operator's NstanceCluster, and say where the API server is",
    },
    Right {
        group: GROUP,
        resource: "nstanceclusters/status",
        verbs: &["patch"],
        why: "report that it is provisioned, and whether the shards know the operator",
    },
    Right {
        group: GROUP,
        resource: NstanceControlPlane::PLURAL,
        verbs: &["get", "list", "watch", "create"],
        why: "make the operator's NstanceControlPlane",
    },
    Right {
        group: GROUP,
        resource: "nstancecontrolplanes/status",
        verbs: &["patch"],
        why: "report that it is initialized, and whether Cluster API can reach it",
    },
];

/// The role of the account that Cluster API reaches the workload cluster by.
const WORKLOAD_ROLE: &str = "strata-capi-workload";

/// As this Cluster API watches and empties Nodes, where the workload cluster is the operator's own.
pub const ACCOUNTS: &[Account] = &[Account { name: WORKLOAD_ACCOUNT, role: WORKLOAD_ROLE }];

/// Of that account, and of Cluster API's controllers.
pub fn roles() -> Vec<ClusterRole> {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    };
    // What it keeps in caches it lists and watches; Pods and what they use it reads when it drains a Node itself, which
    // it does where our hook is missing, and when it waits for volumes.
    let cached = &["list", "watch"];
    // Cluster API asks for the root before it takes the connection for good.
    let root = PolicyRule { non_resource_urls: Some(owned(&["/"])), verbs: owned(&["get"]), ..PolicyRule::default() };
    let workload = vec![
        rule("", &["nodes"], &["list", "watch", "patch", "delete"]),
        rule("", &["namespaces"], cached),
        rule("", &["pods"], &["get", "list"]),
        rule("", &["pods/eviction"], &["create"]),
        rule("", &["persistentvolumes"], &["list"]),
        rule("apps", &["daemonsets"], &["get"]),
        rule("storage.k8s.io", &["volumeattachments"], &["list"]),
        root,
    ];
    let owned_objects = &["nstanceclusters", "nstancecontrolplanes", "nstancemachinepools", "nstancemachines"];
    // Which of them it reads past its caches differs by version; who may list them all learns nothing more by that.
    let manager = vec![
        rule(GROUP, owned_objects, &["get", "list", "watch", "patch", "delete"]),
        // For MachineSets, from a template.
        rule(GROUP, &["nstancemachines"], &["create"]),
        rule(GROUP, &["nstancemachinetemplates"], &["get", "list", "watch", "patch"]),
    ];
    let labels = [("cluster.x-k8s.io/aggregate-to-manager".to_owned(), "true".to_owned())].into();
    let role = |name: &str, rules| ClusterRole {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        rules: Some(rules),
        ..ClusterRole::default()
    };
    let mut aggregated = role("strata-capi-manager", manager);
    aggregated.metadata.labels = Some(labels);
    vec![role(WORKLOAD_ROLE, workload), aggregated]
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}
