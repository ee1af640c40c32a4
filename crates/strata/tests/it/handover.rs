//! Two replicas: one acts, the other takes over, and never do both act.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result};
use api::performer::Performer;
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use rustix::process::Signal;
use testbed::{
    fault::{ApiRequest, Calls, Fault, FaultProxy, Seen, Verb},
    process::Child,
};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    harness::{OPERATOR_NAMESPACE, Space, spec, until},
    process::operator,
    scene::{Scene, changes, eventually, proxy},
};

/// The original operator's.
pub const LEASE: &str = "b8e8a8a8.hourglass.eigenlayer.io";
/// More than three times the default: renewals survive a busy machine, and between the end of a leader's right to write
/// and a take-over there is more time than requests spend on their way.
const LEASE_DURATION: &str = "--lease-duration=20s";
const EXPIRY: SignedDuration = SignedDuration::from_secs(20);

struct Replica {
    proxy: FaultProxy,
    process: Child,
}

impl Replica {
    async fn start(scene: &Scene) -> Result<Self> {
        let proxy = proxy(&scene.control_plane).await?;
        let process = operator(scene, &proxy, &[LEASE_DURATION])?;
        Ok(Self { proxy, process })
    }

    /// Writes of this replica other than those to the lease.
    fn acts(&self) -> Vec<ApiRequest> {
        let requests = self.proxy.requests().into_iter().map(|seen| seen.request);
        requests.filter(|request| Verb::WRITES.contains(&request.verb) && !request.is_for("leases")).collect()
    }

    /// A standby with full caches.
    async fn is_warm(&self) -> Result<()> {
        let watches = |resource| {
            move |seen: &Seen| {
                seen.request.verb == Verb::Watch && seen.request.is_for(resource) && seen.code == Some(200)
            }
        };
        eventually("all is watched", || {
            let requests = self.proxy.requests();
            ["performers", "pods", "services", "leases"].iter().all(|resource| requests.iter().any(watches(resource)))
        })
        .await
    }

    async fn leads(&self, leases: &Api<Lease>) -> Result<()> {
        let pid = format!("_{}_", self.process.pid());
        let what = format!("held by the process {}", self.process.pid());
        until(leases, LEASE, &what, |lease| holder(lease).contains(&pid)).await?;
        Ok(())
    }
}

fn holder(lease: &Lease) -> String {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default()
}

/// What one replica's hold of the lease looked like.
#[derive(Clone, Debug)]
struct Term {
    /// Empty for a released lease.
    holder: String,
    taken_at: Option<Timestamp>,
    renewed_at: Option<Timestamp>,
}

impl Term {
    /// The process id behind the name; 0 for a released lease.
    fn pid(&self) -> u32 {
        self.holder.split('_').rev().nth(1).and_then(|pid| pid.parse().ok()).unwrap_or(0)
    }

    /// From this term's last renewal to the beginning of a later one.
    fn until(&self, later: &Self) -> Result<SignedDuration> {
        let (renewed, taken) = self.renewed_at.zip(later.taken_at).context("a lease has its times")?;
        Ok(taken.duration_since(renewed))
    }
}

/// Everyone who ever held the lease, in order.
struct Holders {
    seen: Arc<Mutex<Vec<Term>>>,
    _watch: AbortOnDropHandle<()>,
}

impl Holders {
    fn of(leases: Api<Lease>) -> Self {
        let seen = Arc::<Mutex<Vec<Term>>>::default();
        let noted = seen.clone();
        let watch = tokio::spawn(async move {
            let mut leases = changes(leases);
            while let Some(lease) = leases.next().await {
                let mut seen = noted.lock().expect("nobody panics here");
                let spec = lease.spec.clone().unwrap_or_default();
                let renewed_at = spec.renew_time.map(|time| time.0);
                match seen.last_mut().filter(|term| term.holder == holder(&lease)) {
                    Some(term) => term.renewed_at = renewed_at,
                    None => seen.push(Term {
                        holder: holder(&lease),
                        taken_at: spec.acquire_time.map(|time| time.0),
                        renewed_at,
                    }),
                }
            }
        });
        Self { seen, _watch: AbortOnDropHandle::new(watch) }
    }

    fn terms(&self) -> Vec<Term> {
        self.seen.lock().expect("nobody panics here").clone()
    }
}

#[tokio::test]
async fn p43_exactly_one_of_two_replicas_acts_and_the_other_takes_over() -> Result<()> {
    let scene = Scene::lent().await?;
    let space = scene.space("replicas").await?;
    let leases: Api<Lease> = Api::namespaced(space.client.clone(), OPERATOR_NAMESPACE);
    let holders = Holders::of(leases.clone());
    let first = Replica::start(&scene).await?;
    first.leads(&leases).await?;
    let second = Replica::start(&scene).await?;
    second.is_warm().await?;
    for name in ["a", "b", "c"] {
        space.create_ready(name, spec()).await?;
    }
    assert!(!first.acts().is_empty());
    assert_eq!(second.acts(), []);

    // Asked to end, the leader gives the lease away.
    first.process.signal(Signal::TERM)?;
    assert_eq!(first.process.exited().await, 0, "{}", first.process.log_tail());
    let former = first.acts().len();
    second.leads(&leases).await?;
    space.create_ready("d", spec()).await?;
    assert_eq!(first.acts().len(), former);
    assert!(second.acts().iter().any(|request| request.is_for("pods")));

    // Killed, it keeps the lease until that expires.
    let third = Replica::start(&scene).await?;
    third.is_warm().await?;
    second.process.kill().await?;
    third.leads(&leases).await?;
    space.create_ready("e", spec()).await?;
    let pids = [first.process.pid(), 0, second.process.pid(), third.process.pid()];
    eventually("the watch of the lease has caught up", || holders.terms().len() >= pids.len()).await?;
    let terms = holders.terms();
    assert_eq!(terms.iter().map(Term::pid).collect::<Vec<_>>(), pids);
    // Counted from the last renewal: without the release it would have been held for as long as this.
    let handed_over = terms[0].until(&terms[2])?;
    assert!(handed_over < EXPIRY, "a released lease is not waited for: {handed_over}");
    let taken_over = terms[2].until(&terms[3])?;
    assert!(taken_over >= EXPIRY, "never before it expired: {taken_over}");
    assert!(taken_over < EXPIRY * 2, "and soon after: {taken_over}");
    Ok(())
}

