//! What holds where nothing is configured. It lasts for minutes and costs nothing meanwhile: tests start in the order of
//! their names, so this one does not end long after all others.

use std::time::Duration;

use anyhow::Result;
use performers::Config;
use testbed::{ControlPlane, Options};
use tokio::time::Instant;

use crate::{
    harness::{Running, Space, alone, install, operator_user, spec},
    observe::more_rounds,
    settled::PERIOD,
};

/// What a woken round takes until it is seen from outside, on a machine with other work.
const BUSY: Duration = Duration::from_secs(10);

/// The default period, in its real length. A settled Performer needs no pods for it, and so no nodes.
#[tokio::test]
async fn p40_by_default_the_resync_comes_every_two_minutes() -> Result<()> {
    let control_plane = ControlPlane::start(Options { fsync: false, ..Options::bare() }).await?;
    install(&control_plane).await?;
    let client = runtime::connect(control_plane.config_as(&operator_user()).await?)?;
    let operator = Running::start(client, alone(), Config::default()).await?;
    let space = Space::new(&control_plane, "default").await?;
    let created = Instant::now();
    space.create("never.named", spec()).await?;
    space.until_condition("never.named", "Degraded", "True", "InvalidName").await?;
    // The rounds of its beginning, and then the first that nothing has caused.
    let mut ended = created;
    while ended.elapsed() < PERIOD / 2 {
        ended = Instant::now();
        more_rounds(&operator, &space, 1).await?;
    }
    // Counted from when the test saw the round before, which is a little later than it ended.
    let off = ended.elapsed().abs_diff(PERIOD);
    assert!(off <= PERIOD / 10 + BUSY, "it came after {:?}", ended.elapsed());
    operator.stop().await
}
