//! Machines for Pods that ask for one by an annotation.
//!
//! All Pods and all Machines made for them are planned together: which Pod comes next depends on how many its namespace
//! has under way. A Machine is known by the Pod's uid, so what an earlier process made is found again; its name follows
//! from the Pod, so it is made once. Nothing is written to the Pod. The scheduler binds it, and once it has ended, is
//! gone or runs on another node, the Machine is deleted: the node is drained and the instance goes as with any other.

mod build;
mod decide;
mod wish;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use decide::plan;
pub use wish::Wish;

use crate::event::Event;
use crate::fact::Fact;

/// Everything known about Pods that ask for machines, and about the Machines made for them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// Of all Machines.
    pub namespace: String,
    /// Name of the Cluster.
    pub cluster: String,
    pub is_paused: bool,
    /// Pods that ask for a machine and have no node, of the cluster that the instances join.
    pub pods: Fact<Vec<Pod>>,
    /// The Machines that were made for Pods.
    pub requests: Vec<Request>,
    /// Names of Machines and NstanceMachines that were made for something else, of those that [`is_name`].
    pub taken: BTreeSet<String>,
    /// Nodes that Machines are known to be, with the Machine's name.
    pub nodes: BTreeMap<String, String>,
    /// When Nodes were made that were asked for; `None` for one that does not exist.
    pub node_ages: BTreeMap<String, Option<Timestamp>>,
    /// Every shard of the operator's configuration, with the keys of its groups.
    pub shards: BTreeMap<String, Fact<BTreeSet<String>>>,
    /// What shards refused, by the Pod's uid.
    pub refusals: BTreeMap<String, Refused>,
    /// The clock of the cluster that the Pods are in.
    pub server_time: Option<Timestamp>,
}

/// Where a Pod is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// A Pod, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a Pod, each by itself")]
pub struct Pod {
    pub name: PodName,
    /// What it asks for; `None` if it asks for nothing.
    pub wish: Option<Wish>,
    pub created_at: Option<Timestamp>,
    /// The node that the scheduler chose, and when.
    pub node: Option<String>,
    pub scheduled_at: Option<Timestamp>,
    /// The scheduler found no node.
    pub is_unschedulable: bool,
    /// The scheduler is not to look for one yet.
    pub is_gated: bool,
    pub is_terminating: bool,
    /// It succeeded or failed.
    pub is_finished: bool,
}

/// A Machine that was made for a Pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Of the Machine and of its NstanceMachine.
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub is_deleting: bool,
    /// Nothing is done to it.
    pub is_paused: bool,
    /// The Pod that it was made for.
    pub pod: PodName,
    /// That Pod as it is now. `None` if there is no Pod of that name.
    pub now: Fact<Option<Pod>>,
    pub infrastructure: Infrastructure,
    /// The Node that the instance became, once Cluster API has linked it.
    pub node: Option<String>,
}

/// The NstanceMachine of a Machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Infrastructure {
    /// The cache is not full.
    #[default]
    Unknown,
    Absent,
    /// It is of this Machine.
    Present {
        group: String,
        /// What the shard says against the request, which it will refuse again.
        refusal: Option<String>,
    },
    /// It is of another one.
    Foreign,
}

/// What a shard refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub wish: Wish,
    /// How long ago.
    pub age: Duration,
}

/// How much at once, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Machines of one namespace's Pods that are made and are no Node yet. A shard takes a few calls at once, for all
    /// namespaces together.
    pub starting: usize,
    /// Machines of one namespace's Pods. Each is an instance that costs money, and every account that may create a Pod
    /// may ask for one.
    pub machines: usize,
    /// How long a Machine outlives that its Pod was bound to another node.
    pub grace: Duration,
    /// How long the scheduler has to say that a Pod fits nowhere: most Pods fit, and need no machine.
    pub verdict: Duration,
    /// When a request that a shard refused is made again.
    pub retry: Duration,
    /// Writes of one plan: what comes new meanwhile is planned with what is left.
    pub steps: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            starting: 20,
            // More than a team needs that has not said so, and a bill that can be paid.
            machines: 100,
            grace: Duration::from_mins(1),
            verdict: Duration::from_secs(5),
            retry: Duration::from_mins(10),
            steps: 200,
        }
    }
}

/// What to do next.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "a plan does nothing until it is executed"]
pub struct Plan {
    /// In order. None needs another.
    pub steps: Vec<Step>,
    /// What to record about Pods, whatever becomes of the steps. Namespaces take turns.
    pub notices: Vec<Notice>,
    /// Requests that shards refused, to be remembered.
    pub refused: Vec<(String, Wish)>,
    /// Nodes whose age decides.
    pub wanted: BTreeSet<String>,
    /// When to plan again even if nothing changes.
    pub next_look: Option<Duration>,
}

/// One write, and what to record about the Pod when it is done.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub action: Action,
    pub done: Option<Notice>,
}

/// One effect, safe to repeat: a create under a fixed name, or a delete of exactly what was looked at.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    CreateMachine(Value),
    CreateInfrastructure(Value),
    DeleteMachine { name: String, uid: String, resource_version: String },
}

/// An event about a Pod. The same one is recorded once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub pod: PodName,
    pub event: Event,
    /// With the Pod and the reason: what it is about, so that other words for the same are not recorded again.
    pub about: String,
}

/// Whether a Machine for a Pod could have this name.
pub fn is_name(name: &str) -> bool {
    name.starts_with(build::PREFIX)
}

impl Plan {
    fn look_within(&mut self, wait: Duration) {
        self.next_look = Some(self.next_look.map_or(wait, |earlier| earlier.min(wait)));
    }
}

#[cfg(test)]
mod tests;
