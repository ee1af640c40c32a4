//! The vendor's own client against the simulator.

use anyhow::Result;
use testbed::tools;
use tokio::process::Command;

use crate::{TOKEN, World};

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the vendor's client is a program")]
async fn hetzners_own_library_finds_what_it_expects() -> Result<()> {
    let world = World::with(|options| {
        options.access.push(testbed::hetzner::Access::new("other", "other"));
        let reader = testbed::hetzner::Access::new("reader", "tests");
        options.access.push(testbed::hetzner::Access { is_read_only: true, ..reader });
    })
    .await?;
    let program = tools::path("hcloudcheck").await?;
    let mut command = Command::new(program);
    command.env("HCLOUD_ENDPOINT", world.simulator.endpoint()).env("HCLOUD_TOKEN", TOKEN);
    let output = command.env("OTHER_TOKEN", "other").env("READER_TOKEN", "reader").output().await?;
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{errors}");
    for part in ["servers", "actions", "networks", "load balancers", "firewalls", "bad input", "tokens"] {
        assert!(said.lines().any(|line| line == format!("ok {part}")), "{part}: {said}{errors}");
    }
    Ok(())
}
