//! Deletions that shards announce; every decision is in `plan::machines::notice`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use api::{
    condition::Reason,
    machine::{API_VERSION, NstanceMachine},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use plan::{
    fact::latest,
    machines::{
        notice::{Acknowledgement, Action, Listing, Observed, next},
        shard::{Instance, Members, Outcome},
    },
    object::digest,
};
use process::{Clock, explained};
use runtime::{Fence, Key, Leadership, Occurrence, Operator, Recorder, Selection};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Asker, Desk, Wanted};
use crate::{
    capi::Machine,
    cluster::is_paused,
    kinds::Kinds,
    nodes::is_member,
    shards::{Call, CallState, Notice, Request, Shards, job_key, request_id},
};

/// Of the calls that acknowledge drains.
const CALLS: &str = "drain";
/// What the calls are known by.
const LABEL: &str = "acknowledge";
/// It only drops drains.
const STOP_LIMIT: Duration = Duration::from_secs(1);
/// As long as a call may take.
const FENCE: Duration = Duration::from_secs(35);
/// When a drain is begun that could not be: what it needs to know is listed again within seconds.
const RETRY: Duration = Duration::from_secs(2);

/// Follows what shards announce for as long as the operator leads.
pub(super) fn install(operator: &mut Operator, kinds: &Arc<Kinds>, shards: &Shards, desk: &Desk) {
    let news = Arc::new(Notify::new());
    let heard = news.clone();
    shards.listen(move |_| heard.notify_one());
    let heard = news.clone();
    desk.listen(move |_, _| heard.notify_one());
    let heard = news.clone();
    shards.on_ended(CALLS, move |_| {
        heard.notify_one();
        true
    });
    let heard = news.clone();
    kinds.listen_to_nodes(move || heard.notify_one());
    // Each of them may be paused, and go on.
    let here = || Selection::in_namespace(&kinds.cluster.namespace);
    let heard = news.clone();
    operator.watch_selected(&kinds.clusters, here(), move |_| heard.notify_one());
    let heard = news.clone();
    operator.watch_selected(&kinds.members, here(), move |change| {
        let is_paused = |machine: Option<&NstanceMachine>| machine.is_some_and(|machine| is_paused(&machine.metadata));
        if is_paused(change.before) != is_paused(change.after) {
            heard.notify_one();
        }
    });
    let heard = news.clone();
    operator.watch_selected(&kinds.machines, here(), move |change| {
        let is_paused = |machine: Option<&Machine>| machine.is_some_and(|machine| machine.is_paused);
        if is_paused(change.before) != is_paused(change.after) {
            heard.notify_one();
        }
    });
    let follower = Follower {
        kinds: kinds.clone(),
        shards: shards.clone(),
        desk: desk.clone(),
        leadership: operator.leadership(),
        clock: operator.clock.clone(),
        recorder: operator.events.clone(),
        news,
    };
    operator.filled_part("drains of shards", STOP_LIMIT, move |stop, pulse| async move {
        stop.run_until_cancelled(pulse.while_waiting(follower.run())).await;
    });
}

struct Follower {
    kinds: Arc<Kinds>,
    shards: Shards,
    desk: Desk,
    leadership: Leadership,
    clock: Clock,
    recorder: Recorder,
    news: Arc<Notify>,
}

/// A deletion that was announced.
struct Announced {
    since: Instant,
    /// By the shard's clock, or by ours where it does not say.
    at: Timestamp,
    /// A list has named it.
    was_listed: bool,
    /// When the last acknowledgement ended, and what the shard said.
    acknowledged: Option<(Instant, Answer)>,
    sent: u64,
    /// The log says that it is another shard's.
    is_refused: bool,
}

#[derive(Clone, Copy)]
enum Answer {
    Accepted,
    Failed,
    Gone,
}

type AllAnnounced = BTreeMap<(String, String), Announced>;

impl Follower {
    async fn run(self) {
        loop {
            self.leadership.acquired().await;
            tokio::select! {
                () = self.leadership.lost(Duration::ZERO) => {}
                () = self.lead() => {}
            }
            self.desk.release_all();
        }
    }

