//! What the workspaces layer may do in the cluster.

use k8s_openapi::{
    api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use runtime::rights::Right;

/// What helm needs to act without a ServiceAccount of the release's own.
pub const HELM_ROLE: &str = "strata-helm";

/// A chart may hold anything, so this is everything. Bound to the operator it lets any release do anything; see the
/// security notes.
pub fn helm_role() -> ClusterRole {
    let all = || Some(vec!["*".to_owned()]);
    let rule = PolicyRule { api_groups: all(), resources: all(), verbs: vec!["*".to_owned()], ..PolicyRule::default() };
    let metadata = ObjectMeta { name: Some(HELM_ROLE.to_owned()), ..ObjectMeta::default() };
    ClusterRole { metadata, rules: Some(vec![rule]), ..ClusterRole::default() }
}

/// Lets helm act as the operator's ServiceAccount.
pub fn helm_binding(namespace: &str, account: &str) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: ObjectMeta { name: Some(HELM_ROLE.to_owned()), ..ObjectMeta::default() },
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "ClusterRole".to_owned(),
            name: HELM_ROLE.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: account.to_owned(),
            namespace: Some(namespace.to_owned()),
            ..Subject::default()
        }]),
    }
}

const GROUP: &str = api::workspace::GROUP;

/// Needed in every namespace that may hold releases, Workspaces and Users.
pub const CLUSTER: &[Right] = &[
    Right {
        group: GROUP,
        resource: "workspaces",
        verbs: &["get", "list", "watch", "patch"],
        why: "read the desired state; add and remove our finalizer",
    },
    Right {
        group: GROUP,
        resource: "users",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "derive one User per person of a workspace; read the desired state of each",
    },
    Right {
        group: GROUP,
        resource: "helmreleases",
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "read the desired state; add and remove our finalizer; derive one HelmRelease per service of a workspace",
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
        why: "watch values by their metadata, and read them; keep configs of workspaces under names with their hash",
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
        why: "check that the account that helm acts as exists; give each code-server an identity of its own",
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
    Right {
        group: GROUP,
        resource: "helmreleases/status",
        verbs: &["patch"],
        why: "report conditions, history and what helm said",
    },
    Right {
        group: "",
        resource: "serviceaccounts/token",
        verbs: &["create"],
        why: "act as the ServiceAccount that a release names, and as nothing else",
    },
    Right {
        group: "authorization.k8s.io",
        resource: "selfsubjectaccessreviews",
        verbs: &["create"],
        why: "find out whether helm may act as the operator, that is, whether the ClusterRole strata-helm is bound",
    },
];
