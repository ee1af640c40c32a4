//! What fails is reported, is not tried blindly again, and is remedied as the spec says.

use std::time::Duration;

use anyhow::{Context, Result};
use api::workspace::HelmRelease;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use plan::releases::Policy;
use serde_json::json;
use testbed::audit::Entry;

use crate::{
    space::{HelmRole, Space, condition, eventually, message},
    world::World,
};

fn failures(release: &HelmRelease) -> u32 {
    release.status.as_ref().map_or(0, |status| status.failures)
}

/// Helm operations of this kind that ended so.
fn ended(world: &World, operation: &str, result: &str) -> f64 {
    let labels = [format!("operation=\"{operation}\""), format!("result=\"{result}\"")];
    world.operator.metric("strata_helm_operations_total", &labels.each_ref().map(String::as_str))
}

#[tokio::test]
async fn w30_a_failure_is_told_everywhere_and_tried_again_only_after_a_change() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("failure").await?;
    let before = ended(world, "install", "other");
    space.create("web", space.spec("broken", "1.0.0", json!({ "values": { "fault": "object" } }))).await?;
    let failed = space.condition("web", "Ready", "False", "InstallFailed").await?;
    let said = "must be greater than or equal to 0";
    assert!(message(&failed).contains(said), "{}", message(&failed));
    assert_eq!(condition(&failed, "Released")["reason"], "InstallFailed");
    let status = failed.status.clone().context("a status")?;
    assert!(status.last_output.context("helm's last lines")?.contains(said));
    assert_eq!((status.failures, status.last_attempted_revision.as_deref()), (1, Some("1.0.0")));
    let event = space.until_recorded("web", "InstallFailed").await?;
    assert!(event.contains(said), "{event}");
    assert!(ended(world, "install", "other") > before);

    // Rounds alone try nothing and write nothing.
    let failed = space
        .until("web", "settled", |release| release.status.as_ref().unwrap().observed_generation == Some(1))
        .await?;
    let mark = space.mark().await?;
    for round in ["1", "2", "3"] {
        space.annotate("web", "example.test/touched", round).await?;
    }
    space.install("witness", space.four(json!({}))).await?;
    let after = space.releases.get("web").await?;
    assert_eq!((failures(&after), json!(after.status)), (1, json!(failed.status)));
    let about_web: Vec<_> = space.writes(mark)?.into_iter().filter(|entry| entry.name == "web").collect();
    assert_eq!(about_web, []);

    space.change("web", json!({ "values": { "fault": "template" } })).await?;
    space.until("web", "tried again", |release| message(release).contains("fault is template")).await?;
    space.change("web", json!({ "values": { "fault": "" } })).await?;
    let mended = space.ready("web").await?;
    assert_eq!((failures(&mended), mended.status.unwrap().last_output), (0, None));
    let recorded = async || -> Result<usize> {
        Ok(space.recorded("web").await?.iter().filter(|event| event.starts_with("InstallFailed")).count())
    };
    // Events are published beside the rounds.
    eventually("both attempts are recorded", async || Ok(recorded().await? >= 2)).await?;
    assert_eq!(recorded().await?, 2, "one for each attempt");
    Ok(())
}

#[tokio::test]
async fn w31_retries_then_the_remedy_and_never_a_circle() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("remedy").await?;
    let good = json!({ "values": { "fault": "" } });
    let broken = json!({ "values": { "fault": "object" } });
    let of = |fields: &serde_json::Value, more: serde_json::Value| {
        let mut spec = space.spec("broken", "1.0.0", fields.clone());
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let rollback = async {
        let upgrade = json!({ "upgrade": { "retries": 1, "remediation": "rollback" }, "maxHistory": 4 });
        space.install("back", of(&good, upgrade)).await?;
        space.change("back", broken.clone()).await?;
        let back = space.condition("back", "Remediated", "True", "RollbackSucceeded").await?;
        space.condition("back", "Ready", "False", "UpgradeFailed").await?;
        assert_eq!(failures(&back), 2);
        space.check_history("back", "1 superseded, 2 failed, 3 failed, 4 deployed").await?;
        space.change("back", good.clone()).await?;
        space.ready("back").await?;
        space.change("back", broken.clone()).await?;
        space.condition("back", "Ready", "False", "UpgradeFailed").await?;
        space.condition("back", "Remediated", "True", "RollbackSucceeded").await?;
        assert_eq!(space.history("back").await?.len(), 4);
        anyhow::Ok(())
    };
    let uninstall = async {
        let install = json!({ "install": { "retries": 1, "remediation": "uninstall" } });
        space.create("away", of(&broken, install)).await?;
        space.condition("away", "Remediated", "True", "UninstallSucceeded").await?;
        let away = space.condition("away", "Ready", "False", "InstallFailed").await?;
        assert_eq!(failures(&away), 2);
        space.check_history("away", "").await?;
        space.change("away", good.clone()).await?;
        space.ready("away").await?;
        anyhow::Ok(())
    };
    let none = async {
        space.create("left", of(&broken, json!({}))).await?;
        let left = space.condition("left", "Ready", "False", "InstallFailed").await?;
        assert_eq!(condition(&left, "Remediated")["reason"], "NotNeeded");
        space.check_history("left", "1 failed").await
    };
    tokio::try_join!(rollback, uninstall, none)?;
    Ok(())
}