    async fn lead(&self) {
        let mut announced = AllAnnounced::new();
        loop {
            let look = self.look(&mut announced);
            let due = async {
                match look {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.news.notified() => {}
                () = due => {}
            }
        }
    }

    /// Decides about all of them; the wait until the next one is due.
    fn look(&self, announced: &mut AllAnnounced) -> Option<Duration> {
        let mut looks = Vec::new();
        let mut open = BTreeSet::new();
        for shard in self.shards.names() {
            for (id, notice) in self.shards.open_notices(&shard) {
                let key = (shard.clone(), id);
                let entry = announced.entry(key.clone()).or_insert_with(|| Announced {
                    since: self.clock.instant(),
                    at: notice.announced_at.unwrap_or_else(|| self.clock.now()),
                    was_listed: false,
                    acknowledged: None,
                    sent: 0,
                    is_refused: false,
                });
                looks.extend(self.handle(&key, &notice, entry));
                open.insert(key);
            }
        }
        announced.retain(|key, _| {
            let is_open = open.contains(key);
            if !is_open {
                self.desk.release(&asker(&key.0), &key.1);
                self.shards.drop_call(&job_key(CALLS, &Key::new(key.0.as_str(), key.1.as_str())));
            }
            is_open
        });
        looks.into_iter().min()
    }

    fn handle(&self, key: &(String, String), notice: &Notice, entry: &mut Announced) -> Option<Duration> {
        let (shard, id) = key;
        let observed = self.observe(shard, id, notice, entry);
        if let Some(other) = observed.elsewhere.as_ref().filter(|_| !std::mem::replace(&mut entry.is_refused, true)) {
            tracing::warn!(
                shard,
                instance = id,
                of = other,
                "a shard announces the deletion of another's instance; ignored"
            );
        }
        let decided = next(&observed);
        match decided.action {
            Some(Action::Drain { node, time }) => {
                tracing::info!(shard, instance = id, node, reason = notice.reason, "draining for a shard");
                let wanted = Wanted { id: id.clone(), node, time: Some(time) };
                if let Err(error) = self.desk.drain(asker(shard), wanted) {
                    tracing::warn!(shard, instance = id, why = explained(&error), "cannot drain yet; retrying");
                    return Some(RETRY);
                }
            }
            Some(Action::Release) => self.desk.release(&asker(shard), id),
            Some(Action::Acknowledge { warning }) => {
                if let Some(note) = warning {
                    self.warn(id, &observed, note);
                }
                self.acknowledge(shard, id, entry);
            }
            None => {}
        }
        decided.look
    }

    /// About the instance's machine; of one that has none, about its Node.
    fn warn(&self, id: &str, observed: &Observed, note: String) {
        tracing::warn!(instance = id, note, "the time for a drain is up");
        let machine = self.kinds.machine_of_instance(id).and_then(|key| self.kinds.members.get(&key));
        let regarding = match (machine, observed.nodes.known().map(Vec::as_slice)) {
            (Some(machine), _) => ObjectReference {
                api_version: Some(API_VERSION.to_owned()),
                kind: Some(NstanceMachine::KIND.to_owned()),
                namespace: machine.value.metadata.namespace.clone(),
                name: machine.value.metadata.name.clone(),
                uid: machine.value.metadata.uid.clone(),
                ..ObjectReference::default()
            },
            (None, Ok([node])) => ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(node.name.clone()),
                ..ObjectReference::default()
            },
            (None, _) => return,
        };
        self.recorder.record(Occurrence {
            regarding,
            is_warning: true,
            reason: Reason::DrainExpired.as_str().to_owned(),
            action: "Drain".to_owned(),
            note,
            discriminator: id.to_owned(),
        });
    }

