//! Everything that an operator and Cluster API do, once.

use anyhow::{Context, Result};
use api::machine::{API_VERSION, DELETE_MACHINE_ANNOTATION, GROUP, NstanceCluster, NstanceMachine, NstanceMachinePool};
use k8s_openapi::api::{
    core::v1::{Pod, Secret},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use runtime::{ListMode, rights};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, User,
    fault::{Calls, Fault, FaultProxy, Verb},
    kwok::Behaviour,
    until_allowed,
};

use crate::{
    deployment::{create_deployment, create_template},
    machine::{HOOK, pod, settled, until_gone},
    scene::Scene,
};

/// Of the operator.
const ACCOUNT: &str = "strata";
const CLUSTER: &str = "dev--default";
const BOTH: &[&str] = &["a", "b"];
/// A static group.
const FIXED: &str = "fixed";

/// Kinds that the operator writes.
const WRITTEN: [&str; 10] = [
    "clusters",
    "nstanceclusters",
    "nstancecontrolplanes",
    "nstancemachinepools",
    "nstanceshardgroups",
    "nstancemachines",
    "machinepools",
    "machines",
    "nodes",
    "secrets",
];

/// One operator in its namespace, with the layer's rights and no others, that meets a conflict at each kind of write.
pub struct Life<'a> {
    control_plane: &'a ControlPlane,
    scene: Scene,
    _proxy: FaultProxy,
}

impl<'a> Life<'a> {
    pub async fn new(control_plane: &'a ControlPlane, name: &str) -> Result<Self> {
        let groups = json!({ FIXED: { "template": "web", "size": 0 } });
        let mut scene = Scene::on(control_plane, name, BOTH, groups).await?;
        let namespace = scene.namespace.clone();
        let mut objects: Vec<Value> = rights::rbac(&namespace, ACCOUNT, machines::rights::CLUSTER).objects().into();
        let own = machines::rights::OWN_NAMESPACE;
        let (role, binding) = rights::layer_role(&namespace, ACCOUNT, "machines", own);
        objects.extend([json!(role), json!(binding)]);
        control_plane.install(&objects).await?;
        let user = User::service_account(&namespace, ACCOUNT);
        // One of the whole cluster and one of the namespace: the operator must not ask before it has them.
        for right in [rights::CLUSTER[0], own[0]] {
            until_allowed(&scene.client, &user, right.verbs[0], right.group, right.resource, &namespace).await?;
        }
        // A controller of the control plane adds the layer's role to that of Cluster API's managers.
        let manager = User::service_account("capi-system", "capi-manager");
        until_allowed(&scene.client, &manager, "get", GROUP, "nstanceclusters", "").await?;
        let upstream = Kubeconfig::read_from(control_plane.kubeconfig_as(&user).await?)?;
        let proxy = FaultProxy::start(upstream, 17).await?;
        for resource in WRITTEN {
            proxy.inject(Calls::writes(resource).at_most(1), Fault::Status(409));
        }
        proxy.inject(Calls::of(Verb::Create, "pods/eviction").at_most(1), Fault::CutBeforeCommit);
        scene.kubeconfig = Some(proxy.kubeconfig_path());
        // Streaming asks for a part of the same rights.
        scene.list_mode = Some(ListMode::Paged);
        Ok(Self { control_plane, scene, _proxy: proxy })
    }

    pub fn namespace(&self) -> &str {
        &self.scene.namespace
    }

