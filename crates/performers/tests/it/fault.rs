//! Single calls that fail in every way a call can fail.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use kube::api::DeleteParams;
use performers::Config;
use runtime::Settings;
use serde_json::json;
use testbed::{
    audit::Entry,
    fault::{Calls, Fault, Verb},
};
use tokio::time::Instant;

use crate::{
    harness::{OPERATOR_USER, Running, Space, alone, condition, spec},
    scene::{SHARED_TIMEOUT, Scene, Shared, eventually},
    turn::REQUEST_TIMEOUT,
};

const SLOW: Duration = SHARED_TIMEOUT.saturating_mul(2);

/// The writes of a Performer's life, each as the calls it makes in the proxy.
const WRITES: [&str; 7] =
    ["add-finalizer", "create-pod", "create-service", "status", "delete-pod", "delete-service", "release-finalizer"];

const FAULTS: [(&str, Fault); 8] = Fault::of_a_write(SLOW);

fn calls(write: &str, namespace: &str, name: &str) -> Calls {
    let owned = format!("performer-{name}");
    let calls = match write {
        "create-pod" => Calls::of(Verb::Create, "pods").named(&owned),
        "create-service" => Calls::of(Verb::Create, "services").named(&owned),
        "delete-pod" => Calls::of(Verb::Delete, "pods").named(&owned),
        "delete-service" => Calls::of(Verb::Delete, "services").named(&owned),
        "status" => Calls::of(Verb::Patch, "performers/status").named(name),
        _ => Calls::of(Verb::Patch, "performers").named(name),
    };
    calls.in_namespace(namespace)
}

/// One Performer's whole life while the first call of one kind of write meets a fault.
async fn live_through(shared: &Shared, space: &Space, write: &str, fault: (&str, Fault)) -> Result<()> {
    let name = format!("{write}-{}", fault.0);
    let is_late = matches!(write, "delete-pod" | "delete-service" | "release-finalizer");
    let inject = || shared.scene.proxy.inject(calls(write, &space.namespace, &name).at_most(1), fault.1);
    let early = (!is_late).then(inject);
    space.create_ready(&name, spec()).await.with_context(|| name.clone())?;
    let injected = early.unwrap_or_else(inject);
    let pod = space.pod(&name).await?;
    space.delete_and_wait(&name).await.with_context(|| name.clone())?;
    // A call that was cut after its commit may be counted after its effect is seen.
    injected.reached().await?;
    ensure!(injected.hits() == 1, "{name}: the fault was met {} times", injected.hits());
    ensure!(space.pods.get_opt(&format!("performer-{name}")).await?.is_none(), "{name}: {:?} is left", pod.metadata);
    ensure!(space.services.get_opt(&format!("performer-{name}")).await?.is_none(), "{name}: the Service is left");
    injected.end();
    Ok(())
}

/// How often the operator's requests did it, by the log of one verb on one object. A request that its client gave up may
/// be logged as failed although it was carried out: then the operator's next try found it done, and nobody else did it.
pub fn times_done(log: &[Entry]) -> usize {
    let is_ours = |entry: &&Entry| entry.user == OPERATOR_USER;
    let answered = log.iter().filter(is_ours).filter(|entry| entry.code < 300).count();
    let (given_up, found_done) = (
        log.iter().filter(is_ours).position(|entry| entry.code >= 499),
        log.iter().filter(is_ours).position(|entry| matches!(entry.code, 404 | 409)),
    );
    let is_alone = log.iter().all(|entry| is_ours(&entry));
    match (answered, given_up, found_done) {
        (0, Some(given_up), Some(found_done)) if given_up < found_done && is_alone => 1,
        (answered, ..) => answered,
    }
}

