//! Cluster API's core controllers: their webhooks, their controllers, and both after a kill.

use anyhow::{Context, Result};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
    core::Status,
};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, Options, User,
    capi::{self, ClusterApi},
};

use crate::eventually;

#[tokio::test]
async fn cluster_api_defaults_refuses_and_reconciles_also_after_a_kill_and_a_later_start() -> Result<()> {
    let control_plane = ControlPlane::start(Options { fsync: false, ..Options::bare() }).await?;
    let wrong = capi::Options { flags: vec!["--no-such-flag".to_owned()] };
    let error = ClusterApi::start(&control_plane, &wrong).await.err().context("it starts")?.to_string();
    assert!(error.contains("capi ended") && error.contains("no-such-flag") && error.contains("capi.log"), "{error}");

    let scene = Scene::new(&control_plane).await?;
    let capi = ClusterApi::start(&control_plane, &capi::Options::default()).await?;
    scene.only_the_stored_version_is_served().await?;
    scene.a_pool_is_defaulted("web").await?;
    scene.a_bad_cluster_is_refused().await?;
    scene.a_cluster_is_reconciled("first").await?;

    let before = capi.child().pid();
    capi.child().kill().await?;
    let error = scene.refusal(&scene.clusters_once, &cluster("while-down")).await?;
    assert!(error.message.contains("failed calling webhook"), "{error:?}");
    capi.restart(&control_plane).await?;
    assert_ne!(capi.child().pid(), before);
    scene.a_cluster_is_reconciled("second").await?;

    capi.stop().await?;
    let capi = ClusterApi::start(&control_plane, &capi::Options::default()).await?;
    scene.a_bad_cluster_is_refused().await?;
    scene.a_cluster_is_reconciled("third").await?;
    capi.stop().await?;
    Ok(control_plane.stop().await?)
}

