//! What a shard says of one group, and what it is asked for.

use std::collections::BTreeMap;

use api::machine::{GroupConfig, NstanceShardGroupSpec};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::node::{Found, NodeRef, Places};
use crate::fact::{Class, Fact, Failure};
use crate::round::Peer;
use crate::shard::instance::MachineStatus;

/// One successful answer of a shard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Counts the full lists that the shard has given: an event in between does not raise it.
    pub poll: u64,
    /// `None` where the shard does not have the group.
    pub group: Option<Group>,
}

/// A group as its shard has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Group {
    pub template: String,
    pub instance_type: String,
    pub subnet_pool: String,
    pub vars: BTreeMap<String, String>,
    pub size: i32,
    pub is_static: bool,
    pub members: Members,
}

/// What to do about what a shard has and the pool does not declare.
pub(super) const UNDECLARED_REMEDY: &str = "which no request can clear: set other values, or delete the pool";

/// What a shard has of a group beside what is declared, in words: an upsert adds and changes, and clears nothing. Of a
/// static group it is the configuration's, and nothing is said.
pub(super) fn undeclared(spec: &NstanceShardGroupSpec, config: &GroupConfig, is_static: bool) -> Option<String> {
    let has_type = spec.instance_type.as_ref().is_some_and(|name| !name.is_empty());
    let instance_type = config.instance_type.as_ref().filter(|_| !has_type);
    let names = config.vars.keys().filter(|name| !spec.vars.contains_key(*name));
    let vars = names.map(String::as_str).collect::<Vec<_>>().join(", ");
    let vars = (!vars.is_empty()).then(|| format!("the vars {vars}"));
    let words: Vec<_> = instance_type.map(|name| format!("the instance type {name}")).into_iter().chain(vars).collect();
    (!is_static && !words.is_empty()).then(|| words.join(" and "))
}

/// The instances of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Members {
    /// Of a server that names each.
    Listed(Vec<Instance>),
    /// Of a server of the original, which gives provider IDs alone.
    Counted(Vec<String>),
}

impl Default for Members {
    fn default() -> Self {
        Self::Listed(Vec::new())
    }
}

/// One instance of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    pub id: String,
    /// The provider's own; empty until it answered.
    pub provider_id: String,
    /// As the Node will have it; empty if the server does not know.
    pub node_provider_id: String,
    pub status: MachineStatus,
    pub created_at: Option<Timestamp>,
    /// The server has begun to delete it.
    pub is_leaving: bool,
}

impl Instance {
    pub fn ids(&self) -> [&str; 2] {
        [&self.provider_id, &self.node_provider_id]
    }

    /// All that the provider ID of its Node may end with: some providers name machines by the instance.
    pub fn names(&self) -> [&str; 3] {
        [&self.id, &self.provider_id, &self.node_provider_id]
    }

    /// Whether it still counts for the size of its group.
    pub fn is_living(&self) -> bool {
        !self.is_leaving && !matches!(self.status, MachineStatus::Deleting | MachineStatus::Deleted)
    }
}

impl Group {
    pub fn instances(&self) -> &[Instance] {
        match &self.members {
            Members::Listed(instances) => instances,
            Members::Counted(_) => &[],
        }
    }

    /// How many instances there are: one that its provider has not made is none.
    pub fn made(&self) -> i32 {
        let count = match &self.members {
            Members::Listed(instances) => {
                instances.iter().filter(|one| one.is_living() && !one.provider_id.is_empty()).count()
            }
            Members::Counted(ids) => ids.len(),
        };
        i32::try_from(count).unwrap_or(i32::MAX)
    }

    pub fn config(&self) -> GroupConfig {
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        GroupConfig {
            template: text(&self.template),
            subnet_pool: text(&self.subnet_pool),
            instance_type: text(&self.instance_type),
            vars: self.vars.clone(),
        }
    }

