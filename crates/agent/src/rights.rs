//! What an agent may do in the cluster: Nodes and their Leases, and nothing else.

use k8s_openapi::{
    api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::node::LEASES;

/// Of the roles and their bindings.
const NAME: &str = "strata-agent";

/// The roles and who has them.
pub struct Rights {
    pub cluster_role: ClusterRole,
    pub cluster_binding: ClusterRoleBinding,
    pub role: Role,
    pub binding: RoleBinding,
}

const GROUP: &str = "rbac.authorization.k8s.io";

/// For one user.
pub fn rights(user: &str) -> Rights {
    let subject =
        Subject { api_group: Some(GROUP.to_owned()), kind: "User".to_owned(), name: user.to_owned(), namespace: None };
    let reference = |kind: &str| RoleRef { api_group: GROUP.to_owned(), kind: kind.to_owned(), name: NAME.to_owned() };
    let in_cluster = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
    let with_leases = ObjectMeta { namespace: Some(LEASES.to_owned()), ..in_cluster.clone() };
    let nodes = [
        // Deletes its own when its machine is deleted.
        rule("", "nodes", &["get", "create", "patch", "delete"]),
        rule("", "nodes/status", &["patch"]),
    ];
    // An apply that creates needs both; the owner of a Lease may be changed only by who may delete it.
    let leases = [rule("coordination.k8s.io", "leases", &["create", "patch", "delete"])];
    Rights {
        cluster_role: ClusterRole {
            metadata: in_cluster.clone(),
            rules: Some(nodes.to_vec()),
            ..ClusterRole::default()
        },
        cluster_binding: ClusterRoleBinding {
            metadata: in_cluster,
            role_ref: reference("ClusterRole"),
            subjects: Some(vec![subject.clone()]),
        },
        role: Role { metadata: with_leases.clone(), rules: Some(leases.to_vec()) },
        binding: RoleBinding { metadata: with_leases, role_ref: reference("Role"), subjects: Some(vec![subject]) },
    }
}

fn rule(group: &str, resource: &str, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
        ..PolicyRule::default()
    }
}
