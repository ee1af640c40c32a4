//! Rounds of NstanceMachines; every decision is in `plan::machines::machine`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::machine::{
    EXCLUDE_DRAINING_ANNOTATION, NstanceMachine, NstanceMachineSpec, NstanceMachineStatus, PRE_DRAIN_HOOK,
};
use jiff::Timestamp;
use plan::{
    fact::Failure,
    machines::{
        machine::{self, Action, Answer, Ask, Begun, Call, Note, Observed, Role},
        shard::{Group, Outcome, Shard, peer},
    },
    object::digest,
    round::{Peer, Plan, Report},
};
use process::Clock;
use runtime::{Controller, Error, Fence, InputsOf, Key, Kind, Parts, RoundOf, ServerClock, Turn};
use serde_json::{Value, json};
use shard::wire;
use tokio::time::Instant;

use crate::{
    drains::{Asker, Desk, Wanted},
    kinds::Kinds,
    nodes::{is_member, shard_of},
    shards::{self, CallState, Progress, Request, Shards, job_key, request_id},
};

/// Of the calls of machines.
pub(crate) const CALLS: &str = "nstancemachine";
/// What calls are known by.
const CREATE: &str = "create";
const DELETE: &str = "delete";
/// One question to a shard: the client gives up after 10 s, and connects before.
const ASK_LIMIT: Duration = Duration::from_secs(15);

pub(crate) struct MachineController {
    pub kinds: Arc<Kinds>,
    pub shards: Shards,
    pub desk: Desk,
    /// The drain that each began, to be released with it.
    pub drained: Mutex<HashMap<Key, String>>,
    pub clock: Clock,
    pub server_clock: ServerClock,
    /// When the creation failed that each asked for, and in which generation.
    pub failed: Mutex<HashMap<Key, (Instant, Option<i64>)>>,
}

impl Controller for MachineController {
    const NAME: &'static str = "nstancemachine";
    type View = Parts<NstanceMachine>;
    type Object = NstanceMachine;
    type Kept = NstanceMachine;
    type Status = NstanceMachineStatus;
    type Observed = Observed;
    type Action = Action;
    type Done = ();
    type Note = Note;
    type Ask = Ask;
    type Answer = Answer;

    fn kind(&self) -> &Arc<Kind<Parts<NstanceMachine>, NstanceMachine>> {
        &self.kinds.members
    }

    fn span(key: &Key) -> tracing::Span {
        tracing::info_span!("round", nstancemachine = %key, namespace = %key.namespace)
    }

    async fn gather(&self, key: &Key, object: &NstanceMachine, note: &Note) -> Result<Observed, Error> {
        self.shards.check_listed()?;
        let group = object.spec.as_ref().map_or("", NstanceMachineSpec::group);
        let (role, shards) = self.place(object, group);
        if let Some(machine) = self.kinds.machine_of(object) {
            self.kinds.machines.settle(&machine).await?;
        }
        let call = self.call(key, object);
        let id = instance_id(object, &role, &call);
        let ids = ids(object, id.as_deref(), &shards);
        self.kinds.seeks(key, &ids);
        let shard = match &role {
            Role::Member { shard } => shard.clone(),
            Role::Own => object.status.as_ref().and_then(|status| status.shard.clone()),
        };
        let nodes = self.kinds.node_refs(ids.iter().map(String::as_str));
        let notice = shard.zip(id.as_deref()).and_then(|(shard, id)| self.shards.notice(&shard, id));
        Ok(Observed {
            owner: self.kinds.owner_of(object),
            addresses: self.kinds.addresses(&nodes),
            nodes,
            drain: id.as_deref().map(|id| self.desk.state(id)).unwrap_or_default(),
            asked: id.and_then(|id| self.desk.asked(&Asker::Machine, &id)),
            begun: Begun::of(object, note.begun, self.server_clock.clocks()),
            deleted: notice.filter(|notice| notice.progress == Progress::Deleted).map(|notice| notice.reason),
            is_paused: self.kinds.is_paused(object),
            role,
            shards,
            call,
        })
    }

    fn plan(&self, object: &NstanceMachine, observed: &Observed, inputs: &InputsOf<Self>) -> Plan<Action, Ask> {
        machine::plan(object, observed, inputs)
    }

