//! What the performers layer may do in the cluster.

use runtime::rights::Right;

/// Needed in every namespace that may hold performers.
pub const CLUSTER: &[Right] = &[
    Right {
        group: "hourglass.eigenlayer.io",
        resource: "performers",
        verbs: &["get", "list", "watch", "patch"],
        why: "read the desired state; add and remove our finalizer",
    },
    Right {
        group: "hourglass.eigenlayer.io",
        resource: "performers/status",
        verbs: &["patch"],
        why: "report phase, readiness and conditions",
    },
    Right {
        group: "hourglass.eigenlayer.io",
        resource: "performers/finalizers",
        verbs: &["update"],
        why: "owner references with blockOwnerDeletion, where the cluster enforces that permission",
    },
    Right {
        group: "",
        resource: "pods",
        verbs: &["get", "list", "watch", "create", "delete"],
        why: "run each performer's one pod and replace it; a pod is never changed in place",
    },
    Right {
        group: "",
        resource: "services",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "keep each performer's one Service; patch only the fields that are ours",
    },
];
