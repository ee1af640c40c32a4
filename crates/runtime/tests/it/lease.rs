//! Leadership: its troubles, and the order in which it is given up.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Result;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use kube::{Api, api::PostParams};
use runtime::{Clock, Error, Executed, Key, Layer, LeaseConfig, Operator, Settings};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::world::{World, run, settings, until};

fn electing(namespace: &str) -> Settings {
    let lease = LeaseConfig {
        namespace: namespace.to_owned(),
        name: "lease".into(),
        identity: "me".into(),
        duration: Duration::from_secs(6),
    };
    Settings { lease: Some(lease), ..settings() }
}

#[tokio::test]
async fn a_lease_that_cannot_be_taken_is_told_in_readiness_until_it_can() -> Result<()> {
    let world = World::new("no-lease").await?;
    let absent = format!("{}-later", world.namespace);
    let operator = Operator::new(world.client.clone(), electing(&absent), Clock::default(), CancellationToken::new());
    let (health, leadership) = (operator.health.clone(), operator.leadership());
    let _recorder = operator.events.clone();
    let _running = tokio::spawn(operator.run(|_| {}));
    let verdict = || health.readiness().get("lease").cloned();
    until("the trouble is told", || verdict().is_some_and(|verdict| verdict.is_err())).await?;
    let trouble = verdict().unwrap().unwrap_err();
    assert!(
        trouble.contains(&format!("lease {absent}/lease cannot be taken")) && trouble.contains("not found"),
        "{trouble}"
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

/// A layer whose only round ends some time after the stop.
struct Slow {
    diary: Diary,
    stop: CancellationToken,
}

impl Layer for Slow {
    const CONTROLLER: &'static str = "slow";
    type Observed = ();
    type Action = ();
    type Outcome = ();

    fn span(_: &Key) -> tracing::Span {
        tracing::Span::none()
    }

    async fn gather(&self, _: &Key) -> Result<Option<()>, Error> {
        self.diary.note("round begins");
        self.stop.cancelled().await;
        // Whoever acts on the stop at once is quicker than this.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        self.diary.note("round ends");
        Ok(None)
    }

    fn plan(&self, (): &(), _: jiff::Timestamp) -> plan::Plan<()> {
        plan::Plan::default()
    }

    async fn execute(&self, _: &Key, (): &(), (): &()) -> Executed<()> {
        Executed { outcome: (), error: None }
    }

    fn keys(&self) -> Vec<Key> {
        vec![Key::new("n", "only")]
    }

    async fn report(&self, _: &Key, (): &(), _: &plan::Plan<()>, _: &[()]) -> Result<bool, Error> {
        Ok(false)
    }
}

#[tokio::test]
async fn parts_end_after_the_rounds_and_before_the_lease_is_released() -> Result<()> {
    let world = World::new("drain").await?;
    let (stop, diary) = (CancellationToken::new(), Diary::default());
    let mut operator = Operator::new(world.client.clone(), electing(&world.namespace), Clock::default(), stop.clone());
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
    operator.drive(Slow { diary: diary.clone(), stop: stop.clone() }, queue, 1);
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
