//! Which layers there are: the one list, from which come `--layers`, `strata crd`, `strata rbac`, the chart's roles and
//! schema, and the folders of `examples`.

pub(crate) mod machines;
pub(crate) mod performers;
pub(crate) mod workspaces;

use k8s_openapi::{
    api::rbac::v1::ClusterRole, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::Config as ClientConfig;
use runtime::{LayerSpec, Operator, rights::Right};

use crate::{Failure, config::Values};

/// A layer, and how the settings of this process become its own.
pub(crate) struct Layer {
    pub spec: LayerSpec,
    /// Whether it runs where no layer is named: one that is no default does so where it is configured.
    pub is_configured: fn(&Values) -> bool,
    pub install: fn(&mut Operator, &Values, &ClientConfig) -> Result<(), Failure>,
}

/// In the order in which they are installed and printed.
pub(crate) const LAYERS: &[Layer] = &[performers::LAYER, workspaces::LAYER, machines::LAYER];

/// What each layer is to the outside.
pub fn all() -> impl Iterator<Item = &'static LayerSpec> {
    LAYERS.iter().map(|layer| &layer.spec)
}

/// The definitions of every kind that users write.
pub fn crds() -> Vec<CustomResourceDefinition> {
    all().flat_map(|spec| (spec.crds)()).collect()
}

/// What all layers together may do.
pub fn rights() -> Vec<Right> {
    all().flat_map(|spec| spec.rights).copied().collect()
}

/// Roles that an administrator may bind beside those rights.
pub fn roles() -> Vec<ClusterRole> {
    all().flat_map(|spec| (spec.roles)()).collect()
}

/// The layer's own name for what a user wrote.
pub(crate) fn known(name: &str) -> Result<&'static str, String> {
    let found = all().map(|spec| spec.name).find(|known| *known == name);
    found.ok_or_else(|| {
        let known: Vec<_> = all().map(|spec| spec.name).collect();
        format!("{name:?} is not a layer: write {}", known.join(", "))
    })
}

/// Whether a layer runs: it is named, or none is named and it runs by default or is configured.
fn is_wanted(spec: &LayerSpec, named: Option<&[&str]>, is_configured: bool) -> bool {
    named.map_or(spec.is_default || is_configured, |named| named.contains(&spec.name))
}

/// Installs the layers that `values` ask for.
pub(crate) fn install(operator: &mut Operator, values: &Values, client: &ClientConfig) -> Result<(), Failure> {
    let named = values.layers.as_deref();
    let is_wanted = |layer: &&Layer| is_wanted(&layer.spec, named, (layer.is_configured)(values));
    for layer in LAYERS.iter().filter(is_wanted) {
        // A process that was started for this layer alone has nothing to do without its definitions.
        let is_alone = !layer.spec.is_default && named == Some(&[layer.spec.name]);
        if layer.spec.demands_definitions || is_alone {
            operator.demanding_layer(layer.spec.name);
        } else {
            operator.layer(layer.spec.name);
        }
        operator.foreign_definitions(layer.spec.foreign);
        (layer.install)(operator, values, client)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn layers_differ_in_name_and_in_kinds() {
        let names: BTreeSet<_> = all().map(|spec| spec.name).collect();
        assert_eq!(names.len(), LAYERS.len());
        let kinds: BTreeSet<_> = crds().into_iter().map(|crd| crd.metadata.name).collect();
        assert_eq!(kinds.len(), crds().len());
    }

    #[test]
    fn a_layer_that_is_no_default_runs_where_it_is_named_or_configured() {
        let default = ::performers::LAYER;
        let other = LayerSpec { name: "machines", is_default: false, ..default };
        for (named, is_configured, runs) in [
            (None, false, [true, false]),
            (None, true, [true, true]),
            (Some(["machines"].as_slice()), false, [false, true]),
            (Some(&["performers"]), true, [true, false]),
            (Some(&["machines", "performers"]), false, [true, true]),
        ] {
            assert_eq!([&default, &other].map(|spec| is_wanted(spec, named, is_configured)), runs, "{named:?}");
        }
    }

    #[test]
    fn every_kind_of_a_layer_is_among_its_rights() {
        for spec in all() {
            // What has no status is a template, which Cluster API copies and no layer follows.
            let has_status = |crd: &CustomResourceDefinition| {
                let mut subresources = crd.spec.versions.iter().filter_map(|version| version.subresources.as_ref());
                subresources.any(|subresources| subresources.status.is_some())
            };
            for crd in (spec.crds)().into_iter().filter(has_status) {
                let is_watched = |right: &Right| {
                    (right.group, right.resource) == (&crd.spec.group, &crd.spec.names.plural)
                        && right.verbs.contains(&"watch")
                };
                assert!(
                    spec.rights.iter().chain(spec.own_namespace).any(is_watched),
                    "{} of {}",
                    crd.spec.names.plural,
                    spec.name
                );
            }
        }
    }

    #[test]
    fn roles_beside_the_rights_are_named_as_ours() {
        for role in roles() {
            let name = role.metadata.name.unwrap();
            assert!(name.starts_with("strata-"), "{name}");
        }
    }

    #[test]
    fn an_unknown_layer_is_answered_with_the_known_ones() {
        assert_eq!(known("workspaces"), Ok("workspaces"));
        assert_eq!(known("machine").unwrap_err(), "\"machine\" is not a layer: write performers, workspaces, machines");
    }
}
