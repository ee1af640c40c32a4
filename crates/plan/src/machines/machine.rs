//! One instance as an NstanceMachine: a member of a pool, which its shard made, or one of its own, which is asked for.
//!
//! It goes in one order, whichever program deletes it: Cluster API holds the deletion of the Machine at our hook; the Node is
//! drained; the hook goes, with a word to Cluster API not to drain again; Cluster API deletes the NstanceMachine; its
//! shard removes the instance; the finalizer goes when the shard reports it gone.

mod decide;
mod known;
mod report;

use std::collections::BTreeMap;
use std::time::Duration;

use api::condition::{Condition, ConditionStatus, ConditionType, Reason};
use api::machine::{MachineAddress, MachineReason, NstanceMachine};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use decide::plan;
pub use known::LATER;
pub(super) use known::ambiguous;
pub use report::report;

use super::node::NodeRef;
use super::shard::{Instance, Outcome, Shard};
use crate::Clocks;
use crate::fact::Fact;
use crate::round::Inputs;

/// A round as the controller sees it.
pub type RoundOf<'a> = crate::round::Round<'a, NstanceMachine, Observed, Action, (), Note, Ask, Answer>;
/// What a round knows beside what it observed.
pub type InputsOf = Inputs<Note, Ask, Answer>;

/// What is remembered between rounds. Without it a shard must omit an instance once more before that is believed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The first list of its shard that omits the instance, if no later one has it.
    pub missed: Option<u64>,
    pub begun: Option<Begun>,
}

/// A drain that the stored status shows as begun, and for how long it has been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// By the API server's clock.
    since: Timestamp,
    /// [`Clocks::uptime`] of the round.
    at: Duration,
    pub age: Duration,
}

impl Begun {
    /// `former` is that of the process's last round. The server's clock says how long a drain had lasted when this process
    /// first saw it, and our monotonic clock goes on: no step of a clock ends a drain.
    pub fn of(machine: &NstanceMachine, former: Option<Self>, clocks: Clocks) -> Option<Self> {
        let drained = machine.status.as_ref()?.condition(ConditionType::Drained)?;
        let is_running = matches!(drained.reason, MachineReason::Known(Reason::Draining | Reason::BlockedByPDB));
        if drained.status != ConditionStatus::False || !is_running {
            return None;
        }
        let (since, at) = (drained.last_transition_time, clocks.uptime);
        let age = match former.filter(|former| former.since == since) {
            Some(former) => former.age.saturating_add(at.saturating_sub(former.at)),
            None => clocks.since(Some(since)),
        };
        Some(Self { since, at, age })
    }
}

/// What must be asked of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ask {
    /// How an instance is that no group lists.
    Instance { shard: String, id: String },
}

/// What a shard said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// `None` where it does not have the instance: proof that it is gone.
    Instance(Option<Instance>),
}

/// Everything known about one machine's surroundings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    pub role: Role,
    pub owner: Owner,
    /// Every shard of the operator's configuration, with what it says of the machine's group.
    pub shards: BTreeMap<String, Shard>,
    /// Nodes of the workload cluster whose provider ID ends like the instance's.
    pub nodes: Fact<Vec<NodeRef>>,
    /// Of these Nodes, by their names.
    pub addresses: BTreeMap<String, Vec<MachineAddress>>,
    pub drain: Drain,
    /// What was asked of that drain for this machine.
    pub asked: Option<Asked>,
    pub begun: Option<Begun>,
    /// Why the shard deleted the instance, if it said so.
    pub deleted: Option<String>,
    /// The call that was handed over last, and is not reported yet.
    pub call: Call,
    pub is_paused: bool,
}

/// Who made the instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Its shard did, for a group's size. Its name is the instance's ID; the shard is the one that lists it, or that its
    /// label names.
    Member { shard: Option<String> },
    /// We do.
    #[default]
    Own,
}

