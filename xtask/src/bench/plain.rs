//! Floor three: the requests that the operator made, by a plain loop that decides nothing.
//!
//! One client on a thread of its own, so that its CPU time can be distinguished from the benchmark's, and under the
//! operator's identity. It follows Performers, pods and Services as the operator does, and writes what the operator wrote
//! in the same order: finalizer, pod and Service at once, and as many statuses and events as the operator was counted to
//! need. As there, the status of a ready pod does not wait for the creates of others.

use std::{cell::Cell, collections::HashSet, path::Path, pin::pin, time::Instant};

use anyhow::{Context, Result};
use api::performer::{FINALIZER, Performer, PerformerStatus, Phase};
use futures::{
    StreamExt, TryStreamExt,
    channel::mpsc::{UnboundedSender, unbounded},
    stream::{self, LocalBoxStream, PollNext},
};
use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, Pod, Service},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams, PostParams, WatchEvent},
    config::{KubeConfigOptions, Kubeconfig},
};
use plan::{
    performers::{self, Identity, Observed, Policy, Slot, pod, service, validate},
    round::{Inputs, Progress, Round},
};
use serde::Serialize;
use serde_json::json;
use tokio::sync::oneshot;

use super::{
    crowd,
    follow::Follower,
    ground::{Ground, WRITERS},
    operator::thread_cpu_ms,
    tally::{AllWrites, Tally},
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plain {
    /// From the first create of a Performer to the moment at which a watch has seen the last one Ready.
    pub wall_seconds: f64,
    /// To the moment at which it has seen half of them Ready.
    pub half_seconds: f64,
    pub cpu_ms: f64,
    pub all_writes: AllWrites,
    /// The loop's own requests, to be compared with the operator's.
    pub own: Tally,
}

/// `operator` is what the operator asked for, for as many performers.
pub async fn measure(ground: &Ground, operator: &Tally) -> Result<Plain> {
    let namespace = ground.control_plane.namespace("plain").await?;
    let kubeconfig = ground.control_plane.kubeconfig_as(&Ground::operator_user()).await?;
    ground.settled().await?;
    let mark = ground.mark()?;
    let mut seen = Follower::open(Api::<Performer>::namespaced(ground.client.clone(), &namespace)).await?;
    let (opened, is_open) = oneshot::channel();
    let (place, count) = (namespace.clone(), ground.count);
    // Each Performer has one status when its pod is ready; the others were written before.
    let (early, events) = (operator.status.saturating_sub(count), operator.events);
    let thread = std::thread::spawn(move || -> Result<f64> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let config = Kubeconfig::read_from(kubeconfig)?;
            let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
            let (early, events) = (Share::new(early, count), Share::new(events, 2 * count));
            Loop::new(runtime::connect(config)?, &place, early, events)?.run(count, opened).await
        })?;
        thread_cpu_ms(Path::new("/proc/thread-self"))
    });
    is_open.await.context("the plain loop did not begin")?;
    let started = Instant::now();
    let ready = crowd::ready(ground, &mut seen);
    let loops = async {
        let joined = tokio::task::spawn_blocking(move || thread.join()).await?;
        joined.map_err(|_| anyhow::anyhow!("the plain loop panicked"))?
    };
    let (ready, _, cpu_ms) = futures::try_join!(ready, crowd::create(ground, &namespace), loops)?;
    ground.settled().await?;
    let entries = ground.entries_after(mark)?;
    Ok(Plain {
        wall_seconds: ready.all.duration_since(started).as_secs_f64(),
        half_seconds: ready.half.duration_since(started).as_secs_f64(),
        cpu_ms,
        all_writes: AllWrites::of(&entries, count),
        own: Tally::of(&entries),
    })
}

/// Some of many chances, evenly spread over them.
struct Share {
    wanted: usize,
    chances: usize,
    /// Chances so far.
    seen: Cell<usize>,
}

