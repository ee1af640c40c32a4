//! Hand edits, deletions and strangers (W11).

use anyhow::Result;
use api::workspace::{HelmRelease, User, Workspace, WorkspacePhase};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Secret, Service, ServiceAccount},
        networking::v1::{Ingress, NetworkPolicy},
        rbac::v1::{Role, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};
use testbed::fault::{Calls, Fault, Injected, Verb};
use workspaces::workspace;

use super::harness::{Object, Space, World, chart, condition, eventually, uid, user};

fn spec() -> Value {
    json!({
        "domain": "example.com",
        "configs": { "settings": { "data": { "values.yaml": "a: 1" } } },
        "services": { "web": {
            "chart": chart("web"), "expose": { "service": "web", "port": 80 },
            "valuesFrom": [{ "kind": "ConfigMap", "name": "settings" }],
        } },
        "users": [user("ana")],
    })
}

/// Edits an object by hand, adds a label of somebody else's, and waits until the edit alone is undone.
async fn check_edit<K: Object>(space: &Space, name: &str, edit: Value, path: &str) -> Result<()> {
    let before = json!(space.get::<K>(name).await?).pointer(path).cloned();
    let mut edit = edit;
    edit["metadata"]["labels"]["example.com/foreign"] = json!("stays");
    let edited = json!(space.patch::<K>(name, edit).await?);
    assert_ne!(edited.pointer(path).cloned(), before, "the edit is one");
    let mended = |object: &K| json!(object).pointer(path).cloned() == before;
    let mended = space.until(name, &format!("mended at {path}"), mended).await?;
    let labels = mended.metadata().labels.clone().unwrap_or_default();
    assert_eq!(labels.get("example.com/foreign").map(String::as_str), Some("stays"), "{name}");
    Ok(())
}

