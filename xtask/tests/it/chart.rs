//! The chart renders, installs under the restricted profile, and leaves performers behind.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStrategy};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{Api, runtime::wait::await_condition};
use testbed::{ControlPlane, User, until_allowed};

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
async fn an_upgrade_never_runs_two_acting_operators() -> Result<()> {
    let helm = Program::offline("helm").await?;
    let strategy = |settings: &str| -> Result<DeploymentStrategy> {
        let rendered = helm.run(&format!("{TEMPLATE} --show-only templates/deployment.yaml {settings}"))?;
        let deployment: Deployment = serde_saphyr::from_str(&rendered)?;
        deployment.spec.and_then(|spec| spec.strategy).context("no strategy")
    };
    let alone = strategy("--set replicaCount=1 --set leaderElection.enabled=false")?;
    assert_eq!(alone, DeploymentStrategy { type_: Some("Recreate".into()), rolling_update: None });
    // Where one is elected, a standby is there throughout.
    assert_eq!(strategy("")?.type_.as_deref(), Some("RollingUpdate"));
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
    create_performer(&kubectl).await?;
    whoever_may_edit_may_edit_performers(control_plane, &kubectl).await?;
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

async fn whoever_may_edit_may_edit_performers(control_plane: &ControlPlane, kubectl: &Program) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(control_plane.client().await?);
    let is_aggregated = |role: Option<&ClusterRole>| {
        let found = role.and_then(|role| role.rules.as_ref()).into_iter().flatten();
        found.filter_map(|rule| rule.resources.as_ref()).flatten().any(|resource| resource == "performers")
    };
    let aggregated = await_condition(roles, "edit", is_aggregated);
    tokio::time::timeout(Duration::from_secs(30), aggregated).await.context("not aggregated")??;
    kubectl.run("create rolebinding may-edit --clusterrole=edit --user=alice --namespace default")?;
    let (client, alice) = (control_plane.client().await?, User::named("alice"));
    until_allowed(&client, &alice, "create", "hourglass.eigenlayer.io", "performers", "default").await?;
    assert_eq!(kubectl.run("auth can-i create performers --as alice --namespace default")?.trim(), "yes");
    let status = kubectl.fail("auth can-i patch performers --subresource=status --as alice --namespace default");
    status.context("a status is the operator's to write")?;
    Ok(())
}
