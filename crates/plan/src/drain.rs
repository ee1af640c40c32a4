//! How a node is emptied: cordoned, its pods evicted in order and within their budgets, and for how long that is tried.
//!
//! ```text
//! plan(&Order, &Observed, &attempts, time_left) → Plan { cordon, evictions, pods, volumes, unknown, end, next_look }
//! ```
//!
//! What the cluster shows is the state: a drain that another process began goes on where it is. Beside it there are only
//! the answers to evictions, which a process may lose: it then asks once more for a pod that is not on its way.

mod attempt;
mod budget;
mod decide;
mod rule;
mod selector;
mod sort;
mod word;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use self::{
    attempt::{Attempt, Outcome, retry_after},
    budget::{Budget, Spends},
    decide::plan,
    rule::{Behaviour, MachineSelector, PodSelector, Rule, rules_for},
    selector::{Labels, matches},
};
use crate::fact::Fact;

/// The field manager of a drain's writes to a Node. It writes nothing else there, so the time that the server keeps for
/// its fields is the time of the cordon.
pub const FIELD_MANAGER: &str = "strata-drain";
/// Which drain cordoned a Node: a later one is another drain, whose pods are others.
pub const DRAIN_ANNOTATION: &str = "strata.dev/drain";
/// What Cluster API's users put on pods that are not to be evicted: `skip` or `wait-completed`.
pub const POD_LABEL: &str = "cluster.x-k8s.io/drain";

/// Namespace and name of a namespaced object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Name {
    pub namespace: String,
    pub name: String,
}

impl Name {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Names this drain, so that another process goes on with it: the uid of the object that is being deleted, or
    /// anything that was never used before.
    pub id: String,
    /// The MachineDrainRules that apply to the machine, from [`rules_for`].
    pub rules: Vec<Rule>,
    /// Whether volumes must be detached from the node as well.
    pub waits_for_volumes: bool,
}

/// What is known of a node and of all that a drain of it depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    pub node: Fact<Option<Node>>,
    /// Every pod that is bound to the node. Read after the node was cordoned: an earlier list lacks
    /// what was bound in between.
    pub pods: Fact<Vec<Pod>>,
    /// Every budget of the namespaces that these pods are in. Where they may not be read, the server's refusals speak for them.
    pub budgets: Fact<Vec<Budget>>,
    /// Labels of namespaces; asked for only where a rule selects by them.
    pub namespaces: Fact<BTreeMap<String, Labels>>,
    /// Claims by the name under which a node lists their volume as attached; asked for only where a pod that stays has
    /// a claim.
    pub volumes: Fact<BTreeMap<String, Name>>,
    /// What the API server's clock shows.
    pub server_time: Option<Timestamp>,
    /// This drain has cordoned the node before.
    pub has_cordoned: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub uid: String,
    pub version: u64,
    pub is_cordoned: bool,
    /// A drain did that: the cordon of another program or of a person stays when a drain is undone.
    pub is_cordoned_by_drain: bool,
    /// The drain that cordoned it last.
    pub drain: Option<String>,
    /// When that was, by the API server's clock.
    pub drained_since: Option<Timestamp>,
    /// The control plane has lost contact: its kubelet confirms nothing any more.
    pub is_unreachable: bool,
    /// As the attach-detach controller names them.
    pub volumes_attached: BTreeSet<String>,
}

/// A pod as far as a drain is concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    pub name: Name,
    pub uid: String,
    pub labels: Labels,
    pub phase: Phase,
    pub is_ready: bool,
    pub owner: Owner,
    /// A static pod of the kubelet: only its file ends it.
    pub is_mirror: bool,
    pub priority: i32,
    /// How long it may take to end.
    pub grace: Duration,
    /// When the API server bound it to the node.
    pub bound_at: Option<Timestamp>,
    /// It is being deleted, and its grace ends then.
    pub ends_at: Option<Timestamp>,
    /// Names of its PersistentVolumeClaims.
    pub claims: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    #[default]
    Pending,
    Running,
    /// Succeeded or failed.
    Completed,
}

/// What would make the pod anew elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Owner {
    #[default]
    Nothing,
    /// It would make the pod anew on the same node.
    DaemonSet,
    Other,
}

/// What is to be done now, and how everything on the node stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub cordon: Option<Cordon>,
    /// In order; all of them may be sent at once.
    pub evictions: Vec<Eviction>,
    /// Every pod of the node, in the order of eviction, those that stay last.
    pub pods: Vec<(Name, Standing)>,
    /// Of those that go: pods that nothing creates again.
    pub unmanaged: Vec<Name>,
    /// Attached volumes that are waited for.
    pub volumes: Vec<String>,
    /// Whether [`Observed::volumes`] are needed: some of these volumes may be of pods that stay.
    pub asks_for_volumes: bool,
    /// What is not known although it is needed, and why.
    pub unknown: Vec<String>,
    pub end: Option<End>,
    /// When to plan again even if nothing happens.
    pub next_look: Option<Duration>,
}

/// Marks exactly this version of the node as unschedulable, by this drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cordon {
    pub uid: String,
    pub version: u64,
    pub drain: String,
}

/// Evicts exactly this pod: a namesake has another uid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eviction {
    pub pod: Name,
    pub uid: String,
    /// The budget that it draws from.
    pub spends: Option<Spends>,
}

/// How a pod stands towards the drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    Stays(Stays),
    Holds(Holds),
}

/// Why a pod is neither evicted nor waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stays {
    DaemonSet,
    Mirror,
    Completed,
    /// Asked for by its label.
    Labelled,
    /// Asked for by this MachineDrainRule.
    Rule(String),
    /// Bound to the node after the cordon: it tolerates that, and would be back at once.
    BoundLater,
    /// Nothing confirms its end, and its grace has passed.
    Lost,
}

/// Why a pod is still waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Holds {
    /// It is evicted once the node is cordoned.
    Due,
    /// Its eviction is under way or accepted.
    Evicting,
    Terminating,
    /// Pods of an earlier tier go first.
    Later,
    /// It is never evicted, and waited for until it completes.
    Completes,
    /// A budget allows no eviction now; which one only the message says where budgets may not be read.
    Blocked {
        budget: Option<Name>,
        message: String,
    },
    /// The server evicts no pod that has several budgets.
    SeveralBudgets {
        budgets: Vec<Name>,
    },
    /// The last attempt failed, and is repeated.
    Failed {
        message: String,
        is_forbidden: bool,
    },
    /// What decides about it is not known.
    Unknown {
        message: String,
    },
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    Drained,
    /// There is no such node any more.
    NodeGone,
    /// The time was up before all had left.
    Expired,
}

#[cfg(test)]
mod tests;