#[tokio::test]
async fn w11_edits_are_undone_and_fields_of_others_survive() -> Result<()> {
    let space = World::shared().await.space("edited").await?;
    space.ready_workspace("team", spec()).await?;
    let name = "code-server-ana";
    check_edit::<HelmRelease>(&space, "web", json!({ "spec": { "chart": { "version": "9" } } }), "/spec/chart/version")
        .await?;
    check_edit::<User>(&space, "ana", json!({ "spec": { "email": "e@v.il" } }), "/spec/email").await?;
    check_edit::<StatefulSet>(&space, name, json!({ "spec": { "replicas": 3 } }), "/spec/replicas").await?;
    check_edit::<Service>(&space, name, json!({ "spec": { "selector": { "more": "x" } } }), "/spec/selector").await?;
    let binding = json!({ "subjects": [{ "kind": "Group", "name": "all", "apiGroup": "rbac.authorization.k8s.io" }] });
    check_edit::<RoleBinding>(&space, name, binding, "/subjects").await?;
    let rules = json!({ "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }] });
    check_edit::<Role>(&space, name, rules, "/rules").await?;
    check_edit::<Ingress>(&space, name, json!({ "spec": { "rules": [{ "host": "evil.example" }] } }), "/spec/rules")
        .await?;
    let open = json!({ "spec": { "egress": [{}] } });
    check_edit::<NetworkPolicy>(&space, "team-default-deny", open, "/spec/egress").await?;
    let narrow = json!({ "spec": { "podSelector": { "matchLabels": { "app": "none" } } } });
    check_edit::<NetworkPolicy>(&space, "team-default-deny", narrow, "/spec/podSelector").await?;
    let label = "/metadata/labels/app.kubernetes.io~1managed-by";
    let unlabelled = json!({ "metadata": { "labels": { "app.kubernetes.io/managed-by": null } } });
    check_edit::<ServiceAccount>(&space, name, unlabelled.clone(), label).await?;
    let (config, password) = (space.names::<ConfigMap>().await?.remove(0), space.names::<Secret>().await?.remove(0));
    check_edit::<ConfigMap>(&space, &config, unlabelled.clone(), label).await?;
    check_edit::<Secret>(&space, &password, unlabelled, label).await?;
    let away = json!({ "spec": { "rules": [{ "host": "evil.example" }] } });
    check_edit::<Ingress>(&space, "team-web", away, "/spec/rules").await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    Ok(())
}

async fn check_deletion<K: Object>(space: &Space, name: &str) -> Result<()> {
    let former = space.delete::<K>(name).await?;
    space.until(name, "there again", |object: &K| uid(object) != uid(&former)).await?;
    Ok(())
}

#[tokio::test]
async fn w11_whatever_is_deleted_comes_back() -> Result<()> {
    let space = World::shared().await.space("deleted").await?;
    space.ready_workspace("team", spec()).await?;
    let name = "code-server-ana";
    check_deletion::<HelmRelease>(&space, "web").await?;
    check_deletion::<StatefulSet>(&space, name).await?;
    check_deletion::<Service>(&space, name).await?;
    check_deletion::<ServiceAccount>(&space, name).await?;
    check_deletion::<Role>(&space, name).await?;
    check_deletion::<RoleBinding>(&space, name).await?;
    check_deletion::<Ingress>(&space, name).await?;
    check_deletion::<Ingress>(&space, "team-web").await?;
    check_deletion::<NetworkPolicy>(&space, "team-dns").await?;
    check_deletion::<ConfigMap>(&space, &space.names::<ConfigMap>().await?[0].clone()).await?;
    let password = space.names::<Secret>().await?[0].clone();
    space.delete::<Secret>(&password).await?;
    eventually("there is a new password", async || {
        let names = space.names::<Secret>().await?;
        Ok(names.len() == 1 && names[0] != password)
    })
    .await?;
    check_deletion::<User>(&space, "ana").await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    Ok(())
}

#[tokio::test]
async fn w11_a_user_deleted_by_hand_comes_back_to_the_same_volume_whatever_its_retention() -> Result<()> {
    let space = World::shared().await.space("volume").await?;
    let mut ana = user("ana");
    ana["codeServer"] = json!({ "storage": { "retention": "delete" } });
    space.ready_workspace("team", json!({ "users": [ana] })).await?;
    let claim = space.claim("ana").await?;
    check_deletion::<User>(&space, "ana").await?;
    space.until_user("ana", "Succeeded").await?;
    let now = space.claim("ana").await?;
    assert_eq!((uid(&now), now.metadata.deletion_timestamp), (uid(&claim), None), "the same volume");
    Ok(())
}

/// Events are held for all namespaces, so the world is this test's own.
#[tokio::test]
async fn what_is_not_known_of_the_team_costs_nobody_their_volume() -> Result<()> {
    let world = World::start(workspace::Config::default()).await?;
    let space = world.space("doubt").await?;
    let mut ana = user("ana");
    ana["codeServer"] = json!({ "storage": { "retention": "delete" } });
    space.ready_workspace("team", json!({ "users": [ana] })).await?;
    let (set, claim) = (space.set("ana").await?, space.claim("ana").await?);
    // She leaves the team, which the operator sees, and comes back, which it does not: its last write to the Workspace
    // had no answer, and neither events nor reads tell it more. A server that does not serve Workspaces at the moment
    // does not say that there are none.
    let inject = |calls: Calls, fault| world.proxy.inject(calls.in_namespace(&space.namespace), fault);
    let faults = [
        inject(Calls::of(Verb::Get, "workspaces").at_most(1), Fault::Status(500)),
        inject(Calls::of(Verb::Get, "workspaces"), Fault::Text(404, "404 page not found\n")),
        inject(Calls::writes("workspaces/status"), Fault::CutBeforeCommit),
        inject(Calls::of(Verb::Delete, "users"), Fault::Status(403)),
    ];
    space.change("team", json!({ "users": [] })).await?;
    for fault in &faults {
        fault.reached().await?;
    }
    let held = world.proxy.hold_events("workspaces");
    space.change("team", json!({ "users": [ana] })).await?;
    let rounds = world.more_rounds(&space, "user", 2);
    // The first round that saw the deletion is over when the second is, and removed nothing.
    let (before, ()) = tokio::try_join!(space.delete::<User>("ana"), rounds)?;
    let now = space.set("ana").await?;
    assert_eq!((uid(&now), now.metadata.deletion_timestamp), (uid(&set), None), "the same StatefulSet");
    faults.iter().for_each(Injected::end);
    held.release();
    space.until_gone(&before).await?;
    space.until("ana", "another User", |user: &User| uid(user) != uid(&before)).await?;
    space.until_user("ana", "Succeeded").await?;
    let now = space.claim("ana").await?;
    assert_eq!((uid(&now), now.metadata.deletion_timestamp), (uid(&claim), None), "the same volume");
    outlives_the_definition(&world).await
}

/// With the definition of Users all of them go, and come back when it is installed again: to the volumes that they had.
async fn outlives_the_definition(world: &World) -> Result<()> {
    let space = world.space("definition").await?;
    let mut ana = user("ana");
    ana["codeServer"] = json!({ "storage": { "retention": "delete" } });
    space.ready_workspace("team", json!({ "users": [ana] })).await?;
    let (before, claim): (User, _) = (space.get("ana").await?, space.claim("ana").await?);
    let definitions: Api<CustomResourceDefinition> = Api::all(space.client.clone());
    let name = format!("users.{}", api::workspace::GROUP);
    definitions.delete(&name, &DeleteParams::default()).await?;
    eventually("it is gone", async || Ok(definitions.get_opt(&name).await?.is_none())).await?;
    space
        .until("team", "saying what is missing", |workspace: &Workspace| {
            condition(workspace, "Ready").contains("does not serve users")
        })
        .await?;
    let crd = api::workspace::crds().into_iter().find(|crd| crd.metadata.name.as_ref() == Some(&name));
    world.control_plane.install(&[json!(crd)]).await?;
    space.until("ana", "another User", |user: &User| uid(user) != uid(&before)).await?;
    space.until_user("ana", "Succeeded").await?;
    let now = space.claim("ana").await?;
    assert_eq!((uid(&now), now.metadata.deletion_timestamp), (uid(&claim), None), "the same volume");
    space.until_phase("team", WorkspacePhase::Ready).await?;
    Ok(())
}

#[tokio::test]
async fn a_strangers_object_is_named_and_left_alone_until_it_goes() -> Result<()> {
    let space = World::shared().await.space("taken").await?;
    let policy =
        json!({ "metadata": { "name": "team-dns" }, "spec": { "podSelector": {}, "policyTypes": ["Ingress"] } });
    let stranger: NetworkPolicy = space.create(policy).await?;
    space.workspace("team", spec()).await?;
    let workspace = space
        .until("team", "ObjectTaken", |workspace: &Workspace| {
            condition(workspace, "Ready").starts_with("False ObjectTaken")
        })
        .await?;
    assert!(condition(&workspace, "NetworkReady").contains("NetworkPolicy team-dns"));
    space.until_user("ana", "Succeeded").await?;
    assert!(space.has::<HelmRelease>("web").await?, "everything else is done");
    let now: NetworkPolicy = space.get("team-dns").await?;
    assert_eq!(now.metadata.resource_version, stranger.metadata.resource_version, "not touched");
    space.delete::<NetworkPolicy>("team-dns").await?;
    // Any reason to look will do; half a minute is one, too.
    space.change("team", json!({ "domain": "example.org" })).await?;
    space.until_phase("team", WorkspacePhase::Ready).await?;
    Ok(())
}