impl Share {
    fn new(wanted: usize, chances: usize) -> Self {
        Self { wanted, chances, seen: Cell::new(0) }
    }

    /// Whether the next chance is to be taken.
    fn takes_next(&self) -> bool {
        let taken = |seen: usize| seen * self.wanted / self.chances;
        let seen = self.seen.get();
        self.seen.set(seen + 1);
        taken(seen + 1) > taken(seen)
    }
}

/// What the loop reacts to.
enum Seen {
    New(Box<Performer>),
    PodReady(Box<Pod>),
    Nothing,
}

/// Events that wait, by the name of the Performer and the reason.
type Line = UnboundedSender<(String, &'static str)>;

struct Loop {
    performers: Api<Performer>,
    pods: Api<Pod>,
    services: Api<Service>,
    events: Api<Event>,
    /// As the operator reports a pod that it has just created, and a ready one.
    statuses: [PerformerStatus; 2],
    /// Which Performers have the first status as well.
    early: Share,
    /// Which events are written.
    recorded: Share,
}

impl Loop {
    fn new(client: Client, namespace: &str, early: Share, recorded: Share) -> Result<Self> {
        Ok(Self {
            performers: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client.clone(), namespace),
            services: Api::namespaced(client.clone(), namespace),
            events: Api::namespaced(client, namespace),
            statuses: statuses(namespace)?,
            early,
            recorded,
        })
    }

    /// Until every Performer has had all of its requests.
    async fn run(&self, count: usize, opened: oneshot::Sender<()>) -> Result<()> {
        // A watch that is opened again begins with all objects, and a pod may change after it was ready.
        let (mut created, mut ready) = (HashSet::new(), HashSet::new());
        let performers = Follower::open(self.performers.clone()).await?.events().map_ok(|event| match event {
            WatchEvent::Added(performer) if created.insert(performer.name_any()) => Seen::New(Box::new(performer)),
            _ => Seen::Nothing,
        });
        let pods = Follower::open(self.pods.clone()).await?.events().map_ok(|event| match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod)
                if crowd::is_pod_ready(&pod) && ready.insert(pod.name_any()) =>
            {
                Seen::PodReady(Box::new(pod))
            }
            _ => Seen::Nothing,
        });
        let services = Follower::open(self.services.clone()).await?.events().map_ok(|_| Seen::Nothing);
        let all: [LocalBoxStream<'_, _>; 3] = [performers.boxed_local(), pods.boxed_local(), services.boxed_local()];
        let _ = opened.send(());
        // Read without a pause: the server ends the watch of a client that does not keep up.
        let ((ready_first, ready), (sender, others)) = (unbounded(), unbounded());
        let read = stream::select_all(all).map(Ok).try_for_each(|seen| async {
            let line = if matches!(seen, Ok(Seen::PodReady(_))) { &ready_first } else { &sender };
            line.unbounded_send(seen)
        });
        let seen = stream::select_with_strategy(ready, others, |(): &mut ()| PollNext::Left);
        let (line, waiting) = unbounded();
        let line = &line;
        let reactions = stream::select(
            seen.map(|seen| self.react(seen, line)).buffer_unordered(WRITERS),
            stream::once(read).filter_map(|read| async move { read.err().map(|error| Err(error.into())) }),
        );
        let mut reactions = pin!(reactions);
        let reacting = async {
            // Each Performer has two turns: when it appears, and when its pod is ready.
            let mut turns = 0;
            while turns < 2 * count {
                turns += usize::from(reactions.next().await.context("the watches ended")??);
            }
            line.close_channel();
            anyhow::Ok(())
        };
        // One at a time and beside the other requests, as the operator writes the events of one namespace.
        let recording = waiting.map(Ok).try_for_each(|(name, reason)| self.record(name, reason));
        futures::try_join!(reacting, recording)?;
        Ok(())
    }

    /// Whether it was a Performer's turn.
    async fn react(&self, seen: Result<Seen>, line: &Line) -> Result<bool> {
        let event = match seen? {
            Seen::New(performer) => {
                self.create(&performer).await?;
                let name = performer.name_any();
                if self.early.takes_next() {
                    self.report(&name, 0).await?;
                }
                (name, "PodCreated")
            }
            Seen::PodReady(pod) => {
                let owner = pod.owner_references().first().context("a pod without owner")?.name.clone();
                self.report(&owner, 1).await?;
                (owner, "PodReady")
            }
            Seen::Nothing => return Ok(false),
        };
        if self.recorded.takes_next() {
            line.unbounded_send(event)?;
        }
        Ok(true)
    }

    async fn create(&self, performer: &Performer) -> Result<()> {
        let patch =
            json!({ "metadata": { "finalizers": [FINALIZER], "resourceVersion": performer.resource_version() } });
        let (name, params) = (performer.name_any(), PatchParams::default());
        let performer = self.performers.patch(&name, &params, &Patch::Merge(patch)).await?;
        let desired = validate(&performer).map_err(|invalid| anyhow::anyhow!(invalid.message))?;
        let identity = Identity::of(&performer);
        self.pods.create(&PostParams::default(), &pod(&desired, &identity, 0)).await?;
        self.services.create(&PostParams::default(), &service(&desired, &identity)).await?;
        Ok(())
    }

    async fn report(&self, name: &str, which: usize) -> Result<()> {
        let patch = json!({ "status": self.statuses[which] });
        self.performers.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn record(&self, name: String, reason: &str) -> Result<()> {
        let namespace = self.performers.namespace().map(str::to_owned);
        let event = Event {
            metadata: ObjectMeta { name: Some(format!("{name}.{}", reason.to_lowercase())), ..ObjectMeta::default() },
            type_: Some("Normal".into()),
            reason: Some(reason.to_owned()),
            action: Some(reason.to_owned()),
            note: Some(format!("what the operator says of {name}, in about as many words")),
            event_time: Some(MicroTime(Timestamp::now())),
            reporting_controller: Some("strata.dev/bench".into()),
            reporting_instance: Some("bench".into()),
            regarding: Some(ObjectReference { name: Some(name), namespace, ..ObjectReference::default() }),
            ..Event::default()
        };
        self.events.create(&PostParams::default(), &event).await?;
        Ok(())
    }
}

