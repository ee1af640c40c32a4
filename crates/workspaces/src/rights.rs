//! What the workspaces layer may do in the cluster.

use runtime::rights::Right;

const GROUP: &str = api::workspace::GROUP;

/// For Workspaces and Users, in every namespace that may hold them.
pub const TEAMS: &[Right] = &[
    Right {
        group: GROUP,
        resource: "workspaces",
        verbs: &["get", "list", "watch", "patch"],
        why: "see what is wanted; add and remove our finalizer",
    },
    Right {
        group: GROUP,
        resource: "users",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "derive one User per person of a workspace; see what is wanted for each",
    },
    Right {
        group: GROUP,
        resource: "helmreleases",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "derive one HelmRelease per service of a workspace; see how it is doing",
    },
    Right { group: GROUP, resource: "workspaces/status", verbs: &["patch"], why: "report phase and conditions" },
    Right { group: GROUP, resource: "users/status", verbs: &["patch"], why: "report phase and conditions" },
    Right {
        group: "",
        resource: "secrets",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "keep configs and passwords under names with their hash; lists and watches ask for metadata only, and what \
              a config takes from is read by name",
    },
    Right {
        group: "",
        resource: "configmaps",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "keep configs under names with their hash; lists and watches ask for metadata only",
    },
    Right {
        group: "",
        resource: "namespaces",
        verbs: &["get", "list", "watch"],
        why: "make nothing in a namespace that is being deleted, and hold nothing there",
    },
    Right {
        group: "discovery.k8s.io",
        resource: "endpointslices",
        verbs: &["list", "watch"],
        why: "open an isolated workspace's way to the API server, by its addresses",
    },
    Right {
        group: "networking.k8s.io",
        resource: "networkpolicies",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "isolate workspaces",
    },
    Right {
        group: "networking.k8s.io",
        resource: "ingresses",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "expose services and code-servers",
    },
    Right {
        group: "apps",
        resource: "statefulsets",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "run one code-server per user",
    },
    Right {
        group: "",
        resource: "services",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "reach each code-server",
    },
    Right {
        group: "",
        resource: "serviceaccounts",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "give each code-server an identity of its own",
    },
    Right {
        group: "rbac.authorization.k8s.io",
        resource: "roles",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "let each user look at the own pod, and at no other",
    },
    Right {
        group: "rbac.authorization.k8s.io",
        resource: "rolebindings",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "let each user look at the own pod, and at no other",
    },
    Right {
        group: "",
        resource: "pods",
        verbs: &["get", "list", "watch"],
        why: "say why a code-server does not start; get is also held to pass it on to users for their own pod",
    },
    Right {
        group: "",
        resource: "pods/log",
        verbs: &["get"],
        why: "never used: held only to pass it on to users for their own pod",
    },
    Right {
        group: "",
        resource: "persistentvolumeclaims",
        verbs: &["get", "list", "watch", "delete"],
        why: "remove a user's volume with the user, where the spec says so",
    },
];
