//! The vendor's own client against the simulator.
#![expect(clippy::disallowed_methods, reason = "the vendor's client is a program")]

use anyhow::Result;
use testbed::{hetzner::Access, tools};
use tokio::process::Command;

use crate::{TOKEN, World};

async fn program(world: &World) -> Result<Command> {
    let mut command = Command::new(tools::path("hcloudcheck").await?);
    command.env("HCLOUD_ENDPOINT", world.simulator.endpoint()).env("HCLOUD_TOKEN", TOKEN);
    Ok(command)
}

#[tokio::test]
async fn hetzners_own_library_finds_what_it_expects() -> Result<()> {
    let world = World::with(|options| {
        options.access.push(Access::new("other", "other"));
        options.access.push(Access { is_read_only: true, ..Access::new("reader", "tests") });
    })
    .await?;
    let output = program(&world).await?.env("OTHER_TOKEN", "other").env("READER_TOKEN", "reader").output().await?;
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{errors}");
    for part in ["servers", "actions", "networks", "load balancers", "firewalls", "bad input", "tokens"] {
        assert!(said.lines().any(|line| line == format!("ok {part}")), "{part}: {said}{errors}");
    }
    Ok(())
}

/// The rate limit is last: what it spends comes back by the second.
const SEEN: [(&str, &str); 15] = [
    ("slow=0.01", "created"),
    ("lost-response", "no answer"),
    ("cut", "no answer"),
    ("409", "refused conflict"),
    ("423", "refused locked"),
    ("429", "refused rate_limit_exceeded"),
    ("500", "refused server_error"),
    ("502", "refused bad_gateway"),
    ("503", "refused unavailable"),
    ("504", "refused timeout"),
    ("stuck-action", "action still running"),
    ("failed-action", "action failed action_failed"),
    ("vanished-action", "action not found"),
    ("capacity", "refused resource_unavailable"),
    ("rate-limit", "refused rate_limit_exceeded"),
];

#[tokio::test]
async fn each_fault_looks_to_hetzners_own_library_as_the_vendors_would() -> Result<()> {
    let world = World::start().await?;
    for (number, (kind, seen)) in SEEN.into_iter().enumerate() {
        world.simulator.faults().add("POST /servers", kind.parse()?, Some(1))?;
        let output = program(&world).await?.args(["try", &format!("s-{number}")]).output().await?;
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), seen, "{kind}: {output:?}");
        assert_eq!(world.simulator.faults().list(), [], "{kind}");
    }
    Ok(())
}
