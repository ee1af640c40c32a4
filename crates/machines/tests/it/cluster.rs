//! The operator's Cluster and its kubeconfig, with the real controllers of Cluster API.

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use machines::config::Workload;
use process::Clock;
use serde_json::{Value, json};

use crate::space::{CLUSTER, Space, resource, until};

const SECRET: &str = "dev--default-kubeconfig";
const EXPIRY: &str = "nstance.dev/token-expiry";
const ADDRESS: &str = "strata.dev/api-server";

/// A list of shards; none of them answers.
fn shards() -> machines::config::Shards {
    let address = |port: u16| format!("127.0.0.1:{port}").parse().unwrap();
    let one = || machines::config::ShardAddress { operator: address(2), registration: address(1) };
    [("dev-1".to_owned(), one()), ("dev-2".to_owned(), one())].into()
}

impl Space {
    async fn provisioned(&self) -> Result<DynamicObject> {
        let mut last = None;
        until("the Cluster is provisioned", async || {
            last = self.get("Cluster", CLUSTER).await?;
            Ok(last.as_ref().is_some_and(|cluster| cluster.data["status"]["phase"] == "Provisioned"))
        })
        .await
        .with_context(|| format!("{:?}", last.as_ref().map(|cluster| &cluster.data["status"])))?;
        last.context("no Cluster")
    }

    async fn expiry(&self) -> Result<Option<Timestamp>> {
        let secret = self.secrets().get_opt(SECRET).await?;
        let text = secret.and_then(|secret| secret.metadata.annotations?.remove(EXPIRY));
        Ok(text.map(|text| text.parse()).transpose()?)
    }

    /// The token in the Secret is made to look as if it expired soon.
    async fn age_token(&self) -> Result<Timestamp> {
        let soon = Timestamp::from_second(Clock::default().now().as_second() + 5 * 60)?;
        let patch = json!({ "metadata": { "annotations": { EXPIRY: soon.to_string() } } });
        self.secrets().patch(SECRET, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(soon)
    }
}

fn condition<'a>(object: &'a DynamicObject, kind: &str) -> &'a Value {
    let all = object.data["status"]["conditions"].as_array();
    all.and_then(|all| all.iter().find(|one| one["type"] == kind)).unwrap_or(&Value::Null)
}

