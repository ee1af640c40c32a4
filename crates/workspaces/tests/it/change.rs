//! What a change of a HelmRelease does to its release, and to no other.

use anyhow::{Context, Result};
use api::workspace::{FORCE_ANNOTATION, HelmRelease, ROLLBACK_ANNOTATION};
use futures::future::try_join_all;
use k8s_openapi::{
    api::batch::v1::CronJob, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{
    charts::{self, Access, ChartRepository},
    helm::Helm,
};

use crate::{
    space::{Space, condition, eventually, message, until},
    world::World,
};

/// Number and chart version of the newest revision, once it is deployed.
fn newest(release: &HelmRelease) -> (u32, String) {
    let newest = release.status.as_ref().and_then(|status| status.history.first());
    let newest = newest.filter(|newest| newest.digest.is_some()).cloned().unwrap_or_default();
    (newest.revision, newest.chart_version.unwrap_or_default())
}

#[tokio::test]
async fn w03_version_repo_or_one_value_alone_upgrades_exactly_that_release() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("change").await?;
    let mirror = ChartRepository::start(Access::Anyone).await?;
    let names = ["version", "repo", "value", "source", "other"];
    space.secret("more", json!({ "values.yaml": "note: a" })).await?;
    let spec = |name: &str| {
        let sources = if name == "source" { json!([{ "kind": "Secret", "name": "more" }]) } else { json!([]) };
        space.four(json!({ "valuesFrom": sources, "values": { "image": "registry.test/ready:1" } }))
    };
    try_join_all(names.map(|name| space.install(name, spec(name)))).await?;
    let mark = space.mark().await?;
    space.change("version", json!({ "chart": { "version": "1.1.0" } })).await?;
    space.change("repo", json!({ "chart": { "repo": mirror.url() } })).await?;
    space.change("value", json!({ "values": { "note": "b" } })).await?;
    space.secret("more", json!({ "values.yaml": "note: b" })).await?;
    for name in ["version", "repo", "value", "source"] {
        let upgraded = space.until(name, "upgraded", |release| newest(release).0 == 2).await?;
        assert_eq!(newest(&upgraded).1, if name == "version" { "1.1.0" } else { "1.0.0" });
        space.ready(name).await?;
        space.check_history(name, "1 superseded, 2 deployed").await?;
    }
    for name in ["value", "source"] {
        let note = space.deployments.get(name).await?.metadata.annotations.unwrap();
        assert_eq!(note["strata.dev/note"], "b");
    }
    assert!(mirror.requests().iter().any(|request| request.path.contains("archives/")));
    space.check_history("other", "1 deployed").await?;
    let about_other: Vec<_> = space.writes(mark)?.into_iter().filter(|entry| entry.name == "other").collect();
    assert_eq!(about_other, []);
    // What changes nothing upgrades nothing.
    space.change("value", json!({ "timeout": "4m" })).await?;
    space.ready("value").await?;
    space.check_history("value", "1 superseded, 2 deployed").await
}

