//! The operator is killed at every write of create, upgrade and delete, just before and just after its commit.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, future::try_join_all};
use serde_json::json;
use testbed::{
    fault::{ApiRequest, Calls, Fault, Injected, Seen, Verb},
    process::Child,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    harness::{Space, condition, spec},
    process::operator,
    scene::{Scene, changes, eventually},
};

const IMAGES: [&str; 2] = ["registry.test/performer:v1", "registry.test/performer:v2"];
/// More held calls than the default has slots.
const FLAGS: [&str; 2] = ["--leader-elect=false", "--concurrency=64"];

/// Far above what any event takes; it ends a test that would otherwise hang.
const PATIENCE: Duration = Duration::from_mins(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Create,
    Upgrade,
    Delete,
}

/// The nth write of a kind within one flow of one Performer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Point {
    verb: Verb,
    pattern: String,
    nth: u64,
}

impl Point {
    /// Events are written one after the other: only one of them can be held at a time.
    fn is_event(&self) -> bool {
        self.pattern == "events"
    }

    fn calls(&self, namespace: &str, name: &str) -> Calls {
        let name = name.to_owned();
        Calls::of(self.verb, &self.pattern)
            .in_namespace(namespace)
            .only_if(move |request| is_about(request, &name))
            .nth(self.nth)
    }
}

/// Whether a call concerns this Performer, its pod, its Service or its Events.
fn is_about(request: &ApiRequest, performer: &str) -> bool {
    request.name.as_deref().is_some_and(|name| {
        name == performer
            || name.strip_prefix("performer-") == Some(performer)
            || name.strip_prefix(performer).is_some_and(|rest| request.resource == "events" && rest.starts_with('.'))
    })
}

struct Campaign {
    space: Space,
    operator: Child,
    /// Every value of `lastUpgrade` that a Performer ever had.
    upgrades: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>,
    _watch: AbortOnDropHandle<()>,
    kills: usize,
    // The last to be dropped: the next test has it without this operator.
    scene: Scene,
}

impl Campaign {
    async fn start() -> Result<Self> {
        let scene = Scene::lent().await?;
        let space = scene.space("kill").await?;
        let operator = operator(&scene, &scene.proxy, &FLAGS)?;
        let upgrades = Arc::<Mutex<BTreeMap<String, BTreeSet<String>>>>::default();
        let noted = upgrades.clone();
        let mut seen = changes(space.performers.clone());
        let watch = tokio::spawn(async move {
            while let Some(performer) = seen.next().await {
                if let Some(at) = performer.status.as_ref().and_then(|status| status.last_upgrade) {
                    let name = performer.metadata.name.unwrap_or_default();
                    noted.lock().expect("nobody panics here").entry(name).or_default().insert(at.to_string());
                }
            }
        });
        Ok(Self { scene, space, operator, upgrades, _watch: AbortOnDropHandle::new(watch), kills: 0 })
    }

    /// Brings a Performer to where a flow begins, with everything about it written.
    async fn prepare(&self, flow: Flow, name: &str) -> Result<()> {
        if flow == Flow::Create {
            return Ok(());
        }
        self.space.create_ready(name, spec()).await?;
        self.until_recorded(name, "PodReady", 1).await
    }

    async fn trigger(&self, flow: Flow, name: &str) -> Result<()> {
        match flow {
            Flow::Create => drop(self.space.create(name, spec()).await?),
            Flow::Upgrade => drop(self.space.patch(name, json!({ "spec": { "image": IMAGES[1] } })).await?),
            Flow::Delete => self.space.delete(name).await?,
        }
        Ok(())
    }

