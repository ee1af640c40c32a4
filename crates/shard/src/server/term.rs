//! One lead of one shard: opened from storage, ended with the lead.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture, stream};
use jiff::Timestamp;
use plan::shard::{
    config::{Certificates, Config, Problem},
    id::InstanceId,
    instance::Record,
    refusal::Refusal,
    sweep::{Found, orphans, strangers},
};

use super::{
    dynamic::load_groups,
    entries::{Entries, Entry, Moment},
    groups::Groups,
    listing::Listed,
    memory::{Answers, Memory},
    missing, place,
    quarantine::{self, Quarantine, decode},
    said::Said,
    watch::Hub,
};
use crate::{
    clock::Clock,
    config::parse_own,
    provider::{MachineInfo, Provider, ProviderError},
    record::Damaged,
    store::{Etag, Expect, Lead, Lost, Object, Store, StoreError, layout::ShardLayout},
    wire,
};

/// Objects that are read by one call when many are. Few enough that none meets its deadline, enough that ten
/// thousand are a few dozen calls.
pub(super) const CHUNK: usize = 256;

/// Such calls at once: as many as keep a few cores and a bucket busy.
const CHUNKS_AT_ONCE: usize = 4;

/// Events that wait for a watcher. One of a group has all its instances and is a hundred times as large as the others.
const GROUPS_BEHIND: usize = 256;
const EVENTS_BEHIND: usize = 4096;

/// Gates of groups that are not in use: names come from requests, also those of groups that never were.
const IDLE_GATES: usize = 4096;

/// For one call to storage: a leader that waits longer would lose its lead meanwhile.
const STORAGE_DEADLINE: Duration = Duration::from_secs(10);

/// For one call to the provider.
const PROVIDER_DEADLINE: Duration = Duration::from_secs(30);

/// What a server works with. Shared by its terms.
pub struct Context {
    pub cluster: String,
    pub shard: String,
    pub layout: ShardLayout,
    pub store: Arc<dyn Store>,
    pub provider: Arc<dyn Provider>,
    pub clock: Clock,
    /// Draws a UUID of version 7.
    pub ids: Box<dyn Fn() -> u128 + Send + Sync>,
}

/// Why a term cannot go on, or a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum TermError {
    #[error(transparent)]
    Lost(#[from] Lost),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Provider(#[from] ProviderError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("{key} has {}", named(.problems))]
    Config { key: String, problems: Vec<Problem> },
    #[error("{key} is damaged: {why}")]
    Damaged { key: String, why: String },
    #[error("instance_id: the record of {0} is damaged; `strata shard status` and the server's log name it")]
    Quarantined(InstanceId),
}

fn named(problems: &[Problem]) -> String {
    let first = problems.first().map(|problem| format!("{}: {}", problem.field, problem.message)).unwrap_or_default();
    match problems.len() {
        1 => format!("1 problem: {first}"),
        count => format!("{count} problems, first: {first}"),
    }
}

/// Passed by one at a time.
type Gate = Arc<tokio::sync::Mutex<()>>;

/// Everything a leader knows and does.
pub struct Term {
    pub(super) context: Arc<Context>,
    pub(super) lead: Lead,
    memory: Mutex<Memory>,
    /// Changes of the groups file and of the configuration, one after the other.
    pub(super) groups_gate: tokio::sync::Mutex<()>,
    /// Rounds and requests about the instances of one group, one after the other.
    pub(super) gates: Mutex<HashMap<(String, String), Gate>>,
    pub group_events: Hub<wire::GroupEvent>,
    pub instance_events: Hub<wire::InstanceEvent>,
    pub error_events: Hub<wire::ErrorEvent>,
    /// Groups that need a round.
    pub(super) due: Mutex<BTreeSet<(String, String)>>,
    pub(super) wake: tokio::sync::Notify,
    /// An agent hung up.
    pub(super) hung_up: tokio::sync::Notify,
}

