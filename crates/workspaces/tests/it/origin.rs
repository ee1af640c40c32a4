//! Where charts come from, as a HelmRelease names it.

use anyhow::{Context, Result};
use api::workspace::{HelmRelease, RECONCILE_ANNOTATION};
use serde_json::{Value, json};
use testbed::charts::{self, Access, ChartRepository, PASSWORD, Registry, USERNAME};

use crate::{
    space::{condition, eventually, message},
    world::World,
};

fn version(release: &HelmRelease) -> &str {
    release.status.as_ref().and_then(|status| status.last_applied_revision.as_deref()).unwrap_or_default()
}

fn chart(repo: &str, name: &str, version: &str) -> Value {
    json!({ "chart": { "repo": repo, "name": name, "version": version } })
}

#[tokio::test]
async fn w34_a_repository_with_a_login_opens_to_the_secret_and_follows_its_change() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("login").await?;
    let repository = ChartRepository::start(Access::Login).await?;
    let mut spec = chart(&repository.url(), "four", "1.0.0");
    spec["chart"]["secretRef"] = json!({ "name": "login" });
    space.create("web", spec).await?;
    let missing = space.condition("web", "Ready", "False", "ChartUnavailable").await?;
    assert!(message(&missing).contains("Secret login"), "{}", message(&missing));
    space.secret("login", json!({ "username": USERNAME, "password": "wrong-password" })).await?;
    let is_refused = |release: &HelmRelease| message(release).contains("401");
    let refused = space.until("web", "refused", is_refused).await?;
    assert!(!json!(refused.status).to_string().contains("wrong-password"));
    space.secret("login", json!({ "username": USERNAME, "password": PASSWORD })).await?;
    space.ready("web").await?;
    Ok(())
}

#[tokio::test]
async fn w34_registries_and_local_charts() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("oci").await?;
    let four = charts::sample("four", "1.0.0").await?;
    let oci = async |name: &str, access: Access| {
        let registry = Registry::start(access).await?;
        let digest = registry.push(four).await?;
        let mut spec = chart(&registry.url(), "four", "1.0.0");
        spec["chart"]["plainHTTP"] = json!(true);
        spec["chart"]["digest"] = json!(digest);
        if access == Access::Login {
            space.secret(name, json!({ "username": USERNAME, "password": PASSWORD })).await?;
            spec["chart"]["secretRef"] = json!({ "name": name });
        }
        assert_eq!(version(&space.install(name, spec).await?), "1.0.0");
        // A range of a registry is resolved by its tags.
        registry.push(charts::sample("four", "1.1.0").await?).await?;
        space.change(name, json!({ "chart": { "version": "^1.0", "digest": null } })).await?;
        space.until(name, "upgraded", |release| version(release) == "1.1.0").await?;
        space.ready(name).await?;
        anyhow::Ok(())
    };
    let local = async {
        let directory = tempfile::tempdir()?;
        let source = charts::write_source("four", directory.path())?;
        let spec = |path: &std::path::Path| json!({ "chart": { "repo": format!("file://{}", path.display()), "name": "four" } });
        space.install("folder", spec(&source)).await?;
        space.install("archive", spec(&four.path)).await?;
        space.create("nowhere", spec(&directory.path().join("none"))).await?;
        let nowhere = space.condition("nowhere", "Ready", "False", "ChartNotFound").await?;
        assert!(message(&nowhere).contains("cannot read the chart"), "{}", message(&nowhere));
        anyhow::Ok(())
    };
    tokio::try_join!(oci("open", Access::Anyone), oci("locked", Access::Login), local)?;
    Ok(())
}

