//! What the machines layer may do in the cluster.

use runtime::rights::Right;

const GROUP: &str = api::machine::GROUP;
const CLUSTER_API: &str = "cluster.x-k8s.io";

/// Needed in every namespace that may hold its objects.
pub const CLUSTER: &[Right] = &[
    Right {
        group: GROUP,
        resource: "nstanceclusters",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "keep the infrastructure of the operator's Cluster",
    },
    Right { group: GROUP, resource: "nstanceclusters/status", verbs: &["patch"], why: "report conditions" },
    Right {
        group: GROUP,
        resource: "nstancecontrolplanes",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "keep the control plane of the operator's Cluster, which is made elsewhere",
    },
    Right { group: GROUP, resource: "nstancecontrolplanes/status", verbs: &["patch"], why: "report conditions" },
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
        group: GROUP,
        resource: "nstancemachinetemplates",
        verbs: &["get", "list", "watch"],
        why: "read what Cluster API makes machines from",
    },
    Right {
        group: CLUSTER_API,
        resource: "clusters",
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "make the operator's Cluster where it is missing; change nothing while it is paused",
    },
    Right {
        group: CLUSTER_API,
        resource: "machinepools",
        verbs: &["get", "list", "watch", "create"],
        why: "read how many replicas a pool shall have; make one for an imported group",
    },
    Right {
        group: CLUSTER_API,
        resource: "machines",
        verbs: &["get", "list", "watch", "patch", "delete"],
        why: "hold a deletion until the node is drained; delete those that a smaller pool gives up",
    },
    Right { group: "", resource: "nodes", verbs: &["get", "list", "watch"], why: "find the node of an instance" },
];