#[tokio::test]
async fn w36_the_stock_helm_agrees_with_status_and_its_releases_are_taken_over_with_one_upgrade() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("stock").await?;
    let (helm, three) = (Helm::current().await?, Helm::three().await?);
    let archive = charts::sample("four", "1.0.0").await?.path.display().to_string();
    space.helm(&three, &["install", "old", &archive, "--set", "note=three"]).await?;
    space.helm(&helm, &["install", "new", &archive]).await?;
    for name in ["old", "new"] {
        space.install(name, space.four(json!({ "values": { "note": "ours" } }))).await?;
        space.check_history(name, "1 superseded, 2 deployed").await?;
    }
    space.install("web", space.spec("web", "1.0.0", json!({ "values": { "list": [1, "two"] } }))).await?;
    space.change("web", json!({ "chart": { "version": "1.1.0" } })).await?;
    let web = space.ready("web").await?;
    let parse = |text: String| serde_json::from_str::<Value>(&text).context("helm prints JSON");

    let listed = parse(space.helm(&helm, &["list", "--output", "json"]).await?)?;
    let listed = listed.as_array().context("a list")?.iter();
    let mut listed: Vec<_> =
        listed.map(|line| (line["name"].as_str().unwrap(), line["status"].as_str().unwrap())).collect();
    listed.sort_unstable();
    assert_eq!(listed, [("new", "deployed"), ("old", "deployed"), ("web", "deployed")]);

    let history = parse(space.helm(&helm, &["history", "web", "--output", "json"]).await?)?;
    let line = |revision: &Value| json!([revision["revision"], revision["status"], revision["chart"]]);
    let helms: Vec<_> = history.as_array().context("a list")?.iter().rev().map(line).collect();
    let ours = web.status.context("a status")?.history;
    let chart = |version: &Option<String>| format!("web-{}", version.as_deref().unwrap_or_default());
    let ours: Vec<_> = ours.iter().map(|r| json!([r.revision, r.status, chart(&r.chart_version)])).collect();
    assert_eq!(helms, ours);

    let values = parse(space.helm(&helm, &["get", "values", "web", "--output", "json"]).await?)?;
    assert_eq!(values, json!({ "list": [1, "two"] }));
    Ok(())
}

#[tokio::test]
async fn w40_values_arrive_as_written_in_the_order_of_their_sources() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("values").await?;
    let values = json!({
        "port": "0755", "yes": "true", "no": "off", "none": "null", "big": "9007199254740993", "exact": 9_007_199_254_740_991_i64,
        "float": 1.5, "date": "2001-01-01", "text": "one\ntwo: ü € 🎼\n\n", "a.b/c": { "d.e": 1 }, "list": [], "empty": {}, "sign": "=+-",
    });
    space.secret("first", json!({ "values.yaml": "over: first\nfrom: first\nweird: 0o17\n" })).await?;
    space.config_map("second", json!({ "other": "over: second\nyes: no\n" })).await?;
    let sources = json!([
        { "kind": "Secret", "name": "first" },
        { "kind": "ConfigMap", "name": "second", "key": "other" },
        { "kind": "ConfigMap", "name": "absent", "optional": true },
    ]);
    space.install("web", space.spec("web", "1.0.0", json!({ "values": values, "valuesFrom": sources }))).await?;
    let mut arrived = space.values("web").await?;
    let arrived = arrived.as_object_mut().context("a map")?;
    for (name, value) in values.as_object().unwrap() {
        assert_eq!(arrived.remove(name).as_ref(), Some(value), "{name}");
    }
    assert_eq!((&arrived["over"], &arrived["from"]), (&json!("second"), &json!("first")));

    // What was missing and may be is used when it comes, and costs nothing until then.
    space.config_map("absent", json!({ "values.yaml": "over: third" })).await?;
    let is_third = || async { Ok(space.values("web").await?["over"] == "third") };
    eventually("the new source wins", is_third).await?;

    space.change("web", json!({ "values": { "deep": [{ "number": 9_007_199_254_740_993_i64 }] } })).await?;
    let refused = space.condition("web", "Ready", "False", "ValuesInvalid").await?;
    assert!(message(&refused).contains("spec.values.deep[0].number") && message(&refused).contains("quote it"));
    space
        .change("web", json!({ "values": { "deep": null }, "valuesFrom": [{ "kind": "Secret", "name": "nobody" }] }))
        .await?;
    let missing = space.condition("web", "Ready", "False", "ValuesMissing").await?;
    assert!(message(&missing).contains("Secret nobody"), "{}", message(&missing));
    Ok(())
}

