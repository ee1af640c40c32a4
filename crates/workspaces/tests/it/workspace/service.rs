//! Services: releases, Ingresses, data.

use anyhow::Result;
use api::workspace::{HelmRelease, User, Workspace, WorkspacePhase};
use k8s_openapi::api::{
    core::v1::{Pod, Secret},
    events::v1::Event,
    networking::v1::Ingress,
};
use kube::api::ListParams;
use serde_json::json;
use testbed::kwok::Behaviour;

use super::harness::{BROKEN, DATABASE, World, chart, condition, eventually, user};

#[tokio::test]
async fn w02_three_services_and_three_users_converge() -> Result<()> {
    let space = World::shared().await.space("converge").await?;
    let spec = json!({
        "domain": "example.com",
        "ingress": { "issuer": "letsencrypt" },
        "services": {
            "db": { "chart": chart("db") },
            "web": { "chart": chart("web"), "dependsOn": ["db"], "expose": { "service": "web", "port": 80 } },
            "off": { "chart": chart("off"), "enabled": false },
            "api": { "chart": chart("api"), "values": { "note": "a" } },
        },
        "users": [user("ana"), user("bob"), user("cyd")],
    });
    let workspace = space.ready_workspace("team", spec).await?;
    let status = workspace.status.clone().unwrap_or_default();
    assert_eq!((status.services_ready.as_deref(), status.users_ready.as_deref()), (Some("3/3"), Some("3/3")));
    for kind in ["Ready", "ServicesReady", "UsersReady", "NetworkReady"] {
        assert!(condition(&workspace, kind).starts_with("True Succeeded"), "{}", condition(&workspace, kind));
    }
    assert_eq!(space.names::<HelmRelease>().await?, ["api", "db", "web"]);
    assert_eq!(space.names::<User>().await?, ["ana", "bob", "cyd"]);
    assert_eq!(space.names::<Ingress>().await?, ["code-server-ana", "code-server-bob", "code-server-cyd", "team-web"]);
    let web: HelmRelease = space.get("web").await?;
    let web = web.spec.unwrap_or_default();
    assert_eq!((web.depends_on, web.stopped), (vec!["db".to_owned()], Some(false)));
    let ana = space.until_user("ana", "Succeeded").await?.status.unwrap_or_default();
    assert_eq!(ana.url.as_deref(), Some("https://ana.team.example.com"));
    // The pod may look at itself and nowhere else.
    let pod = space.pod("ana").await?;
    let pod_spec = pod.spec.unwrap_or_default();
    assert_eq!(pod_spec.service_account_name.as_deref(), Some("code-server-ana"));
    assert_eq!(pod_spec.containers[0].image.as_deref(), Some("codercom/code-server:4.96.4"));
    let events = space.api::<Event>().list(&ListParams::default()).await?.items;
    let recorded: Vec<_> = events
        .iter()
        .filter(|e| e.regarding.as_ref().is_some_and(|r| r.kind.as_deref() == Some("Workspace")))
        .collect();
    assert!(recorded.len() <= 1, "{recorded:?}");
    Ok(())
}

#[tokio::test]
async fn w07_what_fails_is_described_and_everything_else_is_done() -> Result<()> {
    let space = World::shared().await.space("failing").await?;
    let mut broken = user("broken");
    broken["codeServer"] = json!({ "image": Behaviour::ImagePullFailed.image() });
    // A refusal by the API server: no such quantity.
    let mut refused = user("refused");
    refused["codeServer"] = json!({ "resources": { "requests": { "cpu": "2" }, "limits": { "cpu": "1" } } });
    let spec = json!({
        "services": { "bad": { "chart": chart(BROKEN) }, "good": { "chart": chart("good") } },
        "users": [user("ana"), broken, refused],
    });
    space.workspace("team", spec).await?;
    space.until_user("ana", "Succeeded").await?;
    space.until_user("broken", "ImagePullFailed").await?;
    let refused = space.until_user("refused", "ObjectRejected").await?.status.unwrap_or_default();
    assert!(refused.conditions[0].message.contains("StatefulSet code-server-refused"), "{refused:?}");
    assert!(space.has::<k8s_openapi::api::core::v1::Service>("code-server-refused").await?, "the rest of it is done");
    let workspace = space
        .until("team", "describing all", |workspace: &Workspace| {
            let status = workspace.status.clone().unwrap_or_default();
            let reason =
                |slug: &str| status.users.iter().find(|user| user.slug == slug).and_then(|user| user.reason.clone());
            status.services_ready.as_deref() == Some("1/2")
                && reason("ana").is_none()
                && reason("broken").as_deref() == Some("ImagePullFailed")
                && reason("refused").as_deref() == Some("ObjectRejected")
        })
        .await?;
    let status = workspace.status.clone().unwrap_or_default();
    assert_eq!(status.phase, Some(WorkspacePhase::Failed));
    assert_eq!(status.services[0].message.as_deref(), Some("as the chart's name says"));
    assert!(condition(&workspace, "ServicesReady").contains("bad (InstallFailed)"));
    // Mended, both come up without help, although the broken pod was never ready.
    let spec = json!({
        "services": { "bad": { "chart": chart("better") } },
        "users": [user("ana"), user("broken"), user("refused")],
    });
    space.change("team", spec).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    Ok(())
}

