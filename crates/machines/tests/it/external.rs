//! The workload cluster is another one: Nodes, drains and Pods are of that, reached by the administrator's kubeconfig.

use anyhow::{Context, Result};
use api::machine::{NstanceControlPlane, NstanceMachine, PRE_DRAIN_HOOK};
use k8s_openapi::api::{
    core::v1::{Node, Pod, Secret},
    events::v1::Event,
    policy::v1::PodDisruptionBudget,
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{ControlPlane, Options, User, kwok::Behaviour};

use crate::scene::Scene;

const CLUSTER: &str = "dev--default";
const SECRET: &str = "dev--default-kubeconfig";

/// An operator and its objects in the shared control plane, and the cluster that its instances join.
struct Abroad {
    scene: Scene,
    workload: ControlPlane,
    /// Reaches the workload cluster.
    client: Client,
    /// There.
    team: String,
}

impl Abroad {
    /// Without a kubeconfig of the workload cluster.
    async fn new(name: &str) -> Result<Self> {
        let workload = ControlPlane::start(Options { fsync: false, ..Options::default() }).await?;
        let team = workload.namespace("team").await?;
        let client = workload.client().await?;
        let mut scene = Scene::joining(client.clone(), name, &["a"], json!({})).await?;
        scene.endpoint = Some(workload.server().to_owned());
        scene.start().await?;
        Ok(Self { scene, workload, client, team })
    }

    /// The kubeconfig of a user who may do everything there until [`Self::dismiss`].
    async fn engage(&self, user: &str) -> Result<()> {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": user },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
        });
        self.workload.install(&[binding]).await?;
        let path = self.workload.kubeconfig_as(&User::Named { name: user.to_owned(), group: None }).await?;
        self.store(&std::fs::read_to_string(path)?).await
    }

    async fn dismiss(&self, user: &str) -> Result<()> {
        let bindings = Api::<ClusterRoleBinding>::all(self.client.clone());
        bindings.delete(user, &DeleteParams::default()).await?;
        Ok(())
    }

    /// As an administrator makes and rotates it.
    async fn store(&self, kubeconfig: &str) -> Result<()> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": { "name": SECRET, "labels": { "cluster.x-k8s.io/cluster-name": CLUSTER } },
            "stringData": { "value": kubeconfig },
        });
        let apply = PatchParams::apply("administrator").force();
        self.scene.api::<Secret>().patch(SECRET, &apply, &Patch::Apply(secret)).await?;
        Ok(())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.team)
    }

    fn budgets(&self) -> Api<PodDisruptionBudget> {
        Api::namespaced(self.client.clone(), &self.team)
    }

    async fn machines(&self) -> Result<Vec<DynamicObject>> {
        Ok(self.scene.capi("Machine").list(&ListParams::default()).await?.items)
    }

    /// Until so many Machines have Nodes and our hook, and are not under deletion; their names.
    async fn settled(&self, count: usize) -> Result<Vec<String>> {
        let is_settled = |machine: &DynamicObject| {
            let has_hook = machine.metadata.annotations.iter().any(|all| all.contains_key(PRE_DRAIN_HOOK));
            let is_linked = machine.data["status"]["nodeRef"]["name"].is_string();
            is_linked && has_hook && machine.metadata.deletion_timestamp.is_none()
        };
        let look = || async {
            let found = self.machines().await?;
            Ok(found.len() == count && found.iter().all(is_settled))
        };
        self.scene.until(&format!("{count} Machines with Nodes"), look).await?;
        Ok(self.machines().await?.into_iter().filter_map(|machine| machine.metadata.name).collect())
    }

    /// A pod of the workload cluster on this Node, and a budget that allows no eviction of it.
    async fn hold(&self, name: &str, node: &str) -> Result<()> {
        let pod = json!({
            "metadata": { "name": name, "labels": { "app": name } },
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 1, "tolerations": [{ "operator": "Exists" }],
                "containers": [{ "name": "main", "image": Behaviour::Ready.image() }],
            },
        });
        self.pods().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let spec = json!({ "minAvailable": 1, "selector": { "matchLabels": { "app": name } } });
        let budget = json!({ "metadata": { "name": name }, "spec": spec });
        self.budgets().create(&PostParams::default(), &serde_json::from_value(budget)?).await?;
        let is_counted = || async { Ok(json!(self.budgets().get(name).await?.status)["currentHealthy"] == 1) };
        self.scene.until("the budget counts the pod", is_counted).await
    }

    async fn release(&self, name: &str) -> Result<()> {
        self.budgets().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Gives up one Machine, and the replica with it.
    async fn delete_machine(&self, name: &str, replicas: i32) -> Result<()> {
        self.scene.capi("Machine").delete(name, &DeleteParams::default()).await?;
        self.scene.scale("web", replicas).await
    }

    /// Waits until a condition has this status and reason, and words; of a machine, or of the control plane.
    async fn until_said(&self, object: &str, condition: &str, expected: &str, words: &str) -> Result<()> {
        let look = || async {
            let status = if object == CLUSTER {
                json!(self.scene.api::<NstanceControlPlane>().get_opt(object).await?.and_then(|found| found.status))
            } else {
                json!(self.scene.api::<NstanceMachine>().get_opt(object).await?.and_then(|found| found.status))
            };
            let all = status["conditions"].as_array().cloned().unwrap_or_default();
            let is_it = |one: &Value| {
                let word = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
                one["type"] == condition
                    && format!("{}/{}", word("status"), word("reason")) == expected
                    && word("message").contains(words)
            };
            Ok(all.iter().any(is_it))
        };
        self.scene.until(&format!("{object} {condition}={expected}: {words}"), look).await
    }

    async fn until_gone(&self, machine: &str) -> Result<()> {
        let look = || async { Ok(self.scene.capi("Machine").get_opt(machine).await?.is_none()) };
        self.scene.until(&format!("Machine {machine} is gone"), look).await?;
        assert!(!self.has_instance(machine), "its instance is gone before");
        Ok(())
    }

    fn has_instance(&self, id: &str) -> bool {
        self.scene.zones.cloud.machines().iter().any(|machine| machine.instance_id == id)
    }

    /// A Pod there gets a Machine here, and an event there.
    async fn serve_a_pod(&self, name: &str) -> Result<()> {
        let pod = json!({
            "metadata": { "name": name, "annotations": { "on-demand.nstance.dev/group": "web" } },
            "spec": {
                "containers": [{ "name": "main", "image": Behaviour::Ready.image() }],
                "nodeSelector": { "strata.test/room": "none" }, "terminationGracePeriodSeconds": 0,
            },
        });
        let pod = self.pods().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let uid = pod.metadata.uid.context("a uid")?;
        let selection = ListParams::default().labels(&format!("nstance.dev/on-demand-pod-uid={uid}"));
        let found = || async { Ok(self.scene.capi("Machine").list(&selection).await?.items) };
        let is_linked = || async {
            let found: Vec<DynamicObject> = found().await.map_err(|error: kube::Error| error)?;
            Ok(found.iter().any(|machine| machine.data["status"]["nodeRef"]["name"].is_string()))
        };
        self.scene.until("the Pod's Machine has a Node", is_linked).await?;
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.team);
        let is_recorded = || async {
            let all = events.list(&ListParams::default()).await?;
            Ok(all.items.iter().any(|event| event.reason.as_deref() == Some("OnDemandRequested")))
        };
        self.scene.until("an event of the Pod, beside it", is_recorded).await?;
        self.pods().delete(name, &DeleteParams::default()).await?;
        let is_gone = || async { Ok(found().await.map_err(|error: kube::Error| error)?.is_empty()) };
        self.scene.until("its Machine is gone", is_gone).await
    }
}