    /// Provider IDs as they are published, sorted. One that was published in the form of its Node stays so: Cluster API
    /// deletes the Node of an ID that changes.
    pub fn provider_ids(&self, former: &[String], nodes: &[NodeRef]) -> Vec<String> {
        let kept: Vec<&String> = former.iter().filter(|id| id.contains("://")).collect();
        let kept_places = Places::new(kept.iter().map(|id| id.as_str()));
        let node_places = Places::new(nodes.iter().map(|node| node.provider_id.as_str()));
        let published = |ids: [&str; 2]| {
            let [raw, node] = ids;
            let kept = kept_places.of(&ids).first().map(|place| kept[*place]);
            let found = || match Found::of(node_places.of(&ids).into_iter().map(|place| &nodes[place]).collect()) {
                Found::Node(node) => Some(node.provider_id.clone()),
                Found::Nothing | Found::Ambiguous(_) => None,
            };
            kept.cloned().or_else(found).unwrap_or_else(|| if node.is_empty() { raw } else { node }.to_owned())
        };
        let mut ids: Vec<String> = match &self.members {
            Members::Listed(instances) => {
                let counted = instances.iter().filter(|instance| {
                    !matches!(instance.status, MachineStatus::Deleting | MachineStatus::Deleted)
                        && !instance.provider_id.is_empty()
                });
                counted.map(|instance| published(instance.ids())).collect()
            }
            Members::Counted(ids) => ids.iter().filter(|id| !id.is_empty()).map(|id| published([id, ""])).collect(),
        };
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// A shard as the operator sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Shard {
    /// The operator's configuration does not have it.
    Unconfigured,
    Configured(Fact<Answer>),
}

impl Default for Shard {
    /// Never asked.
    fn default() -> Self {
        let why = Failure { class: Class::Transient, message: "not connected yet".to_owned() };
        Self::Configured(Fact::Unknown { why, last: None })
    }
}

impl Shard {
    /// What the shard says now; nothing of what it said before it became silent.
    pub fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Configured(fact) => fact.known().ok(),
            Self::Unconfigured => None,
        }
    }

    pub fn is_silent(&self) -> bool {
        matches!(self, Self::Configured(Fact::Unknown { .. }))
    }
}

/// The peer of steps that call a shard: one that is silent stops no other.
pub fn peer(shard: &str) -> Peer {
    Peer(format!("shard {shard}").into())
}

/// How a call to a shard ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Accepted,
    /// The same call will be refused again: in the shard's words.
    Refused(String),
    /// It may succeed later.
    Failed(String),
    /// Whether it took effect is not known.
    Unreachable(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(id: &str, node: &str) -> Instance {
        Instance {
            id: id.to_owned(),
            provider_id: id.to_owned(),
            node_provider_id: node.to_owned(),
            status: MachineStatus::Running,
            created_at: None,
            is_leaving: false,
        }
    }

    #[test]
    fn a39_provider_ids_are_sorted_and_those_of_nodes_where_there_are_nodes() {
        let members = Members::Listed(vec![instance("i-3", ""), instance("i-1", ""), instance("i-2", "aws:///z/i-2")]);
        let group = Group { members, ..Group::default() };
        let nodes = [NodeRef { name: "n".to_owned(), provider_id: "aws:///z/i-1".to_owned() }];
        assert_eq!(group.provider_ids(&[], &nodes), ["aws:///z/i-1", "aws:///z/i-2", "i-3"]);
        let counted = Group { members: Members::Counted(vec!["i-2".into(), "i-1".into()]), ..Group::default() };
        assert_eq!(counted.provider_ids(&[], &nodes), ["aws:///z/i-1", "i-2"]);
    }

    #[test]
    fn a39_an_id_stays_in_its_nodes_form_though_the_node_is_gone_or_ambiguous() {
        let group = Group { members: Members::Listed(vec![instance("i-1", "")]), ..Group::default() };
        let former = ["aws:///z/i-1".to_owned()];
        assert_eq!(group.provider_ids(&former, &[]), former);
        let node = |provider_id: &str| NodeRef { name: provider_id.to_owned(), provider_id: provider_id.to_owned() };
        let several = [node("aws:///z/i-1"), node("gce://p/z/i-1")];
        assert_eq!(group.provider_ids(&former, &several), former);
        assert_eq!(group.provider_ids(&[], &several), ["i-1"], "none of several is believed");
        assert_eq!(Group::default().provider_ids(&former, &several), Vec::<String>::new(), "the shard omits it");
    }

    #[test]
    fn an_instance_that_drains_is_still_published_and_one_that_is_deleted_is_not() {
        let leaving = Instance { is_leaving: true, ..instance("i-1", "") };
        let deleted = Instance { status: MachineStatus::Deleted, ..instance("i-2", "") };
        let unmade = Instance { provider_id: String::new(), ..instance("i-3", "") };
        let group = Group { members: Members::Listed(vec![leaving, deleted, unmade]), ..Group::default() };
        assert_eq!(group.provider_ids(&[], &[]), ["i-1"]);
    }
}