#[tokio::test]
async fn w34_a_range_takes_the_newest_and_follows_what_is_published() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("range").await?;
    let repository = ChartRepository::start(Access::Anyone).await?;
    repository.withdraw("four", "1.1.0");
    space.install("asked", chart(&repository.url(), "four", "^1.0")).await?;
    space.install("pinned", chart(&repository.url(), "four", "1.0.0")).await?;
    let newest = space.install("newest", json!({ "chart": { "repo": repository.url(), "name": "four" } })).await?;
    assert_eq!(version(&newest), "2.0.0");
    repository.publish(charts::sample("four", "1.1.0").await?)?;
    // Younger than its time to live, the index is believed; unless somebody asks.
    space.annotate("asked", RECONCILE_ANNOTATION, "now").await?;
    space.until("asked", "upgraded", |release| version(release) == "1.1.0").await?;
    let asked = space.ready("asked").await?;
    let handled =
        |release: &HelmRelease| release.status.as_ref().and_then(|status| status.last_handled_reconcile.clone());
    assert_eq!(handled(&asked).as_deref(), Some("now"));
    space.check_history("asked", "1 superseded, 2 deployed").await?;
    space.check_history("pinned", "1 deployed").await?;
    // Asking where there is no news changes nothing but that it was handled.
    space.annotate("asked", RECONCILE_ANNOTATION, "again").await?;
    space.until("asked", "looked at", |release| handled(release).as_deref() == Some("again")).await?;
    space.check_history("asked", "1 superseded, 2 deployed").await
}

#[tokio::test]
async fn w34_by_itself_a_range_follows_within_its_interval_even_after_a_failure() -> Result<()> {
    let world = World::lenient().await;
    let space = world.space("interval").await?;
    let repository = ChartRepository::start(Access::Anyone).await?;
    repository.withdraw("web", "1.1.0");
    let spec = |name: &str, values: Value| {
        let mut spec = chart(&repository.url(), name, "^1.0");
        (spec["interval"], spec["values"], spec["wait"]) = (json!("5s"), values, json!(false));
        spec
    };
    space.install("good", spec("web", json!({}))).await?;
    space.create("bad", spec("broken", json!({ "fault": "template" }))).await?;
    space.condition("bad", "Ready", "False", "InstallFailed").await?;
    repository.publish(charts::sample("web", "1.1.0").await?)?;
    let directory = tempfile::tempdir()?;
    let source = charts::write_source("broken", directory.path())?;
    std::fs::write(source.join("templates/broken.yaml"), "")?;
    repository.publish(&charts::package(&source, "1.0.1", directory.path()).await?)?;
    space.until("good", "upgraded", |release| version(release) == "1.1.0").await?;
    space.until("bad", "mended", |release| version(release) == "1.0.1").await?;
    Ok(())
}

#[tokio::test]
async fn w34_what_is_not_there_is_named_and_costs_no_write_until_it_is() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("unknown").await?;
    let repository = ChartRepository::start(Access::Anyone).await?;
    let mut spec = chart(&repository.url(), "web", "9.9.9");
    spec["interval"] = json!("5s");
    space.create("web", spec).await?;
    let unknown = space.condition("web", "Ready", "False", "ChartNotFound").await?;
    assert!(message(&unknown).contains("9.9.9") && message(&unknown).contains("web"), "{}", message(&unknown));
    let looks = || repository.requests().len();
    let mark = space.mark().await?;
    let before = looks();
    eventually("the repository was asked again", || async { Ok(looks() > before + 1) }).await?;
    assert_eq!(space.writes(mark)?, []);
    assert_eq!(message(&space.releases.get("web").await?), message(&unknown));
    let directory = tempfile::tempdir()?;
    let source = charts::write_source("web", directory.path())?;
    repository.publish(&charts::package(&source, "9.9.9", directory.path()).await?)?;
    assert_eq!(version(&space.ready("web").await?), "9.9.9");

    let mut pinned = chart(&repository.url(), "four", "1.0.0");
    pinned["chart"]["digest"] = json!("f".repeat(64));
    space.create("pinned", pinned).await?;
    let other = space.until("pinned", "refused", |release| condition(release, "Ready")["status"] == "False").await?;
    assert!(message(&other).contains(&"f".repeat(64)), "{}", message(&other));
    let right = &charts::sample("four", "1.0.0").await?.digest;
    space.change("pinned", json!({ "chart": { "digest": right } })).await?;
    space.ready("pinned").await?;

    let gone = ChartRepository::start(Access::Anyone).await?;
    let url = gone.url();
    drop(gone);
    space.create("away", chart(&url, "four", "1.0.0")).await?;
    let away = space.condition("away", "Ready", "False", "ChartUnavailable").await?;
    assert!(message(&away).contains(url.strip_prefix("http://").context("http")?), "{}", message(&away));
    Ok(())
}