    async fn until_recorded(&self, name: &str, reason: &str, times: usize) -> Result<()> {
        let mut events = changes(self.space.events.clone());
        let found = async {
            let mut left = times;
            while left > 0 {
                let event = events.next().await.context("a watch never ends")?;
                let about = event.regarding.as_ref().and_then(|object| object.name.as_deref());
                left -= usize::from(about == Some(name) && event.reason.as_deref() == Some(reason));
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(PATIENCE, found).await.with_context(|| format!("{reason} of {name}"))?
    }

    /// The end of a flow as it is without any disturbance.
    async fn finished(&self, flow: Flow, name: &str, uid: Option<&str>) -> Result<()> {
        let Flow::Delete = flow else {
            let image = IMAGES[usize::from(flow == Flow::Upgrade)];
            self.space
                .until(name, "ready", |performer| {
                    let is_current =
                        condition(performer, "Available")["observedGeneration"] == json!(performer.metadata.generation);
                    is_current && performer.status.as_ref().is_some_and(|status| status.ready)
                })
                .await?;
            let pod = self.space.pod(name).await?;
            let running = pod.spec.context("a pod has a spec")?.containers[0].image.clone();
            ensure!(running.as_deref() == Some(image), "{name} runs {running:?}");
            self.space.service(name).await?;
            return Ok(());
        };
        self.space.until_gone(&self.space.performers, name, uid.unwrap_or_default()).await?;
        let owned = format!("performer-{name}");
        ensure!(self.space.pods.get_opt(&owned).await?.is_none(), "the pod of {name} is left");
        ensure!(self.space.services.get_opt(&owned).await?.is_none(), "the Service of {name} is left");
        Ok(())
    }

    /// All writes of a flow when nothing is in its way, in order.
    async fn points(&self, flow: Flow) -> Result<(Vec<Point>, BTreeMap<String, usize>)> {
        let name = format!("calm-{flow:?}").to_lowercase();
        self.prepare(flow, &name).await?;
        let before = self.scene.proxy.requests().len();
        let uid = self.space.performers.get_opt(&name).await?.and_then(|performer| performer.metadata.uid);
        self.trigger(flow, &name).await?;
        self.finished(flow, &name, uid.as_deref()).await?;
        match flow {
            Flow::Create => self.until_recorded(&name, "PodReady", 1).await?,
            Flow::Upgrade => self.until_recorded(&name, "PodReady", 2).await?,
            Flow::Delete => self.until_recorded(&name, "Deleted", 1).await?,
        }
        let seen = self.scene.proxy.requests().into_iter().skip(before);
        let writes: Vec<_> =
            seen.filter(|seen| Verb::WRITES.contains(&seen.request.verb) && is_about(&seen.request, &name)).collect();
        let is_done = |code: &Option<u16>| code.is_some_and(|code| code < 300);
        let mut points: Vec<Point> = Vec::new();
        for (index, Seen { request, code, .. }) in writes.iter().enumerate() {
            // What a busy server refused, or did not answer before it was written again, is none that the flow always has.
            // The last one may have no answer yet.
            let is_done_later =
                || writes[index + 1..].iter().any(|late| late.request == *request && is_done(&late.code));
            if !is_done(code) && (code.is_some() || is_done_later()) {
                continue;
            }
            let pattern = match &request.subresource {
                Some(subresource) => format!("{}/{subresource}", request.resource),
                None => request.resource.clone(),
            };
            let former = points.iter().filter(|point| point.verb == request.verb && point.pattern == pattern).count();
            points.push(Point { verb: request.verb, pattern, nth: u64::try_from(former)? + 1 });
        }
        Ok((points, self.recorded(&name).await?))
    }

    async fn recorded(&self, name: &str) -> Result<BTreeMap<String, usize>> {
        let mut recorded = BTreeMap::new();
        for reason in self.space.event_reasons(name).await? {
            *recorded.entry(reason).or_default() += 1;
        }
        Ok(recorded)
    }

    /// Holds each point in a Performer of its own, kills the operator while all are held, and sees the next one finish.
    async fn strike(
        &mut self,
        flow: Flow,
        fault: Fault,
        points: &[Point],
        calm: &BTreeMap<String, usize>,
    ) -> Result<()> {
        let side = if fault == Fault::HoldBeforeCommit { "before" } else { "after" };
        let kill = self.kills;
        let names: Vec<String> =
            (0..points.len()).map(|index| format!("{flow:?}-{side}-{kill}-{index}").to_lowercase()).collect();
        try_join_all(names.iter().map(|name| Box::pin(self.prepare(flow, name)))).await?;
        let mark = self.scene.control_plane.audit().mark()?;
        let mut uids = Vec::new();
        let mut held: Vec<Injected> = Vec::new();
        for (point, name) in points.iter().zip(&names) {
            uids.push(self.space.performers.get_opt(name).await?.and_then(|performer| performer.metadata.uid));
            held.push(self.scene.proxy.inject(point.calls(&self.space.namespace, name), fault));
            self.trigger(flow, name).await?;
        }
        for (held, point) in held.iter().zip(points) {
            held.reached().await.with_context(|| format!("{flow:?} {side} {point:?}"))?;
        }
        self.operator.kill().await?;
        self.kills += 1;
        held.iter().for_each(Injected::cut);
        self.operator = operator(&self.scene, &self.scene.proxy, &FLAGS)?;
        for ((name, uid), point) in names.iter().zip(&uids).zip(points) {
            let what = || format!("{flow:?}, killed {side} the commit of {point:?}");
            self.finished(flow, name, uid.as_deref()).await.with_context(what)?;
            self.check(flow, name, calm).await.with_context(what)?;
        }
        let tried = self.scene.tried(mark)?;
        for name in &names {
            for &(verb, resource) in creations(flow) {
                let owned = format!("performer-{name}");
                let of = tried.iter().filter(|e| e.verb == verb && e.resource == resource && e.name == owned);
                let of: Vec<_> = of.collect();
                let made = of.iter().filter(|e| e.code < 300).count();
                // A kill cuts off what is under way: the server did it, as the end shows, and no client was left to answer.
                let cut = of.iter().filter(|e| e.code >= 500).count();
                ensure!(made == 1 || (made == 0 && cut == 1), "{verb} {resource} {owned} not once: {of:#?}");
            }
        }
        Ok(())
    }

    async fn check(&self, flow: Flow, name: &str, calm: &BTreeMap<String, usize>) -> Result<()> {
        for (reason, times) in self.recorded(name).await? {
            let usual = calm.get(&reason).copied().unwrap_or(0);
            ensure!(times <= usual, "{name}: event {reason} came {times} times instead of {usual}");
        }
        let wanted = usize::from(flow == Flow::Upgrade);
        let times = || self.upgrades.lock().expect("nobody panics here").get(name).map_or(0, BTreeSet::len);
        eventually("lastUpgrade seen", || times() >= wanted).await?;
        ensure!(times() == wanted, "{name}: lastUpgrade was set {} times", times());
        Ok(())
    }
}

/// What a flow makes or removes exactly once, however often the operator is killed.
fn creations(flow: Flow) -> &'static [(&'static str, &'static str)] {
    match flow {
        Flow::Create => &[("create", "pods"), ("create", "services")],
        Flow::Upgrade => &[("delete", "pods"), ("create", "pods")],
        Flow::Delete => &[("delete", "pods"), ("delete", "services")],
    }
}

#[tokio::test]
async fn p42_killed_at_any_write_of_create_upgrade_and_delete_the_end_is_the_same() -> Result<()> {
    let mut campaign = Campaign::start().await?;
    let mut tried = 0;
    for flow in [Flow::Create, Flow::Upgrade, Flow::Delete] {
        let (points, calm) = campaign.points(flow).await?;
        ensure!(!points.is_empty(), "{flow:?} writes nothing");
        println!("{flow:?}: {points:?}");
        let (events, writes): (Vec<_>, Vec<_>) = points.into_iter().partition(Point::is_event);
        for fault in [Fault::HoldBeforeCommit, Fault::HoldAfterCommit] {
            campaign.strike(flow, fault, &writes, &calm).await?;
            for event in &events {
                campaign.strike(flow, fault, std::slice::from_ref(event), &calm).await?;
            }
            tried += writes.len() + events.len();
        }
    }
    println!("killed at {tried} points in {} kills", campaign.kills);
    Ok(())
}
