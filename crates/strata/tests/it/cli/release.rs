//! `strata release`, but for its diff.

use anyhow::{Context, Result};
use api::workspace::{FORCE_ANNOTATION, HelmRelease, RECONCILE_ANNOTATION, ROLLBACK_ANNOTATION};
use serde_json::{Value, json};

use super::place::{Place, chart, condition, ready, run, steady, strata};

const CANARY: &str = "planted-secret-value";

/// Three revisions, the newest failed.
fn failed() -> Value {
    let revision = |number: u32, status: &str, version: &str| {
        json!({
            "revision": number, "status": status, "chartVersion": version, "digest": "0123456789abcdef",
            "firstDeployed": "2026-01-01T00:00:00Z", "lastDeployed": "2026-01-02T00:00:00Z", "test": "Succeeded",
        })
    };
    json!({
        "observedGeneration": 0,
        "conditions": [
            condition("Ready", "False", "UpgradeFailed", "timed out\nwaiting for web"),
            condition("Drifted", "Unknown", "DriftNotWatched", "spec.driftDetection is disabled"),
        ],
        "history": [revision(3, "failed", "1.1.0"), revision(2, "deployed", "1.0.1"), revision(1, "superseded", "1.0.0")],
        "lastAppliedRevision": "1.0.1", "lastAttemptedRevision": "1.1.0", "failures": 2, "lastFailure": "UpgradeFailed",
        "lastOutput": "Error: timed out\n\u{1b}[31mred",
    })
}

async fn with_releases() -> Result<Place> {
    let place = Place::new().await?;
    let spec = json!({
        "chart": chart(), "values": { "password": CANARY }, "dependsOn": ["db"],
        "valuesFrom": [{ "kind": "Secret", "name": "web-values" }],
    });
    place.release("web", spec, failed()).await?;
    place.release("db", json!({ "chart": chart() }), ready("True", "InstallSucceeded", "deployed")).await?;
    Ok(place)
}

fn annotation(release: &HelmRelease, name: &str) -> Option<String> {
    release.metadata.annotations.as_ref()?.get(name).cloned()
}

#[tokio::test]
async fn releases_are_listed_for_people_and_for_programs() -> Result<()> {
    let place = with_releases().await?;
    let list = async |args: &[&str]| place.strata(&[&["release", "list"], args].concat()).await?.data();

    insta::assert_snapshot!(steady(&list(&[]).await?), @"
    NAME CHART VERSION REVISION READY REASON AGE
    db four - - True InstallSucceeded AGO
    web four 1.0.1 3 False UpgradeFailed AGO
    ");
    insta::assert_snapshot!(steady(&list(&["-l", "app=web", "-o", "wide", "--no-headers"]).await?), @"web four 1.0.1 3 False UpgradeFailed AGO false timed out waiting for web");
    assert!(!list(&[]).await?.contains('\u{1b}'), "colours without a terminal");
    let names = "helmrelease.workspaces.strata.dev/db\nhelmrelease.workspaces.strata.dev/web\n";
    assert_eq!(list(&["-o", "name"]).await?, names);

    let json: Value = serde_json::from_str(&list(&["-o", "json"]).await?)?;
    let yaml: Value = serde_saphyr::from_str(&list(&["-o", "yaml"]).await?)?;
    assert_eq!(json, yaml);
    assert_eq!((&json["kind"], &json["items"][1]["kind"]), (&json!("List"), &json!("HelmRelease")));
    assert_eq!(json["items"][1]["status"]["failures"], 2);
    assert_eq!(json["items"][1]["metadata"]["managedFields"], Value::Null);

    let mut everywhere = strata(&["release", "list", "-A", "--kubeconfig"]);
    everywhere.arg(&place.kubeconfig);
    let everywhere = steady(&run(everywhere).await?.data()?);
    assert!(everywhere.starts_with("NAMESPACE NAME CHART"), "{everywhere}");
    assert!(everywhere.contains(&format!("{} web four 1.0.1 3", place.namespace)), "{everywhere}");
    Ok(())
}

#[tokio::test]
async fn an_empty_list_is_said_to_people_and_is_a_list_to_programs() -> Result<()> {
    let place = Place::new().await?;
    let said = place.strata(&["release", "list"]).await?;
    assert_eq!((said.code, said.out.as_str()), (0, ""));
    assert!(said.err.contains(&format!("no release in namespace {}", place.namespace)), "{}", said.err);
    let list: Value = serde_json::from_str(&place.strata(&["release", "list", "-o", "json"]).await?.data()?)?;
    assert_eq!(list["items"], json!([]));
    Ok(())
}

#[tokio::test]
async fn the_namespace_is_the_context_s_own_unless_named() -> Result<()> {
    let place = with_releases().await?;
    let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(&place.kubeconfig)?)?;
    config["contexts"][0]["context"]["namespace"] = json!(place.namespace);
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("kubeconfig");
    std::fs::write(&path, config.to_string())?;
    let mut list = strata(&["release", "list", "-o", "name", "--context", "strata"]);
    list.env("KUBECONFIG", &path);
    assert_eq!(run(list).await?.data()?.lines().count(), 2);
    Ok(())
}