/// Broken when asked so; shows whether it was installed, and holds data when asked so.
const INSTALLED: &str = r"apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}}
data: {isInstall: {{ .Release.IsInstall | quote }}}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}-{{ .Values.attempt }}
  annotations: {helm.sh/hook: pre-install}
{{- if .Values.data }}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: {{ .Release.Name }}}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
{{- end }}
{{- if .Values.broken }}
---
apiVersion: v1
kind: Service
metadata: {name: {{ .Release.Name }}}
spec: {ports: [{port: 70000}]}
{{- end }}
";

#[tokio::test]
async fn w31_a_failed_install_is_installed_again_with_its_hooks_and_keeps_its_data() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("again").await?;
    let directory = tempfile::tempdir()?;
    let packed = crate::harness::pack(directory.path(), "chart", "1.0.0", INSTALLED)?;
    let chart = json!({ "repo": format!("file://{}", packed.display()), "name": "chart" });
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(space.client.clone(), &space.namespace);
    for (name, data, history) in [("plain", false, "1 deployed"), ("data", true, "1 failed, 2 failed, 3 deployed")] {
        let values = |attempt: &str, broken: bool| json!({ "attempt": attempt, "broken": broken, "data": data });
        // The second attempt is one of its own accord, the third one after a change.
        let install = json!({ "retries": 1 });
        let spec = json!({ "chart": chart, "wait": false, "install": install, "values": values("one", true) });
        space.create(name, spec).await?;
        let failed = space.until(name, "failed twice", |release| failures(release) == 2).await?;
        space.condition(name, "Ready", "False", "InstallFailed").await?;
        assert_eq!(failed.status.unwrap().holds_data, Some(data));
        let claim = claims.get_opt(name).await?.map(|claim| claim.metadata.uid);
        space.change(name, json!({ "values": values("two", false) })).await?;
        let installed = space.ready(name).await?;
        assert_eq!(condition(&installed, "Released")["reason"], "InstallSucceeded");
        space.check_history(name, history).await?;
        assert_eq!(space.config_maps.get(name).await?.data.unwrap()["isInstall"], "true", "{name}");
        assert!(space.config_maps.get_opt(&format!("{name}-two")).await?.is_some(), "its hook did not run");
        assert_eq!(claims.get_opt(name).await?.map(|claim| claim.metadata.uid), claim, "{name}: data was removed");
        assert_eq!(claim.is_some(), data);
        space.change(name, json!({ "values": values("three", false) })).await?;
        space.ready(name).await?;
        assert_eq!(space.config_maps.get(name).await?.data.unwrap()["isInstall"], "false", "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn w25_what_takes_too_long_is_timed_out() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("timeout").await?;
    // helm is given ten seconds more, and needs seconds on a busy machine before it waits.
    let never = json!({ "timeout": "20s", "values": { "fault": "not-ready" } });
    space.create("web", space.spec("broken", "1.0.0", never)).await?;
    let late = space.condition("web", "Ready", "False", "TimedOut").await?;
    assert_eq!(failures(&late), 1);
    space.until_recorded("web", "TimedOut").await?;
    space.check_history("web", "1 failed").await?;
    // Settings alone try again: without the wait it is deployed.
    space.change("web", json!({ "wait": false, "timeout": "1m" })).await?;
    space.ready("web").await?;
    Ok(())
}

#[tokio::test]
async fn w21_a_budget_that_cannot_be_met_is_refused_with_a_condition() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("memory").await?;
    space.create("large", space.four(json!({ "memory": "64Gi" }))).await?;
    space.create("small", space.four(json!({ "memory": "64Mi" }))).await?;
    space.create("long", space.four(json!({ "timeout": "99999h" }))).await?;
    space.create("most", space.four(json!({ "memory": "2Gi" }))).await?;
    space.create("local", space.four(json!({ "targetNamespace": "elsewhere" }))).await?;
    let large = space.condition("large", "Ready", "False", "MemoryExceedsBudget").await?;
    assert!(message(&large).contains("--helm-memory"), "{}", message(&large));
    let small = space.condition("small", "Ready", "False", "InvalidSpec").await?;
    assert!(message(&small).contains("128Mi"), "{}", message(&small));
    let long = space.condition("long", "Ready", "False", "InvalidSpec").await?;
    assert!(message(&long).contains("spec.timeout") && message(&long).contains("--helm-max-timeout"), "{long:?}");
    let most = space.condition("most", "Ready", "False", "InvalidSpec").await?;
    assert!(message(&most).contains("--helm-max-operation-memory"), "{}", message(&most));
    let local = space.condition("local", "Ready", "False", "InvalidSpec").await?;
    assert!(message(&local).contains("--helm-other-namespaces"), "{}", message(&local));
    space.change("large", json!({ "memory": "512Mi" })).await?;
    space.ready("large").await?;
    try_join_all(["small", "long", "most", "local"].map(async |name| {
        space.delete(name).await?;
        space.gone(name).await
    }))
    .await?;
    Ok(())
}