    async fn execute(&self, turn: &Turn<'_, Self>, action: &Action) -> Result<(), Error> {
        let (kinds, key, subject) = (&self.kinds, turn.key, turn.subject);
        let at = |name: &str| Key::new(key.namespace.clone(), name);
        match action {
            Action::AddFinalizer { finalizers } => {
                subject.patch(&kinds.members, key, None, json!({ "metadata": { "finalizers": finalizers } })).await
            }
            Action::ReleaseFinalizer { finalizers } => subject.release_finalizer(&kinds.members, key, finalizers).await,
            Action::SetProviderId { id } => {
                subject.patch(&kinds.members, key, None, json!({ "spec": { "providerID": id } })).await
            }
            Action::HookMachine { name, uid, resource_version } => {
                let patch = annotations(uid, resource_version, &json!({ PRE_DRAIN_HOOK: "" }));
                kinds.machines.patch(&at(name), None, &patch).await.map(drop)
            }
            Action::ReleaseHook { name, uid, resource_version } => {
                let changes = json!({ EXCLUDE_DRAINING_ANNOTATION: "", PRE_DRAIN_HOOK: null });
                let patch = annotations(uid, resource_version, &changes);
                match kinds.machines.patch(&at(name), None, &patch).await {
                    // A Machine that is gone waits for nothing.
                    Err(error) if error.is_not_found() => Ok(()),
                    result => result.map(drop),
                }
            }
            Action::DeleteMachine { name, uid, resource_version } => {
                kinds.machines.delete(&at(name), uid, resource_version).await.map(drop)
            }
            Action::DeleteSelf => {
                let metadata = &subject.object().metadata;
                let version = metadata.resource_version.as_deref().unwrap_or_default();
                kinds.members.delete(key, subject.uid(), version).await.map(drop)
            }
            Action::Drain { node, id, timeout } => {
                self.drained().insert(key.clone(), id.clone());
                self.desk.drain(Asker::Machine, Wanted { id: id.clone(), node: node.clone(), time: *timeout })
            }
            Action::ReleaseDrain { id } => {
                self.desk.release(&Asker::Machine, id);
                Ok(())
            }
            Action::CreateInstance { shard, group, instance_type, vars } => {
                let config = wire::InstanceConfig {
                    group: group.clone(),
                    instance_type: instance_type.clone(),
                    vars: vars.clone(),
                    ..wire::InstanceConfig::default()
                };
                let request = wire::CreateInstanceRequest { config: Some(config), ..Default::default() };
                self.hand_over(turn, shard, CREATE, Request::Create(request))
            }
            Action::DeleteInstance { shard, id } => {
                self.hand_over(turn, shard, DELETE, Request::DeleteInstance { id: id.clone() })
            }
        }
    }

    fn report(&self, round: &RoundOf<'_, Self>, now: Timestamp) -> Report<NstanceMachineStatus, Note> {
        // The time that a drain began at must be as right for another process, on another machine.
        machine::report(round, self.server_clock.now().unwrap_or(now))
    }

    async fn fetch(&self, ask: &Ask, _: &Fence) -> Result<Answer, Failure> {
        let Ask::Instance { shard, id } = ask;
        self.shards.instance(shard, id).await.map(Answer::Instance)
    }

    fn peer(ask: &Ask) -> (Peer, Duration) {
        let Ask::Instance { shard, .. } = ask;
        (peer(shard), ASK_LIMIT)
    }

    fn reported(&self, round: &RoundOf<'_, Self>) {
        let metadata = &round.object.metadata;
        let (Some(namespace), Some(name)) = (&metadata.namespace, &metadata.name) else { return };
        let key = job_key(CALLS, &Key::new(namespace.as_str(), name.as_str()));
        // Why there is no instance holds until it is asked for again.
        let is_going = metadata.deletion_timestamp.is_some();
        if matches!(round.observed.call, Call::Created { .. }) || (is_going && round.observed.call != Call::Running) {
            self.shards.forget_call(&key, CREATE);
        }
        self.shards.forget_call(&key, DELETE);
    }

    fn forget(&self, key: &Key) {
        self.failed().remove(key);
        self.shards.drop_call(&job_key(CALLS, key));
        if let Some(id) = self.drained().remove(key) {
            self.desk.release(&Asker::Machine, &id);
        }
    }
}

/// A patch of the annotations of exactly this object.
fn annotations(uid: &str, resource_version: &str, changes: &Value) -> Value {
    json!({ "metadata": { "uid": uid, "resourceVersion": resource_version, "annotations": changes } })
}