#[tokio::test]
async fn status_is_a_page_with_what_helm_said_and_without_values() -> Result<()> {
    let place = with_releases().await?;
    let page = place.strata(&["release", "status", "web"]).await?.data()?;
    assert!(!page.contains(CANARY) && !page.contains('\u{1b}'), "{page}");
    insta::assert_snapshot!(steady(&page.replace(&place.namespace, "team-a")), @"
    NAME web
    NAMESPACE team-a
    CHART four ^1.0 from https://charts.example
    DEPLOYED 1.0.1 (revision 2)
    TRIED LAST 1.1.0
    VALUES Secret/web-values[values.yaml], spec.values
    DEPENDS ON db
    FAILURES 2, last: UpgradeFailed
    AGE AGO

    CONDITION STATUS REASON SINCE MESSAGE
    Ready False UpgradeFailed AGO timed out waiting for web
    Drifted Unknown DriftNotWatched AGO spec.driftDetection is disabled

    REVISION STATUS CHART VERSION DIGEST FIRST DEPLOYED LAST DEPLOYED TEST
    3 failed 1.1.0 0123456789ab 2026-01-01T00:00:00Z 2026-01-02T00:00:00Z Succeeded
    2 deployed 1.0.1 0123456789ab 2026-01-01T00:00:00Z 2026-01-02T00:00:00Z Succeeded
    1 superseded 1.0.0 0123456789ab 2026-01-01T00:00:00Z 2026-01-02T00:00:00Z Succeeded

    helm said:
    Error: timed out
    [31mred
    ");
    let object: Value =
        serde_json::from_str(&place.strata(&["release", "status", "web", "-o", "json"]).await?.data()?)?;
    assert_eq!((&object["kind"], &object["metadata"]["name"]), (&json!("HelmRelease"), &json!("web")));
    Ok(())
}

#[tokio::test]
async fn history_has_every_revision() -> Result<()> {
    let place = with_releases().await?;
    let history = async |args: &[&str]| place.strata(&[&["release", "history", "web"], args].concat()).await?.data();
    insta::assert_snapshot!(steady(&history(&["--no-headers"]).await?), @"
    3 failed 1.1.0 0123456789ab 2026-01-01T00:00:00Z 2026-01-02T00:00:00Z Succeeded
    2 deployed 1.0.1 0123456789ab 2026-01-01T00:00:00Z 2026-01-02T00:00:00Z Succeeded
    1 superseded 1.0.0 0123456789ab 2026-01-01T00:00:00Z 2026-01-02T00:00:00Z Succeeded
    ");
    assert_eq!(history(&["-o", "name"]).await?, "3\n2\n1\n");
    let json: Value = serde_json::from_str(&history(&["-o", "json"]).await?)?;
    assert_eq!(json[1]["chartVersion"], "1.0.1");
    Ok(())
}

#[tokio::test]
async fn reconcile_waits_until_the_request_is_handled_and_says_how_it_went() -> Result<()> {
    let place = with_releases().await?;
    let operator = async {
        let asked = place.until("web", |web| annotation(web, RECONCILE_ANNOTATION).is_some()).await?;
        place.report("web", ready("Unknown", "Upgrading", "upgrade is under way")).await?;
        let handled = annotation(&asked, RECONCILE_ANNOTATION).context("gone")?;
        assert!(handled.parse::<jiff::Timestamp>().is_ok(), "{handled}");
        let mut status = ready("True", "UpgradeSucceeded", "revision 4 is deployed");
        status["lastHandledReconcile"] = json!(handled);
        place.report("web", status).await
    };
    let (said, reported) =
        tokio::join!(place.strata(&["release", "reconcile", "web", "--wait", "-o", "name"]), operator);
    reported?;
    let said = said?;
    assert_eq!((said.code, said.out.as_str()), (0, "helmrelease.workspaces.strata.dev/web\n"), "{}", said.err);
    assert!(said.err.contains("ready, UpgradeSucceeded: revision 4 is deployed"), "{}", said.err);
    let web = place.releases.get("web").await?;
    assert_eq!(annotation(&web, FORCE_ANNOTATION), None);
    let managers = web.metadata.managed_fields.unwrap_or_default();
    assert!(managers.iter().any(|entry| entry.manager.as_deref() == Some("strata-cli")));
    Ok(())
}

#[tokio::test]
async fn a_forced_reconcile_that_fails_says_what_helm_said() -> Result<()> {
    let place = with_releases().await?;
    let operator = async {
        let asked = place.until("web", |web| annotation(web, FORCE_ANNOTATION).is_some()).await?;
        let mut status = ready("False", "UpgradeFailed", "helm ended with status 1");
        status["lastHandledReconcile"] = json!(annotation(&asked, RECONCILE_ANNOTATION));
        status["lastHandledForce"] = json!(annotation(&asked, FORCE_ANNOTATION));
        status["lastOutput"] = json!("Error: no such image");
        place.report("web", status).await
    };
    let (said, reported) = tokio::join!(place.strata(&["release", "reconcile", "web", "--force", "--wait"]), operator);
    reported?;
    let refusal = said?.refusal(1)?;
    assert!(
        refusal.contains("UpgradeFailed: helm ended with status 1\nhelm said:\n  Error: no such image"),
        "{refusal}"
    );
    assert!(refusal.contains("hint: `strata release status web -n "), "{refusal}");
    Ok(())
}

#[tokio::test]
async fn a_wait_ends_with_the_last_condition() -> Result<()> {
    let place = with_releases().await?;
    // Long enough for a look on a busy machine.
    let wait = ["--wait", "--timeout", "10s"];
    let refusal = place.strata(&[&["release", "reconcile", "db"], &wait[..]].concat()).await?.refusal(1)?;
    assert!(refusal.contains("db is not done after 10s; last: the operator has not seen the change"), "{refusal}");
    assert!(refusal.contains("ready, InstallSucceeded: deployed\nhint: is the operator running?"), "{refusal}");
    place.report("db", ready("Unknown", "Upgrading", "upgrade is under way")).await?;
    let refusal = place.strata(&[&["release", "reconcile", "db"], &wait[..]].concat()).await?.refusal(1)?;
    assert!(
        refusal.contains("last: under way, Upgrading: upgrade is under way\nhint: the operator continues"),
        "{refusal}"
    );
    Ok(())
}

#[tokio::test]
async fn one_bad_name_does_not_keep_the_others_back() -> Result<()> {
    let place = with_releases().await?;
    let said = place.strata(&["release", "reconcile", "nope", "db", "web"]).await?;
    assert_eq!(said.code, 1);
    assert!(said.err.contains("error: there is no HelmRelease nope"), "{}", said.err);
    for name in ["db", "web"] {
        assert!(annotation(&place.releases.get(name).await?, RECONCILE_ANNOTATION).is_some(), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn rollback_goes_to_the_last_good_revision_or_the_named_one() -> Result<()> {
    let place = with_releases().await?;
    let asked = async || Ok::<_, anyhow::Error>(annotation(&place.releases.get("web").await?, ROLLBACK_ANNOTATION));
    place.strata(&["release", "rollback", "web"]).await?.data()?;
    let value = asked().await?.context("no annotation")?;
    let (revision, time) = value.split_once('@').context("no time")?;
    assert_eq!(revision, "2");
    time.parse::<jiff::Timestamp>()?;

    let operator = async {
        let asked = |web: &HelmRelease| annotation(web, ROLLBACK_ANNOTATION).filter(|value| value.starts_with("1@"));
        let web = place.until("web", |web| asked(web).is_some()).await?;
        let mut status = ready("True", "RollbackSucceeded", "revision 4 is deployed");
        status["lastHandledRollback"] = json!(asked(&web));
        place.report("web", status).await
    };
    let (said, reported) = tokio::join!(place.strata(&["release", "rollback", "web", "1", "--wait"]), operator);
    reported?;
    assert_eq!(said?.data()?, "");

    let refusal = place.strata(&["release", "rollback", "web", "9"]).await?.refusal(1)?;
    assert!(refusal.contains("no revision 9; it has: 3 (failed), 2 (deployed), 1 (superseded)\nhint:"), "{refusal}");
    let refusal = place.strata(&["release", "rollback", "db"]).await?.refusal(1)?;
    assert!(refusal.contains("no earlier revision that was deployed"), "{refusal}");
    Ok(())
}

#[tokio::test]
async fn suspend_and_resume_take_names_or_all_and_wait() -> Result<()> {
    let place = with_releases().await?;
    let is_suspended = |release: &HelmRelease| release.spec.as_ref().and_then(|spec| spec.suspend);
    let operator = async {
        for name in ["db", "web"] {
            place.until(name, |release| is_suspended(release) == Some(true)).await?;
            place.report(name, ready("False", "Suspended", "the operator changes nothing")).await?;
        }
        anyhow::Ok(())
    };
    let (said, reported) =
        tokio::join!(place.strata(&["release", "suspend", "--all", "--wait", "-o", "name"]), operator);
    reported?;
    assert_eq!(said?.data()?.lines().count(), 2);

    for verb in ["reconcile", "rollback"] {
        let refusal = place.strata(&["release", verb, "web"]).await?.refusal(1)?;
        assert!(
            refusal.contains("is suspended") && refusal.contains("hint: resume it with `strata release resume web`")
        );
    }

    let operator = async {
        place.until("web", |release| is_suspended(release).is_none()).await?;
        place.report("web", ready("False", "DependencyNotReady", "waiting for db")).await?;
        place.report("web", ready("True", "UpgradeSucceeded", "deployed")).await
    };
    let (said, reported) = tokio::join!(place.strata(&["release", "resume", "web", "--wait"]), operator);
    reported?;
    said?.data()?;
    assert_eq!(is_suspended(&place.releases.get("db").await?), Some(true), "only what was named");
    Ok(())
}
