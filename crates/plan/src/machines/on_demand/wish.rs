//! What a Pod asks for.

use std::collections::{BTreeMap, BTreeSet};

use api::machine::{
    OLD_ON_DEMAND_GROUP_ANNOTATION, OLD_ON_DEMAND_TYPE_ANNOTATION, ON_DEMAND_GROUP_ANNOTATION,
    ON_DEMAND_SHARD_ANNOTATION, ON_DEMAND_TYPE_ANNOTATION,
};
use k8s_openapi::api::core::v1::{Affinity, NodeSelectorTerm};
use serde::{Deserialize, Serialize};

/// By which a Pod says where it wants to be.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// What a Pod asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    pub group: String,
    /// Another group that the older annotation names. It does not count.
    pub ignored: Option<String>,
    pub instance_type: Option<String>,
    /// The shard that it names.
    pub shard: Option<String>,
    /// The zones that it may run in, where it says so. They count where they are names of shards.
    pub zones: BTreeSet<String>,
}

impl Wish {
    /// Whether a Pod with these annotations asks for anything.
    pub fn is_in(annotations: &BTreeMap<String, String>) -> bool {
        group(annotations).is_some()
    }

    pub fn read(
        annotations: &BTreeMap<String, String>,
        node_selector: Option<&BTreeMap<String, String>>,
        affinity: Option<&Affinity>,
    ) -> Option<Self> {
        let old = value(annotations, OLD_ON_DEMAND_GROUP_ANNOTATION);
        let group = group(annotations)?;
        let ignored = old.filter(|old| *old != group);
        let types = [ON_DEMAND_TYPE_ANNOTATION, OLD_ON_DEMAND_TYPE_ANNOTATION];
        Some(Self {
            instance_type: types.iter().find_map(|name| value(annotations, name)),
            shard: value(annotations, ON_DEMAND_SHARD_ANNOTATION),
            zones: zones(node_selector, affinity),
            group,
            ignored,
        })
    }
}

fn group(annotations: &BTreeMap<String, String>) -> Option<String> {
    value(annotations, ON_DEMAND_GROUP_ANNOTATION).or_else(|| value(annotations, OLD_ON_DEMAND_GROUP_ANNOTATION))
}

/// One that is empty says nothing.
fn value(annotations: &BTreeMap<String, String>, name: &str) -> Option<String> {
    annotations.get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn zones(node_selector: Option<&BTreeMap<String, String>>, affinity: Option<&Affinity>) -> BTreeSet<String> {
    if let Some(zone) = node_selector.and_then(|selector| selector.get(ZONE_LABEL)) {
        return [zone.clone()].into();
    }
    let required = affinity
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.map(|required| required.node_selector_terms.as_slice()).unwrap_or_default();
    // One of the terms has to hold: if one leaves the zone open, all are allowed.
    let each: Option<Vec<BTreeSet<String>>> = terms.iter().map(zones_of).collect();
    each.unwrap_or_default().into_iter().flatten().collect()
}

fn zones_of(term: &NodeSelectorTerm) -> Option<BTreeSet<String>> {
    let requirements = term.match_expressions.iter().flatten();
    let mut zones = requirements.filter(|one| one.key == ZONE_LABEL && one.operator == "In");
    zones.next().map(|one| one.values.iter().flatten().cloned().collect())
}
