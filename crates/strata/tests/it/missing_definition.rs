//! A layer whose definitions are missing holds up no other layer, and begins when they come.

use std::{net::SocketAddr, path::PathBuf};

use anyhow::{Context, Result};
use api::workspace::HelmRelease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use rustix::process::Signal;
use serde_json::json;
use testbed::{
    Options,
    process::{Child, Program},
    tools,
};

use crate::{
    chart_args::{health_address, readiness},
    harness::{OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, Space, apply, observe, spec, until},
    scene::{Scene, eventually},
};

/// `strata operator` with the layers that run by default, and where it answers.
async fn operator(scene: &Scene, log: &str) -> Result<(Child, SocketAddr)> {
    let directory = scene.control_plane.directory();
    let log = directory.join(log);
    let flags: [(&str, PathBuf); 3] = [
        ("--kubeconfig", scene.proxy.kubeconfig_path()),
        ("--helm", tools::path("helm").await?),
        ("--helm-directory", directory.join("helm")),
    ];
    let program = Program::new("strata operator", env!("CARGO_BIN_EXE_strata"), &log)
        .args(["operator", "--metrics-bind-address=0", "--health-probe-bind-address=127.0.0.1:0"])
        .args(flags.into_iter().flat_map(|(flag, value)| [flag.into(), value]))
        .env("POD_NAMESPACE", OPERATOR_NAMESPACE);
    let operator = Child::start(program)?;
    eventually("it listens", || health_address(&log).is_some() || !operator.is_running()).await?;
    let address = health_address(&log).with_context(|| operator.log_tail())?;
    Ok((operator, address))
}

fn release(name: &str) -> Result<HelmRelease> {
    let chart = json!({ "repo": "http://charts.invalid", "name": "web", "version": "1.0.0" });
    Ok(serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "chart": chart } }))?)
}

#[tokio::test]
async fn a_missing_definition_holds_up_its_own_layer_only_until_it_is_installed() -> Result<()> {
    let scene = Scene::start(Options::bare()).await?;
    let rbac = runtime::rights::rbac(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT, &strata::layers::rights());
    let crds = strata::layers::crds().into_iter().map(|crd| json!(crd));
    scene.control_plane.install(&crds.chain(rbac.objects()).collect::<Vec<_>>()).await?;
    let space = scene.space("waits").await?;
    let (first, _) = operator(&scene, "first.log").await?;
    space.create("before", spec()).await?;
    space.until_pod("before", "there", |_| true).await.with_context(|| first.log_tail())?;
    first.signal(Signal::TERM)?;
    assert_eq!(first.exited().await, 0, "{}", first.log_tail());

    let definitions: Api<CustomResourceDefinition> = Api::all(space.client.clone());
    let releases = format!("helmreleases.{}", api::workspace::GROUP);
    definitions.delete(&releases, &DeleteParams::default()).await?;
    observe::eventually("the definition is gone", || async { Ok(definitions.get_opt(&releases).await?.is_none()) })
        .await?;

    let (second, address) = operator(&scene, "second.log").await?;
    space.create("after", spec()).await?;
    space.until_pod("after", "there", |_| true).await.with_context(|| second.log_tail())?;
    let waits = "\n[!]layer workspaces: waits for the definition of helmreleases; \
                 install it: strata crd | kubectl apply --server-side -f -\n";
    observe::eventually("it is ready and names who waits", || async {
        let answer = readiness(address).await?;
        Ok(answer.starts_with("HTTP/1.0 200") && answer.contains(waits))
    })
    .await
    .with_context(|| second.log_tail())?;

    let missing = strata::layers::crds().into_iter().filter(|crd| crd.metadata.name.as_ref() == Some(&releases));
    scene.control_plane.install(&missing.map(|crd| json!(crd)).collect::<Vec<_>>()).await?;
    other_layer_serves(&space, "served").await.with_context(|| second.log_tail())?;
    let answer = readiness(address).await?;
    assert!(answer.starts_with("HTTP/1.0 200") && !answer.contains("[!]layer"), "{answer}");
    Box::pin(goes_while_running(&scene, &space, address)).await.with_context(|| second.log_tail())
}

/// The other layer reports on what is new.
async fn other_layer_serves(space: &Space, name: &str) -> Result<()> {
    let releases: Api<HelmRelease> = Api::namespaced(space.client.clone(), &space.namespace);
    releases.create(&PostParams::default(), &release(name)?).await?;
    until(&releases, name, "reported on", |release| release.status.is_some()).await?;
    Ok(())
}

/// The definition of Performers is not served for a while, and is later deleted and made again.
async fn goes_while_running(scene: &Scene, space: &Space, address: SocketAddr) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(space.client.clone());
    let performers = api::performer::crd();
    let name = performers.metadata.name.clone().context("a CRD has a name")?;
    let is_named = async |is_named: bool| {
        observe::eventually("readiness follows the definition", || async {
            // The server serves open watches for a minute longer.
            if is_named {
                scene.proxy.cut_watches("performers");
            }
            let answer = readiness(address).await?;
            let waits = answer.contains("[!]layer performers: waits for the definition of performers; install it: ");
            Ok(answer.starts_with("HTTP/1.0 200") && waits == is_named)
        })
        .await
    };
    let mut hidden = performers.clone();
    hidden.spec.versions.iter_mut().for_each(|version| version.served = false);
    let before = space.pod("before").await?;
    apply(&definitions, &name, &hidden).await?;
    is_named(true).await?;
    other_layer_serves(space, "meanwhile").await?;
    // The server refuses pods whose owner it does not serve.
    let after = space.pod("after").await?;
    space.pods.delete("performer-after", &DeleteParams::default()).await?;
    apply(&definitions, &name, &performers).await?;
    is_named(false).await?;
    // A change brings the next attempt forward.
    space.patch("after", json!({ "metadata": { "annotations": { "touched": "1" } } })).await?;
    space.until_replaced("after", &after).await?;
    let now = space.pod("before").await?;
    assert_eq!((&now.metadata.uid, &now.metadata.deletion_timestamp), (&before.metadata.uid, &None), "the same pod");

    definitions.delete(&name, &DeleteParams::default()).await?;
    observe::eventually("the definition is gone", || async { Ok(definitions.get_opt(&name).await?.is_none()) }).await?;
    is_named(true).await?;
    other_layer_serves(space, "between").await?;
    scene.control_plane.install(&[json!(performers)]).await?;
    space.create("before", spec()).await?;
    space.until_replaced("before", &before).await?;
    is_named(false).await
}
