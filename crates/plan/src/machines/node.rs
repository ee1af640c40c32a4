//! Which Node is which instance.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

/// A Node as far as it names its instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeRef {
    pub name: String,
    /// `spec.providerID`.
    pub provider_id: String,
}

/// The Nodes of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    Nothing,
    Node(&'a NodeRef),
    /// Several claim to be it, and none is believed.
    Ambiguous(Vec<&'a NodeRef>),
}

/// The last part of a provider ID, by which Nodes are looked up: `i-1` of `aws:///zone/i-1`.
pub fn last_segment(provider_id: &str) -> &str {
    provider_id.rsplit('/').next().unwrap_or_default()
}

/// Whether a shard's ID and a Node's name the same instance. A shard has the provider's own ID, a Node one with scheme
/// and place before it.
pub fn is_same(shard: &str, node: &str) -> bool {
    if shard.is_empty() || node.is_empty() {
        return false;
    }
    shard == node || (node.contains("://") && last_segment(node) == shard)
}

/// The Node of an instance by any of the IDs that are known of it.
pub fn find<'a>(ids: &[&str], nodes: &'a [NodeRef]) -> Found<'a> {
    Found::of(nodes.iter().filter(|node| ids.iter().any(|id| is_same(id, &node.provider_id))).collect())
}

impl<'a> Found<'a> {
    pub fn of(nodes: Vec<&'a NodeRef>) -> Self {
        match nodes.as_slice() {
            [] => Self::Nothing,
            [node] => Self::Node(node),
            _ => Self::Ambiguous(nodes),
        }
    }
}

/// Places of Nodes' IDs in a list, by all that [`is_same`] takes for them: a group has as many instances as Nodes, and to
/// compare all with all takes seconds with a thousand.
pub struct Places<'a>(HashMap<&'a str, Vec<usize>>);

impl<'a> Places<'a> {
    pub fn new(ids: impl IntoIterator<Item = &'a str>) -> Self {
        let mut places: HashMap<_, Vec<usize>> = HashMap::new();
        for (place, id) in ids.into_iter().enumerate().filter(|(_, id)| !id.is_empty()) {
            places.entry(id).or_default().push(place);
            if id.contains("://") {
                places.entry(last_segment(id)).or_default().push(place);
            }
        }
        Self(places)
    }

    /// Of those that are the same as one of these, in their order.
    pub fn of(&self, ids: &[&str]) -> BTreeSet<usize> {
        ids.iter().filter(|id| !id.is_empty()).filter_map(|id| self.0.get(id)).flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a56_ids_match_whole_or_by_their_last_part() {
        for (shard, node, expected) in [
            ("i-1", "i-1", true),
            ("i-1", "aws:///eu-1a/i-1", true),
            ("i-1", "aws://account/eu-1a/i-1", true),
            ("vm", "gce://project/zone/vm", true),
            ("nstance-agent-x", "dev:///nstance-agent-x", true),
            ("process:///s/x", "process:///s/x", true),
            ("process:///s/x", "process:///t/x", false),
            ("i-1", "aws:///eu-1a/i-12", false),
            ("i-1", "zone/i-1", false),
            ("", "", false),
            ("", "aws:///", false),
            ("i-1", "", false),
        ] {
            assert_eq!(is_same(shard, node), expected, "{shard:?} {node:?}");
            assert_eq!(!Places::new([node]).of(&[shard]).is_empty(), expected, "{shard:?} {node:?}");
        }
    }

    #[test]
    fn a56_a_node_is_believed_only_where_it_is_the_only_one() {
        let node = |name: &str, provider_id: &str| NodeRef { name: name.into(), provider_id: provider_id.into() };
        let nodes = [node("a", "aws:///z/i-1"), node("b", "aws:///z/i-2"), node("c", "gce://p/z/i-2")];
        assert_eq!(find(&["i-1", ""], &nodes), Found::Node(&nodes[0]));
        assert_eq!(find(&["", "aws:///z/i-1"], &nodes), Found::Node(&nodes[0]));
        assert_eq!(find(&["i-2", ""], &nodes), Found::Ambiguous(vec![&nodes[1], &nodes[2]]));
        assert_eq!(find(&["i-3", ""], &nodes), Found::Nothing);
        assert_eq!(find(&["", ""], &nodes), Found::Nothing);
    }
}
