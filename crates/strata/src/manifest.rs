//! `strata crd` and `strata rbac`: what a cluster must be given before the operator can work.

use clap::Args;
use runtime::rights::{DEFAULT_LEASE, layer_role, rbac};
use serde::Serialize;

use crate::{Failure, layers};

#[derive(Debug, Args)]
pub struct RbacFlags {
    /// Namespace of the operator
    #[arg(long, short, default_value = "strata-system")]
    namespace: String,
    /// Name of the ServiceAccount and of the roles
    #[arg(long, default_value = "strata")]
    name: String,
    /// Name of the lease that the operator holds, its --lease-name
    #[arg(long, default_value = DEFAULT_LEASE, value_name = "NAME")]
    lease_name: String,
}

pub fn print_crds() -> Result<(), Failure> {
    layers::crds().iter().try_for_each(print)
}

pub fn print_rbac(flags: &RbacFlags) -> Result<(), Failure> {
    let rbac = rbac(&flags.namespace, &flags.name, &layers::rights()).with_lease(&flags.lease_name);
    print(&rbac.account)?;
    print(&rbac.cluster_role)?;
    print(&rbac.cluster_binding)?;
    print(&rbac.role)?;
    print(&rbac.binding)?;
    for spec in layers::all().filter(|spec| !spec.own_namespace.is_empty()) {
        let (role, binding) = layer_role(&flags.namespace, &flags.name, spec.name, spec.own_namespace);
        print(&role)?;
        print(&binding)?;
    }
    layers::roles().iter().try_for_each(print)?;
    for account in layers::all().flat_map(|spec| spec.accounts) {
        let (account, binding) = account.objects(&flags.namespace);
        print(&account)?;
        print(&binding)?;
    }
    Ok(())
}

fn print<T: Serialize>(object: &T) -> Result<(), Failure> {
    let yaml = serde_saphyr::to_string(object).map_err(|error| Failure::new(format!("cannot print: {error}")))?;
    anstream::println!("---\n{}", yaml.trim_end());
    Ok(())
}
