//! Single calls that fail in every way a call can fail.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde_json::json;
use testbed::{
    audit::Entry,
    fault::{Calls, Fault, Verb},
};
use tokio::time::Instant;

use crate::{
    harness::{OPERATOR_USER, Space, condition, spec},
    scene::{Scene, Shared, eventually},
};

/// Longer than the request timeout of the shared operator.
const SLOW: Duration = Duration::from_secs(4);

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
fn times_done(log: &[Entry]) -> usize {
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

#[tokio::test]
async fn p41_a_failing_write_is_retried_after_growing_delays() -> Result<()> {
    let shared = Scene::shared().await;
    let space = shared.scene.space("backoff").await?;
    let (calls, arrivals) = timed(calls("create-pod", &space.namespace, "a"));
    shared.scene.proxy.inject(calls.at_most(5), Fault::Status(500));
    space.create("a", spec()).await?;
    let performer = space.until_ready("a").await?;
    let gaps = gaps(&arrivals);
    // Doubled from 100 ms, less a tenth of jitter, up to the resync period, which is 500 ms here. The first may be cut
    // short by the event of the finalizer, which is a change.
    assert_eq!(gaps.len(), 5, "retries came after {gaps:?}");
    for (gap, least) in gaps.iter().skip(1).zip([180, 360, 450, 450]) {
        assert!(*gap >= Duration::from_millis(least), "retries came after {gaps:?}");
    }
    assert_eq!(condition(&performer, "Degraded")["status"], "False");
    Ok(())
}

#[tokio::test]
async fn p41_retry_after_is_honoured() -> Result<()> {
    let shared = Scene::shared().await;
    let space = shared.scene.space("busy").await?;
    let (calls, arrivals) = timed(calls("create-pod", &space.namespace, "a"));
    shared.scene.proxy.inject(calls.at_most(1), Fault::TooManyRequests { retry_after_seconds: 1 });
    space.create_ready("a", spec()).await?;
    let gaps = gaps(&arrivals);
    assert!(matches!(gaps[..], [gap] if gap >= Duration::from_secs(1)), "asked again after {gaps:?}");
    Ok(())
}

#[tokio::test]
async fn p41_a_performer_that_vanishes_under_a_round_ends_it_quietly() -> Result<()> {
    let shared = Scene::shared().await;
    let space = shared.scene.space("vanished").await?;
    let held = shared.scene.proxy.inject(calls("status", &space.namespace, "a").at_most(1), Fault::HoldBeforeCommit);
    let created = space.create("a", spec()).await?;
    held.reached().await?;
    space.patch("a", json!({ "metadata": { "finalizers": null } })).await?;
    space.delete("a").await?;
    space.until_gone(&space.performers, "a", created.metadata.uid.as_deref().context("a uid")?).await?;
    held.release();
    let statuses = || -> Vec<_> {
        let writes = shared.scene.writes(&space.namespace).into_iter();
        writes.filter(|seen| seen.request.subresource.is_some()).map(|seen| seen.code).collect()
    };
    eventually("the round ends", || statuses().contains(&Some(404))).await?;
    assert_eq!(statuses(), [Some(404)]);
    assert!(!shared.has_failed(&space.namespace));
    Ok(())
}