/// The Machine that owns it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Owner {
    #[default]
    Unknown,
    /// None is named yet.
    Unset,
    /// The one that is named does not exist any more.
    Gone,
    Machine(Machine),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub is_deleting: bool,
    /// The shard that it asks for.
    pub failure_domain: Option<String>,
    /// Cluster API waits for our drain.
    pub has_hook: bool,
    /// Cluster API does not drain its Node.
    pub is_excluded: bool,
    /// How long a drain of its Node may last, from its beginning.
    pub drain_timeout: Option<Duration>,
}

/// How far the drain of its Node is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Drain {
    #[default]
    None,
    Running {
        /// A pod and the budget that holds it, in words.
        blocked: Option<String>,
        /// What is left, in words.
        left: String,
    },
    /// Nothing is left that is waited for.
    Done,
    /// The deadline passed; what was left then, in words.
    Expired { left: String },
}

/// What one of those who want a Node emptied has asked for, by the rules that hold now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The time until its deadline; it has none if `None`.
    pub left: Option<Duration>,
}

/// Deadlines of the same drain that are nearer than this are the same: stored times have whole seconds, and a round takes
/// a moment.
const SAME_DEADLINE: Duration = Duration::from_secs(5);

/// Whether a drain that runs has been asked for as it is wanted, with this time left.
pub(super) fn is_as_asked(asked: Option<Asked>, left: Option<Duration>) -> bool {
    match (asked.map(|asked| asked.left), left) {
        (Some(Some(asked)), Some(left)) => asked.abs_diff(left) < SAME_DEADLINE,
        (Some(None), None) => true,
        _ => false,
    }
}

/// A call beside the rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    #[default]
    None,
    Running,
    /// The shard made the instance.
    Created {
        id: String,
    },
    /// Another end of whatever was asked for.
    Ended(Outcome),
}

/// One effect. What changes or takes away something names it by uid and resource version.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Store this list as `metadata.finalizers`, provided the object did not change.
    AddFinalizer {
        finalizers: Vec<String>,
    },
    /// Have the shard make an instance. The request is known by the object's uid: repeated, it makes no second one.
    CreateInstance {
        shard: String,
        group: String,
        instance_type: String,
        vars: BTreeMap<String, String>,
    },
    /// Store the instance's ID as its Node has it.
    SetProviderId {
        id: String,
    },
    /// Make Cluster API wait for our drain before it deletes the Machine.
    HookMachine {
        name: String,
        uid: String,
        resource_version: String,
    },
    /// Empty the Node. `id` names the drain.
    Drain {
        node: String,
        id: String,
        timeout: Option<Duration>,
    },
    /// Let the drain of this id rest; the Node stays cordoned.
    ReleaseDrain {
        id: String,
    },
    /// Set the annotation that excludes the Node from Cluster API's drain, and remove our hook: both in one patch.
    ReleaseHook {
        name: String,
        uid: String,
        resource_version: String,
    },
    DeleteMachine {
        name: String,
        uid: String,
        resource_version: String,
    },
    /// Delete the NstanceMachine, which no Machine owns.
    DeleteSelf,
    /// Have the shard delete an instance that belongs to no group's size.
    DeleteInstance {
        shard: String,
        id: String,
    },
    /// Store this list as `metadata.finalizers`, ours taken out.
    ReleaseFinalizer {
        finalizers: Vec<String>,
    },
}

/// Whether its shard may remove the instance: it is under deletion, and nothing of its Node is left to drain.
pub fn is_released(machine: &NstanceMachine, owner: &Owner) -> bool {
    let is_excluded = matches!(owner, Owner::Machine(machine) if machine.is_excluded);
    let drained = machine.status.as_ref().and_then(|status| status.condition(ConditionType::Drained));
    let is_drained = drained.is_some_and(|drained| drained.status == ConditionStatus::True || is_expired(drained));
    machine.metadata.deletion_timestamp.is_some() && (is_excluded || is_drained)
}

/// Whether a drain came to its deadline: it is not begun again.
fn is_expired(drained: &Condition<MachineReason>) -> bool {
    drained.reason == MachineReason::Known(Reason::DrainExpired)
}

#[cfg(test)]
mod tests;
