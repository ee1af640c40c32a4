//! Whose turn it is: how many rounds run at once, and that nobody waits for others' trouble.

use std::time::Duration;

use anyhow::Result;
use performers::Config;
use runtime::Settings;
use testbed::{
    Options,
    fault::{Calls, Fault, Injected, Verb},
};
use tokio::time::Instant;

use crate::{
    harness::{Running, Space, alone, spec},
    scene::{Scene, eventually},
};

/// A round gives up a request after this long: what a hanging call costs its slot.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// A namespace whose thirty pod creates all hang, ten of them right now.
struct Jam {
    scene: Scene,
    operator: Running,
    full: Space,
    hanging: Injected,
}

impl Jam {
    async fn start() -> Result<Self> {
        let scene = Scene::start(Options::default()).await?;
        let settings = Settings { request_timeout: REQUEST_TIMEOUT, ..alone() };
        let operator = scene.operator(settings, Config::default()).await?;
        let full = scene.space("full").await?;
        let hanging = Calls::of(Verb::Create, "pods").in_namespace(&full.namespace);
        let hanging = scene.proxy.inject(hanging, Fault::HoldBeforeCommit);
        for number in 0..30 {
            full.create(&format!("a{number}"), spec()).await?;
        }
        hanging.reached_times(10).await?;
        Ok(Self { scene, operator, full, hanging })
    }
}

#[tokio::test]
async fn p38_ten_rounds_run_at_once_and_no_eleventh() -> Result<()> {
    let Jam { scene: _scene, operator, full, hanging } = Jam::start().await?;
    let metric = |line: &str| operator.metric(line).round();
    let waiting = || metric(r#"workqueue_depth{name="performer",controller="performer"}"#) >= 20.0;
    eventually("the rest waits", waiting).await?;
    assert_eq!(hanging.hits(), 10);
    let running = metric(r#"controller_runtime_active_workers{controller="performer"}"#);
    assert!((10.0..11.0).contains(&running), "{running} rounds run");
    hanging.end();
    for number in 0..30 {
        full.until_ready(&format!("a{number}")).await?;
    }
    Ok(())
}

/// The bound: one request timeout until a slot is free, then the other namespace has its turn, for each of the rounds
/// it needs. It is behind at most ten of the thirty that wait, never behind all of them.
#[tokio::test]
async fn p39_hanging_rounds_hold_up_another_namespace_for_one_request_timeout_at_most() -> Result<()> {
    let Jam { scene, operator: _operator, full: _full, hanging } = Jam::start().await?;
    let other = scene.space("other").await?;
    let started = Instant::now();
    other.create("b", spec()).await?;
    let first = Calls::of(Verb::Create, "pods").in_namespace(&other.namespace);
    let first = scene.proxy.inject(first, Fault::Latency(Duration::ZERO));
    first.reached().await?;
    let (waited, attempts) = (started.elapsed(), hanging.hits());
    assert!(attempts <= 20, "{attempts} hanging rounds went before");
    assert!(waited < REQUEST_TIMEOUT * 2, "it waited {waited:?}");
    hanging.end();
    other.until_ready("b").await?;
    Ok(())
}
