//! What the layer sees of the zone shards: what each said last, with its age, and the calls that are made to them.
//!
//! Each shard has one client with one channel, and one [source](runtime::source): three streams and a poll. A shard that
//! is silent keeps what it said last, and says nothing new; it delays no other. Calls run as jobs with a limit per
//! shard, so that a round never waits for one.

mod call;
mod convert;
mod errors;
mod follow;
mod supervise;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, atomic::AtomicU64},
    time::Duration,
};

use plan::{
    fact::{Class, Fact, Failure},
    machines::shard::{Answer, Group, Instance, Members, Shard},
};
use runtime::{
    Operator,
    source::{SourceConfig, Sources},
};
use shard::client::{CallError, Client, Code};
use tokio::sync::watch;

use crate::{config, identity::Credentials};
pub use call::{Call, CallState, Ended, Request, job_key, request_id};
pub use convert::{Notice, Progress};
use errors::Errors;

/// What the shards are reached by, while the operator runs.
#[derive(Clone)]
pub struct Inputs {
    pub addresses: watch::Receiver<Arc<config::Shards>>,
    /// Where their list is, for people.
    pub list: String,
    /// `None` until the operator is registered.
    pub credentials: watch::Receiver<Option<Arc<Credentials>>>,
}

/// How shards are followed; intervals are here, so that tests shorten them.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Between two lists of a shard at rest.
    pub poll: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { poll: Duration::from_secs(30) }
    }
}

/// What the protocol allows for a call; a shard that says nothing for this long beyond its poll counts as silent.
const SILENCE: Duration = Duration::from_secs(15);

/// The first list: one call, and the connection before it.
const CONNECT: Duration = Duration::from_secs(12);

/// Events of one change follow each other within this.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// What a shard said last.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Said {
    /// The number of the last full list; raised once per poll, not by the looks in between.
    poll: u64,
    groups: BTreeMap<String, Arc<Group>>,
    /// Instances that the shard deletes or has deleted, by ID.
    notices: BTreeMap<String, Notice>,
    /// Counts what the shard reported as failed.
    errors: u64,
}

/// Called with the name of a shard of which something is new; must be quick.
type Listener = Box<dyn Fn(&str) + Send + Sync>;

/// The zone shards. Clones are the same.
#[derive(Clone)]
pub struct Shards(Arc<Inner>);

struct Inner {
    inputs: Inputs,
    pace: Pace,
    sources: Sources<String, Said>,
    clients: Clients,
    errors: Arc<Errors>,
    calls: call::Calls,
    listeners: Arc<RwLock<Vec<Listener>>>,
    /// Numbers full lists of all shards, so that a number never comes twice in the life of the process.
    polls: Arc<AtomicU64>,
    clock: process::Clock,
}

/// The client of each shard that is followed. Clones share them.
#[derive(Clone, Default)]
struct Clients(Arc<Mutex<BTreeMap<String, Client>>>);

impl Clients {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, shard: &str) -> Option<Client> {
        self.lock().get(shard).cloned()
    }
}

impl Shards {
    /// Follows the shards for as long as the operator leads.
    pub fn install(operator: &mut Operator, inputs: Inputs, pace: Pace) -> Self {
        let listeners = Arc::<RwLock<Vec<Listener>>>::default();
        let notified = listeners.clone();
        let config = SourceConfig { debounce: DEBOUNCE, connect: CONNECT, silence: pace.poll + SILENCE };
        let sources = operator.sources("shards", config, move |shard: &String| notify(&notified, shard));
        let clients = Clients::default();
        let calls = call::Calls::install(operator, &clients, &sources);
        let shards = Self(Arc::new(Inner {
            inputs,
            pace,
            sources,
            clients,
            errors: Arc::default(),
            calls,
            listeners,
            polls: Arc::default(),
            clock: operator.clock.clone(),
        }));
        supervise::install(operator, &shards);
        shards
    }

