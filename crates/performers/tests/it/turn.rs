//! Whose turn it is: how many rounds run at once, and that nobody waits for others' trouble.

use std::time::Duration;

use anyhow::Result;
use performers::Config;
use runtime::Settings;
use testbed::fault::{Calls, Fault, Injected, Verb};

use crate::{
    harness::{Running, Space, alone, spec},
    scene::{Scene, eventually},
};

/// Longer than a test takes: what hangs is not given up before its end.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(5);

/// A namespace whose thirty pod creates all hang, eight of them right now: of ten slots it may use no more.
struct Jam {
    scene: Scene,
    operator: Running,
    full: Space,
    hanging: Injected,
}

impl Jam {
    async fn start() -> Result<Self> {
        let scene = Scene::lent().await?;
        let settings = Settings { request_timeout: REQUEST_TIMEOUT, ..alone() };
        let operator = scene.operator(settings, Config::default()).await?;
        let full = scene.space("full").await?;
        let hanging = Calls::of(Verb::Create, "pods").in_namespace(&full.namespace);
        let hanging = scene.proxy.inject(hanging, Fault::HoldBeforeCommit);
        for number in 0..30 {
            full.create(&format!("a{number}"), spec()).await?;
        }
        hanging.reached_times(8).await?;
        Ok(Self { scene, operator, full, hanging })
    }
}

#[tokio::test]
async fn p38_ten_rounds_run_at_once_and_no_eleventh() -> Result<()> {
    let Jam { scene, operator, full, hanging } = Jam::start().await?;
    let metric = |line: &str| operator.metric(line).round();
    let others = [scene.space("second").await?, scene.space("third").await?, scene.space("fourth").await?];
    let held = others.each_ref().map(|other| {
        let calls = Calls::of(Verb::Create, "pods").in_namespace(&other.namespace);
        scene.proxy.inject(calls, Fault::HoldBeforeCommit)
    });
    for (other, held) in others.iter().zip(&held).take(2) {
        other.create("b", spec()).await?;
        held.reached().await?;
    }
    others[2].create("b", spec()).await?;
    let waiting = || metric(r#"workqueue_depth{name="performer",controller="performer"}"#) >= 23.0;
    eventually("the rest waits", waiting).await?;
    assert_eq!((hanging.hits(), held[2].hits()), (8, 0));
    let running = metric(r#"controller_runtime_active_workers{controller="performer"}"#);
    assert!((10.0..11.0).contains(&running), "{running} rounds run");
    hanging.end();
    held.iter().for_each(Injected::end);
    for number in 0..30 {
        full.until_ready(&format!("a{number}")).await?;
    }
    for other in others {
        other.until_ready("b").await?;
    }
    Ok(())
}

/// The bound: none. The other namespace gets a slot that the hanging one may not use, for each of the rounds it needs.
#[tokio::test]
async fn p39_hanging_rounds_do_not_hold_up_another_namespace() -> Result<()> {
    let Jam { scene, operator: _operator, full: _full, hanging } = Jam::start().await?;
    let other = scene.space("other").await?;
    other.create("b", spec()).await?;
    let first = Calls::of(Verb::Create, "pods").in_namespace(&other.namespace);
    let first = scene.proxy.inject(first, Fault::Latency(Duration::ZERO));
    first.reached().await?;
    assert_eq!(hanging.hits(), 8, "it waited for a hanging round to be given up");
    hanging.end();
    other.until_ready("b").await?;
    Ok(())
}
