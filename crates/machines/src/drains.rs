//! Drains of the Nodes of instances that go: one for each instance, however many ask for it.
//!
//! A Machine that is deleted and a shard that announces a deletion may both want the same Node emptied. The drain has
//! the instance's ID, and the earliest of their deadlines. What is wanted of it may change while it runs.

mod notice;
mod rule;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use drain::{Drains, Progress, Request};
use plan::{
    drain::{End, Order, Rule},
    fact::{Fact, latest},
    machines::{
        machine::{Asked, Drain},
        node::last_segment,
    },
};
use process::Clock;
use runtime::{Error, Key, Operator, Recorder};
use tokio::time::Instant;

use crate::{
    ground::Workload,
    kinds::{Kinds, Queues},
    shards::Shards,
};
use rule::Rules;

/// Who wants a Node emptied.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asker {
    Machine,
    /// Its group shrinks, on a server that names no instances. The Node's uid stands for the instance.
    Group,
    /// By its name.
    Shard(Arc<str>),
}

/// What is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Of the instance.
    pub id: String,
    pub node: String,
    /// How long it may take; for ever if `None`.
    pub time: Option<Duration>,
}

/// Called with the ID of an instance whose drain came forward, and its Node; must be quick.
type Listener = Box<dyn Fn(&str, &str) + Send + Sync>;
type Listeners = Arc<RwLock<Vec<Listener>>>;
type All = Arc<Mutex<BTreeMap<String, Entry>>>;

/// The drains of the workload cluster. Clones are the same.
#[derive(Clone)]
pub(crate) struct Desk(Arc<Inner>);

struct Inner {
    workload: Workload,
    /// Made with the first one: before that it may not be known how the cluster is reached.
    drains: OnceLock<Drains>,
    recorder: Recorder,
    rules: Rules,
    kinds: Arc<Kinds>,
    clock: Clock,
    all: All,
    listeners: Listeners,
}

/// What is asked for of one drain.
struct Entry {
    node: String,
    rules: Vec<Rule>,
    deadlines: BTreeMap<Asker, Option<Instant>>,
}

impl Desk {
    /// Adds the drains to an operator, and those that shards ask for.
    pub fn install(
        operator: &mut Operator,
        kinds: &Arc<Kinds>,
        shards: &Shards,
        queues: &Queues,
        workload: Workload,
    ) -> Self {
        let (all, listeners) = (All::default(), Listeners::default());
        let (concerned, notified) = (all.clone(), listeners.clone());
        // A drain that is under way goes on by the rules that hold now.
        let on_rules = move || {
            let asked = lock(&concerned).iter().map(|(id, entry)| (id.clone(), entry.node.clone())).collect::<Vec<_>>();
            for (id, node) in &asked {
                notify(&notified, id, node);
            }
        };
        let desk = Self(Arc::new(Inner {
            workload,
            drains: OnceLock::new(),
            recorder: operator.events.clone(),
            rules: Rules::watch(operator, &kinds.cluster, on_rules),
            kinds: kinds.clone(),
            clock: operator.clock.clone(),
            all,
            listeners,
        }));
        let (concerned, queues) = (kinds.clone(), queues.clone());
        desk.listen(move |id, node| {
            concerned.machine_of_instance(id).iter().for_each(|key| queues.machines.changed(key));
            let node = concerned.nodes.get(&Key::new("", node));
            let groups =
                node.map(|node| concerned.indexes.published.keys(&last_segment(&node.value.provider_id).into()));
            groups.iter().flatten().for_each(|key| queues.shard_groups.changed(key));
        });
        notice::install(operator, kinds, shards, &desk);
        desk
    }

