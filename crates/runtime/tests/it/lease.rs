//! Leadership: its interruptions, and the order in which it is given up.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result};
use jiff::SignedDuration;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Namespace},
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
    config::Kubeconfig,
};
use process::Clock;
use runtime::{Fatal, Key, Leadership, LeaseConfig, Operator, Settings};
use serde_json::json;
use testbed::{
    ControlPlane, Options,
    fault::{Calls, Fault, FaultProxy, Verb},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    plain::{self, Plain},
    world::{World, run, settings, until, until_async},
};

fn electing(namespace: &str) -> Settings {
    let lease = LeaseConfig {
        namespace: namespace.to_owned(),
        name: "lease".into(),
        identity: "me".into(),
        // Its renewals survive a busy machine, and every lead here ends by a release.
        duration: Duration::from_secs(30),
    };
    Settings { lease: Some(lease), ..settings() }
}

#[tokio::test]
async fn a_lease_that_cannot_be_taken_is_reported_in_readiness_until_it_can() -> Result<()> {
    let world = World::new("no-lease").await?;
    let absent = format!("{}-later", world.namespace);
    let operator =
        Operator::new(world.operators.clone(), electing(&absent), Clock::default(), CancellationToken::new());
    let (health, leadership) = (operator.health.clone(), operator.leadership());
    let _recorder = operator.events.clone();
    let _running = tokio::spawn(operator.run(|_| {}));
    let verdict = || health.readiness().get("lease").cloned();
    until("the interruption is reported", || verdict().is_some_and(|verdict| verdict.is_err())).await?;
    let interruption = verdict().unwrap().unwrap_err();
    assert!(
        interruption.contains(&format!("lease {absent}/lease cannot be acquired"))
            && interruption.contains("not found"),
        "{interruption}"
    );
    assert!(!leadership.is_leading());
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": absent}}))?;
    Api::all(world.client).create(&PostParams::default(), &namespace).await?;
    until("it leads", || leadership.is_leading()).await?;
    assert_eq!(verdict(), Some(Ok(())));
    Ok(())
}

/// What happened, in order.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn holds(&self, what: &str) -> bool {
        self.0.lock().unwrap().iter().any(|noted| noted == what)
    }
}

#[tokio::test]
async fn parts_end_after_the_rounds_and_before_the_lease_is_released() -> Result<()> {
    let world = World::new("drain").await?;
    let (stop, diary) = (CancellationToken::new(), Diary::default());
    let mut operator =
        Operator::new(world.operators.clone(), electing(&world.namespace), Clock::default(), stop.clone());
    let leases = Api::<Lease>::namespaced(world.client.clone(), &world.namespace);
    let (noting, asking, leadership) = (diary.clone(), leases.clone(), operator.leadership());
    operator.part("runner", Duration::from_secs(30), move |stop, pulse| async move {
        pulse.while_waiting(stop.cancelled()).await;
        noting.note("part is asked to stop");
        let holder = asking.get("lease").await.ok().and_then(|lease| lease.spec?.holder_identity);
        noting.note(format!("lease is held by {}", holder.unwrap_or_default()));
        noting.note(format!("still leading: {}", leadership.is_leading()));
    });
    let queue = operator.queue(Duration::from_mins(2));
    // No watch: the one object is put in its place.
    let performers = plain::kind(&operator, ["only"]);
    let (noting, stopping) = (diary.clone(), stop.clone());
    // Ends some time after the stop.
    let gather = move |_: Key| {
        let (diary, stop) = (noting.clone(), stopping.clone());
        async move {
            diary.note("round begins");
            stop.cancelled().await;
            // What acts on the stop at once is quicker than this.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            diary.note("round ends");
        }
    };
    operator.control(Plain::new(performers, gather), queue, 1);
    let (_, running) = run(operator).await?;
    until("the round runs", || diary.holds("round begins")).await?;
    stop.cancel();
    running.await??;
    let noted = diary.0.lock().unwrap().clone();
    let expected =
        ["round begins", "round ends", "part is asked to stop", "lease is held by me", "still leading: true"];
    assert_eq!(noted, expected);
    let released = leases.get("lease").await?.spec.unwrap().holder_identity;
    assert_eq!(released.as_deref(), Some(""));
    Ok(())
}

#[tokio::test]
async fn a_part_that_does_not_end_is_abandoned_and_one_that_ends_unasked_is_fatal() -> Result<()> {
    let world = World::new("parts").await?;
    let stop = CancellationToken::new();
    let mut operator = world.operator_until(stop.clone());
    operator.part("stubborn", Duration::from_millis(10), |_, _| std::future::pending());
    let (_, running) = run(operator).await?;
    stop.cancel();
    running.await??;

    let mut operator = world.operator();
    operator.part("mayfly", Duration::from_secs(30), |_, _| std::future::ready(()));
    let _recorder = operator.events.clone();
    let ended = operator.run(|_| {}).await.unwrap_err();
    assert_eq!(ended.to_string(), "task mayfly ended");
    Ok(())
}

/// A replica without layers, which takes the lead.
struct Replica {
    leadership: Leadership,
    stop: CancellationToken,
    running: JoinHandle<Result<(), Fatal>>,
}

