//! One lead of one shard: opened from storage, ended with the lead.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use plan::shard::{
    config::{Config, Problem},
    group::{Dynamic, DynamicGroup},
    id::InstanceId,
    instance::{Machine, Record},
    refusal::Refusal,
};

use super::{
    memory::{Answers, Entry, Memory},
    watch::Hub,
};
use crate::{
    clock::Clock,
    config::parse,
    provider::{MachineInfo, Provider, ProviderError},
    store::{Etag, Expect, Lead, Lost, Object, Store, StoreError, layout::ShardLayout},
    wire,
};

/// Records read at once when a term opens: enough to hide a bucket's latency, few enough for a file system.
const READERS: usize = 32;

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
    #[error("{key} has {} problems, first: {}: {}", .problems.len(), first(.problems).0, first(.problems).1)]
    Config { key: String, problems: Vec<Problem> },
    #[error("{key} is damaged: {why}")]
    Damaged { key: String, why: String },
}

fn first(problems: &[Problem]) -> (&str, &str) {
    problems.first().map_or(("", ""), |problem| (&problem.field, &problem.message))
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
    gates: Mutex<HashMap<(String, String), Gate>>,
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
        let now = context.clock.now();
        let (config, object) = load_config(&context).await?;
        let (dynamic, dynamic_etag) = load_groups(&context).await?;
        let mut memory = Memory {
            config: Arc::new(config),
            config_etag: object.etag,
            config_modified: object.modified,
            config_size: object.body.len(),
            dynamic,
            dynamic_etag,
            entries: load_entries(&context, now).await?,
            failing: HashMap::new(),
            made: std::collections::VecDeque::new(),
            answers: Answers::default(),
            epochs: HashMap::new(),
        };
        memory.epochs = epochs(&memory.dynamic);
        let registered = load_registered(&context).await?;
        for entry in memory.entries.values_mut() {
            entry.agent.registered = registered.contains(entry.record.id.as_str());
        }
        let machines = bounded_provider(context.provider.list(&context.cluster, &context.shard)).await?;
        let calls = memory.entries.iter().map(|(id, entry)| (id.clone(), entry.calls)).collect();
        observe(&mut memory, &machines, &calls);
        let due = memory.groups();
        Ok(Self {
            context,
            lead,
            memory: Mutex::new(memory),
            groups_gate: tokio::sync::Mutex::default(),
            gates: Mutex::default(),
            group_events: Hub::default(),
            instance_events: Hub::default(),
            error_events: Hub::default(),
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
        Arc::clone(gates.entry((tenant.to_owned(), group.to_owned())).or_default())
    }

    /// Asks for a round of the group.
    pub fn enqueue(&self, tenant: &str, group: &str) {
        let name = (tenant.to_owned(), group.to_owned());
        self.due.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
        self.wake.notify_one();
    }

    /// Asks for a round of every group.
    pub fn enqueue_all(&self) {
        let groups = self.memory().groups();
        self.due.lock().unwrap_or_else(PoisonError::into_inner).extend(groups);
        self.wake.notify_one();
    }

    /// How long to wait for that time; at most as long as a health check may be late.
    pub(super) fn until(&self, next: Option<Timestamp>) -> Duration {
        let longest = self.memory().config.shard.health_check_interval.get();
        let wait = next.map(|at| at.duration_since(self.context.clock.now()));
        let wait = wait.map_or(longest, |wait| wait.try_into().unwrap_or(Duration::ZERO));
        // Not at once: a time that does not come nearer must not spin.
        wait.clamp(Duration::from_millis(10), longest)
    }

    pub(super) fn collection_interval(&self) -> Duration {
        self.memory().config.shard.garbage_collection.interval.get()
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
            let now = self.context.clock.now();
            let entry = memory.entries.entry(id.clone()).or_insert_with(|| Entry::new(record.clone(), None, now));
            // Unknown from here until the answer: a failed write may have arrived.
            entry.etag.take().map_or(Expect::Absent, Expect::Content)
        };
        let etag = bounded(&key, self.context.store.put(&key, body, expect)).await?;
        if let Some(entry) = self.memory().entries.get_mut(&id) {
            entry.record = record;
            entry.etag = Some(etag);
        }
        Ok(())
    }

    /// Reads again what an earlier write left unknown.
    pub(super) async fn resync(&self, tenant: &str, group: &str) -> Result<(), TermError> {
        let unknown: Vec<InstanceId> = {
            let memory = self.memory();
            let of =
                |entry: &&Entry| entry.etag.is_none() && entry.record.tenant == tenant && entry.record.group == group;
            memory.entries.values().filter(of).map(|entry| entry.record.id.clone()).collect()
        };
        for id in unknown {
            let key = self.context.layout.instance(tenant, &id.storage_key());
            let object = bounded(&key, self.context.store.get(&key)).await?;
            let read = object.map(|object| decode(&key, object)).transpose()?;
            let mut memory = self.memory();
            match read {
                None => drop(memory.entries.remove(&id)),
                Some((record, etag)) => {
                    if let Some(entry) = memory.entries.get_mut(&id) {
                        entry.record = record;
                        entry.etag = Some(etag);
                    }
                }
            }
        }
        Ok(())
    }

    /// Asks the provider for all machines, and enqueues every group.
    pub async fn observe(&self) -> Result<Vec<MachineInfo>, TermError> {
        let calls: HashMap<InstanceId, u64> =
            self.memory().entries.iter().map(|(id, entry)| (id.clone(), entry.calls)).collect();
        let context = &self.context;
        let machines = bounded_provider(context.provider.list(&context.cluster, &context.shard)).await?;
        let groups = {
            let mut memory = self.memory();
            observe(&mut memory, &machines, &calls);
            memory.groups()
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
            .map(|machine| plan::shard::sweep::Found {
                instance_id: machine.instance_id.clone(),
                provider_id: machine.provider_id.clone(),
                created_at: machine.created_at,
            })
            .collect();
        let (records, guard) = {
            let memory = self.memory();
            let records = memory.entries.values().map(|entry| (entry.record.id.to_string(), entry.record.clone()));
            let guard = memory.config.shard.garbage_collection.registration_timeout.get();
            (records.collect(), guard)
        };
        let orphans = plan::shard::sweep::orphans(&found, &records, guard, self.context.clock.now());
        for orphan in &orphans {
            self.lead.verify().await?;
            tracing::warn!(instance = orphan.instance_id, machine = orphan.provider_id, "removing an orphan machine");
            bounded_provider(self.context.provider.delete(&orphan.instance_id)).await?;
        }
        Ok(orphans.len())
    }
}

/// The newest epoch that each tenant's groups were changed in.
fn epochs(dynamic: &Dynamic) -> HashMap<String, u64> {
    let newest = |groups: &std::collections::BTreeMap<String, DynamicGroup>| {
        groups.values().filter_map(|group| group.age).map(|age| age.epoch).max()
    };
    dynamic.0.iter().filter_map(|(tenant, groups)| Some((tenant.clone(), newest(groups)?))).collect()
}

/// Takes over what a list of machines says, except of instances whose machines were touched since it began.
fn observe(memory: &mut Memory, machines: &[MachineInfo], calls: &HashMap<InstanceId, u64>) {
    let found: HashMap<&str, &MachineInfo> = machines.iter().map(|machine| (&*machine.instance_id, machine)).collect();
    for (id, entry) in &mut memory.entries {
        if calls.get(id) != Some(&entry.calls) {
            continue;
        }
        entry.machine = found.get(id.as_str()).map_or(Machine::Absent, |machine| Machine::There {
            provider_id: machine.provider_id.clone(),
            status: machine.status,
        });
    }
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
    match parse(text) {
        (Some(config), findings) if findings.problems.is_empty() => {
            for warning in findings.warnings {
                tracing::warn!(field = warning.field, "configuration: {}", warning.message);
            }
            Ok((config, object))
        }
        (_, findings) => Err(TermError::Config { key, problems: findings.problems }),
    }
}

pub(super) async fn load_groups(context: &Context) -> Result<(Dynamic, Option<Etag>), TermError> {
    let key = context.layout.groups();
    let Some(object) = bounded(&key, context.store.get(&key)).await? else { return Ok((Dynamic::default(), None)) };
    let damaged = |why: String| TermError::Damaged { key: key.clone(), why };
    let text = std::str::from_utf8(&object.body).map_err(|error| damaged(error.to_string()))?;
    let groups = jsonc_parser::parse_to_serde_value(text, &jsonc_parser::ParseOptions::default());
    Ok((groups.map_err(|error| damaged(error.to_string()))?, Some(object.etag)))
}

async fn load_entries(
    context: &Context,
    now: Timestamp,
) -> Result<std::collections::BTreeMap<InstanceId, Entry>, TermError> {
    let folder = context.layout.instances();
    let keys = bounded(&folder, context.store.list(&folder)).await?;
    stream::iter(keys)
        .map(|key| async move {
            let object = bounded(&key, context.store.get(&key)).await?;
            let read = object.map(|object| decode(&key, object)).transpose()?;
            // One that vanished since the list was purged by the leader before.
            Ok(read.map(|(record, etag)| (record.id.clone(), Entry::new(record, Some(etag), now))))
        })
        .buffer_unordered(READERS)
        .try_filter_map(|entry| async move { Ok(entry) })
        .try_collect()
        .await
}

/// Instances to which a certificate was issued.
async fn load_registered(context: &Context) -> Result<BTreeSet<String>, TermError> {
    let folder = context.layout.certificates();
    let keys = bounded(&folder, context.store.list(&folder)).await?;
    let id = |key: &String| Some(key.strip_suffix(".json")?.rsplit('.').next()?.to_owned());
    Ok(keys.iter().filter_map(id).collect())
}

/// A record that cannot be read stops the server rather than being taken for absent: its machine runs.
fn decode(key: &str, object: Object) -> Result<(Record, Etag), TermError> {
    let record = serde_json::from_slice(&object.body);
    let damaged = |error: serde_json::Error| TermError::Damaged { key: key.to_owned(), why: error.to_string() };
    Ok((record.map_err(damaged)?, object.etag))
}
