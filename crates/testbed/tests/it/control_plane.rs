//! A control plane is ready, tells users apart, and survives what tests do to it.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ListParams, PostParams},
    runtime::wait::{await_condition, conditions::is_pod_running},
};
use testbed::{ControlPlane, User};

#[tokio::test]
async fn a_stranger_is_refused_and_audited_under_his_name() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let mark = control_plane.audit().mark()?;
    let stranger = control_plane.client_as(&User::named("mallory")).await?;
    let error = Api::<Pod>::default_namespaced(stranger).list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error:?}");
    let entry = control_plane.audit().wait_for(mark, |entry| entry.user == "mallory").await?.context("no entry")?;
    assert_eq!((entry.verb.as_str(), entry.resource.as_str(), entry.code), ("list", "pods", 403));
    Ok(())
}

#[tokio::test]
async fn a_pod_runs_through_the_real_scheduler() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let namespace = control_plane.namespace("pods").await?;
    let pods = Api::<Pod>::namespaced(control_plane.client().await?, &namespace);
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": { "name": "one" },
        "spec": { "containers": [{ "name": "main", "image": "registry.test/anything:1" }] },
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    await_condition(pods.clone(), "one", is_pod_running()).await?;
    let pod = pods.get("one").await?;
    assert!(pod.spec.unwrap().node_name.unwrap().starts_with("simulated-"));
    Ok(())
}
