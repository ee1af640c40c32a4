//! Calls that change something on a shard, as jobs beside the rounds: a few at once for each shard, so that one that is
//! slow or dead holds up no other.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use plan::machines::{shard::Outcome, shard_group::Push};
use runtime::{
    Error, Fence, Key, Operator,
    jobs::{self, Budget, Draw, Executor, Job, Jobs, NotBegun, State, Stops},
    source::Sources,
};
use shard::{
    client::{CallError, Client, Code},
    wire,
};

use super::{Clients, Said};

/// Calls at once to one shard: a shard stores one change after another, and what waits for the provider takes seconds.
const CALLS: u64 = 8;
const CALLS_OF_SHARD: &str = "calls of a shard";

/// Creations among them: they wait for the provider, and sizes of pools, deletions and ends of drains go past them.
const CREATIONS: u64 = 6;
const CREATIONS_OF_SHARD: &str = "creations of a shard";

/// The longest deadline of the client is a creation's, 30 s.
const CALL_TIME: Duration = Duration::from_secs(35);

/// Nothing is read but memory.
const PREPARATION: Duration = Duration::from_secs(1);

/// Calls are dropped when they are to end; what became of one is asked of the shard.
const GRACE: Duration = Duration::from_millis(200);

/// Before another replica may act.
const LOSS_MARGIN: Duration = Duration::from_millis(500);

/// A request id is at most 64 characters.
const DIGEST_LENGTH: usize = 16;

/// One call for one object.
#[derive(Debug)]
pub struct Call {
    /// The kind of the object, as [`job_key`] takes it, and its key.
    pub kind: &'static str,
    pub object: Key,
    pub shard: String,
    pub request: Request,
    /// What the caller knows it by; comes back in [`CallState`].
    pub label: Arc<str>,
    pub fence: Fence,
    /// When the object was created, in seconds: one that is made again under the same name is newer.
    pub created_at: i64,
    /// Repeated with the same id a request has one effect, and the same answer.
    pub request_id: String,
}

/// What is asked of a shard.
#[derive(Clone, Debug)]
pub enum Request {
    Upsert(Push),
    DeleteGroup { group: String },
    Create(wire::CreateInstanceRequest),
    DeleteInstance { id: String },
    Acknowledge { id: String },
}

impl Request {
    fn kind(&self) -> &'static str {
        match self {
            Self::Upsert(_) => "UpsertGroup",
            Self::DeleteGroup { .. } => "DeleteGroup",
            Self::Create(_) => "CreateInstance",
            Self::DeleteInstance { .. } => "DeleteInstance",
            Self::Acknowledge { .. } => "AcknowledgeDrained",
        }
    }
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub outcome: Outcome,
    /// Of a creation that was accepted.
    pub instance: Option<String>,
    /// Of an acknowledgement that was accepted: the shard does not have the instance any more.
    pub is_gone: bool,
}

impl Ended {
    fn new(outcome: Outcome) -> Self {
        Self { outcome, instance: None, is_gone: false }
    }
}

/// Where the calls of one object are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallState {
    Idle,
    /// It waits or is at work.
    Running {
        label: Arc<str>,
    },
    Ended {
        label: Arc<str>,
        ended: Ended,
    },
}

/// The key of an object's calls: objects of several kinds may share a name.
pub fn job_key(kind: &str, object: &Key) -> Key {
    Key::new(object.namespace.clone(), format!("{kind}/{}", object.name))
}

/// An id for a request that may be sent once per list of its shard and lead.
pub fn request_id(digest: &str, fence: &Fence, poll: u64) -> String {
    let digest: String = digest.chars().filter(char::is_ascii_alphanumeric).take(DIGEST_LENGTH).collect();
    format!("{digest}-{}-{poll}", fence.epoch().unwrap_or_default())
}

type OnEnded = Box<dyn Fn(&Key) -> bool + Send + Sync>;

pub(super) struct Calls {
    jobs: Jobs<Caller>,
    labels: Mutex<HashMap<Key, Arc<str>>>,
    listeners: Arc<RwLock<HashMap<&'static str, OnEnded>>>,
}