#[tokio::test]
async fn w08_a_stopped_workspace_keeps_everything_and_comes_back() -> Result<()> {
    let space = World::shared().await.space("stopped").await?;
    let spec = json!({ "services": { "web": { "chart": chart("web") } }, "users": [user("ana")] });
    space.ready_workspace("team", spec).await?;
    let (pod, claim) = (space.pod("ana").await?, space.claim("ana").await?);
    space.change("team", json!({ "stopped": true })).await?;
    let workspace = space.until_phase("team", WorkspacePhase::Stopped).await?;
    assert!(condition(&workspace, "Ready").starts_with("True Stopped"));
    space.until_gone(&pod).await?;
    let web: HelmRelease = space.get("web").await?;
    assert_eq!(web.spec.unwrap_or_default().stopped, Some(true));
    assert_eq!(space.claim("ana").await?.metadata.uid, claim.metadata.uid);
    space.change("team", json!({ "stopped": false })).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    space.until("code-server-ana-0", "there", |_: &Pod| true).await?;
    assert_eq!(space.claim("ana").await?.metadata.uid, claim.metadata.uid);
    Ok(())
}

#[tokio::test]
async fn a_release_with_data_is_removed_only_when_its_data_may_go() -> Result<()> {
    let space = World::shared().await.space("data").await?;
    let spec = json!({ "services": { "db": { "chart": chart(DATABASE) }, "web": { "chart": chart("web") } } });
    space.ready_workspace("team", spec).await?;
    space.change("team", json!({ "services": { "db": null, "web": null } })).await?;
    let workspace = space.until_phase("team", WorkspacePhase::Failed).await?;
    assert!(condition(&workspace, "Ready").starts_with("False DataProtected"), "{}", condition(&workspace, "Ready"));
    eventually("the other one is gone", async || Ok(!space.has::<HelmRelease>("web").await?)).await?;
    assert!(space.has::<HelmRelease>("db").await?);
    let allowed = json!({ "services": { "db": { "chart": chart(DATABASE), "enabled": false, "deleteData": true } } });
    let release: HelmRelease = space.get("db").await?;
    space.change("team", allowed).await?;
    space.until_gone(&release).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    Ok(())
}

#[tokio::test]
async fn w24_a_secret_of_a_config_shows_nowhere_but_in_its_secret() -> Result<()> {
    const CANARY: &str = "canary-4711";
    let space = World::shared().await.space("canary").await?;
    space.create::<Secret>(json!({ "metadata": { "name": "source" }, "stringData": { "TOKEN": CANARY } })).await?;
    let mut ana = user("ana");
    ana["codeServer"] = json!({ "envFrom": [{ "kind": "Secret", "name": "token" }] });
    let spec =
        json!({ "configs": { "token": { "kind": "Secret", "fromSecret": { "name": "source" } } }, "users": [ana] });
    space.ready_workspace("team", spec).await?;
    let derived: Vec<Secret> = space.api().list(&ListParams::default()).await?.items;
    let holders = derived.iter().filter(|s| s.data.iter().flatten().any(|(_, bytes)| bytes.0 == CANARY.as_bytes()));
    assert_eq!(holders.count(), 2, "the source and what was made of it");
    let all = ListParams::default();
    let mut texts = vec![
        serde_json::to_string(&space.api::<Workspace>().list(&all).await?.items)?,
        serde_json::to_string(&space.api::<User>().list(&all).await?.items)?,
        serde_json::to_string(&space.api::<Pod>().list(&all).await?.items)?,
    ];
    texts.push(serde_json::to_string(&space.api::<Event>().list(&all).await?.items)?);
    assert!(texts.iter().all(|text| !text.contains(CANARY)));
    Ok(())
}