impl Term {
    /// Reads everything: storage first, the provider last, so that a machine without a record is one that no record
    /// was stored for before.
    pub async fn open(context: Arc<Context>, lead: Lead) -> Result<Self, TermError> {
        let now = (context.clock.now(), context.clock.instant());
        let (config, object) = load_config(&context).await?;
        let (entries, quarantine) = load_entries(&context, now).await?;
        let (dynamic, dynamic_etag) = load_groups(&context, &lead, &config, &entries).await?;
        let mut memory = Memory {
            groups: Groups::new(config, dynamic),
            config_etag: object.etag,
            config_modified: object.modified,
            config_size: object.body.len(),
            config_problems: Said::default(),
            dynamic_etag,
            groups_damage: Said::default(),
            entries,
            quarantine,
            unowned: HashMap::new(),
            failing: HashMap::new(),
            made: Vec::new(),
            waiting: BTreeMap::new(),
            answers: Answers::default(),
            listed: Listed::default(),
            epochs: HashMap::new(),
            time: now,
        };
        memory.epochs = memory.groups.dynamic().epochs().into_iter().collect();
        let registered = load_registered(&context).await?;
        memory.entries.for_each_mut(|entry| {
            entry.agent.registered = registered.contains(entry.record.id.as_str());
        });
        place::claim(&context, &lead, missing::has_machines(&memory)).await?;
        let mut machines = bounded_provider(context.provider.list(&context.cluster, &context.shard)).await?;
        let missing = missing::from(&memory, &machines);
        missing::confirm(&context, missing, &mut machines).await;
        // Nothing was called yet.
        observe(&mut memory, &machines, |entry| entry.calls == 0);
        let due = memory.group_names();
        Ok(Self {
            context,
            lead,
            memory: Mutex::new(memory),
            groups_gate: tokio::sync::Mutex::default(),
            gates: Mutex::default(),
            group_events: Hub::new(GROUPS_BEHIND, prost::Message::encoded_len),
            instance_events: Hub::new(EVENTS_BEHIND, prost::Message::encoded_len),
            error_events: Hub::new(EVENTS_BEHIND, prost::Message::encoded_len),
            due: Mutex::new(due),
            wake: tokio::sync::Notify::new(),
            hung_up: tokio::sync::Notify::new(),
        })
    }