    /// The operator, as the API server knows it.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{ACCOUNT}", self.scene.namespace)
    }

    /// What the original leaves: no control plane, no endpoint, and a token that has expired.
    async fn leave_original(&self) -> Result<()> {
        let metadata = json!({ "name": CLUSTER, "namespace": self.scene.namespace });
        let reference = json!({ "apiGroup": GROUP, "kind": "NstanceCluster", "name": CLUSTER });
        let secret = json!({
            "name": format!("{CLUSTER}-kubeconfig"), "namespace": self.scene.namespace,
            "labels": { "cluster.x-k8s.io/cluster-name": CLUSTER },
            "annotations": { "nstance.dev/token-expiry": "2026-01-01T00:00:00Z" },
        });
        let objects = [
            json!({ "apiVersion": API_VERSION, "kind": "NstanceCluster", "metadata": metadata, "spec": {} }),
            json!({
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": metadata,
                "spec": { "infrastructureRef": reference },
            }),
            json!({ "apiVersion": "v1", "kind": "Secret", "metadata": secret, "stringData": { "value": "old" } }),
        ];
        Ok(self.control_plane.install(&objects).await?)
    }

    pub async fn lead(&mut self) -> Result<()> {
        self.leave_original().await?;
        self.scene.start().await?;
        let scene = &self.scene;
        scene.until("the static group is imported", || async { Ok(scene.pool(FIXED).await?.is_some()) }).await?;
        self.lead_a_pool().await.context("a pool")?;
        self.serve_a_pod().await.context("a Pod on demand")?;
        self.lose_a_stray().await.context("a stray")?;
        let nonce = self.scene.api::<Secret>().get_opt("nstance-operator-nonce").await?;
        assert!(nonce.is_none(), "the nonce was used");
        self.leave_a_drain_to_cluster_api().await.context("Cluster API's own drain")?;
        self.delete_the_cluster().await.context("the Cluster goes")?;
        self.scene.stop().await
    }

    /// A pool grows, shrinks through a drain, leaves a shard and goes.
    async fn lead_a_pool(&self) -> Result<()> {
        let (scene, name) = (&self.scene, "web");
        let everywhere = json!({ "selector": {}, "namespaceSelector": {} });
        let rule = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDrainRule",
            "metadata": { "name": "all", "namespace": scene.namespace },
            "spec": { "drain": { "behavior": "Drain", "order": 1 }, "pods": [everywhere] },
        });
        self.control_plane.install(&[rule]).await?;
        scene.create_pool(name, BOTH, Some(2)).await?;
        let victim = settled(scene, 2).await?.remove(0);
        pod(scene, "one", &victim).await?;
        let mark = Patch::Merge(json!({ "metadata": { "annotations": { DELETE_MACHINE_ANNOTATION: "" } } }));
        scene.capi("Machine").patch(&victim, &PatchParams::default(), &mark).await?;
        scene.scale(name, 1).await?;
        settled(scene, 1).await?;
        assert!(scene.api::<Pod>().get_opt("one").await?.is_none(), "it was evicted");
        scene.scale(name, 0).await?;
        settled(scene, 0).await?;
        scene.patch_pool(name, json!({ "spec": { "shards": ["a"] } })).await?;
        let is_left = || async { Ok(scene.shard_group(name, "b").await?.is_none()) };
        scene.until("a shard is left", is_left).await?;
        scene.delete::<NstanceMachinePool>(name).await?;
        scene.until("the pool is gone", || async { Ok(scene.pool(name).await?.is_none()) }).await
    }

    /// A Pod gets a Machine, which goes with it.
    async fn serve_a_pod(&self) -> Result<()> {
        let scene = &self.scene;
        let pod = json!({
            "metadata": { "name": "job", "annotations": { "on-demand.nstance.dev/group": FIXED } },
            "spec": {
                "containers": [{ "name": "main", "image": Behaviour::Ready.image() }],
                "nodeSelector": { "strata.test/room": "none" }, "terminationGracePeriodSeconds": 0,
            },
        });
        scene.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        settled(scene, 1).await?;
        scene.api::<Pod>().delete("job", &DeleteParams::default()).await?;
        settled(scene, 0).await?;
        Ok(())
    }

    /// A machine without a Machine, whose instance the shard does not have.
    async fn lose_a_stray(&self) -> Result<()> {
        let members = self.scene.api::<NstanceMachine>();
        let stray = json!({
            "apiVersion": API_VERSION, "kind": "NstanceMachine", "metadata": { "name": "stray" },
            "spec": { "group": FIXED },
        });
        members.create(&PostParams::default(), &serde_json::from_value(stray)?).await?;
        let gone = Patch::Merge(json!({ "status": { "instanceID": "web01m7k4a7qtena80xdxrz0awstj", "shard": "a" } }));
        members.patch_status("stray", &PatchParams::default(), &gone).await?;
        self.scene.until("the stray is gone", || async { Ok(members.get_opt("stray").await?.is_none()) }).await
    }

    /// The operator is away, and a Machine without our hook is deleted: Cluster API drains its Node, on which a DaemonSet
    /// has a pod and a volume is attached.
    async fn leave_a_drain_to_cluster_api(&mut self) -> Result<()> {
        let scene = &self.scene;
        create_template(scene, "plain", FIXED, "plain").await?;
        create_deployment(scene, "plain", "plain", 1).await?;
        let machine = settled(scene, 1).await?.remove(0);
        let member = scene.api::<NstanceMachine>().get(&machine).await?;
        let node = member.status.and_then(|status| status.instance_id).context("its instance")?;
        self.scene.stop().await?;
        let scene = &self.scene;
        pod(scene, "two", &node).await?;
        self.run_a_daemon(&node).await?;
        let volume = self.attach_a_volume(&node).await?;
        let unhook = Patch::Merge(json!({ "metadata": { "annotations": { HOOK: null } } }));
        scene.capi("Machine").patch(&machine, &PatchParams::default(), &unhook).await?;
        scene.capi("MachineDeployment").delete("plain", &DeleteParams::default()).await?;
        let has_looked = || async {
            let entries = self.control_plane.audit().entries()?;
            let account = format!("system:serviceaccount:{}:{}", scene.namespace, super::WORKLOAD);
            Ok(entries.iter().any(|entry| entry.user == account && entry.resource == "persistentvolumes"))
        };
        scene.until("Cluster API waits for the volume", has_looked).await?;
        assert!(scene.api::<Pod>().get_opt("two").await?.is_none(), "it was evicted");
        Api::<VolumeAttachment>::all(scene.client.clone()).delete(&volume, &DeleteParams::default()).await?;
        self.scene.start().await?;
        until_gone(&self.scene, &machine).await
    }

    async fn run_a_daemon(&self, node: &str) -> Result<()> {
        let labels = json!({ "app": "daemon" });
        let template = json!({ "metadata": { "labels": labels }, "spec": {
            "nodeName": node, "tolerations": [{ "operator": "Exists" }],
            "containers": [{ "name": "main", "image": Behaviour::Ready.image() }],
        }});
        let daemon = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "name": "daemon", "namespace": self.scene.namespace },
            "spec": { "selector": { "matchLabels": labels }, "template": template },
        });
        self.control_plane.install(&[daemon]).await?;
        let pods = self.scene.api::<Pod>();
        let selection = ListParams::default().labels("app=daemon");
        self.scene.until("the daemon runs", || async { Ok(!pods.list(&selection).await?.items.is_empty()) }).await
    }

    async fn attach_a_volume(&self, node: &str) -> Result<String> {
        let name = format!("{}-volume", self.scene.namespace);
        let attachment = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": { "name": name },
            "spec": { "attacher": "test", "nodeName": node, "source": { "persistentVolumeName": name } },
        });
        let attachments = Api::<VolumeAttachment>::all(self.scene.client.clone());
        attachments.create(&PostParams::default(), &serde_json::from_value(attachment)?).await?;
        let attached = Patch::Merge(json!({ "status": { "attached": true } }));
        attachments.patch_status(&name, &PatchParams::default(), &attached).await?;
        Ok(name)
    }

    /// Cluster API takes all that belongs to the Cluster with it, and the operator makes both anew, one after the other.
    async fn delete_the_cluster(&self) -> Result<()> {
        let scene = &self.scene;
        let (clusters, owners) = (scene.api::<NstanceCluster>(), scene.capi("Cluster"));
        let uids = || async {
            let cluster = clusters.get_opt(CLUSTER).await?.and_then(|found| found.metadata.uid);
            let owner = owners.get_opt(CLUSTER).await?.and_then(|found| found.metadata.uid);
            anyhow::Ok([cluster, owner])
        };
        let before = uids().await?;
        owners.delete(CLUSTER, &DeleteParams::default()).await?;
        let are_others = || async {
            let now = uids().await?;
            Ok(now.iter().zip(&before).all(|(now, before)| now.is_some() && now != before))
        };
        scene.until("another NstanceCluster and another Cluster are there", are_others).await
    }
}