#[tokio::test]
async fn a93_nodes_drains_and_pods_are_those_of_the_external_cluster() -> Result<()> {
    let abroad = Abroad::new("external").await?;
    let scene = &abroad.scene;
    scene.create_pool("web", &["a"], Some(3)).await?;
    abroad.until_said(CLUSTER, "KubeconfigReady", "False/KubeconfigMissing", SECRET).await?;
    scene.until_sizes("web", &["a"], &[Some(3)]).await?;

    abroad.engage("first").await?;
    let members = abroad.settled(3).await?;
    abroad.until_said(CLUSTER, "KubeconfigReady", "True/KubeconfigStored", "").await?;
    let here = Api::<Node>::all(scene.client.clone());
    let there = Api::<Node>::all(abroad.client.clone());
    for member in &members {
        assert!(here.get_opt(member).await?.is_none() && there.get_opt(member).await?.is_some(), "{member}");
    }

    // A budget there holds the drain.
    let victim = &members[0];
    abroad.hold("one", victim).await?;
    abroad.delete_machine(victim, 2).await?;
    let pod = format!("pod {}/one", abroad.team);
    abroad.until_said(victim, "Drained", "False/BlockedByPDB", &pod).await?;
    assert_eq!(there.get(victim).await?.spec.and_then(|spec| spec.unschedulable), Some(true), "cordoned");

    // With the kubeconfig that the administrator puts in its place the drain goes on; the former one is worth nothing.
    abroad.engage("second").await?;
    let is_used = || async {
        let entries = abroad.workload.audit().entries()?;
        Ok(entries.iter().any(|entry| entry.user == "second" && entry.resource == "nodes" && entry.code == 200))
    };
    abroad.dismiss("first").await?;
    assert!(abroad.has_instance(victim), "a budget holds it");
    abroad.release("one").await?;
    abroad.until_gone(victim).await?;
    scene.until("the new user's requests", is_used).await?;
    assert!(abroad.pods().get_opt("one").await?.is_none(), "it was evicted");
    assert_eq!(scene.zones.cloud.made(), 3, "none was replaced");
    abroad.serve_a_pod("job").await
}