impl Replica {
    async fn leading(client: Client, namespace: &str, clock: Clock) -> Result<Self> {
        let stop = CancellationToken::new();
        let operator = Operator::new(client, electing(namespace), clock, stop.clone());
        let leadership = operator.leadership();
        let (_, running) = run(operator).await?;
        until("it leads", || leadership.is_leading()).await?;
        Ok(Self { leadership, stop, running })
    }

    async fn stop(self) -> Result<()> {
        self.stop.cancel();
        self.running.await??;
        Ok(())
    }
}

async fn stored_epoch(leases: &Api<Lease>) -> Result<Option<u64>> {
    let annotations = leases.get("lease").await?.metadata.annotations.unwrap_or_default();
    Ok(annotations.get("strata.dev/epoch").and_then(|epoch| epoch.parse().ok()))
}

#[tokio::test]
async fn the_epoch_grows_with_every_lead_whatever_the_clock_and_also_without_the_lease() -> Result<()> {
    let world = World::new("epoch").await?;
    let leases = Api::<Lease>::namespaced(world.client.clone(), &world.namespace);
    let replica =
        async |clock: &Clock| Replica::leading(world.operators.clone(), &world.namespace, clock.clone()).await;

    let first = replica(&Clock::default()).await?;
    let epoch = first.leadership.epoch().context("it leads")?;
    assert_eq!(stored_epoch(&leases).await?, Some(epoch));
    let version = leases.get("lease").await?.metadata.resource_version;
    until_async("a renewal", async || {
        let lease = leases.get("lease").await?;
        Ok(lease.metadata.resource_version != version)
    })
    .await?;
    assert_eq!((stored_epoch(&leases).await?, first.leadership.epoch()), (Some(epoch), Some(epoch)));
    first.stop().await?;

    let behind = Clock::default();
    behind.step(SignedDuration::from_hours(-1));
    let second = replica(&behind).await?;
    assert_eq!(second.leadership.epoch(), Some(epoch + 1));
    assert_eq!(stored_epoch(&leases).await?, Some(epoch + 1));
    // Deleted under its holder, whose lead goes on.
    leases.delete("lease", &DeleteParams::default()).await?;
    until_async("the lease is there again", async || Ok(leases.get_opt("lease").await?.is_some())).await?;
    assert_eq!(stored_epoch(&leases).await?, second.leadership.epoch());
    second.stop().await?;

    leases.delete("lease", &DeleteParams::default()).await?;
    let third = replica(&Clock::default()).await?;
    assert!(third.leadership.epoch() > Some(epoch + 1), "{:?}", third.leadership.epoch());
    third.stop().await
}

#[tokio::test]
async fn a_stop_during_a_renewal_releases_the_lease_all_the_same() -> Result<()> {
    let world = World::new("renewal").await?;
    let upstream = Kubeconfig::read_from(ControlPlane::shared().await?.kubeconfig())?;
    let proxy = FaultProxy::start(upstream, 7).await?;
    let replica = Replica::leading(proxy.client().await?, &world.namespace, Clock::default()).await?;
    // The server has renewed the lease, and its answer is lost.
    let renewal = Calls::of(Verb::Update, "leases.coordination.k8s.io").in_namespace(&world.namespace).at_most(1);
    let renewal = proxy.inject(renewal, Fault::HoldAfterCommit);
    let _unheard = proxy.hold_events("leases.coordination.k8s.io");
    renewal.reached().await?;
    replica.stop().await?;
    let lease = Api::<Lease>::namespaced(world.client, &world.namespace).get("lease").await?;
    assert_eq!(lease.spec.and_then(|spec| spec.holder_identity).as_deref(), Some(""));
    Ok(())
}

#[tokio::test]
async fn after_a_restored_etcd_a_replica_leads_again() -> Result<()> {
    let control_plane = ControlPlane::start(Options { fsync: false, ..Options::bare() }).await?;
    let (client, namespace) = (control_plane.client().await?, control_plane.namespace("restore").await?);
    let operators = runtime::connect(control_plane.config_as(&testbed::User::admin()).await?)?;
    let replica = Replica::leading(operators, &namespace, Clock::default()).await?;
    let backup = control_plane.back_up().await?;
    // After the restore versions are to be lower than any that the replica has seen.
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &namespace);
    for number in 0..50 {
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": format!("m{number}")}}))?;
        maps.create(&PostParams::default(), &map).await?;
    }
    let leases = Api::<Lease>::namespaced(client, &namespace);
    let version = async || -> Result<u64> {
        Ok(leases.get("lease").await?.metadata.resource_version.context("a version")?.parse()?)
    };
    let before = version().await?;
    until_async("a renewal after all that", async || Ok(version().await? > before)).await?;
    let (seen, epoch) = (version().await?, replica.leadership.epoch());

    control_plane.restore(&backup).await?;
    let restored = version().await?;
    assert!(restored < seen, "{restored} is lower than {seen}");
    until_async("a renewal in the restored store", async || {
        Ok(version().await? > restored && replica.leadership.is_leading())
    })
    .await?;
    assert!(replica.leadership.epoch() >= epoch);
    assert_eq!(stored_epoch(&leases).await?, replica.leadership.epoch());
    replica.stop().await
}
