//! Floor three: the requests that the operator makes, by a plain loop that decides nothing.
//!
//! One client on a thread of its own, so that its CPU time can be distinguished from the benchmark's. It follows
//! Performers, pods and Services as the operator does, and writes what the operator writes in the same order.

use std::{collections::HashSet, pin::pin, time::Instant};

use anyhow::{Context, Result};
use api::performer::{FINALIZER, Performer, PerformerStatus, Phase};
use futures::{StreamExt, TryStreamExt, stream, stream::BoxStream};
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
    api::{ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use plan::{
    performers::{self, Identity, Observed, Policy, Slot, pod, service, validate},
    round::{Inputs, Progress, Round},
};
use serde::Serialize;
use serde_json::json;

use super::{
    crowd,
    follow::Follower,
    ground::{Ground, WRITERS},
    tally::AllWrites,
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plain {
    /// From the first create of a Performer to the moment at which a watch has seen the last one Ready.
    pub wall_seconds: f64,
    pub cpu_ms: f64,
    pub all_writes: AllWrites,
}

pub async fn measure(ground: &Ground) -> Result<Plain> {
    let namespace = ground.control_plane.namespace("plain").await?;
    ground.settled().await?;
    let mark = ground.mark()?;
    let mut seen = Follower::open(Api::<Performer>::namespaced(ground.client.clone(), &namespace)).await?;
    let kubeconfig = ground.control_plane.kubeconfig();
    let (opened, is_open) = tokio::sync::oneshot::channel();
    let (place, count) = (namespace.clone(), ground.count);
    let thread = std::thread::spawn(move || -> Result<f64> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let config = Kubeconfig::read_from(kubeconfig)?;
            let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
            Loop::new(runtime::connect(config)?, &place)?.run(count, opened).await
        })?;
        cpu_ms()
    });
    is_open.await.context("the plain loop did not begin")?;
    let started = Instant::now();
    let ready = seen.until(ground.patience(), "all performers Ready", crowd::all_ready(count, crowd::is_ready));
    let loops = async {
        let joined = tokio::task::spawn_blocking(move || thread.join()).await?;
        joined.map_err(|_| anyhow::anyhow!("the plain loop panicked"))?
    };
    let (ended, _, cpu_ms) = futures::try_join!(ready, crowd::create(ground, &namespace), loops)?;
    ground.settled().await?;
    let all_writes = AllWrites::of(&ground.entries_after(mark)?, count);
    Ok(Plain { wall_seconds: ended.duration_since(started).as_secs_f64(), cpu_ms, all_writes })
}

/// Of the calling thread.
fn cpu_ms() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = text.split(' ').next().and_then(|text| text.parse::<f64>().ok());
    Ok(nanoseconds.context("no time in schedstat")? / 1e6)
}

/// What the loop reacts to.
enum Seen {
    New(Box<Performer>),
    PodReady(Box<Pod>),
    Nothing,
}

struct Loop {
    performers: Api<Performer>,
    pods: Api<Pod>,
    services: Api<Service>,
    events: Api<Event>,
    /// As the operator reports a pod that it has just created, and a ready one.
    statuses: [PerformerStatus; 2],
}

impl Loop {
    fn new(client: Client, namespace: &str) -> Result<Self> {
        Ok(Self {
            performers: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client.clone(), namespace),
            services: Api::namespaced(client.clone(), namespace),
            events: Api::namespaced(client, namespace),
            statuses: statuses(namespace)?,
        })
    }

    /// Until every pod is reported as ready.
    async fn run(&self, count: usize, opened: tokio::sync::oneshot::Sender<()>) -> Result<()> {
        let params = WatchParams::default().timeout(290);
        let performers = self.performers.watch(&params, "0").await?.map_ok(|event| match event {
            WatchEvent::Added(performer) => Seen::New(Box::new(performer)),
            _ => Seen::Nothing,
        });
        // A pod may change after it was ready.
        let mut ready = HashSet::new();
        let pods = self.pods.watch(&params, "0").await?.map_ok(|event| match event {
            WatchEvent::Modified(pod) if crowd::is_pod_ready(&pod) && ready.insert(pod.name_any()) => {
                Seen::PodReady(Box::new(pod))
            }
            _ => Seen::Nothing,
        });
        let services = self.services.watch(&params, "0").await?.map_ok(|_| Seen::Nothing);
        let all: [BoxStream<'_, _>; 3] = [performers.boxed(), pods.boxed(), services.boxed()];
        let _ = opened.send(());
        // Read without a pause: the server ends the watch of a client that does not keep up.
        let (sender, seen) = futures::channel::mpsc::unbounded();
        let read = stream::select_all(all).map(Ok).forward(sender);
        let reactions = stream::select(
            seen.map(|seen| self.react(seen)).buffer_unordered(WRITERS),
            stream::once(read).filter_map(|read| async move { read.err().map(|error| Err(error.into())) }),
        );
        let mut reactions = pin!(reactions);
        let mut reported = 0;
        while reported < count {
            let is_ready = reactions.next().await.context("the watches ended: too many performers for one")??;
            reported += usize::from(is_ready);
        }
        Ok(())
    }

    async fn react(&self, seen: kube::Result<Seen>) -> Result<bool> {
        match seen? {
            Seen::New(performer) => {
                self.create(*performer).await?;
                Ok(false)
            }
            Seen::PodReady(pod) => {
                let owner = pod.owner_references().first().context("a pod without owner")?.name.clone();
                self.report(&owner, 1).await?;
                self.record(&owner, "Ready").await?;
                Ok(true)
            }
            Seen::Nothing => Ok(false),
        }
    }

    async fn create(&self, performer: Performer) -> Result<()> {
        let name = performer.name_any();
        let patch =
            json!({ "metadata": { "finalizers": [FINALIZER], "resourceVersion": performer.resource_version() } });
        let params = PatchParams::default();
        let performer = self.performers.patch(&name, &params, &Patch::Merge(patch)).await?;
        let desired = validate(&performer).map_err(|invalid| anyhow::anyhow!(invalid.message))?;
        let identity = Identity::of(&performer);
        self.pods.create(&PostParams::default(), &pod(&desired, &identity, 0)).await?;
        self.services.create(&PostParams::default(), &service(&desired, &identity)).await?;
        self.report(&name, 0).await?;
        self.record(&name, "Created").await
    }

    async fn report(&self, name: &str, which: usize) -> Result<()> {
        let patch = json!({ "status": self.statuses[which] });
        self.performers.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn record(&self, name: &str, reason: &str) -> Result<()> {
        let regarding = ObjectReference { name: Some(name.to_owned()), ..ObjectReference::default() };
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
            regarding: Some(ObjectReference { namespace, ..regarding }),
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
