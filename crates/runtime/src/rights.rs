//! What the operator may do in the cluster, as data: roles, `strata rbac`, the chart and the
//! security page are all made from it, and a test compares it with the audit log.

use k8s_openapi::{
    api::{
        core::v1::ServiceAccount,
        rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// Verbs on one resource, with the reason for having them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    pub group: &'static str,
    pub resource: &'static str,
    pub verbs: &'static [&'static str],
    pub why: &'static str,
}

impl Right {
    pub fn rule(&self) -> PolicyRule {
        PolicyRule {
            api_groups: Some(vec![self.group.to_owned()]),
            resources: Some(vec![self.resource.to_owned()]),
            verbs: self.verbs.iter().map(|&verb| verb.to_owned()).collect(),
            ..PolicyRule::default()
        }
    }
}

/// Needed in the whole cluster, whichever layers run.
pub const CLUSTER: &[Right] = &[Right {
    group: "events.k8s.io",
    resource: "events",
    verbs: &["create"],
    why: "tell what happened to an object; one event per transition, never changed afterwards",
}];

/// Needed in the operator's own namespace only.
pub const OWN_NAMESPACE: &[Right] = &[Right {
    group: "coordination.k8s.io",
    resource: "leases",
    verbs: &["get", "list", "watch", "create", "update"],
    why: "elect the one replica that acts, renew and release its lease, and see another's release at once",
}];

/// Everything the operator is allowed to do, and the account that is allowed to.
pub struct Rbac {
    pub account: ServiceAccount,
    pub cluster_role: ClusterRole,
    pub cluster_binding: ClusterRoleBinding,
    pub role: Role,
    pub binding: RoleBinding,
}

impl Rbac {
    /// All of it, in the order in which it is to be applied.
    pub fn objects(&self) -> [serde_json::Value; 5] {
        use serde_json::json;
        [
            json!(self.account),
            json!(self.cluster_role),
            json!(self.cluster_binding),
            json!(self.role),
            json!(self.binding),
        ]
    }
}

/// `layers` are the rights that the layers add to those of the runtime.
pub fn rbac(namespace: &str, name: &str, layers: &[Right]) -> Rbac {
    let lease_name = format!("{name}-lease");
    let cluster_wide = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let namespaced = |name: &str| ObjectMeta { namespace: Some(namespace.to_owned()), ..cluster_wide(name) };
    let role_ref = |kind: &str, name: &str| RoleRef {
        api_group: "rbac.authorization.k8s.io".to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
    };
    let subjects = || {
        Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: name.to_owned(),
            namespace: Some(namespace.to_owned()),
            ..Subject::default()
        }])
    };
    let cluster_rights = layers.iter().chain(CLUSTER);
    Rbac {
        account: ServiceAccount { metadata: namespaced(name), ..ServiceAccount::default() },
        cluster_role: ClusterRole {
            metadata: cluster_wide(name),
            rules: Some(cluster_rights.map(Right::rule).collect()),
            ..ClusterRole::default()
        },
        cluster_binding: ClusterRoleBinding {
            metadata: cluster_wide(name),
            role_ref: role_ref("ClusterRole", name),
            subjects: subjects(),
        },
        role: Role { metadata: namespaced(&lease_name), rules: Some(OWN_NAMESPACE.iter().map(Right::rule).collect()) },
        binding: RoleBinding {
            metadata: namespaced(&lease_name),
            role_ref: role_ref("Role", &lease_name),
            subjects: subjects(),
        },
    }
}