#[tokio::test(flavor = "multi_thread")]
async fn a65_a68_a94_a95_the_cluster_is_made_and_cluster_api_calls_it_provisioned() -> Result<()> {
    let space = Space::new("cluster").await?;
    space.workload_account().await?;
    let running = space.run(&space.settings(shards())?, Clock::default()).await?;
    let cluster = space.provisioned().await?;
    let server: http::Uri = space.control_plane.server().parse()?;
    assert_eq!(cluster.data["spec"]["controlPlaneEndpoint"]["host"], server.host().unwrap());
    assert_eq!(cluster.data["spec"]["controlPlaneEndpoint"]["port"], server.port_u16().unwrap());
    let reference = |kind| json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": kind, "name": CLUSTER });
    assert_eq!(cluster.data["spec"]["infrastructureRef"], reference("NstanceCluster"));
    assert_eq!(cluster.data["spec"]["controlPlaneRef"], reference("NstanceControlPlane"));
    let domains = json!([{ "name": "dev-1", "controlPlane": false }, { "name": "dev-2", "controlPlane": false }]);
    until("the failure domains are copied", async || {
        Ok(space.get("Cluster", CLUSTER).await?.is_some_and(|one| one.data["status"]["failureDomains"] == domains))
    })
    .await?;
    let infrastructure = space.get("NstanceCluster", CLUSTER).await?.context("no NstanceCluster")?;
    assert_eq!(infrastructure.data["status"]["initialization"]["provisioned"], true);
    assert_eq!(condition(&infrastructure, "Ready")["reason"], "Provisioned");
    assert_eq!(condition(&infrastructure, "Paused")["status"], "False");
    space.condition("NstanceControlPlane", "KubeconfigReady", "True", "KubeconfigStored").await?;
    let control_plane = space.get("NstanceControlPlane", CLUSTER).await?.context("no NstanceControlPlane")?;
    assert_eq!(control_plane.data["status"]["externalManagedControlPlane"], true);
    assert_eq!(control_plane.data["status"]["initialization"]["controlPlaneInitialized"], true);

    let secret = space.secrets().get(SECRET).await?;
    let labels = secret.metadata.labels.as_ref().context("no labels")?;
    assert_eq!(labels["cluster.x-k8s.io/cluster-name"], CLUSTER);
    let text = space.secret_entry(SECRET, "value").await?.context("no kubeconfig")?;
    let config = Kubeconfig::from_yaml(&text)?;
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    let nodes: Api<Node> = Api::all(testbed::patient(config)?);
    nodes.list(&ListParams::default()).await.context("the kubeconfig does not work")?;
    // Cluster API itself says that it is connected.
    let mut last = Value::Null;
    until("Cluster API is connected", async || {
        let cluster = space.get("Cluster", CLUSTER).await?.context("no Cluster")?;
        last = condition(&cluster, "RemoteConnectionProbe").clone();
        Ok(last["status"] == "True")
    })
    .await
    .with_context(|| last.to_string())?;
    running.stop().await?;
    space.stayed_within_its_rights().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a66_a_token_is_refreshed_before_it_expires_and_a98_not_while_paused() -> Result<()> {
    let space = Space::new("cluster-token").await?;
    space.workload_account().await?;
    let running = space.run(&space.settings(shards())?, Clock::default()).await?;
    space.provisioned().await?;
    space.condition("NstanceControlPlane", "KubeconfigReady", "True", "KubeconfigStored").await?;
    let (token, soon) = (space.secret_entry(SECRET, "value").await?, space.age_token().await?);
    until("the token is refreshed", async || Ok(space.expiry().await?.is_some_and(|expiry| expiry > soon))).await?;
    assert_ne!(space.secret_entry(SECRET, "value").await?, token);

    // One that an operator wrote which reached the API server by another address.
    let moved = json!({ "metadata": { "annotations": { ADDRESS: "another" } }, "stringData": { "value": "old" } });
    space.secrets().patch(SECRET, &PatchParams::default(), &Patch::Merge(moved)).await?;
    let is_renewed = async || {
        let annotations = space.secrets().get(SECRET).await?.metadata.annotations.unwrap_or_default();
        let value = space.secret_entry(SECRET, "value").await?;
        Ok(annotations[ADDRESS] != "another" && value.as_deref() != Some("old"))
    };
    until("the address is the API server's own", is_renewed).await?;

    space.patch("Cluster", CLUSTER, json!({ "spec": { "paused": true } })).await?;
    space.condition("NstanceControlPlane", "Paused", "True", "Paused").await?;
    space.condition("NstanceCluster", "Paused", "True", "Paused").await?;
    let soon = space.age_token().await?;
    // Its own annotation counts as well: a round of the object has seen the Secret by then.
    let paused = |value: Value| json!({ "metadata": { "annotations": { "cluster.x-k8s.io/paused": value } } });
    space.patch("NstanceControlPlane", CLUSTER, paused(json!(""))).await?;
    // It and the Cluster are followed by two watches: a round that fills the status again has seen the annotation.
    let lacking = Patch::Merge(json!({ "status": { "conditions": null } }));
    space.api("NstanceControlPlane").patch_status(CLUSTER, &PatchParams::default(), &lacking).await?;
    space.condition("NstanceControlPlane", "Paused", "True", "Paused").await?;
    space.patch("Cluster", CLUSTER, json!({ "spec": { "paused": null } })).await?;
    space.condition("NstanceCluster", "Paused", "False", "NotPaused").await?;
    assert_eq!(space.expiry().await?, Some(soon), "nothing is written while it is paused");
    space.patch("NstanceControlPlane", CLUSTER, paused(Value::Null)).await?;
    until("the token is refreshed", async || Ok(space.expiry().await?.is_some_and(|expiry| expiry > soon))).await?;
    running.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_account_is_a_condition_with_its_remedy_and_recovers() -> Result<()> {
    let space = Space::new("cluster-account").await?;
    let running = space.run(&space.settings(shards())?, Clock::default()).await?;
    let message = space.condition("NstanceControlPlane", "KubeconfigReady", "False", "TokenRefused").await?;
    assert!(message.contains("nstance-capi-workload") && message.contains("create the ServiceAccount"), "{message}");
    space.account("nstance-capi-workload").await?;
    space.condition("NstanceControlPlane", "KubeconfigReady", "True", "KubeconfigStored").await?;
    running.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a67_a93_an_external_clusters_secret_is_the_administrators() -> Result<()> {
    let space = Space::new("cluster-external").await?;
    let mut settings = space.settings(shards())?;
    settings.workload = Workload::External { host: "api.example".to_owned(), port: 6443 };
    let running = space.run(&settings, Clock::default()).await?;
    let cluster = space.provisioned().await?;
    assert_eq!(cluster.data["spec"]["controlPlaneEndpoint"], json!({ "host": "api.example", "port": 6443 }));
    let message = space.condition("NstanceControlPlane", "KubeconfigReady", "False", "KubeconfigMissing").await?;
    assert!(message.contains(SECRET), "{message}");
    space.put_secret(SECRET, &[("value", "the administrator's")]).await?;
    space.condition("NstanceControlPlane", "KubeconfigReady", "False", "ObjectTaken").await?;
    let label = json!({ "metadata": { "labels": { "cluster.x-k8s.io/cluster-name": CLUSTER } } });
    space.secrets().patch(SECRET, &PatchParams::default(), &Patch::Merge(label)).await?;
    let message = space.condition("NstanceControlPlane", "KubeconfigReady", "False", "KubeconfigUnusable").await?;
    assert!(message.contains("kubeconfig cannot be read") && !message.contains("administrator's"), "{message}");
    let mut cluster = running.ground.workload.clone();
    assert!(cluster.borrow().is_none());
    let kubeconfig = std::fs::read_to_string(space.control_plane.kubeconfig())?;
    let value = json!({ "stringData": { "value": kubeconfig } });
    space.secrets().patch(SECRET, &PatchParams::default(), &Patch::Merge(value)).await?;
    space.condition("NstanceControlPlane", "KubeconfigReady", "True", "KubeconfigStored").await?;
    let client = cluster.wait_for(Option::is_some).await?.as_ref().context("just seen")?.client();
    Api::<Node>::all(client).list(&ListParams::default()).await.context("the kubeconfig does not work")?;
    assert_eq!(space.secret_entry(SECRET, "value").await?, Some(kubeconfig), "it is the administrator's");
    running.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a99_a_cluster_of_the_original_is_taken_over_and_a_foreign_one_left_alone() -> Result<()> {
    let space = Space::new("cluster-original").await?;
    space.workload_account().await?;
    // As the original leaves them: without a control plane, and with a kubeconfig of its own.
    let made = DynamicObject::new(CLUSTER, &resource("NstanceCluster"))
        .data(json!({ "spec": { "controlPlaneEndpoint": { "host": "10.0.0.1", "port": 443 } } }));
    space.api("NstanceCluster").create(&PostParams::default(), &made).await?;
    let reference = json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "NstanceCluster", "name": CLUSTER });
    let cluster =
        DynamicObject::new(CLUSTER, &resource("Cluster")).data(json!({ "spec": { "infrastructureRef": reference } }));
    let before = space.api("Cluster").create(&PostParams::default(), &cluster).await?;
    space.put_secret(SECRET, &[("value", "old")]).await?;
    let label = json!({ "metadata": {
        "labels": { "cluster.x-k8s.io/cluster-name": CLUSTER }, "annotations": { EXPIRY: "2026-01-01T00:00:00Z" },
    } });
    space.secrets().patch(SECRET, &PatchParams::default(), &Patch::Merge(label)).await?;
    let running = space.run(&space.settings(shards())?, Clock::default()).await?;
    let cluster = space.provisioned().await?;
    assert_eq!(cluster.metadata.uid, before.metadata.uid);
    until("the Cluster has a control plane", async || {
        let has_one = |cluster: DynamicObject| cluster.data["spec"]["controlPlaneRef"]["kind"] == "NstanceControlPlane";
        Ok(space.get("Cluster", CLUSTER).await?.is_some_and(has_one))
    })
    .await?;
    assert_eq!(cluster.data["spec"]["controlPlaneEndpoint"], json!({ "host": "10.0.0.1", "port": 443 }), "it is kept");
    until("its kubeconfig is renewed", async || {
        Ok(space.secret_entry(SECRET, "value").await?.is_some_and(|text| text.contains("current-context")))
    })
    .await?;
    running.stop().await?;

    let space = Space::new("cluster-foreign").await?;
    let reference = json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "OtherCluster", "name": "other" });
    let foreign =
        DynamicObject::new(CLUSTER, &resource("Cluster")).data(json!({ "spec": { "infrastructureRef": reference } }));
    space.api("Cluster").create(&PostParams::default(), &foreign).await?;
    let running = space.run(&space.settings(shards())?, Clock::default()).await?;
    until("the layer has begun", async || Ok(running.health.readiness().values().all(Result::is_ok))).await?;
    running.stop().await?;
    assert!(space.get("NstanceCluster", CLUSTER).await?.is_none(), "nothing is made beside it");
    assert!(space.get("Cluster", CLUSTER).await?.context("gone")?.data["spec"]["controlPlaneRef"].is_null());
    Ok(())
}