impl Calls {
    pub fn install(operator: &mut Operator, clients: &Clients, sources: &Sources<String, Said>) -> Self {
        let listeners = Arc::<RwLock<HashMap<&'static str, OnEnded>>>::default();
        let notified = listeners.clone();
        let config = jobs::Config {
            budgets: vec![(CALLS_OF_SHARD, Budget::calls(CALLS)), (CREATIONS_OF_SHARD, Budget::calls(CREATIONS))],
            preparation: PREPARATION,
            grace: GRACE,
            clock: operator.clock.clone(),
            on_change: Box::new(move |key| ended(&notified, key)),
        };
        let jobs = Jobs::new(Caller { clients: clients.clone(), sources: sources.clone() }, config);
        let (ending, leadership) = (jobs.clone(), operator.leadership());
        operator.part("calls of shards", GRACE + Duration::from_secs(1), move |stop, pulse| async move {
            pulse.while_waiting(ending.end_with(&leadership, LOSS_MARGIN, &stop, GRACE)).await;
        });
        Self { jobs, labels: Mutex::default(), listeners }
    }

    pub fn on_ended(&self, kind: &'static str, ended: impl Fn(&Key) -> bool + Send + Sync + 'static) {
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).insert(kind, Box::new(ended));
    }

    pub fn submit(&self, call: Call) -> Result<(), Error> {
        let key = job_key(call.kind, &call.object);
        let mut draws = vec![Draw::on(CALLS_OF_SHARD, call.shard.as_str(), 1)];
        if matches!(call.request, Request::Create(_)) {
            draws.push(Draw::on(CREATIONS_OF_SHARD, call.shard.as_str(), 1));
        }
        let job = Job {
            key: key.clone(),
            namespaces: Vec::new(),
            kind: call.request.kind(),
            label: call.label.clone(),
            draws,
            time: CALL_TIME,
            task: call,
        };
        self.labels().insert(key, job.label.clone());
        // The one reason that is left is that the process stops.
        self.jobs.submit(job).map_err(|_| Error::LeadLost)
    }

    pub fn state(&self, key: &Key) -> CallState {
        match self.jobs.state(key) {
            State::Idle => CallState::Idle,
            State::Waiting => match self.labels().get(key) {
                Some(label) => CallState::Running { label: label.clone() },
                None => CallState::Idle,
            },
            State::Running { label, .. } => CallState::Running { label },
            State::Finished(finished) => match &finished.ended {
                jobs::Ended::Done(ended) => CallState::Ended { label: finished.label.clone(), ended: ended.clone() },
                // Nothing was sent: another round plans anew.
                jobs::Ended::Outdated(_) | jobs::Ended::NotBegun(_) => CallState::Idle,
                jobs::Ended::Abandoned(_) | jobs::Ended::Panicked(_) => {
                    let outcome = Outcome::Unreachable("the call did not end".to_owned());
                    CallState::Ended { label: finished.label.clone(), ended: Ended::new(outcome) }
                }
            },
        }
    }

    pub fn forget(&self, key: &Key, label: &str) {
        if matches!(self.jobs.state(key), State::Finished(finished) if &*finished.label == label) {
            self.jobs.take(key);
        }
    }

    pub fn drop_all(&self, key: &Key) {
        self.labels().remove(key);
        self.jobs.forget(key);
    }

    fn labels(&self) -> MutexGuard<'_, HashMap<Key, Arc<str>>> {
        self.labels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notifies of the end of a call by the kind of its object.
fn ended(listeners: &RwLock<HashMap<&'static str, OnEnded>>, key: &Key) -> bool {
    let Some((kind, name)) = key.name.split_once('/') else { return false };
    let listeners = listeners.read().unwrap_or_else(PoisonError::into_inner);
    listeners.get(kind).is_some_and(|ended| ended(&Key::new(key.namespace.clone(), name)))
}

/// Makes calls.
struct Caller {
    clients: Clients,
    sources: Sources<String, Said>,
}

impl Executor for Caller {
    type Task = Call;
    type Contents = (Client, Call);
    type Output = Ended;

