//! A node with pods on it, in a control plane that all tests share.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    config::Kubeconfig,
    runtime::wait::await_condition,
};
use serde_json::{Value, json};
use testbed::{
    ControlPlane,
    audit::{Entry, Mark},
    fault::{FaultProxy, Seen, Verb},
    kwok,
};

use crate::engine::PATIENCE;

pub struct Place {
    pub control_plane: &'static ControlPlane,
    pub proxy: FaultProxy,
    pub client: Client,
    pub namespace: String,
    pub pods: Api<Pod>,
    pub nodes: Api<Node>,
    pub budgets: Api<PodDisruptionBudget>,
}

impl Place {
    pub async fn new() -> Result<Self> {
        let control_plane = ControlPlane::shared().await?;
        let proxy = FaultProxy::start(Kubeconfig::read_from(control_plane.kubeconfig())?, 7).await?;
        let (client, namespace) = (control_plane.client().await?, control_plane.namespace("drain").await?);
        Ok(Self {
            control_plane,
            proxy,
            pods: Api::namespaced(client.clone(), &namespace),
            nodes: Api::all(client.clone()),
            budgets: Api::namespaced(client.clone(), &namespace),
            client,
            namespace,
        })
    }

    /// A node of its own for a test, ready. Nothing is scheduled there that does not ask for it.
    pub async fn node(&self) -> Result<String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}-{}", self.namespace, COUNT.fetch_add(1, Ordering::Relaxed));
        let mut node = kwok::node(&name, 500);
        node.metadata.labels.get_or_insert_default().insert("place".to_owned(), self.namespace.clone());
        let taint = json!([{ "key": "test", "value": "drain", "effect": "NoSchedule" }]);
        node.spec.get_or_insert_default().taints = serde_json::from_value(taint)?;
        self.nodes.create(&PostParams::default(), &node).await?;
        let is_ready = |node: Option<&Node>| {
            let conditions = node.and_then(|node| node.status.as_ref()?.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
        };
        wait(self.nodes.clone(), &name, is_ready).await?;
        Ok(name)
    }

    /// A pod that was bound to the node, running unless its image says otherwise.
    pub async fn pod(&self, name: &str, node: &str, more: Value) -> Result<Pod> {
        self.create(name, node, more).await?;
        wait(self.pods.clone(), name, is_running).await.with_context(|| format!("pod {name}"))
    }

    pub async fn create(&self, name: &str, node: &str, more: Value) -> Result<Pod> {
        let mut pod = json!({
            "metadata": { "name": name, "labels": { "app": "web" } },
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 1,
                "containers": [{ "name": "main", "image": kwok::Behaviour::Ready.image() }],
            },
        });
        merge(&mut pod, more);
        Ok(self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?)
    }

    /// The pod of a DaemonSet that runs on the node alone.
    pub async fn daemon(&self, name: &str, node: &str) -> Result<Pod> {
        let labels = json!({ "daemon": name });
        let set = json!({
            "metadata": { "name": name },
            "spec": {
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": {
                    "nodeSelector": { "kubernetes.io/hostname": node },
                    "tolerations": [{ "operator": "Exists" }],
                    "containers": [{ "name": "main", "image": kwok::Behaviour::Ready.image() }],
                } },
            },
        });
        let sets = Api::<DaemonSet>::namespaced(self.client.clone(), &self.namespace);
        sets.create(&PostParams::default(), &serde_json::from_value(set)?).await?;
        let has_pod = |set: Option<&DaemonSet>| {
            set.and_then(|set| set.status.as_ref()).is_some_and(|status| status.number_ready == 1)
        };
        wait(sets, name, has_pod).await?;
        let found = self.pods.list(&kube::api::ListParams::default().labels(&format!("daemon={name}"))).await?;
        found.items.into_iter().next().context("the pod of the DaemonSet")
    }

    /// A budget for all pods with `app: web`, once its status shows so many allowed disruptions.
    pub async fn budget(&self, name: &str, least: u32, allowed: i32) -> Result<()> {
        let spec = json!({ "minAvailable": least, "selector": { "matchLabels": { "app": "web" } } });
        let budget = json!({ "metadata": { "name": name }, "spec": spec });
        self.budgets.create(&PostParams::default(), &serde_json::from_value(budget)?).await?;
        self.allows(name, allowed).await
    }

    pub async fn set_budget(&self, name: &str, least: u32) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "minAvailable": least } }));
        self.budgets.patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    pub async fn allows(&self, name: &str, allowed: i32) -> Result<()> {
        let allows = |budget: Option<&PodDisruptionBudget>| {
            let status = budget.and_then(|budget| budget.status.as_ref());
            status.is_some_and(|status| status.observed_generation.is_some() && status.disruptions_allowed == allowed)
        };
        wait(self.budgets.clone(), name, allows).await?;
        Ok(())
    }

    /// How often each pod's eviction was asked for, in the order of the first.
    pub fn evictions(&self) -> Vec<(String, usize)> {
        let mut counts: Vec<(String, usize)> = Vec::new();
        for seen in self.proxy.requests() {
            let request = seen.request;
            if request.subresource.as_deref() != Some("eviction") {
                continue;
            }
            let name = request.name.unwrap_or_default();
            match counts.iter_mut().find(|(known, _)| *known == name) {
                Some((_, count)) => *count += 1,
                None => counts.push((name, 1)),
            }
        }
        counts
    }

    /// The names of all pods that were asked to go, sorted; each was asked once.
    pub fn evicted_once(&self) -> Vec<String> {
        let evictions = self.evictions();
        assert!(evictions.iter().all(|(_, count)| *count == 1), "{evictions:?}");
        let mut names: Vec<String> = evictions.into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    }

    /// The pods whose eviction the server carried out since `mark`, sorted: at least these.
    pub async fn accepted(&self, mark: Mark, at_least: &[&str]) -> Result<Vec<String>> {
        let audit = self.control_plane.audit();
        let is_ours =
            |entry: &Entry| entry.subresource == "eviction" && entry.namespace == self.namespace && entry.code < 300;
        for name in at_least {
            audit.wait_for(mark, |entry| is_ours(entry) && entry.name == *name).await?;
        }
        let entries = audit.entries_after(mark)?.into_iter();
        let mut names: Vec<String> = entries.filter(is_ours).map(|entry| entry.name).collect();
        names.sort();
        Ok(names)
    }

    /// How often the node itself was changed since `mark`, other than by the control plane and its kubelet.
    pub fn cordons(&self, mark: Mark, node: &str) -> Result<usize> {
        let is_cordon = |entry: &Entry| {
            let is_ours = !entry.user.starts_with("system:") && !entry.user.starts_with("kwok");
            is_ours && entry.verb == "patch" && entry.name == node && entry.subresource.is_empty() && entry.code < 300
        };
        Ok(self.control_plane.audit().entries_after(mark)?.iter().filter(|entry| is_cordon(entry)).count())
    }

    /// Reads of pods; a cordon that meets the node's own report reads the node.
    pub fn reads(&self) -> usize {
        let is_read = |seen: &&Seen| seen.request.verb == Verb::Get && seen.request.is_for("pods");
        self.proxy.requests().iter().filter(is_read).count()
    }

    pub async fn is_there(&self, pod: &str) -> Result<bool> {
        Ok(self.pods.get_opt(pod).await?.is_some())
    }
}

fn is_running(pod: Option<&Pod>) -> bool {
    let phase = pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref());
    let conditions = pod.and_then(|pod| pod.status.as_ref()?.conditions.as_ref());
    let is_ready = conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"));
    matches!(phase, Some("Succeeded" | "Failed")) || is_ready
}

pub async fn wait<K>(api: Api<K>, name: &str, is_so: impl Fn(Option<&K>) -> bool) -> Result<K>
where
    K: kube::Resource + Clone + std::fmt::Debug + Send + serde::de::DeserializeOwned + 'static,
{
    tokio::time::timeout(PATIENCE, await_condition(api, name, is_so)).await??.context("it is there")
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}
