//! Ends: of a Workspace, and of a whole namespace (W39).

use anyhow::Result;
use api::workspace::{HelmRelease, User, Workspace, WorkspacePhase};
use k8s_openapi::api::{
    core::v1::{Namespace, ServiceAccount},
    networking::v1::NetworkPolicy,
    rbac::v1::RoleBinding,
};
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};

use super::harness::{DATABASE, World, chart, condition, eventually, user};

fn spec() -> Value {
    let mut bob = user("bob");
    bob["codeServer"] = json!({ "storage": { "retention": "delete" } });
    json!({ "services": { "db": { "chart": chart(DATABASE) } }, "users": [user("ana"), bob] })
}

#[tokio::test]
async fn a_workspace_goes_when_its_data_may_go_and_takes_all_but_volumes() -> Result<()> {
    let space = World::shared().await.space("end").await?;
    space.ready_workspace("team", spec()).await?;
    let workspace = space.delete::<Workspace>("team").await?;
    let going = space.until_phase("team", WorkspacePhase::Terminating).await?;
    assert!(condition(&going, "Ready").starts_with("False DataProtected"), "{}", condition(&going, "Ready"));
    assert_eq!(space.names::<User>().await?, ["ana", "bob"], "nothing goes while data would be lost");
    space.change("team", json!({ "services": { "db": { "deleteData": true } } })).await?;
    space.until_gone(&workspace).await?;
    assert_eq!((space.names::<User>().await?, space.names::<HelmRelease>().await?), (vec![], vec![]));
    eventually("its own objects are gone", async || Ok(space.names::<NetworkPolicy>().await?.is_empty())).await?;
    assert!(space.claim("ana").await.is_ok());
    eventually("the volume that may go is gone", async || Ok(space.claim("bob").await.is_err())).await?;
    Ok(())
}

#[tokio::test]
async fn w39_a_namespace_is_deleted_without_a_human_and_nothing_is_made_in_it() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("gone").await?;
    space.ready_workspace("team", spec()).await?;
    let mark = world.mark()?;
    let namespace = space.namespace().await?;
    // Some of it goes first.
    space.delete::<ServiceAccount>("code-server-ana").await?;
    let namespaces: Api<Namespace> = Api::all(space.client.clone());
    namespaces.delete(&space.namespace, &DeleteParams::default()).await?;
    let _ = space.delete::<RoleBinding>("code-server-ana").await;
    eventually("the namespace is gone", async || {
        let now = namespaces.get_opt(&space.namespace).await?;
        Ok(now.is_none_or(|now| now.metadata.uid != namespace.metadata.uid))
    })
    .await?;
    let requests = world.requests(&space, mark)?;
    let refused: Vec<_> = requests.iter().filter(|entry| entry.code == 403).collect();
    assert!(refused.len() <= 2, "hardly anything is even tried: {refused:?}");
    Ok(())
}