    /// Adds a listener for news of any shard, and for shards that are added to the configuration or removed from it.
    pub fn listen(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        self.0.listeners.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(listener));
    }

    /// Fails until the list of shards was read once: one that is not known yet was not removed from it. A list that was
    /// read names one at least.
    pub fn check_listed(&self) -> Result<(), runtime::Error> {
        if !self.0.inputs.addresses.borrow().is_empty() {
            return Ok(());
        }
        let message =
            "the list of shards was not read from it yet; create or correct it: a key per shard, with its address";
        let failure = Failure { class: Class::Transient, message: message.to_owned() };
        Err(runtime::Error::Peer { peer: self.0.inputs.list.clone(), failure, retry_after: None })
    }

    /// The configured shards.
    pub fn names(&self) -> Vec<String> {
        self.0.inputs.addresses.borrow().keys().cloned().collect()
    }

    /// What one shard says of a group.
    pub fn shard(&self, name: &str, group: &str) -> Shard {
        self.answer(name, |said| said.group(group))
    }

    /// What every configured shard says of a group.
    pub fn of_group(&self, group: &str) -> BTreeMap<String, Shard> {
        self.names().into_iter().map(|name| (name.clone(), self.shard(&name, group))).collect()
    }

    /// The same with one instance of the group at most: a group has many, and as many machines ask.
    pub fn of_instance(&self, group: &str, id: &str) -> BTreeMap<String, Shard> {
        self.names().into_iter().map(|name| (name.clone(), self.shard_with_one(&name, group, id))).collect()
    }

    /// What one shard says of one instance of a group.
    pub fn shard_with_one(&self, name: &str, group: &str, id: &str) -> Shard {
        self.answer(name, |said| said.with_one(group, id))
    }

    fn answer(&self, name: &str, group: impl FnOnce(&Said) -> Option<Group>) -> Shard {
        if !self.0.inputs.addresses.borrow().contains_key(name) {
            return Shard::Unconfigured;
        }
        Shard::Configured(self.fact(name, |said| Answer { poll: said.poll, group: group(said) }))
    }

    /// All groups of every configured shard.
    pub fn groups(&self) -> BTreeMap<String, Fact<BTreeMap<String, Group>>> {
        let all = |said: &Said| said.groups.iter().map(|(key, group)| (key.clone(), said.marked(group))).collect();
        self.names().into_iter().map(|name| (name.clone(), self.fact(&name, all))).collect()
    }

    /// The keys of all groups of every configured shard.
    pub fn group_keys(&self) -> BTreeMap<String, Fact<BTreeSet<String>>> {
        let keys = |said: &Said| said.groups.keys().cloned().collect();
        self.names().into_iter().map(|name| (name.clone(), self.fact(&name, keys))).collect()
    }

    /// The number of the last full list of a shard, also of one that is silent now.
    pub fn poll(&self, name: &str) -> Option<u64> {
        let said = self.0.sources.get(&name.to_owned())?.value?;
        Some(said.poll)
    }

    /// Deletions of a shard that are not over, by instance.
    pub fn open_notices(&self, name: &str) -> BTreeMap<String, Notice> {
        let said = self.0.sources.get(&name.to_owned()).and_then(|found| found.value);
        let notices = said.iter().flat_map(|said| &said.notices);
        let open = notices.filter(|(_, notice)| notice.progress != Progress::Deleted);
        open.map(|(id, notice)| (id.clone(), notice.clone())).collect()
    }

    /// What a shard says of the deletion of one instance.
    pub fn notice(&self, name: &str, instance: &str) -> Option<Notice> {
        self.0.sources.get(&name.to_owned())?.value?.notices.get(instance).cloned()
    }

    /// What a shard reported as failed for a group and is not recorded yet.
    pub fn errors(&self, name: &str, group: &str) -> Vec<String> {
        self.0.errors.of(name, group)
    }

    /// Forgets what was recorded.
    pub fn forget_errors(&self, name: &str, group: &str, recorded: &[String]) {
        self.0.errors.forget(name, group, recorded);
    }

    /// Hands a call over, in place of one that waits for the same object. Never waits.
    pub fn submit(&self, call: Call) -> Result<(), runtime::Error> {
        self.0.calls.submit(call)
    }

    /// Where the calls of an object are; the key is a [`job_key`].
    pub fn call(&self, key: &runtime::Key) -> CallState {
        self.0.calls.state(key)
    }

    /// Forgets the end of the call with this label: it is reported.
    pub fn forget_call(&self, key: &runtime::Key, label: &str) {
        self.0.calls.forget(key, label);
    }

    /// Drops what waits for an object that is gone, and how its last call ended.
    pub fn drop_call(&self, key: &runtime::Key) {
        self.0.calls.drop_all(key);
    }

    /// Looks at calls of objects of this kind: `ended` is called with the object's key when one has ended, and answers
    /// false if the object is gone.
    pub fn on_ended(&self, kind: &'static str, ended: impl Fn(&runtime::Key) -> bool + Send + Sync + 'static) {
        self.0.calls.on_ended(kind, ended);
    }

    /// Asks how one instance is; `None` where the shard does not have it. For facts, outside rounds.
    pub async fn instance(&self, name: &str, id: &str) -> Result<Option<Instance>, Failure> {
        let failed = |message: String| Failure { class: Class::Transient, message };
        let client = self.0.clients.get(name).ok_or_else(|| failed(format!("shard {name} is not connected")))?;
        match client.instance_status(id).await {
            Ok(answer) => {
                let is_leaving = self.notice(name, id).is_some();
                Ok(Some(convert::asked_instance(answer, is_leaving)))
            }
            Err(CallError::Refused(status)) if status.code() == Code::NotFound => Ok(None),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    fn fact<T>(&self, name: &str, project: impl FnOnce(&Said) -> T) -> Fact<T> {
        if let Some(snapshot) = self.0.sources.get(&name.to_owned()) {
            return snapshot.fact(project);
        }
        let message = "the operator has no certificate for its shards yet".to_owned();
        Fact::Unknown { why: Failure { class: Class::Transient, message }, last: None }
    }

    fn notify(&self, shard: &str) {
        notify(&self.0.listeners, shard);
    }
}

fn notify(listeners: &RwLock<Vec<Listener>>, shard: &str) {
    listeners.read().unwrap_or_else(PoisonError::into_inner).iter().for_each(|listener| listener(shard));
}

impl Said {
    fn group(&self, key: &str) -> Option<Group> {
        self.groups.get(key).map(|group| self.marked(group))
    }

    /// The protocol lists an instance that leaves like any other: that it does is an event.
    fn marked(&self, group: &Arc<Group>) -> Group {
        let mut group = Group::clone(group);
        self.mark(&mut group.members);
        group
    }

    fn mark(&self, members: &mut Members) {
        if let Members::Listed(instances) = members {
            for instance in instances {
                instance.is_leaving = self.notices.contains_key(&instance.id);
            }
        }
    }

    /// A group with one of its instances at most.
    fn with_one(&self, key: &str, id: &str) -> Option<Group> {
        let group = self.groups.get(key)?;
        let mut members = match &group.members {
            Members::Listed(all) => Members::Listed(all.iter().filter(|instance| instance.id == id).cloned().collect()),
            Members::Counted(ids) => Members::Counted(ids.clone()),
        };
        self.mark(&mut members);
        let Group { template, instance_type, subnet_pool, vars, size, is_static, members: _ } = &**group;
        Some(Group {
            template: template.clone(),
            instance_type: instance_type.clone(),
            subnet_pool: subnet_pool.clone(),
            vars: vars.clone(),
            size: *size,
            is_static: *is_static,
            members,
        })
    }
}
