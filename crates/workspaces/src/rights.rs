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

/// Needed in every namespace that may hold releases.
pub const CLUSTER: &[Right] = &[
    Right {
        group: "workspaces.strata.dev",
        resource: "helmreleases",
        verbs: &["get", "list", "watch", "patch"],
        why: "see what is wanted; add and remove our finalizer",
    },
    Right {
        group: "workspaces.strata.dev",
        resource: "helmreleases/status",
        verbs: &["patch"],
        why: "report conditions, history and what helm said",
    },
    Right {
        group: "",
        resource: "secrets",
        verbs: &["get", "list", "watch", "patch"],
        why: "watch Helm's storage and values by their metadata; read values, repository credentials and the newest revision; mark a revision that a dead process left unfinished as failed",
    },
    Right {
        group: "",
        resource: "configmaps",
        verbs: &["get", "list", "watch"],
        why: "watch values by their metadata, and read them",
    },
    Right {
        group: "",
        resource: "serviceaccounts",
        verbs: &["get"],
        why: "tell whether the account that helm is to act as is there",
    },
    Right {
        group: "",
        resource: "serviceaccounts/token",
        verbs: &["create"],
        why: "act as the ServiceAccount that a release names, and as nothing else",
    },
    Right {
        group: "",
        resource: "namespaces",
        verbs: &["get"],
        why: "tell a namespace that is going from a release that cannot be uninstalled",
    },
    Right {
        group: "authorization.k8s.io",
        resource: "selfsubjectaccessreviews",
        verbs: &["create"],
        why: "find out whether helm may act as the operator, that is, whether the ClusterRole strata-helm is bound",
    },
];
