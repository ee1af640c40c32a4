//! Configs with a hash of their content in the name.

use anyhow::Result;
use api::workspace::{HelmRelease, WorkspacePhase};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use serde_json::{Value, json};

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
            .starts_with("False ValuesMissing: spec.configs.token: there is no Secret source")
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
    assert_eq!(space.names::<Secret>().await?.len(), 3, "the others are there");
    space.patch::<Secret>("a", json!({ "data": null, "stringData": { "values.yaml": "a: 1" } })).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    Ok(())
}