/// Keeps the leader busy until dropped: a Performer every now and then, as long as not too many wait for it.
fn busy(space: &Space, prefix: &'static str) -> AbortOnDropHandle<()> {
    const WAITING: u32 = 20;
    let performers = space.performers.clone();
    let template = space.performer("template", &spec());
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut pace = tokio::time::interval(Duration::from_millis(200));
        for number in 0.. {
            pace.tick().await;
            let mut performer = template.clone();
            performer.metadata.name = Some(format!("{prefix}-{number}"));
            let _ = performers.create(&PostParams::default(), &performer).await;
            if let Some(earlier) = u32::checked_sub(number, WAITING) {
                let is_ready = |performer: &Performer| performer.status.as_ref().is_some_and(|status| status.ready);
                let _ = until(&performers, &format!("{prefix}-{earlier}"), "ready", is_ready).await;
            }
        }
    }))
}

/// Notes the arrival of all writes of one kind at a proxy.
fn arrivals(proxy: &FaultProxy, of_lease: bool) -> Arc<Mutex<Vec<Instant>>> {
    let arrivals = Arc::<Mutex<Vec<Instant>>>::default();
    let noted = arrivals.clone();
    let calls = Calls::writes("*").only_if(move |request| {
        if request.is_for("leases") == of_lease {
            noted.lock().expect("nobody panics here").push(Instant::now());
        }
        false
    });
    proxy.inject(calls, Fault::Latency(Duration::ZERO));
    arrivals
}

#[tokio::test]
async fn p43_a_leader_cut_off_or_paused_changes_nothing_once_another_leads() -> Result<()> {
    let scene = Scene::lent().await?;
    let space = scene.space("stale").await?;
    let leases: Api<Lease> = Api::namespaced(space.client.clone(), OPERATOR_NAMESPACE);
    let first = Replica::start(&scene).await?;
    first.leads(&leases).await?;
    let second = Replica::start(&scene).await?;
    second.is_warm().await?;

    let (writes, claims) = (arrivals(&first.proxy, false), arrivals(&second.proxy, true));
    let traffic = busy(&space, "cut");
    space.until_ready("cut-0").await.context("the first leader is at work")?;
    let everything = [Verb::Create, Verb::Update, Verb::Get, Verb::List, Verb::Watch];
    first.proxy.inject(Calls::of_any(everything, "leases"), Fault::CutBeforeCommit);
    first.proxy.cut_watches("leases");
    second.leads(&leases).await?;
    space.create_ready("after", spec()).await?;
    drop(traffic);
    let last_write = *writes.lock().expect("nobody panics here").last().context("it wrote")?;
    let taken = *claims.lock().expect("nobody panics here").first().context("it took the lease")?;
    assert!(last_write < taken, "the old leader wrote {:?} after the new one took over", last_write - taken);

    // A leader that is stopped for longer than its lease wakes up as nobody.
    first.proxy.clear();
    first.is_warm().await?;
    second.process.pause()?;
    first.leads(&leases).await?;
    let sent = second.proxy.requests().len();
    // What it sends on waking it may give up at once: the server's word counts.
    second.proxy.inject(Calls::writes("*"), Fault::CarriedOut);
    for performer in space.performers.list(&ListParams::default()).await? {
        space.until_ready(performer.metadata.name.as_deref().context("a name")?).await?;
    }
    second.process.resume()?;
    let log = || std::fs::read_to_string(&second.process.program().log).unwrap_or_default();
    eventually("the old leader is awake and knows", || log().contains("no longer leading")).await?;
    let traffic = busy(&space, "awake");
    space.until_ready("awake-5").await.context("the new leader is at work")?;
    drop(traffic);
    // What stood on the very point of being sent is sent on waking, and comes too late: the world has moved on.
    let late = || {
        let mut late = second.proxy.requests().split_off(sent);
        late.retain(|seen| Verb::WRITES.contains(&seen.request.verb));
        late
    };
    eventually("all that was sent late is answered", || late().iter().all(|seen| seen.code.is_some())).await?;
    let late = late();
    let is_refused = |seen: &Seen| seen.code == Some(409);
    let is_for_itself = |seen: &Seen| seen.request.is_for("events") || seen.request.is_for("leases");
    assert!(late.iter().all(|seen| is_refused(seen) || is_for_itself(seen)), "{late:?}");
    assert!(late.len() <= 12, "more than its ten slots, an event and the lease: {late:?}");
    Ok(())
}