#[tokio::test]
async fn crds_are_skipped_created_or_replaced_as_the_policy_says() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("crds").await?;
    let crds: Api<CustomResourceDefinition> = Api::all(space.client.clone());
    let name = "gauges.charts.strata.dev";
    // A busy API server that reads a changed definition was seen to answer no write of its objects for a while.
    let upgrade = json!({ "retries": 2 });
    let spec = |crds: &str, size: u32| {
        space.spec("gauge", "1.0.0", json!({ "crds": crds, "values": { "size": size }, "upgrade": upgrade }))
    };
    space.create("skipped", spec("skip", 1)).await?;
    let failed = space.condition("skipped", "Ready", "False", "InstallFailed").await?;
    assert!(message(&failed).contains("Gauge"), "{}", message(&failed));
    assert!(crds.get_opt(name).await?.is_none());

    space.install("created", spec("create", 1)).await?;
    let patch = json!({ "spec": { "names": { "shortNames": ["gg"] } }, "metadata": { "labels": { "old": "yes" } } });
    crds.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    let versions = json!([{ "op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/extra", "value": { "type": "string" } }]);
    crds.patch(name, &PatchParams::default(), &Patch::<()>::Json(serde_json::from_value(versions)?)).await?;
    let has_extra = |crd: &CustomResourceDefinition| json!(crd).to_string().contains("extra");
    space.change("created", json!({ "values": { "size": 2 } })).await?;
    space.ready("created").await?;
    assert!(has_extra(&crds.get(name).await?), "create leaves what is there");

    space.change("created", json!({ "crds": "createReplace", "values": { "size": 3 } })).await?;
    space.ready("created").await?;
    let replaced = crds.get(name).await?;
    assert!(!has_extra(&replaced));
    assert_eq!(replaced.metadata.labels.unwrap_or_default().get("old").map(String::as_str), Some("yes"));
    for name in ["skipped", "created"] {
        space.delete(name).await?;
        space.gone(name).await?;
    }
    crds.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn a_suspended_release_is_not_touched() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("suspend").await?;
    space.install("web", space.four(json!({}))).await?;
    space.change("web", json!({ "suspend": true, "values": { "note": "b" } })).await?;
    space.condition("web", "Ready", "False", "Suspended").await?;
    space.check_history("web", "1 deployed").await?;
    space.change("web", json!({ "suspend": false })).await?;
    space.ready("web").await?;
    space.check_history("web", "1 superseded, 2 deployed").await?;
    space.change("web", json!({ "suspend": true })).await?;
    space.condition("web", "Ready", "True", "Suspended").await?;
    space.delete("web").await?;
    space.gone("web").await?;
    space.check_history("web", "1 superseded, 2 deployed").await
}

#[tokio::test]
async fn w31_rollback_and_force_by_annotation_and_a_bounded_history() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("annotate").await?;
    let values = |note: &str| json!({ "values": { "note": note } });
    let mut spec = space.four(values("1"));
    spec["maxHistory"] = json!(3);
    space.install("web", spec).await?;
    space.change("web", values("2")).await?;
    space.ready("web").await?;
    space.annotate("web", ROLLBACK_ANNOTATION, "1").await?;
    let back = space.condition("web", "Released", "True", "RollbackSucceeded").await?;
    assert_eq!(condition(&back, "Remediated")["status"], "True");
    space.ready("web").await?;
    space.check_history("web", "1 superseded, 2 superseded, 3 deployed").await?;
    let note = async || {
        space.deployments.get("web").await.map(|found| found.metadata.annotations.unwrap()["strata.dev/note"].clone())
    };
    assert_eq!(note().await?, "1");
    // It stays until something changes or somebody insists.
    space.annotate("web", FORCE_ANNOTATION, "now").await?;
    space.until("web", "forced", |release| newest(release).0 == 4).await?;
    space.ready("web").await?;
    assert_eq!(note().await?, "2");
    space.check_history("web", "2 superseded, 3 superseded, 4 deployed").await?;
    space.annotate("web", ROLLBACK_ANNOTATION, "1@again").await?;
    // What cannot be done is reported, and stands in the way of nothing.
    let refused = space.until_recorded("web", "RollbackFailed").await?;
    assert!(refused.contains("choose one of 2, 3, 4"), "{refused}");
    space.ready("web").await?;
    space.annotate("web", ROLLBACK_ANNOTATION, "2@again").await?;
    space.until("web", "rolled back", |release| newest(release).0 == 5).await?;
    space.ready("web").await?;
    space.check_history("web", "3 superseded, 4 superseded, 5 deployed").await
}

