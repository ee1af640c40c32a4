//! Whom helm acts as.

use anyhow::Result;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::{Api, Client, api::DeleteParams};
use serde_json::json;
use testbed::{User, audit::Entry, may};

use crate::{
    space::{HelmRole, OPERATOR_USER, condition, eventually, message},
    world::World,
};

#[tokio::test]
async fn w38_without_the_helm_role_a_release_acts_as_its_account_and_nothing_else() -> Result<()> {
    let world = World::start(HelmRole::NotBound, |config| config.policy.other_namespaces = true).await?;
    let space = world.space("rights").await?;
    let with = |account: &str| space.four(json!({ "serviceAccountName": account, "interval": "5s" }));
    space.create("nobody", space.four(json!({}))).await?;
    let nobody = space.condition("nobody", "Ready", "False", "ServiceAccountRequired").await?;
    assert!(message(&nobody).contains("spec.serviceAccountName"), "{}", message(&nobody));

    let mark = space.mark().await?;
    space.account("deployer", Some("admin")).await?;
    space.account("weak", None).await?;
    space.install("web", with("deployer")).await?;
    let account = format!("system:serviceaccount:{}:deployer", space.namespace);
    let is_work = |entry: &Entry| entry.is_write() && entry.namespace == space.namespace && entry.code < 300;
    let written: Vec<_> = world.control_plane.audit().entries_after(mark)?.into_iter().filter(is_work).collect();
    for resource in ["deployments", "services", "ingresses", "secrets"] {
        let is_made = |entry: &Entry| entry.resource == resource && entry.code == 201 && entry.user == account;
        assert!(written.iter().any(is_made), "{resource}: {written:?}");
    }
    let ours = written.iter().filter(|entry| entry.user == OPERATOR_USER);
    let allowed = ["helmreleases", "events", "serviceaccounts"];
    let others: Vec<_> = ours.filter(|entry| !allowed.contains(&entry.resource.as_str())).collect();
    assert!(others.is_empty(), "{others:?}");

    space.create("weak", with("weak")).await?;
    let weak = space.condition("weak", "Ready", "False", "Forbidden").await?;
    assert!(message(&weak).contains(&format!("{}:weak", space.namespace)), "{}", message(&weak));
    space.create("missing", with("late")).await?;
    let missing = space.condition("missing", "Ready", "False", "ServiceAccountMissing").await?;
    assert!(message(&missing).contains("ServiceAccount late"), "{}", message(&missing));
    space.account("late", Some("admin")).await?;
    space.ready("missing").await?;

    // Drift is found and corrected in the account's name too.
    space.change("web", json!({ "driftDetection": "enabled", "values": { "replicas": 0 } })).await?;
    space.condition("web", "Drifted", "False", "NoDrift").await?;
    let patch = json!({ "spec": { "replicas": 1 } });
    space.deployments.patch("web", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(patch)).await?;
    crate::space::until(&space.deployments, "web", "set back", |found| {
        found.spec.as_ref().and_then(|spec| spec.replicas) == Some(0)
    })
    .await?;
    // An account of one namespace does nothing in another.
    let other = world.space("other").await?;
    let mut away = with("deployer");
    away["targetNamespace"] = json!(other.namespace);
    space.create("away", away).await?;
    let away = space.condition("away", "Ready", "False", "Forbidden").await?;
    assert_eq!(condition(&away, "Released")["status"], "False");
    assert_eq!(other.history("away").await?, []);
    Ok(())
}

#[tokio::test]
async fn w38_an_uninstall_without_the_rights_for_it_is_told_and_leaves_nothing_behind() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("shrunk").await?;
    let client = world.control_plane.client().await?;
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), &space.namespace);
    for (release, resources) in [("blind", &["pods"]), ("half", &["secrets"])] {
        space.account("deployer", Some("admin")).await?;
        space.install(release, space.four(json!({ "serviceAccountName": "deployer" }))).await?;
        let metadata = json!({ "name": release, "namespace": space.namespace });
        let rules = json!([{ "apiGroups": [""], "resources": resources, "verbs": ["*"] }]);
        let role = json!({ "apiVersion": RBAC, "kind": "Role", "metadata": metadata, "rules": rules });
        let subjects = json!([{ "kind": "ServiceAccount", "name": "deployer", "namespace": space.namespace }]);
        let role_ref = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": release });
        let binding = json!({
            "apiVersion": RBAC, "kind": "RoleBinding", "metadata": metadata, "roleRef": role_ref, "subjects": subjects,
        });
        world.control_plane.install(&[role, binding]).await?;
        bindings.delete("deployer", &DeleteParams::default()).await?;
        until_forbidden(&client, &space.namespace).await?;
        space.delete(release).await?;
        let refused = space.condition(release, "Ready", "False", "Forbidden").await?;
        assert!(message(&refused).contains("may not get") && message(&refused).contains("grant it"), "{refused:?}");
        assert!(space.deployments.get_opt(release).await?.is_some());
        space.check_history(release, "1 deployed").await?;
        space.account("deployer", Some("admin")).await?;
        space.gone(release).await?;
        assert!(space.deployments.get_opt(release).await?.is_none());
    }
    Ok(())
}

const RBAC: &str = "rbac.authorization.k8s.io/v1";

async fn until_forbidden(client: &Client, namespace: &str) -> Result<()> {
    let account = User::service_account(namespace, "deployer");
    let read = json!({ "verb": "get", "group": "apps", "resource": "deployments", "namespace": namespace });
    eventually("the account may no longer", async || Ok(!may(client, &account, &read).await?)).await
}

#[tokio::test]
async fn a_release_may_go_to_another_namespace_where_the_operator_allows_it() -> Result<()> {
    let world = World::lenient().await;
    let (space, other) = (world.space("home").await?, world.space("away").await?);
    let spec = |note: &str| space.four(json!({ "targetNamespace": other.namespace, "values": { "note": note } }));
    space.install("web", spec("a")).await?;
    other.check_history("web", "1 deployed").await?;
    space.check_history("web", "").await?;
    // An object over there cannot take it away.
    other.create("web", other.four(json!({}))).await?;
    let taken = other.condition("web", "Ready", "False", "ObjectTaken").await?;
    assert!(message(&taken).contains(&format!("{}/web", space.namespace)), "{}", message(&taken));
    other.delete("web").await?;
    other.gone("web").await?;
    space.change("web", json!({ "values": { "note": "b" } })).await?;
    space.ready("web").await?;
    other.check_history("web", "1 superseded, 2 deployed").await?;
    space.delete("web").await?;
    space.gone("web").await?;
    other.check_history("web", "").await
}
