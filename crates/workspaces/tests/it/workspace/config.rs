//! Configs with a hash of their content in the name.

use std::time::Duration;

use anyhow::Result;
use api::workspace::{HelmRelease, WorkspacePhase};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use serde_json::{Value, json};
use testbed::fault::{Calls, Fault, Verb};
use workspaces::workspace;

use super::harness::{Space, World, chart, condition, eventually, uid, user};

fn spec(content: &str) -> Value {
    let mut ana = user("ana");
    ana["codeServer"] = json!({ "envFrom": [{ "kind": "ConfigMap", "name": "settings" }] });
    json!({
        "configs": { "settings": { "data": { "values.yaml": content } } },
        "services": { "web": { "chart": chart("web"), "valuesFrom": [{ "kind": "ConfigMap", "name": "settings" }] } },
        "users": [ana],
    })
}

async fn referred_to(space: &Space) -> Result<String> {
    let web: HelmRelease = space.get("web").await?;
    Ok(web.spec.unwrap_or_default().values_from[0].name.clone())
}

#[tokio::test]
async fn w10_new_content_is_a_new_name_one_rollout_and_the_old_one_is_collected() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("config").await?;
    space.ready_workspace("team", spec("a: 1")).await?;
    let (first, pod) = (referred_to(&space).await?, space.pod("ana").await?);
    let generation = space.set("ana").await?.metadata.generation;
    assert_eq!(space.names::<ConfigMap>().await?, [first.as_str()]);
    let stored: ConfigMap = space.get(&first).await?;
    assert_eq!(stored.immutable, Some(true));

    space.change("team", spec("a: 2")).await?;
    space.until("code-server-ana-0", "another pod", |other: &Pod| uid(other) != uid(&pod)).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    let second = referred_to(&space).await?;
    assert_ne!(first, second);
    eventually("the old one is collected", async || Ok(space.names::<ConfigMap>().await? == [second.as_str()])).await?;
    assert_eq!(space.set("ana").await?.metadata.generation, generation.map(|generation| generation + 1));

    space.change("team", spec("a: 1")).await?;
    eventually("one value has one name", async || Ok(referred_to(&space).await? == first)).await?;
    Ok(())
}

#[tokio::test]
async fn w10_what_somebody_refers_to_is_never_collected() -> Result<()> {
    let space = World::shared().await.space("referred").await?;
    space.ready_workspace("team", spec("a: 1")).await?;
    let first = referred_to(&space).await?;
    let values_from = json!([{ "kind": "ConfigMap", "name": first }]);
    let other =
        json!({ "metadata": { "name": "by-hand" }, "spec": { "chart": chart("x"), "valuesFrom": values_from } });
    let other: HelmRelease = space.create(other).await?;
    space.change("team", spec("a: 2")).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    // A third version shows that collection went on beside it.
    let second = referred_to(&space).await?;
    space.change("team", spec("a: 3")).await?;
    eventually("the second is collected", async || Ok(!space.has::<ConfigMap>(&second).await?)).await?;
    assert!(space.has::<ConfigMap>(&first).await?, "referred to by hand");
    space.delete::<HelmRelease>("by-hand").await?;
    space.until_gone(&other).await?;
    // Nobody tells the Workspace of strangers; any reason to look will do.
    space.change("team", spec("a: 4")).await?;
    eventually("it is collected", async || Ok(!space.has::<ConfigMap>(&first).await?)).await?;
    Ok(())
}

#[tokio::test]
async fn w10_a_changed_source_is_followed_and_a_missing_one_is_named() -> Result<()> {
    let space = World::shared().await.space("source").await?;
    let spec = json!({
        "configs": { "token": { "kind": "Secret", "fromSecret": { "name": "source" } } },
        "services": {
            "web": { "chart": chart("web"), "valuesFrom": [{ "kind": "Secret", "name": "token" }] },
            "other": { "chart": chart("other") },
        },
    });
    space.workspace("team", spec).await?;
    let workspace = space.until_phase("team", WorkspacePhase::Failed).await?;
    assert!(
        condition(&workspace, "Ready")
            .starts_with("False ValuesMissing: spec.configs.token: Secret source does not exist")
    );
    assert_eq!(space.names::<HelmRelease>().await?, ["other"], "what does not need it is there");
    let source = |value: &str| json!({ "metadata": { "name": "source" }, "stringData": { "values.yaml": value } });
    space.create::<Secret>(source("a: 1")).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    let first = referred_to(&space).await?;
    space.patch::<Secret>("source", source("a: 2")).await?;
    eventually("the new content is referred to", async || Ok(referred_to(&space).await? != first)).await?;
    eventually("the former is collected", async || Ok(!space.has::<Secret>(&first).await?)).await?;
    Ok(())
}

