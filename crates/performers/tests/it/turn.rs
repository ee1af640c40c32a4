//! Whose turn it is: how many rounds run at once, and that nobody waits for others' trouble.

use std::time::Duration;

use anyhow::Result;
use performers::Config;
use runtime::Settings;
use testbed::{
    Options,
    fault::{Calls, Fault, Verb},
};
use tokio::time::Instant;

use crate::{
    harness::{alone, spec},
    scene::{Scene, eventually},
};

/// A round gives up a request after this long: what a hanging call costs its slot.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

#[tokio::test]
async fn p38_p39_ten_rounds_run_at_once_and_hanging_ones_hold_up_no_other_namespace() -> Result<()> {
    let scene = Scene::start(Options::default()).await?;
    let settings = Settings { request_timeout: REQUEST_TIMEOUT, ..alone() };
    let operator = scene.operator(settings, Config::default()).await?;
    let (full, other) = (scene.space("full").await?, scene.space("other").await?);
    let hanging = Calls::of(Verb::Create, "pods").in_namespace(&full.namespace);
    let hanging = scene.proxy.inject(hanging, Fault::HoldBeforeCommit);
    for number in 0..30 {
        full.create(&format!("a{number}"), spec()).await?;
    }
    hanging.reached_times(10).await?;
    // Others wait, and still no eleventh is started.
    let depth = || operator.metric(r#"workqueue_depth{name="performer",controller="performer"}"#);
    eventually("the rest waits", || depth() >= 20.0).await?;
    assert_eq!(hanging.hits(), 10);
    assert_eq!(operator.metric(r#"controller_runtime_active_workers{controller="performer"}"#), 10.0);

    // The bound: one request timeout until a slot is free, then the other namespace has its turn, for each of the
    // rounds it needs. It is one behind at most ten of the thirty that wait, never behind all of them.
    let started = Instant::now();
    other.create("b", spec()).await?;
    let first = Calls::of(Verb::Create, "pods").in_namespace(&other.namespace);
    let first = scene.proxy.inject(first, Fault::Latency(Duration::ZERO));
    first.reached().await?;
    let (waited, attempts) = (started.elapsed(), hanging.hits());
    assert!(attempts <= 20, "{attempts} hanging rounds went before");
    assert!(waited < REQUEST_TIMEOUT * 2, "it waited {waited:?}");
    other.until_ready("b").await?;
    hanging.end();
    for number in 0..30 {
        full.until_ready(&format!("a{number}")).await?;
    }
    operator.stop().await
}
