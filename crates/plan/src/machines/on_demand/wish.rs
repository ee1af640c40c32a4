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
/// Of everything in Kubernetes that has a name.
const LONGEST_NAME: usize = 253;
/// Many times what a provider has. A Pod may name a quarter of a million, and all that wait are kept in memory.
const MOST_ZONES: usize = 100;

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

/// One that is empty says nothing. One that is too long for a name is cut: it names nothing, and is shown to users.
fn value(annotations: &BTreeMap<String, String>, name: &str) -> Option<String> {
    annotations.get(name).map(|value| cut(value.trim())).filter(|value| !value.is_empty())
}

fn cut(value: &str) -> String {
    value.chars().take(LONGEST_NAME).collect()
}

fn zones(node_selector: Option<&BTreeMap<String, String>>, affinity: Option<&Affinity>) -> BTreeSet<String> {
    if let Some(zone) = node_selector.and_then(|selector| selector.get(ZONE_LABEL)) {
        return [cut(zone)].into();
    }
    let required = affinity
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.map(|required| required.node_selector_terms.as_slice()).unwrap_or_default();
    // One of the terms has to hold: if one leaves the zone open, all are allowed.
    let each: Option<Vec<BTreeSet<String>>> = terms.iter().map(zones_of).collect();
    each.unwrap_or_default().into_iter().flatten().take(MOST_ZONES).collect()
}

fn zones_of(term: &NodeSelectorTerm) -> Option<BTreeSet<String>> {
    let requirements = term.match_expressions.iter().flatten();
    let mut zones = requirements.filter(|one| one.key == ZONE_LABEL && one.operator == "In");
    zones.next().map(|one| one.values.iter().flatten().take(MOST_ZONES).map(|zone| cut(zone)).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_kept_of_a_pod_is_small_whatever_it_says() {
        let annotations = [(ON_DEMAND_GROUP_ANNOTATION.to_owned(), "g".repeat(200_000))].into();
        let zones: Vec<_> = (0..1000).map(|number| format!("zone-{number:04}{}", "z".repeat(1000))).collect();
        let term = json!({ "matchExpressions": [{ "key": ZONE_LABEL, "operator": "In", "values": zones }] });
        let required = json!({ "nodeSelectorTerms": vec![term; 3] });
        let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } });
        let affinity: Affinity = serde_json::from_value(affinity).unwrap();
        let wish = Wish::read(&annotations, None, Some(&affinity)).unwrap();
        assert_eq!((wish.group.len(), wish.zones.len()), (LONGEST_NAME, MOST_ZONES));
        assert!(wish.zones.iter().all(|zone| zone.len() == LONGEST_NAME));
    }
}