#[tokio::test]
async fn a93_nothing_is_lost_while_the_external_cluster_is_away() -> Result<()> {
    let abroad = Abroad::new("external-away").await?;
    let scene = &abroad.scene;
    abroad.engage("first").await?;
    scene.create_pool("web", &["a"], Some(3)).await?;
    let members = abroad.settled(3).await?;
    let (held, deleted) = (&members[0], &members[1]);
    abroad.hold("one", held).await?;
    abroad.delete_machine(held, 2).await?;
    abroad.until_said(held, "Drained", "False/BlockedByPDB", "one").await?;

    abroad.workload.apiserver().kill().await?;
    abroad.until_said(CLUSTER, "KubeconfigReady", "False/WorkloadUnreachable", "does not answer").await?;
    abroad.until_said(held, "Drained", "False/Draining", "not known").await?;
    abroad.delete_machine(deleted, 1).await?;
    abroad.until_said(deleted, "Drained", "Unknown/StateUnknown", "the Node is not known").await?;
    // Two lists of the shard later nothing has gone.
    tokio::time::sleep(crate::scene::POLL * 2).await;
    assert!(members.iter().all(|member| abroad.has_instance(member)), "{:?}", scene.zones.cloud.machines());
    assert_eq!(abroad.machines().await?.len(), 3);
    let pool = scene.pool("web").await?.and_then(|pool| pool.spec).context("the pool")?;
    assert_eq!(pool.provider_id_list.len(), 3, "{:?}", pool.provider_id_list);

    abroad.workload.apiserver().restart().await?;
    abroad.workload.ready().await?;
    abroad.until_said(CLUSTER, "KubeconfigReady", "True/KubeconfigStored", "").await?;
    abroad.until_gone(deleted).await?;
    assert!(abroad.has_instance(held), "its budget holds it still");
    abroad.release("one").await?;
    abroad.until_gone(held).await?;
    assert_eq!(abroad.settled(1).await?, [members[2].clone()]);
    assert_eq!(scene.zones.cloud.made(), 3, "none was replaced");

    // A kubeconfig of another cluster, where none of the Nodes are: the former one goes on to be used.
    abroad.store(&std::fs::read_to_string(ControlPlane::shared().await?.kubeconfig())?).await?;
    abroad.until_said(CLUSTER, "KubeconfigReady", "False/KubeconfigUnusable", "another cluster than before").await?;
    let last = &members[2];
    abroad.hold("two", last).await?;
    abroad.delete_machine(last, 0).await?;
    abroad.until_said(last, "Drained", "False/BlockedByPDB", "two").await?;
    assert!(abroad.has_instance(last), "its budget holds it");
    Ok(())
}