#[tokio::test]
async fn w35_helm_tests_run_once_and_are_reported() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("tests").await?;
    let spec = |test: &str, more: serde_json::Value| {
        let mut strategy = json!({ "enable": true });
        strategy.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        space.spec("web", "1.0.0", json!({ "test": strategy, "values": { "test": test } }))
    };
    let good = async {
        space.install("good", spec("succeeded", json!({}))).await?;
        space.condition("good", "TestSuccess", "True", "TestSucceeded").await?;
        anyhow::Ok(())
    };
    let bad = async {
        space.create("bad", spec("failed", json!({}))).await?;
        let bad = space.condition("bad", "TestSuccess", "False", "TestFailed").await?;
        assert!(message(&bad).contains("bad-test"), "{}", message(&bad));
        space.condition("bad", "Ready", "False", "TestFailed").await?;
        space.condition("bad", "Released", "True", "InstallSucceeded").await?;
        space.until_recorded("bad", "TestFailed").await?;
        space.change("bad", json!({ "values": { "test": "succeeded" } })).await?;
        space.ready("bad").await?;
        anyhow::Ok(())
    };
    let tolerated = async {
        space.install("tolerated", spec("failed", json!({ "ignoreFailures": true }))).await?;
        space.condition("tolerated", "TestSuccess", "False", "TestFailed").await?;
        anyhow::Ok(())
    };
    tokio::try_join!(good, bad, tolerated)?;
    Ok(())
}

#[tokio::test]
async fn w37_metrics_tell_of_operations_and_releases() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("metrics").await?;
    let durations = || world.operator.metric("strata_helm_operation_seconds_total", &["operation=\"install\""]);
    let (installs, seconds) = (ended(world, "install", "success"), durations());
    space.install("web", space.four(json!({}))).await?;
    space.create("broken", space.spec("broken", "1.0.0", json!({ "values": { "fault": "template" } }))).await?;
    space.condition("broken", "Ready", "False", "InstallFailed").await?;
    assert!(ended(world, "install", "success") > installs && durations() > seconds);
    let namespace = format!("namespace=\"{}\"", space.namespace);
    let count = |status: &str, reason: &str| {
        let labels = [namespace.clone(), format!("ready=\"{status}\""), format!("reason=\"{reason}\"")];
        world.operator.metric("strata_releases", &labels.each_ref().map(String::as_str))
    };
    let is_counted =
        || async { Ok((count("True", "InstallSucceeded"), count("False", "InstallFailed")) == (1.0, 1.0)) };
    eventually("both are counted", is_counted).await?;
    let text = world.operator.metrics.encode()?;
    for name in [
        "strata_helm_waiting ",
        "strata_helm_running ",
        "strata_helm_memory_bytes ",
        "strata_helm_memory_budget_bytes 4294967296",
    ] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name} is missing in\n{text}");
    }
    Ok(())
}

#[tokio::test]
async fn w22_the_most_that_one_release_may_ask_for_keeps_no_other_waiting() -> Result<()> {
    // With the operator's defaults.
    let adjust = |config: &mut workspaces::Config| config.policy.total_memory = Policy::default().total_memory;
    let world = World::start(HelmRole::Bound, adjust).await?;
    let (greedy, other) = (world.space("greedy").await?, world.space("other").await?);
    let asks = |memory: &str, timeout: &str| {
        let fields = json!({ "memory": memory, "timeout": timeout, "values": { "fault": "not-ready" } });
        greedy.spec("broken", "1.0.0", fields)
    };
    greedy.create("all", asks("1280Mi", "1h")).await?;
    greedy.create("forever", asks("1Gi", "99999h")).await?;
    for (name, field) in [("all", "spec.memory"), ("forever", "spec.timeout")] {
        let refused = greedy.condition(name, "Ready", "False", "InvalidSpec").await?;
        assert!(message(&refused).contains(field), "{}", message(&refused));
    }
    // One gets what it may have, and as much again waits for it.
    for name in ["one", "two"] {
        greedy.create(name, asks("1Gi", "1h")).await?;
    }
    let is_full = || async {
        let in_use = world.operator.metric("strata_helm_memory_bytes", &[]);
        Ok(in_use >= f64::from(1 << 30) && world.operator.metric("strata_helm_waiting", &[]) >= 1.0)
    };
    eventually("it has all that it may have", is_full).await?;
    for name in ["a", "b", "c"] {
        other.install(name, other.four(json!({}))).await?;
    }
    other.change("a", json!({ "values": { "note": "b" } })).await?;
    other.ready("a").await?;
    assert!(is_full().await?, "and has it still");
    Ok(())
}