    fn listen(&self, listener: impl Fn(&str, &str) + Send + Sync + 'static) {
        self.0.listeners.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(listener));
    }

    /// `None` while it is not known how the cluster is reached: no Node of it is known then either.
    fn drains(&self) -> Option<&Drains> {
        let inner = &self.0;
        if let Some(drains) = inner.drains.get() {
            return Some(drains);
        }
        let cluster = inner.workload.borrow().clone()?;
        let recorder = inner.recorder.in_cluster(&cluster);
        Some(inner.drains.get_or_init(|| Drains::new(cluster, recorder, inner.clock.clone())))
    }

    /// From now on the Node is drained, as it is asked for now. A drain that has ended begins anew: it is asked for again
    /// only where its Node is in use again.
    pub fn drain(&self, asker: Asker, wanted: Wanted) -> Result<(), Error> {
        let Some(drains) = self.drains() else { return Ok(()) };
        let Wanted { id, node, time } = wanted;
        let rules = match self.rules(&id) {
            Fact::Known { value, .. } | Fact::Unknown { last: Some((value, _)), .. } => value,
            Fact::Unknown { why, last: None } => {
                return Err(Error::Peer { peer: "MachineDrainRules".to_owned(), failure: why, retry_after: None });
            }
        };
        let deadline = time.and_then(|time| self.0.clock.instant().checked_add(time));
        let has_ended = matches!(self.state(&id), Drain::Done | Drain::Expired { .. });
        let mut all = lock(&self.0.all);
        let entry = all.entry(id.clone()).or_insert_with(|| Entry {
            node: node.clone(),
            rules: Vec::new(),
            deadlines: BTreeMap::new(),
        });
        // The instance's Node may have come back under another name.
        if entry.node != node || has_ended {
            drains.release(&entry.node);
            entry.node.clone_from(&node);
        }
        entry.rules = rules;
        entry.deadlines.insert(asker, deadline);
        let earliest = entry.deadlines.values().flatten().min().copied();
        let order = Order { id: id.clone(), rules: entry.rules.clone(), waits_for_volumes: false };
        let (listeners, of_node) = (self.0.listeners.clone(), node.clone());
        let notify = move || notify(&listeners, &id, &of_node);
        drains.ensure(&node, Request { order, deadline: earliest }, notify);
        Ok(())
    }

    /// Those that apply to the Machine of an instance.
    fn rules(&self, id: &str) -> Fact<Vec<Rule>> {
        let machine = self.0.kinds.machine_of_instance(id);
        self.0.rules.of(&self.0.kinds.machine_labels(machine.as_ref()))
    }

    /// How far the drain of an instance's Node is.
    pub fn state(&self, id: &str) -> Drain {
        let Some(node) = lock(&self.0.all).get(id).map(|entry| entry.node.clone()) else { return Drain::None };
        self.drains().and_then(|drains| drains.progress(&node)).map_or(Drain::None, |progress| state(&progress))
    }

    /// What this one has asked for; nothing if other rules hold by now.
    pub fn asked(&self, asker: &Asker, id: &str) -> Option<Asked> {
        let rules = self.rules(id);
        let all = lock(&self.0.all);
        let entry = all.get(id).filter(|entry| latest(&rules).is_none_or(|rules| *rules == entry.rules))?;
        let now = self.0.clock.instant();
        let left = |deadline: &Option<Instant>| deadline.map(|deadline| deadline.saturating_duration_since(now));
        entry.deadlines.get(asker).map(|deadline| Asked { left: left(deadline) })
    }

    /// This one wants it no more.
    pub fn release(&self, asker: &Asker, id: &str) {
        let mut all = lock(&self.0.all);
        let Some(entry) = all.get_mut(id) else { return };
        entry.deadlines.remove(asker);
        if entry.deadlines.is_empty()
            && let Some(entry) = all.remove(id)
        {
            self.leave(&entry.node);
        }
    }

    /// The Node of a group stays after all.
    pub async fn return_node(&self, node: &str, id: &str) -> Result<(), Error> {
        self.release(&Asker::Group, id);
        match self.drains() {
            Some(drains) => drains.undo(node, id).await,
            None => Ok(()),
        }
    }

    /// Another process goes on with all of them.
    pub fn release_all(&self) {
        for entry in std::mem::take(&mut *lock(&self.0.all)).into_values() {
            self.leave(&entry.node);
        }
    }

    fn leave(&self, node: &str) {
        if let Some(drains) = self.drains() {
            drains.release(node);
        }
    }
}

fn lock(all: &All) -> MutexGuard<'_, BTreeMap<String, Entry>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

fn notify(listeners: &Listeners, id: &str, node: &str) {
    listeners.read().unwrap_or_else(PoisonError::into_inner).iter().for_each(|listener| listener(id, node));
}

fn state(progress: &Progress) -> Drain {
    let plan = &progress.plan;
    match plan.end {
        Some(End::Drained | End::NodeGone) => Drain::Done,
        Some(End::Expired) => Drain::Expired { left: plan.leftovers() },
        None => {
            // What holds a pod is not known while the cluster is silent.
            let blocked = plan.blocked().filter(|_| plan.unknown.is_empty());
            let blocked = blocked.map(|(pod, holds)| format!("pod {pod}: {holds}"));
            let failure = progress.cordon_failure.as_ref();
            let left = failure.map(|failure| format!("the Node cannot be cordoned: {}", failure.message));
            Drain::Running { blocked, left: left.unwrap_or_else(|| plan.leftovers()) }
        }
    }
}