fn instance_id(object: &NstanceMachine, role: &Role, call: &Call) -> Option<String> {
    match (role, call) {
        (Role::Member { .. }, _) => object.metadata.name.clone(),
        (Role::Own, Call::Created { id }) => Some(id.clone()),
        (Role::Own, _) => object.status.as_ref().and_then(|status| status.instance_id.clone()),
    }
}

/// Every ID that is known of the instance.
fn ids(object: &NstanceMachine, id: Option<&str>, shards: &BTreeMap<String, Shard>) -> Vec<String> {
    let stored = object.status.as_ref().and_then(|status| status.provider_id.clone());
    let linked = object.spec.as_ref().and_then(|spec| spec.provider_id.clone());
    let named = id.map(str::to_owned);
    let mut ids: Vec<String> = stored.into_iter().chain(linked).chain(named).collect();
    let groups = shards.values().filter_map(|shard| shard.answer()?.group.as_ref());
    for instance in groups.flat_map(Group::instances) {
        if Some(&instance.id) == object.metadata.name.as_ref() {
            ids.extend(instance.ids().map(str::to_owned));
        }
    }
    ids.retain(|id| !id.is_empty());
    ids.sort();
    ids.dedup();
    ids
}

impl MachineController {
    fn drained(&self) -> MutexGuard<'_, HashMap<Key, String>> {
        self.drained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who made the instance, and what the shards say that may have it.
    fn place(&self, object: &NstanceMachine, group: &str) -> (Role, BTreeMap<String, Shard>) {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let mut shards = self.shards.of_instance(group, name);
        if !is_member(object) {
            return (Role::Own, shards);
        }
        let has_it = |shard: &Shard| {
            let group = shard.answer().and_then(|answer| answer.group.as_ref());
            group.is_some_and(|group| group.instances().iter().any(|instance| instance.id == name))
        };
        let holder = shards.iter().find(|(_, shard)| has_it(shard)).map(|(shard, _)| shard.clone());
        // Against the stored one only its own list speaks: another shard may list what it does not have.
        let is_denied = |name: &str| shards.get(name).is_none_or(|shard| shard.answer().is_some() && !has_it(shard));
        let stored = shard_of(object);
        let shard = match stored {
            Some(stored) if !is_denied(stored) => Some(stored.to_owned()),
            _ => holder.or_else(|| stored.map(str::to_owned)),
        };
        shards.retain(|candidate, _| Some(candidate) == shard.as_ref());
        (Role::Member { shard }, shards)
    }

    fn call(&self, key: &Key, object: &NstanceMachine) -> Call {
        let job = job_key(CALLS, key);
        match self.shards.call(&job) {
            CallState::Running { .. } => Call::Running,
            CallState::Ended { ended, .. } if ended.outcome == Outcome::Accepted => match ended.instance {
                Some(id) => Call::Created { id },
                None => Call::Ended(Outcome::Accepted),
            },
            CallState::Ended { ended, .. } if !self.is_past(key, object) => Call::Ended(ended.outcome),
            CallState::Idle | CallState::Ended { .. } => {
                self.failed().remove(key);
                self.shards.forget_call(&job, CREATE);
                Call::None
            }
        }
    }

    fn failed(&self) -> MutexGuard<'_, HashMap<Key, (Instant, Option<i64>)>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what failed may be tried again: after a while, or because something else is asked for.
    fn is_past(&self, key: &Key, object: &NstanceMachine) -> bool {
        let (now, generation) = (self.clock.instant(), object.metadata.generation);
        let (at, of) = *self.failed().entry(key.clone()).or_insert((now, generation));
        of != generation || now.saturating_duration_since(at) >= machine::LATER
    }

    /// A creation is known by the object's uid: repeated, it makes no second instance. A deletion is asked for once per
    /// list of the shard.
    fn hand_over(
        &self,
        turn: &Turn<'_, Self>,
        shard: &str,
        label: &'static str,
        request: Request,
    ) -> Result<(), Error> {
        let metadata = &turn.subject.object().metadata;
        let request_id = match request {
            Request::Create(_) => format!("{label}-{}", turn.subject.uid()),
            _ => {
                request_id(&digest(&turn.subject.uid().into()), turn.fence, self.shards.poll(shard).unwrap_or_default())
            }
        };
        self.shards.submit(shards::Call {
            kind: CALLS,
            object: turn.key.clone(),
            shard: shard.to_owned(),
            request,
            label: label.into(),
            fence: turn.fence.clone(),
            created_at: metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
            request_id,
        })
    }
}