#[tokio::test]
async fn w08_a_stopped_release_has_no_pods_and_comes_back_with_its_replicas() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("stopped").await?;
    let values = json!({ "replicas": 3, "schedule": "0 0 1 1 *" });
    space.install("web", space.spec("web", "1.0.0", json!({ "values": values }))).await?;
    let schedules: Api<CronJob> = Api::namespaced(space.client.clone(), &space.namespace);
    let is_suspended = |job: &CronJob| job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true));
    assert!(!is_suspended(&schedules.get("web").await?));
    let replicas = |deployment: &k8s_openapi::api::apps::v1::Deployment| {
        deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(-1)
    };
    space.change("web", json!({ "stopped": true })).await?;
    space.condition("web", "Ready", "True", "Stopped").await?;
    until(&space.deployments, "web", "stopped", |found| replicas(found) == 0).await?;
    until(&schedules, "web", "suspended", is_suspended).await?;
    space.check_history("web", "1 deployed").await?;
    // An upgrade of a stopped release leaves it stopped.
    space.change("web", json!({ "values": { "more": true } })).await?;
    space.until("web", "upgraded", |release| newest(release).0 == 2).await?;
    until(&space.deployments, "web", "stopped", |found| replicas(found) == 0).await?;
    until(&schedules, "web", "suspended", is_suspended).await?;
    space.condition("web", "Ready", "True", "Stopped").await?;
    space.change("web", json!({ "stopped": false })).await?;
    until(&space.deployments, "web", "started", |found| replicas(found) == 3).await?;
    until(&schedules, "web", "started", |job| !is_suspended(job)).await?;
    space.until("web", "forgetting", |release| release.status.as_ref().unwrap().stopped.is_empty()).await?;
    space.ready("web").await?;
    space.check_history("web", "1 superseded, 2 deployed").await?;
    // What its values suspend meanwhile is not started with it.
    space.change("web", json!({ "stopped": true })).await?;
    until(&schedules, "web", "suspended", is_suspended).await?;
    space.condition("web", "Ready", "True", "Stopped").await?;
    space.change("web", json!({ "values": { "suspend": true } })).await?;
    space.until("web", "upgraded", |release| newest(release).0 == 3).await?;
    space.change("web", json!({ "stopped": false })).await?;
    until(&space.deployments, "web", "started", |found| replicas(found) == 3).await?;
    space.until("web", "forgetting", |release| release.status.as_ref().unwrap().stopped.is_empty()).await?;
    space.ready("web").await?;
    assert!(is_suspended(&schedules.get("web").await?));
    Ok(())
}

#[tokio::test]
async fn a_second_claim_on_one_release_is_a_conflict_and_goes_ahead_when_the_first_is_gone() -> Result<()> {
    let world = World::shared().await;
    let space: Space<'_> = world.space("rival").await?;
    space.install("first", space.four(json!({ "releaseName": "web" }))).await?;
    space.create("second", space.four(json!({ "releaseName": "web", "values": { "note": "second" } }))).await?;
    let taken = space.condition("second", "Ready", "False", "ObjectTaken").await?;
    assert!(message(&taken).contains(&format!("{}/first", space.namespace)), "{}", message(&taken));
    // What ends for the first is not taken by the second.
    space.change("first", json!({ "chart": { "name": "broken" }, "values": { "fault": "template" } })).await?;
    let failed = space.condition("first", "Ready", "False", "UpgradeFailed").await?;
    assert_eq!(failed.status.unwrap().failures, 1);
    space.check_history("web", "1 deployed").await?;
    space.delete("first").await?;
    space.gone("first").await?;
    space.ready("second").await?;
    space.check_history("web", "1 deployed").await
}