    pub fn lead(&self) -> &Lead {
        &self.lead
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn gate(&self, tenant: &str, group: &str) -> Gate {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        if gates.len() >= IDLE_GATES {
            gates.retain(|_, gate| Arc::strong_count(gate) > 1);
        }
        Arc::clone(gates.entry((tenant.to_owned(), group.to_owned())).or_default())
    }

    /// Passed by a tenant's changes of its groups, one after the other, before those of all tenants: however many requests
    /// one tenant has open, another's waits for one of them. No group has an empty name.
    pub(super) fn turn(&self, tenant: &str) -> Gate {
        self.gate(tenant, "")
    }

    /// Asks for a round of the group.
    pub fn enqueue(&self, tenant: &str, group: &str) {
        let name = (tenant.to_owned(), group.to_owned());
        self.due.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
        self.wake.notify_one();
    }

    /// Asks for a round of every group.
    pub fn enqueue_all(&self) {
        let groups = self.memory().group_names();
        self.due.lock().unwrap_or_else(PoisonError::into_inner).extend(groups);
        self.wake.notify_one();
    }

    /// Wall time. What is measured in memory moves with a clock that was set meanwhile.
    pub(super) fn now(&self) -> Timestamp {
        self.memory().follow(&self.context.clock)
    }

    /// How long to wait for that time; at most as long as a health check may be late.
    pub(super) fn until(&self, next: Option<Timestamp>) -> Duration {
        let longest = self.memory().groups.config().shard.health_check_interval.get();
        let wait = next.map(|at| at.duration_since(self.now()));
        let wait = wait.map_or(longest, |wait| wait.try_into().unwrap_or(Duration::ZERO));
        // Not at once: a time that does not come nearer must not spin.
        wait.clamp(Duration::from_millis(10), longest)
    }

    pub(super) fn certificates(&self) -> Certificates {
        self.memory().groups.config().certificates
    }

    pub(super) fn collection_interval(&self) -> Duration {
        self.memory().groups.config().shard.garbage_collection.interval.get()
    }

    /// Stores a record over what is known of it. The lead is looked at first: storage cannot tell a stale leader's
    /// write from a good one if the record did not change meanwhile.
    pub(super) async fn write(&self, record: Record) -> Result<(), TermError> {
        self.lead.verify().await?;
        let id = record.id.clone();
        let key = self.context.layout.instance(&record.tenant, &id.storage_key());
        let body = serde_json::to_vec_pretty(&record).expect("a record is plain data");
        let expect = {
            let mut memory = self.memory();
            let now = (self.context.clock.now(), self.context.clock.instant());
            let mut entry = memory.entries.add(&record, now);
            // Unknown from here until the answer: a failed write may have arrived.
            entry.etag.take().map_or(Expect::Absent, Expect::Content)
        };
        let etag = bounded(&key, self.context.store.put(&key, body, expect)).await?;
        if let Some(mut entry) = self.memory().entries.get_mut(&id) {
            entry.replace(record, etag);
        }
        Ok(())
    }

    /// Reads again what an earlier write left unknown.
    pub(super) async fn resync(&self, tenant: &str, group: &str) -> Result<(), TermError> {
        let unknown: Vec<InstanceId> = {
            let memory = self.memory();
            let unknown = memory.entries.of_group(tenant, group).filter(|entry| entry.etag.is_none());
            unknown.map(|entry| entry.record.id.clone()).collect()
        };
        let (mut missing, mut keys) = (Vec::new(), Vec::new());
        for id in unknown {
            let key = self.context.layout.instance(tenant, &id.storage_key());
            let Some(object) = bounded(&key, self.context.store.get(&key)).await? else {
                missing.push(id);
                keys.push(key);
                continue;
            };
            let read = decode(&self.context.layout, &key, object);
            let mut memory = self.memory();
            match read {
                Ok((record, etag)) => {
                    if let Some(mut entry) = memory.entries.get_mut(&id) {
                        entry.replace(record, etag);
                    }
                }
                Err(damaged) => {
                    let machine = memory.entries.remove(&id).as_ref().and_then(quarantine::last_known);
                    memory.quarantine.put(damaged, machine);
                }
            }
        }
        // Once for all: after an outage many may never have been written.
        check_gone(&self.context, &keys).await?;
        let mut memory = self.memory();
        for id in missing {
            memory.entries.remove(&id);
        }
        Ok(())
    }

    /// Asks the provider for all machines, and enqueues every group.
    pub async fn observe(&self) -> Result<Vec<MachineInfo>, TermError> {
        let calls: HashMap<InstanceId, u64> =
            self.memory().entries.iter().map(|entry| (entry.record.id.clone(), entry.calls)).collect();
        let context = &self.context;
        let mut machines = bounded_provider(context.provider.list(&context.cluster, &context.shard)).await?;
        let missing = missing::from(&self.memory(), &machines);
        missing::confirm(context, missing, &mut machines).await;
        let groups = {
            let mut memory = self.memory();
            observe(&mut memory, &machines, |entry| calls.get(&entry.record.id) == Some(&entry.calls));
            memory.group_names()
        };
        for (tenant, group) in groups {
            self.enqueue(&tenant, &group);
        }
        Ok(machines)
    }

    /// Removes machines that no record owns, and returns how many.
    pub async fn sweep(&self) -> Result<usize, TermError> {
        let machines = self.observe().await?;
        let found: Vec<_> = machines
            .iter()
            .map(|machine| Found {
                instance_id: machine.instance_id.clone(),
                provider_id: machine.provider_id.clone(),
                created_at: machine.created_at,
            })
            .collect();
        let orphans = {
            let mut memory = self.memory();
            let (now, instant) = (self.context.clock.now(), self.context.clock.instant());
            let guard = memory.groups.config().shard.garbage_collection.registration_timeout.get();
            let before = std::mem::take(&mut memory.unowned);
            let mut unowned = HashMap::new();
            let unowned_for = |found: &Found| {
                let since = before.get(&found.provider_id).copied().unwrap_or(instant);
                unowned.insert(found.provider_id.clone(), since);
                instant.saturating_duration_since(since)
            };
            let orphans = orphans(&found, |id| memory.owner(id), unowned_for, guard, now);
            for Found { instance_id, provider_id, .. } in strangers(&found, |id| memory.owner(id)) {
                // Said once.
                if !before.contains_key(provider_id) {
                    tracing::warn!(
                        instance = instance_id,
                        machine = provider_id,
                        "another machine has the labels of an instance; it is left alone: delete it, or take the labels away"
                    );
                }
                unowned.insert(provider_id.clone(), instant);
            }
            memory.unowned = unowned;
            orphans
        };
        let mut removed = 0;
        for Found { instance_id, provider_id, .. } in orphans {
            self.lead.verify().await?;
            tracing::warn!(instance = instance_id, machine = provider_id, "removing an orphan machine");
            // One that cannot be removed keeps none of the others.
            match bounded_provider(self.context.provider.delete(instance_id)).await {
                Ok(()) => removed += 1,
                Err(error) => tracing::warn!(instance = instance_id, %error, "an orphan machine was not removed"),
            }
        }
        Ok(removed)
    }
}

/// Takes over what a list of machines says, except of instances whose machines were touched since it began.
fn observe(memory: &mut Memory, machines: &[MachineInfo], is_untouched: impl Fn(&Entry) -> bool) {
    let mut found: HashMap<&str, &MachineInfo> = HashMap::with_capacity(machines.len());
    for machine in machines {
        let id = &*machine.instance_id;
        // Of several with the same label the one that the record names counts.
        if memory.entries.find(id).is_some_and(|entry| entry.is_own(machine)) || !found.contains_key(id) {
            found.insert(id, machine);
        }
    }
    memory.entries.for_each_mut(|entry| {
        if is_untouched(entry) {
            entry.observe(found.get(entry.record.id.as_str()).copied());
        }
    });
    memory.quarantine.observe(&found);
}

/// A hanging store is an unavailable one.
pub(super) async fn bounded<T>(key: &str, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = |_| StoreError::Unavailable { key: key.to_owned(), source: "no answer in time".into() };
    tokio::time::timeout(STORAGE_DEADLINE, call).await.map_err(late)?
}

pub(super) async fn bounded_provider<T>(
    call: impl Future<Output = Result<T, ProviderError>>,
) -> Result<T, ProviderError> {
    let late = |_| ProviderError::new("no answer from the provider in time");
    tokio::time::timeout(PROVIDER_DEADLINE, call).await.map_err(late)?
}

pub(super) async fn load_config(context: &Context) -> Result<(Config, Object), TermError> {
    let key = context.layout.config();
    let object = bounded(&key, context.store.get(&key)).await?;
    let damaged = |why: &str| TermError::Damaged { key: key.clone(), why: why.to_owned() };
    let object = object.ok_or_else(|| damaged("it is missing; `strata shard init` writes one"))?;
    let text = std::str::from_utf8(&object.body).map_err(|_| damaged("it is not text"))?;
    match parse_own(text, &context.shard, Some(&context.cluster)) {
        (Some(config), findings) if findings.problems.is_empty() => {
            for warning in findings.warnings {
                tracing::warn!(field = warning.field, "configuration: {}", warning.message);
            }
            Ok((config, object))
        }
        (_, findings) => Err(TermError::Config { key, problems: findings.problems }),
    }
}

async fn load_entries(context: &Context, now: Moment) -> Result<(Entries, Quarantine), TermError> {
    let folder = context.layout.instances();
    let keys = bounded(&folder, context.store.list(&folder)).await?;
    // Boxed: the compiler cannot see through the borrow that these futures are `Send`.
    let chunks: Vec<BoxFuture<'_, _>> = keys.chunks(CHUNK).map(|keys| load_records(context, keys).boxed()).collect();
    let mut chunks = stream::iter(chunks).buffer_unordered(CHUNKS_AT_ONCE);
    let (mut entries, mut quarantine, mut missing) = (Entries::default(), Quarantine::default(), Vec::new());
    while let Some((records, without)) = chunks.try_next().await? {
        missing.extend(without);
        for read in records {
            match read {
                Ok((record, etag)) => entries.add(&record, now).etag = Some(etag),
                Err(damaged) => quarantine.put(damaged, None),
            }
        }
    }
    check_gone(context, &missing).await?;
    Ok((entries, quarantine))
}

type Read = Result<(Record, Etag), Damaged>;

/// Those that are there, and the keys of those that are not.
async fn load_records(context: &Context, keys: &[String]) -> Result<(Vec<Read>, Vec<String>), TermError> {
    let objects = bounded(&context.layout.instances(), context.store.get_many(keys)).await?;
    let (mut records, mut missing) = (Vec::with_capacity(keys.len()), Vec::new());
    for (key, object) in keys.iter().zip(objects) {
        match object {
            Some(object) => records.push(decode(&context.layout, key, object)),
            None => missing.push(key.clone()),
        }
    }
    Ok((records, missing))
}

/// A record that is not there was purged, by the leader before or by a person, if it is not listed either. Else something
/// in front of the storage said so, and a machine without a record would be swept.
pub(super) async fn check_gone(context: &Context, missing: &[String]) -> Result<(), TermError> {
    if missing.is_empty() {
        return Ok(());
    }
    let folder = context.layout.instances();
    let listed: HashSet<String> = bounded(&folder, context.store.list(&folder)).await?.into_iter().collect();
    match missing.iter().find(|key| listed.contains(*key)) {
        Some(key) => {
            let source = "it is listed, and a read says that it is not there".into();
            Err(StoreError::Unavailable { key: key.clone(), source }.into())
        }
        None => Ok(()),
    }
}

/// Instances whose agents registered. Their keys go with their records, so that there are not more of them.
async fn load_registered(context: &Context) -> Result<BTreeSet<String>, TermError> {
    let folder = context.layout.agent_keys();
    let keys = bounded(&folder, context.store.list(&folder)).await?;
    let id = |key: &String| Some(key.strip_prefix(&folder)?.strip_suffix(".pem")?.to_owned());
    Ok(keys.iter().filter_map(id).collect())
}