#[tokio::test]
async fn p41_every_write_survives_every_fault_and_nothing_is_made_twice() -> Result<()> {
    let shared = Scene::shared().await;
    let space = shared.scene.space("faults").await?;
    let mark = shared.scene.control_plane.audit().mark()?;
    let lives =
        WRITES.iter().flat_map(|write| FAULTS.map(|fault| Box::pin(live_through(shared, &space, write, fault))));
    try_join_all(lives).await?;
    for write in WRITES {
        for (fault, _) in FAULTS {
            let owned = format!("performer-{write}-{fault}");
            for (verb, resource) in [("create", "pods"), ("create", "services"), ("delete", "services")] {
                // All of the log about it, whoever asked and whatever the answer: what a failure shows.
                let log = || -> Result<Vec<Entry>> {
                    let mut entries = shared.scene.control_plane.audit().entries_after(mark)?;
                    entries.retain(|entry| {
                        (&*entry.namespace, &*entry.verb, &*entry.resource, &*entry.name)
                            == (&*space.namespace, verb, resource, &*owned)
                    });
                    Ok(entries)
                };
                // The log is written after the answer.
                let what = format!("{verb} {resource} {owned}");
                let came = eventually(&what, || log().is_ok_and(|log| times_done(&log) > 0)).await;
                came.with_context(|| format!("{:#?}", log()))?;
                assert_eq!(times_done(&log()?), 1, "{what}: {:#?}", log());
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn p33_an_error_during_clean_up_keeps_the_finalizer_until_a_retry_succeeds() -> Result<()> {
    let shared = Scene::shared().await;
    let space = shared.scene.space("cleanup").await?;
    let proxy = &shared.scene.proxy;
    for (write, name) in [("delete-pod", "a"), ("delete-service", "b")] {
        space.create_ready(name, spec()).await?;
        let failing = proxy.inject(calls(write, &space.namespace, name), Fault::Status(500));
        let uid = space.performers.get(name).await?.metadata.uid.context("a uid")?;
        space.delete(name).await?;
        failing.reached_times(4).await?;
        let kept = space.performers.get(name).await?;
        assert_eq!(kept.metadata.finalizers.as_deref(), Some(&[api::performer::FINALIZER.to_owned()][..]), "{write}");
        failing.end();
        space.until_gone(&space.performers, name, &uid).await?;
    }
    Ok(())
}

/// The next pod's creation takes as long as its webhooks: until then clients must not be sent to where the last one was.
#[tokio::test]
async fn p20_not_ready_while_the_creation_of_the_next_pod_hangs() -> Result<()> {
    let scene = Scene::lent().await?;
    let space = scene.space("hanging").await?;
    let first = scene.operator(alone(), Config::default()).await?;
    space.create_ready("a", spec()).await?;
    first.stop().await?;
    // Lost while no operator runs, so that none sees it on its way.
    let pod = space.pod("a").await?.metadata.uid.context("a uid")?;
    space.pods.delete("performer-a", &DeleteParams::default()).await?;
    space.until_gone(&space.pods, "performer-a", &pod).await?;
    let hanging = scene.proxy.inject(calls("create-pod", &space.namespace, "a"), Fault::HoldBeforeCommit);
    let second = scene.operator(alone(), Config::default()).await?;
    hanging.reached().await?;
    let status = space.performers.get("a").await?.status.context("a status")?;
    assert_eq!((status.ready, status.pod_name), (false, None), "{:?}", status.conditions);
    hanging.end();
    space.until_ready("a").await?;
    second.stop().await
}

/// The same calls, each noted with the time of its arrival at the proxy.
fn timed(calls: Calls) -> (Calls, Arc<Mutex<Vec<Instant>>>) {
    let arrivals = Arc::<Mutex<Vec<Instant>>>::default();
    let noted = arrivals.clone();
    let calls = calls.only_if(move |_| {
        noted.lock().expect("no test panics while it notes").push(Instant::now());
        true
    });
    (calls, arrivals)
}

fn gaps(arrivals: &Mutex<Vec<Instant>>) -> Vec<Duration> {
    let arrivals = arrivals.lock().expect("no test panics while it notes");
    arrivals.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// What the requests of the operator below are given.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Creates a Performer whose pod is refused so a few times, and gives the pauses between the tries.
async fn pauses(scene: &Scene, space: &Space, name: &str, fault: Fault, times: u64) -> Result<Vec<Duration>> {
    let (calls, arrivals) = timed(calls("create-pod", &space.namespace, name));
    scene.proxy.inject(calls.at_most(times), fault);
    space.create(name, spec()).await?;
    let performer = space.until_ready(name).await?;
    assert_eq!(condition(&performer, "Degraded")["status"], "False");
    Ok(gaps(&arrivals))
}

/// Neither a resync nor another status, whose event is a change, falls between the tries.
#[tokio::test]
async fn p41_every_kind_of_failure_is_retried_after_growing_delays() -> Result<()> {
    let scene = Scene::lent().await?;
    let space = scene.space("backoff").await?;
    let settings = Settings { request_timeout: TIMEOUT, ..alone() };
    let mut config = Config::default();
    config.policy.problem_delay = config.resync;
    let operator = scene.operator(settings, config).await?;
    let check = async |name: &'static str, fault, answer: Duration| -> Result<()> {
        let gaps = pauses(&scene, &space, name, fault, 5).await?;
        // More on a machine so busy that a create without a fault has no answer in time.
        ensure!(gaps.len() >= 5, "{name}: retries came after {gaps:?}");
        // Doubled from 100 ms, less a tenth of jitter. The first may be cut short by the event of the finalizer, which
        // is a change.
        for (gap, least) in gaps.iter().skip(1).zip([180, 360, 720, 1440]) {
            ensure!(*gap >= answer + Duration::from_millis(least), "{name}: retries came after {gaps:?}");
        }
        Ok(())
    };
    tokio::try_join!(
        check("conflict", Fault::Status(409), Duration::ZERO),
        check("busy", Fault::Status(429), Duration::ZERO),
        check("error", Fault::Status(500), Duration::ZERO),
        check("unavailable", Fault::Status(503), Duration::ZERO),
        check("timeout", Fault::Status(504), Duration::ZERO),
        check("cut", Fault::CutBeforeCommit, Duration::ZERO),
        // Its pauses begin with the arrival, which on a busy machine is later than the sending.
        check("silence", Fault::HoldBeforeCommit, TIMEOUT / 2),
        async {
            let gaps = pauses(&scene, &space, "asked", Fault::TooManyRequests { retry_after_seconds: 2 }, 1).await?;
            ensure!(matches!(gaps[..], [gap, ..] if gap >= Duration::from_secs(2)), "asked again after {gaps:?}");
            Ok(())
        },
    )?;
    operator.stop().await
}

/// The server answers, but cannot do it, for longer than such things usually last.
#[tokio::test]
async fn p37_a_lasting_server_error_is_told_and_recovered_from() -> Result<()> {
    let shared = Scene::shared().await;
    let space = shared.scene.space("unable").await?;
    for (name, code) in [("a", 500), ("b", 503), ("c", 504)] {
        let failing = shared.scene.proxy.inject(calls("create-pod", &space.namespace, name), Fault::Status(code));
        space.create(name, spec()).await?;
        let degraded = space.until_condition(name, "Degraded", "True", "PodRejected").await?;
        let message = condition(&degraded, "Available")["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains("injected fault"), "the server's own words: {message}");
        failing.end();
        let ready = space.until_ready(name).await?;
        assert_eq!(condition(&ready, "Degraded")["status"], "False");
    }
    Ok(())
}

/// A webhook that hangs for longer than the operator waits for the API server.
#[tokio::test]
async fn p37_a_lasting_silence_is_told_and_recovered_from() -> Result<()> {
    let shared = Scene::shared().await;
    let space = shared.scene.space("silent").await?;
    let hanging = shared.scene.proxy.inject(calls("create-pod", &space.namespace, "a"), Fault::HoldBeforeCommit);
    space.create("a", spec()).await?;
    let degraded = space.until_condition("a", "Degraded", "True", "PodRejected").await?;
    let message = condition(&degraded, "Available")["message"].as_str().unwrap_or_default().to_owned();
    assert!(
        message.contains(&format!("no answer within {SHARED_TIMEOUT:?}")) && message.contains("webhook"),
        "{message}"
    );
    hanging.end();
    space.until_ready("a").await?;
    Ok(())
}

/// Whether a round of this namespace ever failed.
fn has_failed(operator: &Running, namespace: &str) -> bool {
    let of_class = |class| {
        let labels = format!(r#"controller="performer",namespace="{namespace}",class="{class}""#);
        operator.metric(&format!("strata_reconcile_errors_total{{{labels}}}"))
    };
    ["transient", "conflict", "invalid", "terminal"].map(of_class).iter().any(|failures| *failures > 0.0)
}

#[tokio::test]
async fn p41_a_performer_that_vanishes_under_a_round_ends_it_quietly() -> Result<()> {
    let scene = Scene::lent().await?;
    let space = scene.space("vanished").await?;
    let settings = Settings { request_timeout: REQUEST_TIMEOUT, ..alone() };
    let operator = scene.operator(settings, Config::default()).await?;
    let held = scene.proxy.inject(calls("status", &space.namespace, "a").at_most(1), Fault::HoldBeforeCommit);
    let created = space.create("a", spec()).await?;
    held.reached().await?;
    space.patch("a", json!({ "metadata": { "finalizers": null } })).await?;
    space.delete("a").await?;
    space.until_gone(&space.performers, "a", created.metadata.uid.as_deref().context("a uid")?).await?;
    held.release();
    let statuses = || -> Vec<_> {
        let writes = scene.writes(&space.namespace).into_iter();
        writes.filter(|seen| seen.request.subresource.is_some()).map(|seen| seen.code).collect()
    };
    eventually("the round ends", || statuses().contains(&Some(404))).await?;
    assert_eq!(statuses(), [Some(404)]);
    assert!(!has_failed(&operator, &space.namespace));
    operator.stop().await
}

/// The operator knows nothing of the end of a Performer but what a read tells it.
#[tokio::test]
async fn p41_a_read_that_finds_nothing_ends_the_round_quietly() -> Result<()> {
    let shared = Scene::shared().await;
    let space = shared.scene.space("gone").await?;
    let proxy = &shared.scene.proxy;
    let created = space.create_ready("a", spec()).await?;
    let held = proxy.hold_events("performers");
    let cut = proxy.inject(calls("status", &space.namespace, "a").at_most(1), Fault::CutBeforeCommit);
    space.patch("a", json!({ "metadata": { "finalizers": null } })).await?;
    space.delete("a").await?;
    space.until_gone(&space.performers, "a", created.metadata.uid.as_deref().context("a uid")?).await?;
    // Garbage collection removes the pod, which is to be reported; that report has no answer, so what it is about is
    // read before the next try.
    cut.reached().await?;
    let after = || -> Vec<(Verb, Option<u16>)> {
        let mut seen = proxy.requests();
        seen.retain(|seen| seen.request.namespace.as_ref() == Some(&space.namespace));
        seen.retain(|seen| matches!(seen.request.name.as_deref(), Some("a" | "performer-a")));
        let cut = seen.iter().rposition(|seen| seen.request.subresource.is_some()).unwrap_or_default();
        seen.split_off(cut + 1).into_iter().map(|seen| (seen.request.verb, seen.code)).collect()
    };
    eventually("the Performer is read", || after().first().is_some_and(|(_, code)| code.is_some())).await?;
    drop(held);
    // Another one's whole start, and its rounds.
    space.create_ready("b", spec()).await?;
    assert_eq!(after(), [(Verb::Get, Some(404))], "and nothing after that");
    Ok(())
}
