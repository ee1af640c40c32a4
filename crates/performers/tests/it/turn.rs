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
pub const REQUEST_TIMEOUT: Duration = Duration::from_mins(5);

fn creates(space: &Space) -> Calls {
    Calls::of(Verb::Create, "pods").in_namespace(&space.namespace)
}

/// A namespace whose thirty pod creates all hang, eight of them right now: of ten slots it may use no more.
struct Jam {
    scene: Scene,
    operator: Running,
    full: Space,
    hanging: Injected,
    /// Those that come after the first eight hang as well.
    later: Injected,
}

impl Jam {
    async fn start() -> Result<Self> {
        let scene = Scene::lent().await?;
        let settings = Settings { request_timeout: REQUEST_TIMEOUT, ..alone() };
        let operator = scene.operator(settings, Config::default()).await?;
        let full = scene.space("full").await?;
        let hanging = scene.proxy.inject(creates(&full).at_most(8), Fault::HoldBeforeCommit);
        let later = scene.proxy.inject(creates(&full), Fault::HoldBeforeCommit);
        for number in 0..30 {
            full.create(&format!("a{number}"), spec()).await?;
        }
        hanging.reached_times(8).await?;
        Ok(Self { scene, operator, full, hanging, later })
    }

    /// Another namespace whose pod creates hang.
    async fn another(&self, prefix: &str) -> Result<(Space, Injected)> {
        let space = self.scene.space(prefix).await?;
        let held = self.scene.proxy.inject(creates(&space), Fault::HoldBeforeCommit);
        Ok((space, held))
    }

    /// Two more namespaces take the last slots.
    async fn fill(&self) -> Result<[Space; 2]> {
        let others = [self.another("second").await?, self.another("third").await?];
        for (other, held) in &others {
            other.create("b", spec()).await?;
            held.reached().await?;
        }
        Ok(others.map(|(other, _)| other))
    }

    /// Until so many have no slot.
    async fn until_waiting(&self, count: f64) -> Result<()> {
        let depth = r#"workqueue_depth{name="performer",controller="performer"}"#;
        eventually("the rest waits", || self.operator.metric(depth).round() >= count).await
    }
}

#[tokio::test]
async fn p38_ten_rounds_run_at_once_and_no_eleventh() -> Result<()> {
    let jam = Jam::start().await?;
    let others = jam.fill().await?;
    let (last, held) = jam.another("fourth").await?;
    last.create("b", spec()).await?;
    jam.until_waiting(23.0).await?;
    assert_eq!((jam.later.hits(), held.hits()), (0, 0));
    let running = jam.operator.metric(r#"controller_runtime_active_workers{controller="performer"}"#).round();
    assert!((10.0..11.0).contains(&running), "{running} rounds run");
    jam.scene.proxy.clear();
    for number in 0..30 {
        jam.full.until_ready(&format!("a{number}")).await?;
    }
    for other in others.iter().chain([&last]) {
        other.until_ready("b").await?;
    }
    Ok(())
}

/// The bound: none. The other namespace gets a slot that the hanging one may not use, for each of the rounds it needs.
#[tokio::test]
async fn p39_hanging_rounds_do_not_hold_up_another_namespace() -> Result<()> {
    let jam = Jam::start().await?;
    let other = jam.scene.space("other").await?;
    let first = jam.scene.proxy.inject(creates(&other), Fault::Latency(Duration::ZERO));
    other.create("b", spec()).await?;
    first.reached().await?;
    assert_eq!(jam.later.hits(), 0, "it waited for a hanging round to be given up");
    jam.scene.proxy.clear();
    other.until_ready("b").await?;
    Ok(())
}

/// The bound: one round. All slots are taken, and twenty-two of the failing namespace have waited for longer than the
/// two of the other. Of the slots that become free as eight rounds fail, the other gets the first, which is reserved for
/// those without one, and then every second: of the eight that are not reserved it has two and two others have one each,
/// so four are left for the failing one. Did the longest wait count, those twenty-two would have taken all of them.
#[tokio::test]
async fn p39_a_namespace_of_failing_performers_does_not_delay_another() -> Result<()> {
    let jam = Jam::start().await?;
    jam.fill().await?;
    let (other, held) = jam.another("patient").await?;
    for name in ["a", "b"] {
        other.create(name, spec()).await?;
    }
    jam.until_waiting(24.0).await?;
    jam.hanging.cut();
    held.reached_times(2).await?;
    assert!(jam.later.hits() <= 4, "{} rounds of the failing namespace came before", jam.later.hits());
    jam.scene.proxy.clear();
    for name in ["a", "b"] {
        other.until_ready(name).await?;
    }
    Ok(())
}
