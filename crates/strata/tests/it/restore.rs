//! etcd is restored from a backup while the operator runs: it goes on from what there is then.

use anyhow::{Context, Result};
use serde_json::json;
use testbed::{
    ControlPlane, Options,
    charts::{Access, ChartRepository},
};

use crate::{
    releases::operator,
    space::{HelmRole, Space, install, operator_user},
};

#[tokio::test]
async fn releases_go_on_from_what_a_restored_etcd_holds() -> Result<()> {
    let control_plane = ControlPlane::start(Options { fsync: false, ..Options::bare() }).await?;
    install(&control_plane, HelmRole::Bound).await?;
    let charts = ChartRepository::start(Access::Anyone).await?;
    let space = Space::new(&control_plane, charts.url(), "restore").await?;
    let kubeconfig = control_plane.kubeconfig_as(&operator_user()).await?;
    let operator = operator(control_plane.directory(), &kubeconfig, "operator.log").await?;
    // No pod ever becomes ready here.
    let spec = |note: &str| space.four(json!({ "wait": false, "values": { "note": note } }));
    space.install("web", spec("a")).await.with_context(|| operator.log_tail())?;
    space.install("goes", spec("a")).await?;

    let backup = control_plane.back_up().await?;
    space.change("web", json!({ "values": { "note": "b" } })).await?;
    space.ready("web").await?;
    space.check_history("web", "1 superseded, 2 deployed").await?;
    space.install("late", spec("a")).await?;
    space.delete("goes").await?;
    space.gone("goes").await?;

    control_plane.restore(&backup).await?;
    space.change("web", json!({ "values": { "note": "c" } })).await?;
    space.ready("web").await.with_context(|| operator.log_tail())?;
    // Until all watches have begun anew it may look as if another upgrade were due.
    let newest = space.history("web").await?.pop();
    assert!(newest.as_ref().is_some_and(|(revision, state)| *revision >= 2 && state == "deployed"), "{newest:?}");
    // What was installed since is unheard of, and what was removed since is there as before.
    space.install("late", spec("b")).await.with_context(|| operator.log_tail())?;
    space.check_history("late", "1 deployed").await?;
    space.check_history("goes", "1 deployed").await?;
    space.change("goes", json!({ "values": { "note": "d" } })).await?;
    space.ready("goes").await.with_context(|| operator.log_tail())?;
    space.check_history("goes", "1 superseded, 2 deployed").await?;
    assert!(operator.is_running(), "{}", operator.log_tail());
    Ok(())
}