fn statuses(namespace: &str) -> Result<[PerformerStatus; 2]> {
    let mut performer = crowd::performer(namespace, 0);
    performer.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    performer.metadata.uid = Some("plain".to_owned());
    let observed = Observed { pod: Slot::Absent, service: Slot::Absent, ..Observed::default() };
    let policy = Policy::default();
    let plan = performers::plan(&performer, &observed, &policy);
    let progress: Vec<_> = plan.steps.iter().map(|_| Progress::Done(None)).collect();
    let inputs = Inputs::default();
    let round = Round { object: &performer, observed: &observed, inputs: &inputs, plan: &plan, progress: &progress };
    let created = performers::report(&round, Timestamp::now(), &policy).status;
    anyhow::ensure!(created.pod_name.is_some(), "a first round creates the pod");
    let ready = PerformerStatus { ready: true, phase: Some(Phase::Running), ..created.clone() };
    Ok([created, ready])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_chances_are_taken_as_are_wanted_and_not_all_at_one_end() {
        let taken = |wanted, chances: usize| {
            let share = Share::new(wanted, chances);
            (0..chances).map(|_| share.takes_next()).collect::<Vec<_>>()
        };
        assert_eq!(taken(2, 6), [false, false, true, false, false, true]);
        assert_eq!(taken(0, 3), [false; 3]);
        assert_eq!(taken(3, 3), [true; 3]);
        assert_eq!(taken(9, 3), [true; 3], "there are no more chances than these");
    }
}