#[tokio::test]
async fn w10_what_does_not_fit_into_the_operator_is_named() -> Result<()> {
    let space = World::shared().await.space("large").await?;
    // Just below what Kubernetes allows; in base64 three of these are below 4 MiB.
    let large = "x".repeat(1_040_000);
    let mut configs = json!({});
    for name in ["a", "b", "c", "d"] {
        let source = json!({ "metadata": { "name": name }, "stringData": { "values.yaml": large } });
        space.create::<Secret>(source).await?;
        configs[name] = json!({ "fromSecret": { "name": name } });
    }
    space.workspace("team", json!({ "configs": configs })).await?;
    let workspace = space.until_phase("team", WorkspacePhase::Failed).await?;
    let ready = condition(&workspace, "Ready");
    assert!(ready.starts_with("False ValuesInvalid: spec.configs.d: with Secret d more than 4 MiB"), "{ready}");
    eventually("the others are there", async || Ok(space.names::<Secret>().await?.len() == 3)).await?;
    space.patch::<Secret>("a", json!({ "data": null, "stringData": { "values.yaml": "a: 1" } })).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    Ok(())
}

/// Each answer brings a round that waits for the others: that is no loop.
#[tokio::test]
async fn w10_sources_that_answer_one_after_the_other_are_waited_for() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("slow").await?;
    let names: Vec<_> = (0..6).map(|number| format!("source-{number}")).collect();
    let source = |name: &str, value: &str| json!({ "metadata": { "name": name }, "stringData": { "a": value } });
    let mut configs = json!({});
    for name in &names {
        space.create::<Secret>(source(name, "1")).await?;
        configs[name] = json!({ "fromSecret": { "name": name } });
    }
    space.ready_workspace("team", json!({ "configs": configs })).await?;
    let before = space.names::<Secret>().await?;
    assert_eq!(before.len(), names.len());
    // Another version of the same content: it is read again, and there is nothing to do.
    let slow = names.iter().zip(1..).map(|(name, number)| {
        let reads = Calls::of(Verb::Get, "secrets").in_namespace(&space.namespace).named(name);
        world.proxy.inject(reads, Fault::Latency(Duration::from_millis(150) * number))
    });
    let slow: Vec<_> = slow.collect();
    for name in &names {
        space.patch::<Secret>(name, json!({ "metadata": { "labels": { "example.com/note": "new" } } })).await?;
    }
    for injected in &slow {
        injected.reached().await?;
    }
    slow.iter().for_each(testbed::fault::Injected::end);
    space.patch::<Secret>(&names[5], source(&names[5], "2")).await?;
    eventually("the new content is taken", async || Ok(space.names::<Secret>().await? != before)).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    let metrics = world.metrics.encode()?;
    let loops = metrics.lines().find(|line| line.starts_with("strata_fetch_loops_total{controller=\"workspace\""));
    assert_eq!(loops, None);
    Ok(())
}

/// Events are held for all namespaces, so the world is this test's own.
#[tokio::test]
async fn w10_content_that_changed_unseen_is_not_stored_under_the_name_of_the_former() -> Result<()> {
    let world = World::start(workspace::Config::default()).await?;
    let space = world.space("unseen").await?;
    let source = |value: &str| json!({ "metadata": { "name": "source" }, "stringData": { "a": value } });
    space.create::<Secret>(source("1")).await?;
    let config = json!({ "fromSecret": { "name": "source" } });
    space.ready_workspace("team", json!({ "configs": { "one": config } })).await?;
    let first = space.names::<Secret>().await?[0].clone();
    let held = world.proxy.hold_events("secrets");
    space.patch::<Secret>("source", source("2")).await?;
    // The operator knows the digest of the former content only.
    space.change("team", json!({ "configs": { "two": config } })).await?;
    world.more_rounds(&space, "workspace", 3).await?;
    assert_eq!(space.names::<Secret>().await?, [first.as_str()], "nothing is made of what it does not know");
    held.release();
    space.until_phase("team", WorkspacePhase::Ready).await?;
    eventually("both are of the new content", async || {
        let names = space.names::<Secret>().await?;
        Ok(names.len() == 2 && !names.contains(&first))
    })
    .await?;
    for name in space.names::<Secret>().await? {
        let secret: Secret = space.get(&name).await?;
        assert_eq!(secret.data.unwrap_or_default()["a"].0, b"2", "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn w10_an_unchanged_source_is_read_no_more() -> Result<()> {
    let world = World::hasty().await;
    let space = world.space("unchanged").await?;
    let source = json!({ "metadata": { "name": "source" }, "stringData": { "a": "1" } });
    space.create::<Secret>(source).await?;
    space.ready_workspace("team", json!({ "configs": { "one": { "fromSecret": { "name": "source" } } } })).await?;
    world.more_rounds(&space, "workspace", 3).await?;
    let mark = world.mark()?;
    world.more_rounds(&space, "workspace", 10).await?;
    let requests: Vec<_> = world.requests(&space, mark)?.iter().map(super::harness::line).collect();
    assert_eq!(requests, [""; 0]);
    Ok(())
}
