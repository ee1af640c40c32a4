//! `strata crd` and `strata rbac`: what a cluster must be given before the operator can work.

use clap::Args;
use k8s_openapi::{
    api::{
        core::v1::ServiceAccount,
        rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use runtime::rights::{self, Right};
use serde::Serialize;

use crate::Failure;

#[derive(Debug, Args)]
pub struct RbacFlags {
    /// Namespace of the operator
    #[arg(long, short, default_value = "strata-system")]
    namespace: String,
    /// Name of the ServiceAccount and of the roles
    #[arg(long, default_value = "strata")]
    name: String,
}

pub fn print_crds() -> Result<(), Failure> {
    print(&api::performer::crd())
}

pub fn print_rbac(flags: &RbacFlags) -> Result<(), Failure> {
    let rbac = rbac(&flags.namespace, &flags.name);
    print(&rbac.account)?;
    print(&rbac.cluster_role)?;
    print(&rbac.cluster_binding)?;
    print(&rbac.role)?;
    print(&rbac.binding)
}

/// Everything the operator is allowed to do, and the account that is allowed to.
pub struct Rbac {
    pub account: ServiceAccount,
    pub cluster_role: ClusterRole,
    pub cluster_binding: ClusterRoleBinding,
    pub role: Role,
    pub binding: RoleBinding,
}

pub fn rbac(namespace: &str, name: &str) -> Rbac {
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
    let cluster_rights = performers::rights::CLUSTER.iter().chain(rights::CLUSTER);
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
        role: Role {
            metadata: namespaced(&lease_name),
            rules: Some(rights::OWN_NAMESPACE.iter().map(Right::rule).collect()),
        },
        binding: RoleBinding {
            metadata: namespaced(&lease_name),
            role_ref: role_ref("Role", &lease_name),
            subjects: subjects(),
        },
    }
}

fn print(object: &impl Serialize) -> Result<(), Failure> {
    let yaml = serde_saphyr::to_string(object).map_err(|error| Failure::new(format!("cannot print: {error}")))?;
    anstream::println!("---\n{}", yaml.trim_end());
    Ok(())
}
