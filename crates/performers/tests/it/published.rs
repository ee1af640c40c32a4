//! A cluster where somebody installed the published definition instead of ours.

use anyhow::{Context, Result};
use api::performer::Phase;
use serde_json::json;
use testbed::{ControlPlane, Options, kwok::Behaviour, published};

use crate::{
    crd::{PUBLISHED, install_published},
    harness::{Running, Space, alone, hasty, install_account, operator_user, spec, spec_with},
    observe::{line, more_rounds, writes},
};

#[tokio::test]
async fn p53_the_operator_runs_on_the_published_definitions_without_a_status_loop() -> Result<()> {
    let Some(folder) = published() else { return Ok(()) };
    let control_plane = ControlPlane::start(Options { fsync: false, ..Options::default() }).await?;
    install_account(&control_plane).await?;
    for file in PUBLISHED {
        install_published(&control_plane.client().await?, &folder, file).await?;
        check(&control_plane).await.context(file)?;
    }
    control_plane.stop().await?;
    Ok(())
}

async fn check(control_plane: &ControlPlane) -> Result<()> {
    let mut config = hasty();
    // The pod must stay as it is while rounds pass.
    config.policy.failure_delay = std::time::Duration::from_mins(1);
    config.policy.failure_delay_cap = std::time::Duration::from_mins(1);
    let client = runtime::connect(control_plane.config_as(&operator_user()).await?)?;
    let operator = Running::start(client, alone(), config).await?;
    let space = Space::new(control_plane, "published").await?;
    space.create_ready("good", spec()).await?;
    space.patch("good", json!({ "spec": { "image": "registry.test/performer:v2" } })).await?;
    space.until_settled("good").await?;
    space.delete_and_wait("good").await?;

    let mark = control_plane.audit().mark()?;
    space.create("ended", spec_with(json!({ "image": Behaviour::Succeeded.image() }))).await?;
    let degraded = space.until_condition("ended", "Degraded", "True", "PodSucceeded").await?;
    let phase = degraded.status.as_ref().and_then(|status| status.phase);
    assert_eq!(phase, Some(Phase::Failed), "this definition knows no Unknown");
    more_rounds(&operator, &space, 10).await?;
    let writes = writes(control_plane, &space, mark)?;
    let status: Vec<_> =
        writes.iter().filter(|entry| line(entry) == "patch performers/status").map(|e| e.code).collect();
    assert!(status.len() <= 4, "no status loop: {status:?}");
    assert!(status.iter().filter(|code| **code == 422).count() <= 1, "refused once, then known: {status:?}");
    space.delete_and_wait("ended").await?;
    operator.stop().await
}
