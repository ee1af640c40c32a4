//! The chart renders, installs under the restricted profile, and leaves performers behind.

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use testbed::ControlPlane;

use crate::program::{Program, create_performer};

const TEMPLATE: &str = "template strata charts/strata --namespace strata-system";

async fn check_refused(settings: &str, complaint: &str) -> Result<()> {
    let helm = Program::offline("helm").await?;
    let said = helm.fail(&format!("{TEMPLATE} {settings}"))?;
    assert!(said.contains(complaint), "{settings}: {said}");
    Ok(())
}

#[tokio::test]
async fn the_chart_lints_clean() -> Result<()> {
    let said = Program::offline("helm").await?.run("lint --strict charts/strata")?;
    assert!(said.contains("1 chart(s) linted, 0 chart(s) failed"), "{said}");
    Ok(())
}

#[tokio::test]
async fn bad_values_are_refused_with_their_name() -> Result<()> {
    check_refused("--set replicaCount=two", "at '/replicaCount': got string, want integer").await?;
    check_refused("--set webhook.enabled=true", "additional properties 'webhook' not allowed").await?;
    check_refused("--set crd.install=true", "additional properties 'crd' not allowed").await?;
    check_refused("--set-string operator.resync=often", "at '/operator/resync'").await?;
    check_refused("--set operator.layers={nonsense}", "at '/operator/layers/0'").await?;
    check_refused("--set metrics.port=0", "at '/metrics/port'").await?;
    check_refused("--set leaderElection.enabled=false", "needs leaderElection.enabled=true").await?;
    let lonely = "--set metrics.service.enabled=false --set metrics.serviceMonitor.enabled=true";
    check_refused(lonely, "needs metrics.service.enabled=true").await
}

#[tokio::test]
async fn switches_add_and_remove_their_objects() -> Result<()> {
    let helm = Program::offline("helm").await?;
    let has = |settings: &str, line: &str| -> Result<bool> {
        Ok(helm.run(&format!("{TEMPLATE} {settings}"))?.lines().any(|found| found == line))
    };
    assert!(has("", "kind: PodDisruptionBudget")?);
    assert!(!has("--set replicaCount=1", "kind: PodDisruptionBudget")?, "it would block every drain");
    assert!(has("", "kind: NetworkPolicy")?);
    assert!(!has("--set networkPolicy.enabled=false", "kind: NetworkPolicy")?);
    assert!(has("", "kind: ClusterRoleBinding")?);
    assert!(!has("--set rbac.create=false", "kind: ClusterRoleBinding")?);
    assert!(!has("", "kind: ServiceMonitor")?);
    assert!(has("--set metrics.serviceMonitor.enabled=true", "kind: ServiceMonitor")?);
    Ok(())
}

#[tokio::test]
async fn it_installs_and_uninstalling_leaves_the_performers() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let helm = Program::on("helm", control_plane).await?;
    let kubectl = Program::on("kubectl", control_plane).await?;
    kubectl.run("create namespace strata-system")?;
    // Refuses pods that do not meet the strictest profile.
    kubectl.run("label namespace strata-system pod-security.kubernetes.io/enforce=restricted")?;

    helm.run("install strata charts/strata --namespace strata-system --wait --timeout 60s")?;
    two_replicas_run_as_the_service_account(control_plane).await?;
    create_performer(&kubectl)?;
    helm.run("upgrade strata charts/strata --namespace strata-system --set replicaCount=3 --wait --timeout 60s")?;
    helm.run("uninstall strata --namespace strata-system --wait")?;
    assert_ne!(kubectl.run("get performers --all-namespaces --output name")?, "");

    kubectl.run("apply --server-side --filename deploy/install.yaml")?;
    kubectl.run("--namespace strata-system rollout status deployment/strata --timeout 60s")?;
    two_replicas_run_as_the_service_account(control_plane).await?;
    assert_ne!(kubectl.run("get performers --all-namespaces --output name")?, "");
    Ok(())
}

async fn two_replicas_run_as_the_service_account(control_plane: &ControlPlane) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(control_plane.client().await?, "strata-system");
    let deployment = deployments.get("strata").await?;
    let ready = deployment.status.context("no status")?.ready_replicas;
    assert_eq!(ready, Some(2));
    let pod = deployment.spec.and_then(|spec| spec.template.spec).context("no pod")?;
    assert_eq!(pod.service_account_name.as_deref(), Some("strata"));
    Ok(())
}

#[tokio::test]
async fn people_who_may_edit_a_namespace_may_edit_performers() -> Result<()> {
    let helm = Program::offline("helm").await?;
    let rendered = helm.run(TEMPLATE)?;
    for role in ["view", "edit", "admin"] {
        assert!(rendered.contains(&format!("aggregate-to-{role}: \"true\"")), "{role}");
    }
    Ok(())
}
