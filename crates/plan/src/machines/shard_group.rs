//! One group on one shard.

mod decide;
mod report;

use std::collections::{BTreeMap, BTreeSet};

use api::machine::NstanceShardGroup;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use decide::plan;
pub use report::report;

use super::node::NodeRef;
use super::shard::{Outcome, Shard};
use crate::fact::{Class, Fact, Failure};
use crate::object::digest;

/// A round as the controller sees it.
pub type RoundOf<'a> = crate::round::Round<'a, NstanceShardGroup, Observed, Action, (), Note>;

/// Everything known about one shard group's surroundings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    pub shard: Shard,
    /// Nodes whose provider ID ends like one of the group's.
    pub nodes: Vec<NodeRef>,
    /// Instances that may be removed: their NstanceMachines are under deletion, and their Nodes drained.
    pub released: BTreeSet<String>,
    /// How many NstanceMachines there are of this group on this shard.
    pub members: usize,
    /// Of a server that names no instances: the Nodes of the group, the oldest first, and whether each is drained.
    pub oldest: Fact<Vec<OldNode>>,
    /// The Nodes whose drains were asked for here.
    pub drains: BTreeSet<String>,
    /// The call that was handed over last.
    pub call: Call,
    pub is_paused: bool,
    /// Its pool is not under deletion, and names the shard.
    pub is_wanted: bool,
    /// Its pool is under deletion, and so are its members: it is about to be as well.
    pub is_pool_going: bool,
    /// What the shard reported of this group since the last report.
    pub errors: Vec<String>,
}

impl Default for Observed {
    /// Nothing was looked at.
    fn default() -> Self {
        let why = Failure { class: Class::Transient, message: "not listed yet".to_owned() };
        Self {
            shard: Shard::default(),
            nodes: Vec::new(),
            released: BTreeSet::new(),
            members: 0,
            oldest: Fact::Unknown { why, last: None },
            drains: BTreeSet::new(),
            call: Call::None,
            is_paused: false,
            is_wanted: false,
            is_pool_going: false,
            errors: Vec::new(),
        }
    }
}

/// A Node of a group whose instances have no names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldNode {
    pub name: String,
    /// A drain of its group has emptied it, and nothing was let in since.
    pub is_drained: bool,
    /// A drain of its group keeps it cordoned, one of an earlier process as well.
    pub is_held: bool,
}

/// A call beside the rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Call {
    #[default]
    None,
    /// It waits or is at work.
    Running {
        digest: String,
    },
    Ended(Tried),
}

/// What was asked of the shard, and how that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    pub digest: String,
    /// The shard's list that it was planned on.
    pub poll: u64,
    pub outcome: Outcome,
}

/// What is remembered between rounds. Without it the same may be asked of a shard once more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Note {
    pub tried: Option<Tried>,
}

/// What a shard is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Push {
    pub group: String,
    pub size: i32,
    pub template: String,
    pub instance_type: String,
    pub subnet_pool: String,
    pub vars: BTreeMap<String, String>,
    /// These go when the size is lowered; at an unchanged size they are replaced.
    pub remove_first: Vec<String>,
}

impl Push {
    pub fn digest(&self) -> String {
        digest(&json!(self))
    }
}

/// The name of the call that removes a group.
pub const DELETE: &str = "delete";

/// One effect.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Store this list as `metadata.finalizers`, provided the object did not change.
    AddFinalizer { finalizers: Vec<String> },
    /// Ask the shard for the group as it is here. `poll` is the list that this was planned on.
    Upsert { push: Push, poll: u64 },
    /// Drain the Node, so that a server that deletes the oldest deletes an empty one.
    DrainNode { node: String },
    /// The Node stays after all: end its drain, and undo the cordon.
    ReturnNode { node: String },
    /// Let the drain of the Node rest; it stays cordoned.
    ReleaseDrain { node: String },
    /// Remove the group from the shard; a static one goes back to its configuration.
    DeleteGroup { group: String, poll: u64 },
    /// Store this list as `metadata.finalizers`, ours taken out.
    ReleaseFinalizer { finalizers: Vec<String> },
}

#[cfg(test)]
mod tests;
