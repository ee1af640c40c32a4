//! Users and their code-servers.

use anyhow::Result;
use api::workspace::{User, WorkspacePhase};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount},
    networking::v1::Ingress,
    rbac::v1::{Role, RoleBinding},
};
use serde_json::{Value, json};

use super::harness::{Space, World, eventually, line, uid, user};

/// Writes since `mark` that are about neither the Workspace nor this user.
fn strangers(world: &World, space: &Space, mark: testbed::audit::Mark, slug: &str) -> Result<Vec<String>> {
    let mut entries = world.requests(space, mark)?;
    entries.retain(|entry| entry.is_write() && entry.resource != "workspaces" && !entry.name.contains(slug));
    Ok(entries.iter().map(line).collect())
}

#[tokio::test]
async fn w04_a_user_comes_changes_and_goes_alone_and_the_volume_stays() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("users").await?;
    space.ready_workspace("team", json!({ "users": [user("ana"), user("bob")] })).await?;
    let others = (space.pod("ana").await?, space.pod("bob").await?);
    let mark = world.mark()?;

    space.change("team", json!({ "users": [user("ana"), user("bob"), user("cyd")] })).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    space.until_user("cyd", "Succeeded").await?;

    let mut changed = user("cyd");
    changed["codeServer"] = json!({ "env": [{ "name": "A", "value": "1" }] });
    let pod = space.pod("cyd").await?;
    space.change("team", json!({ "users": [user("ana"), user("bob"), changed] })).await?;
    space.until("code-server-cyd-0", "another pod", |other: &Pod| uid(other) != uid(&pod)).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;

    let claim = space.claim("cyd").await?;
    let (gone, set): (User, _) = (space.get("cyd").await?, space.set("cyd").await?);
    space.change("team", json!({ "users": [user("ana"), user("bob")] })).await?;
    space.until_gone(&gone).await?;
    space.until_gone(&set).await?;
    eventually("all of it is gone", async || {
        Ok(!space.has::<Service>("code-server-cyd").await?
            && !space.has::<Role>("code-server-cyd").await?
            && !space.has::<RoleBinding>("code-server-cyd").await?
            && !space.has::<ServiceAccount>("code-server-cyd").await?
            && space.names::<Secret>().await?.iter().all(|name| !name.contains("cyd")))
    })
    .await?;
    assert_eq!(uid(&space.claim("cyd").await?), uid(&claim), "the volume stays");
    assert_eq!(strangers(world, &space, mark, "cyd")?, [""; 0]);
    assert_eq!((uid(&space.pod("ana").await?), uid(&space.pod("bob").await?)), (uid(&others.0), uid(&others.1)));
    Ok(())
}

#[tokio::test]
async fn w05_without_the_right_or_disabled_the_compute_goes_and_the_volume_stays() -> Result<()> {
    let space = World::shared().await.space("withdrawn").await?;
    let with = |fields: Value| {
        let mut user = user("ana");
        for (name, value) in fields.as_object().into_iter().flatten() {
            user[name] = value.clone();
        }
        json!({ "users": [user] })
    };
    space.ready_workspace("team", with(json!({}))).await?;
    let claim = space.claim("ana").await?;
    for withdrawn in [json!({ "permissions": [] }), json!({ "codeServer": { "disabled": true } })] {
        let (pod, set) = (space.pod("ana").await?, space.set("ana").await?);
        space.change("team", with(withdrawn)).await?;
        space.until_user("ana", "Disabled").await?;
        space.until_gone(&set).await?;
        space.until_gone(&pod).await?;
        for kind in [
            space.names::<Service>().await?,
            space.names::<ServiceAccount>().await?,
            space.names::<Role>().await?,
            space.names::<RoleBinding>().await?,
            space.names::<Ingress>().await?,
            space.names::<StatefulSet>().await?,
        ] {
            assert_eq!(kind, [""; 0]);
        }
        assert_eq!(space.names::<PersistentVolumeClaim>().await?, ["home-code-server-ana-0"]);
        space.change("team", with(json!({}))).await?;
        space.until_user("ana", "Succeeded").await?;
        assert_eq!(uid(&space.claim("ana").await?), uid(&claim), "the same volume");
    }
    Ok(())
}

#[tokio::test]
async fn w06_a_new_restarted_at_restarts_once_and_nothing_else_does() -> Result<()> {
    let space = World::shared().await.space("restart").await?;
    let with = |restarted_at: &str, name: &str| {
        let mut user = user("ana");
        user["name"] = json!(name);
        user["codeServer"] = json!({ "restartedAt": restarted_at });
        json!({ "users": [user] })
    };
    space.ready_workspace("team", with("one", "Ana")).await?;
    let first = space.pod("ana").await?;
    let generation = space.set("ana").await?.metadata.generation;
    space.change("team", with("one", "Ana B.")).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    assert_eq!(uid(&space.pod("ana").await?), uid(&first), "a name is no reason to restart");
    space.change("team", with("two", "Ana B.")).await?;
    space.until("code-server-ana-0", "another pod", |pod: &Pod| uid(pod) != uid(&first)).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    let set = space.set("ana").await?;
    assert_eq!(set.metadata.generation, generation.map(|generation| generation + 1), "changed once");
    let status = set.status.unwrap_or_default();
    assert_eq!((status.current_revision, status.ready_replicas), (status.update_revision, Some(1)));
    Ok(())
}

#[tokio::test]
async fn a_volume_whose_retention_says_so_goes_with_its_user() -> Result<()> {
    let space = World::shared().await.space("retention").await?;
    let mut ana = user("ana");
    ana["codeServer"] = json!({ "storage": { "size": "1Gi", "retention": "delete" } });
    space.ready_workspace("team", json!({ "users": [ana] })).await?;
    let (user, claim): (User, _) = (space.get("ana").await?, space.claim("ana").await?);
    assert!(user.metadata.finalizers.as_ref().is_some_and(|finalizers| finalizers.len() == 1));
    space.change("team", json!({ "users": [] })).await?;
    space.until_gone(&user).await?;
    space.until_gone(&claim).await?;
    Ok(())
}

#[tokio::test]
async fn a_size_that_cannot_change_is_left_and_the_rest_is_applied() -> Result<()> {
    let space = World::shared().await.space("size").await?;
    let with = |size: &str, image: &str| {
        let mut user = user("ana");
        user["codeServer"] = json!({ "storage": { "size": size }, "image": image });
        json!({ "users": [user] })
    };
    space.ready_workspace("team", with("1024Mi", "ide:1")).await?;
    space.change("team", with("2Gi", "ide:2")).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    let set = json!(space.set("ana").await?);
    assert_eq!(set["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"], "1Gi");
    assert_eq!(set["spec"]["template"]["spec"]["containers"][0]["image"], "ide:2");
    Ok(())
}