#[tokio::test]
async fn w14_one_namespace_at_a_standstill_delays_no_other_and_one_release_is_serial() -> Result<()> {
    // A world of its own: its budget admits four at once, and it is to be used up.
    let world = World::start(HelmRole::Bound, |config| config.policy.total_memory = 1 << 30).await?;
    let (slow, quick) = (world.space("slow").await?, world.space("quick").await?);
    let stuck = json!({ "timeout": "10m", "values": { "fault": "not-ready" } });
    let names = ["a", "b", "c", "d", "e", "f"];
    try_join_all(names.map(|name| slow.create(name, slow.spec("broken", "1.0.0", stuck.clone())))).await?;
    let count = |metric: &str| world.operator.metric(metric, &[]);
    let is_full = || async { Ok(count("strata_helm_waiting") > 0.0 && count("strata_helm_running") >= 3.0) };
    eventually("different releases run at once, and more wants to than may", is_full).await?;
    let mark = quick.mark().await?;
    // In less time than the others have.
    quick.install("web", quick.four(json!({}))).await?;

    // Three changes in a row: never two at once, and the last one stands.
    for note in ["b", "c", "d"] {
        quick.change("web", json!({ "values": { "note": note } })).await?;
    }
    quick.ready("web").await?;
    let note = quick.deployments.get("web").await?.metadata.annotations.unwrap();
    assert_eq!(note["strata.dev/note"], "d");
    let history = quick.history("web").await?;
    assert!(history.iter().all(|(_, state)| state == "superseded" || state == "deployed"), "{history:?}");
    // Each revision was finished before the next one was begun.
    let is_record = |entry: &&Entry| {
        entry.namespace == quick.namespace && entry.resource == "secrets" && entry.name.starts_with("sh.helm.release")
    };
    let mut entries = world.control_plane.audit().entries_after(mark)?;
    entries.sort_by_key(|entry| entry.received_at);
    let written: Vec<_> = entries
        .iter()
        .filter(is_record)
        .filter(|entry| entry.is_write())
        .map(|entry| (entry.verb.as_str(), entry.name.as_str()))
        .collect();
    let begun: Vec<_> = (0..written.len()).filter(|at| written[*at].0 == "create").collect();
    assert_eq!(begun.len(), history.len(), "{written:?}");
    for pair in begun.windows(2) {
        let former = written[pair[0]].1;
        let is_finished = written[pair[0] + 1..pair[1]].iter().any(|(verb, name)| *verb == "update" && *name == former);
        assert!(is_finished, "{former} was overtaken: {written:?}");
    }
    Ok(())
}

/// Deleting it in the middle of an install.
async fn deleted_at(space: &Space<'_>, name: &str, reason: &str, spec: serde_json::Value) -> Result<()> {
    space.create(name, spec).await?;
    space.until(name, reason, |release| condition(release, "Ready")["reason"] == reason).await?;
    space.delete(name).await?;
    space.gone(name).await?;
    space.check_history(name, "").await?;
    assert!(space.deployments.get_opt(name).await?.is_none());
    Ok(())
}

#[tokio::test]
async fn w20_install_then_delete_ends_uninstalled() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("short").await?;
    let stuck = space.spec("broken", "1.0.0", json!({ "timeout": "10m", "values": { "fault": "not-ready" } }));
    let hanging = testbed::charts::ChartRepository::start(testbed::charts::Access::Anyone).await?;
    hanging.delay_answers(Duration::from_hours(1));
    let mut fetching = space.four(json!({}));
    fetching["chart"]["repo"] = json!(hanging.url());
    tokio::try_join!(
        deleted_at(&space, "early", "Installing", stuck),
        deleted_at(&space, "fetching", "Fetching", fetching),
        async {
            // At once, before anybody looked.
            space.create("now", space.four(json!({}))).await?;
            space.delete("now").await?;
            space.gone("now").await?;
            space.check_history("now", "").await
        }
    )?;
    Ok(())
}
