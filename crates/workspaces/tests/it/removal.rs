//! How releases go: with their object, with their namespace, and across restarts.

use std::time::Duration;

use anyhow::Result;
use futures::future::try_join_all;
use k8s_openapi::api::{
    core::v1::{Namespace, ServiceAccount},
    rbac::v1::RoleBinding,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
    runtime::wait::{await_condition, conditions::is_deleted},
};
use serde_json::json;
use testbed::helm::Helm;
use workspaces::Config;

use crate::{
    space::{PATIENCE, condition, eventually},
    world::{Running, Vacant, World},
};

#[tokio::test]
async fn w29_the_release_goes_before_the_finalizer_and_gone_already_is_gone() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("gone").await?;
    let names = ["usual", "kept", "before"];
    try_join_all(names.map(|name| {
        let keep_history = name == "kept";
        space.install(name, space.four(json!({ "uninstall": { "keepHistory": keep_history } })))
    }))
    .await?;
    let helm = Helm::current().await?;
    space.change("before", json!({ "suspend": true })).await?;
    space.condition("before", "Ready", "True", "Suspended").await?;
    space.helm(&helm, &["uninstall", "before"]).await?;
    space.change("before", json!({ "suspend": false })).await?;
    try_join_all(names.map(|name| space.delete(name))).await?;
    try_join_all(names.map(|name| space.gone(name))).await?;
    for name in names {
        assert!(space.deployments.get_opt(name).await?.is_none(), "{name} is left");
    }
    space.check_history("usual", "").await?;
    space.check_history("kept", "1 uninstalled").await?;
    // What was kept is no obstacle for the next of that name.
    space.install("kept", space.four(json!({}))).await?;
    space.check_history("kept", "1 superseded, 2 deployed").await
}

#[tokio::test]
async fn w29_a_restart_in_the_middle_of_an_uninstall_ends_it() -> Result<()> {
    let place = Vacant::take().await?;
    let space = place.space("restart").await?;
    let quick = async || Ok::<_, anyhow::Error>(Config { grace: Duration::from_secs(1), ..place.config().await? });
    let first = Running::start(quick().await?, None).await?;
    space.install("web", space.four(json!({}))).await?;
    let hold = |finalizers: serde_json::Value| json!({ "metadata": { "finalizers": finalizers } });
    let params = PatchParams::default();
    space.deployments.patch("web", &params, &Patch::Merge(hold(json!(["example.test/hold"])))).await?;
    space.delete("web").await?;
    let is_going = || async { Ok(space.history("web").await?.iter().any(|(_, state)| state == "uninstalling")) };
    eventually("helm uninstalls", is_going).await?;
    first.stop().await?;
    assert!(space.releases.get("web").await?.metadata.finalizers.is_some());
    let second = Running::start(quick().await?, None).await?;
    space.until("web", "at it again", |release| condition(release, "Ready")["reason"] == "Uninstalling").await?;
    space.deployments.patch("web", &params, &Patch::Merge(hold(json!(null)))).await?;
    space.gone("web").await?;
    space.check_history("web", "").await?;
    second.stop().await
}

/// What goes first when a namespace is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Nothing,
    Account,
    Binding,
    Storage,
}

#[tokio::test]
async fn w39_a_namespace_goes_whatever_of_it_goes_first() -> Result<()> {
    let world = World::shared().await;
    let go = async |first: First| -> Result<()> {
        let space = world.space("whole").await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(space.client.clone(), &space.namespace);
        let bindings: Api<RoleBinding> = Api::namespaced(space.client.clone(), &space.namespace);
        space.account("deployer", Some("admin")).await?;
        let account = if first == First::Storage { json!(null) } else { json!("deployer") };
        let spec = space.four(json!({ "serviceAccountName": account }));
        try_join_all(["web", "other"].map(|name| space.install(name, spec.clone()))).await?;
        let params = DeleteParams::default();
        match first {
            First::Nothing => {}
            First::Account => drop(accounts.delete("deployer", &params).await?),
            First::Binding => drop(bindings.delete("deployer", &params).await?),
            First::Storage => drop(space.secrets.delete("sh.helm.release.v1.web.v1", &params).await?),
        }
        let namespaces: Api<Namespace> = Api::all(space.client.clone());
        let uid = namespaces.get(&space.namespace).await?.metadata.uid.unwrap_or_default();
        namespaces.delete(&space.namespace, &params).await?;
        let gone = await_condition(namespaces.clone(), &space.namespace, is_deleted(&uid));
        if tokio::time::timeout(PATIENCE, gone).await.is_err() {
            let left = space.releases.list(&kube::api::ListParams::default()).await?;
            anyhow::bail!("{first:?}: the namespace does not go; left are {:#}", json!(left.items));
        }
        Ok(())
    };
    try_join_all([First::Nothing, First::Account, First::Binding, First::Storage].map(go)).await?;
    Ok(())
}
