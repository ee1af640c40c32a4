//! What the machines layer may do in the cluster.

use runtime::rights::Right;

use crate::{capi::CLUSTER_API_GROUP, ground};

const GROUP: &str = api::machine::GROUP;

/// Nodes and Pods are of the whole cluster.
pub const CLUSTER: &[Right] = &[
    Right {
        group: "",
        resource: "nodes",
        verbs: &["get", "list", "watch", "patch"],
        why: "find the node of an instance; see whether a Pod runs on the one made for it; cordon it before its drain",
    },
    Right {
        group: "",
        resource: "pods",
        verbs: &["get", "list", "watch"],
        why: "find Pods that ask for a machine: those without a node are watched, and those with a machine by name; \
              follow those of a node under drain",
    },
    Right { group: "", resource: "pods/eviction", verbs: &["create"], why: "drain a node before its instance goes" },
    Right {
        group: "policy",
        resource: "poddisruptionbudgets",
        verbs: &["list", "watch"],
        why: "evict when a pod's budget allows it, and name the budget that does not",
    },
    Right {
        group: "",
        resource: "namespaces",
        verbs: &["list", "watch"],
        why: "MachineDrainRules may select pods by the labels of their namespace",
    },
];

/// All of its objects are in one namespace.
pub const OWN_NAMESPACE: &[Right] = &joined();

const fn joined() -> [Right; GROUPS.len() + ground::OWN_NAMESPACE.len()] {
    let mut all = [GROUPS[0]; GROUPS.len() + ground::OWN_NAMESPACE.len()];
    let mut next = 0;
    while next < all.len() {
        all[next] = if next < GROUPS.len() { GROUPS[next] } else { ground::OWN_NAMESPACE[next - GROUPS.len()] };
        next += 1;
    }
    all
}

/// For pools, their shard groups and machines.
const GROUPS: &[Right] = &[
    Right {
        group: GROUP,
        resource: "nstancemachinepools",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "read the desired state; publish provider IDs; add and remove our finalizer; import groups of shards",
    },
    Right { group: GROUP, resource: "nstancemachinepools/status", verbs: &["patch"], why: "report conditions" },
    Right {
        group: GROUP,
        resource: "nstancemachinepools/finalizers",
        verbs: &["update"],
        why: "owner references with blockOwnerDeletion, where the cluster enforces that permission",
    },
    Right {
        group: GROUP,
        resource: "nstanceshardgroups",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "keep one for each shard of a pool",
    },
    Right { group: GROUP, resource: "nstanceshardgroups/status", verbs: &["patch"], why: "report conditions" },
    Right {
        group: GROUP,
        resource: "nstancemachines",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "keep one for each instance of a pool; read the desired state of others",
    },
    Right { group: GROUP, resource: "nstancemachines/status", verbs: &["patch"], why: "report conditions" },
    Right {
        group: CLUSTER_API_GROUP,
        resource: "machinedrainrules",
        verbs: &["list", "watch"],
        why: "drain nodes as Cluster API's users say",
    },
    Right {
        group: CLUSTER_API_GROUP,
        resource: "machinepools",
        verbs: &["get", "list", "watch", "create"],
        why: "read how many replicas a pool shall have; make one for an imported group",
    },
    Right {
        group: CLUSTER_API_GROUP,
        resource: "machines",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "make one for a Pod that asks for it; hold a deletion until the node is drained; delete those that a \
              smaller pool gives up or no Pod needs",
    },
];