    fn observe(&self, shard: &str, id: &str, notice: &Notice, entry: &mut Announced) -> Observed {
        let now = self.clock.instant();
        let listed = self.listed(shard, notice, id);
        let instance = listed.iter().flatten().next();
        entry.was_listed |= instance.is_some();
        let member = self.kinds.machine_of_instance(id).and_then(|key| self.kinds.members.get(&key));
        let mut ids = vec![notice.provider_id.clone()];
        if let Some(instance) = instance {
            ids.extend(instance.ids().map(str::to_owned));
        }
        if let Some(member) = &member {
            let spec = member.value.spec.as_ref().and_then(|spec| spec.provider_id.clone());
            let status = member.value.status.as_ref().and_then(|status| status.provider_id.clone());
            ids.extend(spec.into_iter().chain(status));
        }
        let age = |at: Instant| now.saturating_duration_since(at);
        let call = job_key(CALLS, &Key::new(shard, id));
        let acknowledgement = match self.shards.call(&call) {
            CallState::Running { .. } => Acknowledgement::Running,
            CallState::Ended { ended, .. } => {
                let answer = match ended.outcome {
                    Outcome::Accepted if ended.is_gone => Answer::Gone,
                    Outcome::Accepted => Answer::Accepted,
                    Outcome::Refused(_) | Outcome::Failed(_) | Outcome::Unreachable(_) => Answer::Failed,
                };
                entry.acknowledged = Some((now, answer));
                self.shards.forget_call(&call, LABEL);
                of_last(entry.acknowledged, age)
            }
            CallState::Idle => of_last(entry.acknowledged, age),
        };
        let nodes = self.kinds.node_refs(ids.iter().map(String::as_str).chain([id]));
        let others = self.kinds.shards_of(member.as_deref(), latest(&nodes).into_iter().flatten());
        // One that was configured under another name before is this one, as far as can be known.
        let configured = self.shards.names();
        Observed {
            elsewhere: others.into_iter().find(|other| other != shard && configured.contains(other)),
            nodes,
            id: id.to_owned(),
            ids,
            is_member: entry.was_listed || member.as_ref().is_some_and(|member| is_member(&member.value)),
            listing: match (&listed, instance) {
                (None, _) => Listing::Unknown,
                (Some(_), Some(_)) => Listing::Named,
                (Some(_), None) => Listing::Omitted,
            },
            announced_at: entry.at,
            delete_at: notice.delete_at,
            age: age(entry.since),
            left: notice.deadline.map(|at| at.saturating_duration_since(now)),
            drain: self.desk.state(id),
            asked: self.desk.asked(&asker(shard), id),
            acknowledgement,
            is_paused: match &member {
                Some(member) => self.kinds.is_paused(&member.value),
                None => self.kinds.is_cluster_paused(),
            },
        }
    }

    /// Those of the instances that the shard lists of the group that are this one; `None` if that is not known.
    fn listed(&self, shard: &str, notice: &Notice, id: &str) -> Option<Vec<Instance>> {
        let found = self.shards.shard_with_one(shard, &notice.group, id);
        let group = found.answer()?.group.as_ref()?;
        match &group.members {
            Members::Listed(instances) => Some(instances.clone()),
            Members::Counted(_) => None,
        }
    }

    fn acknowledge(&self, shard: &str, id: &str, entry: &mut Announced) {
        tracing::info!(shard, instance = id, "acknowledging the drain of an instance");
        let fence = Fence::of_lead(self.leadership.clone(), FENCE);
        entry.sent += 1;
        let call = Call {
            kind: CALLS,
            object: Key::new(shard, id),
            shard: shard.to_owned(),
            request: Request::Acknowledge { id: id.to_owned() },
            label: LABEL.into(),
            created_at: 0,
            request_id: request_id(&digest(&id.into()), &fence, entry.sent),
            fence,
        };
        // It fails only while the process stops.
        if let Err(error) = self.shards.submit(call) {
            tracing::debug!(%error, "could not acknowledge");
        }
    }
}

fn asker(shard: &str) -> Asker {
    Asker::Shard(shard.into())
}

fn of_last(last: Option<(Instant, Answer)>, age: impl Fn(Instant) -> Duration) -> Acknowledgement {
    match last {
        None => Acknowledgement::None,
        Some((at, Answer::Accepted)) => Acknowledgement::Accepted(age(at)),
        Some((at, Answer::Failed)) => Acknowledgement::Failed(age(at)),
        Some((_, Answer::Gone)) => Acknowledgement::Gone,
    }
}
