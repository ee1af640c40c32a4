//! One pool: its MachinePool, its shard groups and its members.

mod build;
mod decide;
mod marks;
mod member;
mod removal;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::machine::{GroupConfig, NstanceMachinePool, NstanceShardGroupSpec};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(super) use build::machine_pool;
pub use decide::plan;
#[cfg(test)]
pub(super) use marks::answered;
pub use report::report;

use super::shard::Shard;
use crate::round::Inputs;

/// A round as the controller sees it.
pub type RoundOf<'a> = crate::round::Round<'a, NstanceMachinePool, Observed, Action, (), (), Ask, Answer>;
/// What a round knows beside what it observed.
pub type InputsOf = Inputs<(), Ask, Answer>;

/// What must be read past the cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ask {
    /// Which Machines of a MachinePool are marked, asked for once it has this generation. The uid is the pool's.
    Marks { namespace: String, uid: String, machine_pool: String, generation: Option<i64> },
}

/// What the API server said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Marks(Marks),
}

/// By the Machine's name.
pub type Marks = BTreeMap<String, Mark>;

/// Of a Machine, in this version of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub version: u64,
    /// To go before others.
    pub is_marked: bool,
}

/// Everything known about one pool's surroundings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    pub owner: Owner,
    /// Name of the Cluster.
    pub cluster: String,
    /// The pool of this namespace that has the same group and came first.
    pub elder: Option<String>,
    /// Every shard of the operator's configuration, with what it says of this group.
    pub shards: BTreeMap<String, Shard>,
    /// Every shard group of this group's name or with this pool as its owner.
    pub shard_groups: Vec<ShardGroup>,
    /// The NstanceMachines of the pool.
    pub members: Vec<Member>,
    /// Names of instances of the group that an NstanceMachine has which is not the pool's.
    pub taken: BTreeSet<String>,
    pub is_paused: bool,
}

/// The MachinePool whose `infrastructureRef` names this pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Owner {
    #[default]
    Unknown,
    /// None for so long.
    Absent { age: Duration },
    /// None, and the MachinePool of the pool's name is for something else, or of another Cluster.
    Taken,
    MachinePool {
        name: String,
        generation: Option<i64>,
        /// `None` where it is not set.
        replicas: Option<i64>,
    },
}

/// A shard group as its pool sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a shard group, each by itself")]
pub struct ShardGroup {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// Uid of its controller.
    pub owner_uid: Option<String>,
    pub spec: NstanceShardGroupSpec,
    pub is_deleting: bool,
    /// Its condition Ready, and why not.
    pub is_ready: bool,
    pub message: String,
    pub is_static: bool,
    /// Whether its status was ever written from its shard's words.
    pub is_synced: bool,
    pub provider_ids: Vec<String>,
    pub config: Option<GroupConfig>,
}

/// An NstanceMachine of the pool, named by its instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub instance_id: String,
    /// The shard that has it, as far as it was stored.
    pub shard: Option<String>,
    pub uid: String,
    pub resource_version: String,
    pub is_deleting: bool,
    pub machine: Option<Machine>,
}

/// The Machine that Cluster API made for a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a Machine, each by itself")]
pub struct Machine {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub is_deleting: bool,
    /// To go before others.
    pub is_marked: bool,
    /// Cluster API waits for our drain.
    pub has_hook: bool,
    /// Its Node is not to be drained: its instance is gone, or its user says so.
    pub is_excluded: bool,
    /// Its Node takes no new pods.
    pub is_cordoned: bool,
    /// Cluster API does nothing to it, and so do we.
    pub is_paused: bool,
}

impl Member {
    /// Whether it is on its way out.
    pub fn is_going(&self) -> bool {
        self.is_deleting || self.machine.as_ref().is_some_and(|machine| machine.is_deleting)
    }
}

/// One effect. What changes or takes away something names it by uid and resource version.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Store this list as `metadata.finalizers`, provided the object did not change.
    AddFinalizer {
        finalizers: Vec<String>,
    },
    /// Create this MachinePool; one of this name that exists is left as it is.
    CreateMachinePool(Value),
    CreateShardGroup(Value),
    /// Send this JSON merge patch, which carries uid and resource version.
    PatchShardGroup {
        name: String,
        patch: Value,
    },
    DeleteShardGroup {
        name: String,
        uid: String,
        resource_version: String,
    },
    /// Create this NstanceMachine for an instance that is there.
    CreateMachine(Value),
    /// Make Cluster API wait for our drain before it deletes the Machine.
    HookMachine {
        name: String,
        uid: String,
        resource_version: String,
    },
    /// Delete the Machine of a member that is to go.
    DeleteMachine {
        name: String,
        uid: String,
        resource_version: String,
    },
    /// Delete the NstanceMachine of a member that has no Machine.
    DeleteMember {
        name: String,
        uid: String,
        resource_version: String,
    },
    /// Store this list as `spec.providerIDList`.
    PublishProviderIds {
        ids: Vec<String>,
    },
    /// Set the annotation that the operator keeps this pool.
    Annotate,
    /// Store this list as `metadata.finalizers`, ours taken out.
    ReleaseFinalizer {
        finalizers: Vec<String>,
    },
}

/// An instance that could go, by who goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::struct_excessive_bools, reason = "what counts, in its order")]
struct Rank<'a> {
    is_unmarked: bool,
    is_paused: bool,
    is_running: bool,
    is_schedulable: bool,
    created_at: Option<Timestamp>,
    id: &'a str,
}

#[cfg(test)]
mod tests;
