//! `strata crd` and `strata rbac`: what a cluster must be given before the operator can work.

use clap::Args;
use runtime::{
    LayerSpec,
    rights::{DEFAULT_LEASE, Right, layer_role, rbac},
};
use serde::Serialize;

use crate::{Failure, config::layer, layers};

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
    /// Layers that the operator runs, separated by commas, its --layers [default: all]
    #[arg(long, value_parser = layer(), value_delimiter = ',')]
    layers: Option<Vec<&'static str>>,
}

impl RbacFlags {
    fn layers(&self) -> impl Iterator<Item = &'static LayerSpec> {
        let is_wanted = |spec: &&LayerSpec| self.layers.as_ref().is_none_or(|names| names.contains(&spec.name));
        layers::all().filter(is_wanted)
    }
}

pub fn print_crds() -> Result<(), Failure> {
    layers::crds().iter().try_for_each(print)
}

pub fn print_rbac(flags: &RbacFlags) -> Result<(), Failure> {
    let rights: Vec<Right> = flags.layers().flat_map(|spec| spec.rights).copied().collect();
    let rbac = rbac(&flags.namespace, &flags.name, &rights).with_lease(&flags.lease_name);
    print(&rbac.account)?;
    print(&rbac.cluster_role)?;
    print(&rbac.cluster_binding)?;
    print(&rbac.role)?;
    print(&rbac.binding)?;
    for spec in flags.layers().filter(|spec| !spec.own_namespace.is_empty()) {
        let (role, binding) = layer_role(&flags.namespace, &flags.name, spec.name, spec.own_namespace);
        print(&role)?;
        print(&binding)?;
    }
    flags.layers().flat_map(|spec| (spec.roles)()).try_for_each(|role| print(&role))?;
    for account in flags.layers().flat_map(|spec| spec.accounts) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_of_the_layers_that_are_named() {
        let names = |layers| {
            let flags = RbacFlags { namespace: "n".into(), name: "s".into(), lease_name: "l".into(), layers };
            flags.layers().map(|spec| spec.name).collect::<Vec<_>>()
        };
        assert_eq!(names(None), layers::all().map(|spec| spec.name).collect::<Vec<_>>());
        assert_eq!(names(Some(vec!["performers"])), ["performers"]);
    }
}
