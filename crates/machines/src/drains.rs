//! Drains of the Nodes of instances that go: one for each instance, however many ask for it.
//!
//! A Machine that is deleted and a shard that announces a deletion may both want the same Node emptied. The drain has
//! the instance's ID, and the earliest of their deadlines.

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
    machines::{machine::Drain, node::last_segment},
};
use process::Clock;
use runtime::{Key, Operator, Recorder};
use tokio::time::Instant;

use crate::{
    ground::Workload,
    kinds::{Kinds, Queues},
    shards::Shards,
};
use rule::Rules;

/// Who wants a Node emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asker {
    Machine,
    /// Its group shrinks, on a server that names no instances. The Node's name stands for the instance.
    Group,
    Shard,
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

/// Called with the ID of an instance whose drain came forward; must be quick.
type Listener = Box<dyn Fn(&str) + Send + Sync>;

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
    asked: Mutex<BTreeMap<String, Asked>>,
    listeners: Arc<RwLock<Vec<Listener>>>,
}

struct Asked {
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
        let desk = Self(Arc::new(Inner {
            workload,
            drains: OnceLock::new(),
            recorder: operator.events.clone(),
            rules: Rules::watch(operator, &kinds.cluster),
            kinds: kinds.clone(),
            clock: operator.clock.clone(),
            asked: Mutex::default(),
            listeners: Arc::default(),
        }));
        let (concerned, queues) = (kinds.clone(), queues.clone());
        desk.listen(move |id| {
            concerned.machine_of_instance(id).iter().for_each(|key| queues.machines.changed(key));
            let node = concerned.nodes.get(&Key::new("", id));
            let groups =
                node.map(|node| concerned.indexes.published.keys(&last_segment(&node.value.provider_id).into()));
            groups.iter().flatten().for_each(|key| queues.shard_groups.changed(key));
        });
        notice::install(operator, kinds, shards, &desk);
        desk
    }

    fn listen(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
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

    /// From now on the Node is drained.
    pub fn drain(&self, asker: Asker, wanted: Wanted) {
        let Some(drains) = self.drains() else { return };
        let Wanted { id, node, time } = wanted;
        let machine = self.0.kinds.machine_of_instance(&id);
        let rules = self.0.rules.of(&self.0.kinds.machine_labels(machine.as_ref()));
        let deadline = time.and_then(|time| self.0.clock.instant().checked_add(time));
        let mut asked = self.asked();
        let entry = asked.entry(id.clone()).or_insert_with(|| Asked {
            node: node.clone(),
            rules: rules.clone(),
            deadlines: BTreeMap::new(),
        });
        // The instance's Node has come back under another name.
        if entry.node != node {
            drains.release(&entry.node);
            entry.node.clone_from(&node);
        }
        entry.rules = rules;
        entry.deadlines.insert(asker, deadline);
        let earliest = entry.deadlines.values().flatten().min().copied();
        let order = Order { id: id.clone(), rules: entry.rules.clone(), waits_for_volumes: false };
        let listeners = self.0.listeners.clone();
        let notify = move || {
            let listeners = listeners.read().unwrap_or_else(PoisonError::into_inner);
            listeners.iter().for_each(|listener| listener(&id));
        };
        drains.ensure(&node, Request { order, deadline: earliest }, notify);
    }

    /// How far the drain of an instance's Node is.
    pub fn state(&self, id: &str) -> Drain {
        let Some(node) = self.asked().get(id).map(|asked| asked.node.clone()) else { return Drain::None };
        self.drains().and_then(|drains| drains.progress(&node)).map_or(Drain::None, |progress| state(&progress))
    }

    /// This one wants it no more: the instance is gone.
    pub fn release(&self, asker: Asker, id: &str) {
        let mut asked = self.asked();
        let Some(entry) = asked.get_mut(id) else { return };
        entry.deadlines.remove(&asker);
        if entry.deadlines.is_empty()
            && let Some(entry) = asked.remove(id)
        {
            self.leave(&entry.node);
        }
    }

    /// Another process goes on with all of them.
    pub fn release_all(&self) {
        for asked in std::mem::take(&mut *self.asked()).into_values() {
            self.leave(&asked.node);
        }
    }

    fn leave(&self, node: &str) {
        if let Some(drains) = self.drains() {
            drains.release(node);
        }
    }

    fn asked(&self) -> MutexGuard<'_, BTreeMap<String, Asked>> {
        self.0.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