/// Group, version and kind.
type Kind = [&'static str; 3];

const CLUSTER: Kind = ["cluster.x-k8s.io", "v1beta2", "Cluster"];
const POOL: Kind = ["cluster.x-k8s.io", "v1beta2", "MachinePool"];
const INFRASTRUCTURE: Kind = ["infrastructure.cluster.x-k8s.io", "v1beta1", "TestCluster"];

/// A namespace, and a minimal infrastructure provider that has done its part.
struct Scene {
    client: Client,
    clusters: Api<DynamicObject>,
    /// Through a client that tries once: a webhook that does not answer is an answer.
    clusters_once: Api<DynamicObject>,
    pools: Api<DynamicObject>,
    infrastructure: Api<DynamicObject>,
}

impl Scene {
    async fn new(control_plane: &ControlPlane) -> Result<Self> {
        control_plane.install(&[infrastructure_definition()]).await?;
        let (client, namespace) = (control_plane.client().await?, control_plane.namespace("capi").await?);
        let once = Client::try_from(control_plane.config_as(&User::admin()).await?)?;
        let api = |kind: Kind| Api::namespaced_with(client.clone(), &namespace, &resource(kind));
        let clusters_once = Api::namespaced_with(once, &namespace, &resource(CLUSTER));
        let (clusters, pools, infrastructure) = (api(CLUSTER), api(POOL), api(INFRASTRUCTURE));
        Ok(Self { client, clusters, clusters_once, pools, infrastructure })
    }

    async fn only_the_stored_version_is_served(&self) -> Result<()> {
        let groups = self.client.list_api_groups().await?.groups;
        let group = groups.into_iter().find(|group| group.name == "cluster.x-k8s.io").context("no such group")?;
        let versions: Vec<_> = group.versions.into_iter().map(|version| version.version).collect();
        assert_eq!(versions, ["v1beta2"]);
        Ok(())
    }

    async fn a_pool_is_defaulted(&self, name: &str) -> Result<()> {
        let infrastructure = json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "TestPool", "name": name });
        let template = json!({ "spec": {
            "clusterName": "none",
            "bootstrap": { "dataSecretName": "" },
            "infrastructureRef": infrastructure,
        }});
        let pool = object(POOL, name, &json!({ "clusterName": "none", "template": template }));
        let pool = self.pools.create(&PostParams::default(), &pool).await?;
        assert_eq!(pool.data["spec"]["replicas"], 1);
        let label = pool.metadata.labels.as_ref().and_then(|labels| labels.get("cluster.x-k8s.io/cluster-name"));
        assert_eq!(label.map(String::as_str), Some("none"));
        Ok(())
    }

    async fn a_bad_cluster_is_refused(&self) -> Result<()> {
        let mut bad = cluster("bad");
        bad.data["spec"]["clusterNetwork"] = json!({ "pods": { "cidrBlocks": ["not-a-network"] } });
        let error = self.refusal(&self.clusters, &bad).await?;
        let webhook = "admission webhook \"validation.cluster.cluster.x-k8s.io\" denied the request";
        assert!(error.message.contains(webhook) && error.message.contains("not-a-network"), "{error:?}");
        Ok(())
    }

    /// Accepted by the webhook, and connected to its infrastructure by the controllers.
    async fn a_cluster_is_reconciled(&self, name: &str) -> Result<()> {
        let endpoint = json!({ "controlPlaneEndpoint": { "host": "127.0.0.1", "port": 6443 } });
        let mut infrastructure = object(INFRASTRUCTURE, name, &endpoint);
        infrastructure.data["status"] = json!({ "initialization": { "provisioned": true } });
        self.infrastructure.create(&PostParams::default(), &infrastructure).await?;
        self.clusters.create(&PostParams::default(), &cluster(name)).await?;
        // The controllers write spec, conditions and the rest of the status one after another.
        let is_provisioned = |cluster: Option<&DynamicObject>| {
            let Some(DynamicObject { data, .. }) = cluster else { return false };
            let (spec, status) = (&data["spec"], &data["status"]);
            let is_ready = |one: &Value| one["type"] == "InfrastructureReady" && one["status"] == "True";
            status["conditions"].as_array().is_some_and(|conditions| conditions.iter().any(is_ready))
                && status["initialization"]["infrastructureProvisioned"] == true
                && spec["controlPlaneEndpoint"]["port"] == 6443
        };
        eventually(&self.clusters, name, is_provisioned).await?;
        let infrastructure = self.infrastructure.get(name).await?;
        let owners = infrastructure.metadata.owner_references.unwrap_or_default();
        assert!(owners.iter().any(|owner| owner.kind == "Cluster" && owner.name == name), "{owners:?}");
        Ok(())
    }

    async fn refusal(&self, api: &Api<DynamicObject>, object: &DynamicObject) -> Result<Box<Status>> {
        match api.create(&PostParams::default(), object).await {
            Err(kube::Error::Api(status)) => Ok(status),
            other => anyhow::bail!("not refused: {other:?}"),
        }
    }
}

fn cluster(name: &str) -> DynamicObject {
    let reference = json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "TestCluster", "name": name });
    object(CLUSTER, name, &json!({ "infrastructureRef": reference }))
}

fn object(kind: Kind, name: &str, spec: &Value) -> DynamicObject {
    DynamicObject::new(name, &resource(kind)).data(json!({ "spec": spec }))
}

fn resource([group, version, kind]: Kind) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

/// Found by Cluster API by the label that says which version follows which contract.
fn infrastructure_definition() -> Value {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "testclusters.infrastructure.cluster.x-k8s.io",
            "labels": { "cluster.x-k8s.io/v1beta2": "v1beta1" },
        },
        "spec": {
            "group": "infrastructure.cluster.x-k8s.io",
            "names": { "kind": "TestCluster", "plural": "testclusters" },
            "scope": "Namespaced",
            "versions": [
                { "name": "v1beta1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } },
            ],
        },
    })
}