    async fn prepare(&self, call: Call) -> Result<(Client, Call), NotBegun<Ended>> {
        call.fence.check().map_err(|error| NotBegun::Outdated(error.to_string()))?;
        let Some(client) = self.clients.get(&call.shard) else {
            let why = format!("shard {} is not connected", call.shard);
            return Err(NotBegun::Failed(Ended::new(Outcome::Unreachable(why))));
        };
        Ok((client, call))
    }

    async fn execute(&self, (client, call): (Client, Call), mut stops: Stops) -> Ended {
        let fence = wire::Fence {
            epoch: call.fence.epoch(),
            generation: Some(generation(&call)),
            request_id: Some(call.request_id.clone()),
        };
        let kind = call.request.kind();
        let result = tokio::select! {
            result = send(&client, call.request, &fence) => result,
            _ = stops.asked() => return Ended::new(Outcome::Unreachable("the operator stopped the call".to_owned())),
        };
        match result {
            Ok(ended) => {
                tracing::debug!(shard = call.shard, kind, object = %call.object, "the shard accepted a call");
                // What became of it shows in a list; streams tell of groups alone.
                self.sources.hurry(&call.shard);
                ended
            }
            Err(error) => {
                tracing::warn!(shard = call.shard, kind, object = %call.object, %error, "a call to a shard failed");
                Ended::new(outcome(&error))
            }
        }
    }

    fn result(ended: &jobs::Ended<Ended>) -> &'static str {
        match ended {
            jobs::Ended::Done(ended) => match ended.outcome {
                Outcome::Accepted => "accepted",
                Outcome::Refused(_) => "refused",
                Outcome::Failed(_) => "failed",
                Outcome::Unreachable(_) => "unreachable",
            },
            jobs::Ended::Outdated(_) | jobs::Ended::NotBegun(_) => "not begun",
            jobs::Ended::Abandoned(_) | jobs::Ended::Panicked(_) => "abandoned",
        }
    }
}

/// Generations of one object are few beside this, and those of a later namesake begin above.
const GENERATIONS: u64 = 1 << 20;

fn generation(call: &Call) -> u64 {
    let own = u64::try_from(call.fence.generation).unwrap_or_default().min(GENERATIONS - 1);
    u64::try_from(call.created_at).unwrap_or_default() * GENERATIONS + own
}

async fn send(client: &Client, request: Request, fence: &wire::Fence) -> Result<Ended, CallError> {
    let mut ended = Ended::new(Outcome::Accepted);
    match request {
        Request::Upsert(push) => drop(client.upsert_group(upsert(push), fence).await?),
        Request::DeleteGroup { group } => client.delete_group(&group, fence).await?,
        Request::Create(request) => {
            ended.instance = Some(client.create_instance(request, fence).await?.instance_id);
        }
        Request::DeleteInstance { id } => drop(client.delete_instance(&id, fence).await?),
        Request::Acknowledge { id } => match client.acknowledge_drained(&id, fence).await {
            // It is gone, and so is what it waited for.
            Err(CallError::Refused(status)) if status.code() == Code::NotFound => ended.is_gone = true,
            result => result?,
        },
    }
    Ok(ended)
}

fn upsert(push: Push) -> wire::UpsertGroupRequest {
    let Push { group, size, template, instance_type, subnet_pool, vars, remove_first } = push;
    let config =
        wire::GroupConfig { template, size, instance_type, subnet_pool, vars, args: std::collections::BTreeMap::new() };
    wire::UpsertGroupRequest { key: group, config: Some(config), remove_first }
}

fn outcome(error: &CallError) -> Outcome {
    match error {
        // Known by the epoch and by its certificate alone: neither is about what was asked for.
        CallError::Refused(status) if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied) => {
            Outcome::Unreachable(status.message().to_owned())
        }
        CallError::Refused(status) => Outcome::Refused(status.message().to_owned()),
        CallError::Failed(status) => Outcome::Failed(status.message().to_owned()),
        CallError::Unreachable(status) => Outcome::Unreachable(status.message().to_owned()),
    }
}
