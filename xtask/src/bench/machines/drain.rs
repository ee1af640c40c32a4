//! Drains by our engine and by kubectl, each on nodes of its own of the same cluster.

use std::{
    collections::BTreeSet,
    process::Stdio,
    time::{Duration, Instant},
};

use ::drain::{Drains, Request};
use anyhow::{Context, Result, bail, ensure};
use futures::{
    StreamExt, TryStreamExt,
    future::try_join_all,
    stream::{self, LocalBoxStream},
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use plan::drain::{End, Order};
use process::Clock;
use runtime::{Alone, alone};
use serde::Serialize;
use serde_json::json;
use testbed::{ControlPlane, Options, User, Workloads, audit::Entry, kwok};

use crate::bench::{crowd, ground::WRITERS, progress, tally::each};

/// Nodes of one group of them hold so many.
const PODS: usize = 20;
/// As many as a node has by default.
const FULL: usize = 110;
/// Of a budget: how many pods may be away at once.
const AWAY: usize = 20;
/// What kubectl is run for at once: it drains the nodes of one command one after another.
const KUBECTLS: usize = 10;
/// Far above what a drain of so many pods has taken.
const PATIENCE: Duration = Duration::from_mins(10);
/// Answers of the API server.
const ANSWER: Duration = Duration::from_secs(30);

/// Who drains, as the audit log names them.
const OURS: &str = "bench-strata";
const THEIRS: &str = "bench-kubectl";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    pub what: String,
    pub is_ours: bool,
    pub is_budgeted: bool,
    pub nodes: usize,
    pub pods: usize,
    pub wall_seconds: f64,
    /// From the end of the last pod, as a watch shows it, to the end of the drain.
    pub beyond_ms: f64,
    pub evictions_each: f64,
    /// Evictions that the server refused, because a budget was used up.
    pub refused_each: f64,
    pub gets_each: f64,
    pub lists: usize,
}

type Events = LocalBoxStream<'static, kube::Result<WatchEvent<Pod>>>;

/// What is drained.
struct Load {
    name: &'static str,
    nodes: usize,
    pods: usize,
    is_budgeted: bool,
}

pub async fn measure(nodes: usize) -> Result<Vec<Drain>> {
    progress("starting a control plane for drains");
    let options = Options { workloads: Some(Workloads::large()), ..Options::default() };
    let control_plane = ControlPlane::start(options).await?;
    let loads = [
        Load { name: "many", nodes, pods: PODS, is_budgeted: false },
        Load { name: "full", nodes: 1, pods: FULL, is_budgeted: false },
        Load { name: "budget", nodes: 1, pods: FULL, is_budgeted: true },
    ];
    let mut drains = Vec::new();
    for load in loads {
        for is_ours in [true, false] {
            let who = if is_ours { "strata" } else { "kubectl" };
            progress(&format!("drain of {} × {} pods by {who}", load.nodes, load.pods));
            let scene = Scene::create(&control_plane, &load, who).await?;
            drains.push(scene.measure(is_ours).await?);
        }
    }
    control_plane.stop().await?;
    Ok(drains)
}

/// Nodes with pods, in a namespace of their own.
struct Scene<'a> {
    control_plane: &'a ControlPlane,
    load: &'a Load,
    nodes: Vec<String>,
    pods: Api<Pod>,
    namespace: String,
}

impl<'a> Scene<'a> {
    async fn create(control_plane: &'a ControlPlane, load: &'a Load, who: &str) -> Result<Self> {
        let client = control_plane.client().await?;
        let namespace = control_plane.namespace(&format!("{}-{who}", load.name)).await?;
        let names: Vec<_> = (0..load.nodes).map(|number| format!("{namespace}-{number:03}")).collect();
        let nodes = &Api::<Node>::all(client.clone());
        let count = u32::try_from(load.pods)?;
        let create = |name: String| async move {
            let mut node = kwok::node(&name, count);
            // Only what is put there is there.
            node.spec = serde_json::from_value(json!({ "taints": [{ "key": "bench", "effect": "NoSchedule" }] }))?;
            nodes.create(&PostParams::default(), &node).await?;
            anyhow::Ok(())
        };
        stream::iter(names.iter().cloned().map(create)).buffer_unordered(WRITERS).try_collect::<()>().await?;
        let pods = Api::namespaced(client, &namespace);
        let scene = Self { control_plane, load, nodes: names, pods, namespace };
        if load.is_budgeted {
            // The scheduler spreads pods over all nodes that it may use.
            scene.cordon_others(true).await?;
            scene.deploy().await?;
        } else {
            scene.place().await?;
        }
        scene.until_ready().await?;
        if load.is_budgeted {
            scene.cordon_others(false).await?;
        }
        Ok(scene)
    }

    fn count(&self) -> usize {
        self.load.nodes * self.load.pods
    }

    /// Pods that nothing makes again.
    async fn place(&self) -> Result<()> {
        let pods = &self.pods;
        let pod = |(node, number): (String, usize)| async move {
            let pod = json!({
                "metadata": { "name": format!("{node}-{number:03}") },
                "spec": {
                    "nodeName": node, "terminationGracePeriodSeconds": 1, "tolerations": [{ "operator": "Exists" }],
                    "containers": [{ "name": "main", "image": "registry.test/ready:1" }],
                },
            });
            pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
            anyhow::Ok(())
        };
        let all = self.nodes.iter().flat_map(|node| (0..self.load.pods).map(|number| (node.clone(), number)));
        stream::iter(all.map(pod)).buffer_unordered(WRITERS).try_collect().await
    }

    /// All nodes but those that are drained.
    async fn cordon_others(&self, is_cordoned: bool) -> Result<()> {
        let nodes = Api::<Node>::all(self.control_plane.client().await?);
        let patch = Patch::Merge(json!({ "spec": { "unschedulable": is_cordoned } }));
        for name in nodes.list(&ListParams::default()).await?.items.into_iter().filter_map(|node| node.metadata.name) {
            if !self.nodes.contains(&name) {
                nodes.patch(&name, &PatchParams::default(), &patch).await?;
            }
        }
        Ok(())
    }

    /// Pods of a Deployment with a budget: those that go are made again on other nodes.
    async fn deploy(&self) -> Result<()> {
        let labels = json!({ "app": "budget" });
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "budget", "namespace": self.namespace },
            "spec": {
                "replicas": self.load.pods, "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "terminationGracePeriodSeconds": 1,
                        "tolerations": [{ "key": "bench", "operator": "Exists" }],
                        "containers": [{ "name": "main", "image": "registry.test/ready:1" }],
                    },
                },
            },
        });
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "name": "budget", "namespace": self.namespace },
            "spec": { "maxUnavailable": AWAY, "selector": { "matchLabels": labels } },
        });
        Ok(self.control_plane.install(&[deployment, budget]).await?)
    }

    async fn until_ready(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let all = self.pods.list(&ListParams::default()).await?.items;
            if all.iter().filter(|pod| crowd::is_pod_ready(pod)).count() == self.count() {
                break;
            }
            ensure!(Instant::now() < deadline, "the pods do not run");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        // The budget must have counted them.
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(())
    }

    /// Pods on the nodes now, and a watch of all that happens to pods from then on.
    async fn follow(&self) -> Result<(BTreeSet<String>, Events)> {
        let all = self.pods.list(&ListParams::default()).await?;
        let version = all.metadata.resource_version.as_deref().unwrap_or_default();
        let events = self.pods.watch(&WatchParams::default().timeout(290), version).await?.boxed_local();
        let is_here = |pod: &Pod| {
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()).is_some_and(|node| self.nodes.contains(node))
        };
        Ok((all.items.into_iter().filter(is_here).filter_map(|pod| pod.metadata.name).collect(), events))
    }

    async fn measure(&self, is_ours: bool) -> Result<Drain> {
        let (there, events) = self.follow().await?;
        let pods = there.len();
        ensure!(pods == self.count(), "only {pods} of {} pods are on the nodes", self.count());
        let mark = self.control_plane.audit().mark()?;
        let started = Instant::now();
        let drain = async { if is_ours { self.by_engine().await } else { self.by_kubectl().await } };
        let both = futures::future::try_join(drain, self.last_gone(there, events));
        let (ended, last) = tokio::time::timeout(PATIENCE, both).await.context("the drain does not end")??;
        // The log is written with the answers.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let entries = self.control_plane.audit().entries_after(mark)?;
        let user = if is_ours { OURS } else { THEIRS };
        let of_user = |verb: &str, resource: &str, subresource: &str| {
            let is_it = |entry: &&Entry| {
                entry.user == user
                    && (entry.verb.as_str(), entry.resource.as_str(), entry.subresource.as_str())
                        == (verb, resource, subresource)
            };
            entries.iter().filter(is_it).cloned().collect::<Vec<_>>()
        };
        let evictions = of_user("create", "pods", "eviction");
        let refused = evictions.iter().filter(|entry| entry.code == 429).count();
        Ok(Drain {
            what: format!(
                "{} × {} pods{}",
                self.load.nodes,
                self.load.pods,
                if self.load.is_budgeted { ", budget" } else { "" }
            ),
            is_ours,
            is_budgeted: self.load.is_budgeted,
            nodes: self.load.nodes,
            pods,
            wall_seconds: ended.duration_since(started).as_secs_f64(),
            beyond_ms: ended.saturating_duration_since(last).as_secs_f64() * 1000.0,
            evictions_each: each(evictions.len(), pods),
            refused_each: each(refused, pods),
            gets_each: each(of_user("get", "pods", "").len(), pods),
            lists: of_user("list", "pods", "").len(),
        })
    }

    /// When a watch has shown the end of the last pod; the watch was opened before the drain.
    async fn last_gone(&self, mut left: BTreeSet<String>, mut events: Events) -> Result<Instant> {
        while !left.is_empty() {
            match events.try_next().await? {
                Some(WatchEvent::Deleted(pod)) => {
                    left.remove(pod.metadata.name.as_deref().unwrap_or_default());
                }
                Some(WatchEvent::Error(status)) => bail!("the watch failed: {}", status.message),
                Some(_) => {}
                // The server ends every watch after some minutes. What has gone since is not in the next list.
                None => {
                    let (there, next) = self.follow().await?;
                    left.retain(|name| there.contains(name));
                    events = next;
                }
            }
        }
        Ok(Instant::now())
    }

    /// All nodes at once, as the operator does.
    async fn by_engine(&self) -> Result<Instant> {
        let user = User::in_group(OURS, "system:masters");
        let client = runtime::connect(self.control_plane.config_as(&user).await?)?;
        let identity = Alone { instance: OURS.to_owned(), request_timeout: ANSWER };
        let clock = Clock::default();
        alone(client, clock.clone(), identity, async |cluster, recorder| {
            let drains = Drains::new(cluster, recorder, clock.clone());
            let ends = self.nodes.iter().map(|node| {
                let order = Order { id: format!("bench-{node}"), rules: Vec::new(), waits_for_volumes: false };
                let mut progress = drains.ensure(node, Request { order, deadline: None }, || {});
                async move {
                    let ended = progress.wait_for(|progress| progress.plan.end.is_some()).await?;
                    ensure!(ended.plan.end == Some(End::Drained), "{node}: {:?}", ended.plan.end);
                    Ok(())
                }
            });
            try_join_all(ends).await.map(|_| Instant::now())
        })
        .await
    }

    async fn by_kubectl(&self) -> Result<Instant> {
        let kubectl = testbed::tools::path("kubectl").await?;
        let kubeconfig = self.control_plane.kubeconfig_as(&User::in_group(THEIRS, "system:masters")).await?;
        let run = |node: &String| {
            let mut command = tokio::process::Command::new(&kubectl);
            command.args(["drain", "--force", "--ignore-daemonsets", "--delete-emptydir-data", node]);
            command.arg("--kubeconfig").arg(&kubeconfig).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
            async move {
                let status = command.status().await?;
                ensure!(status.success(), "kubectl drain ended with {status}");
                Ok(())
            }
        };
        stream::iter(self.nodes.iter().map(run)).buffer_unordered(KUBECTLS).try_collect::<()>().await?;
        Ok(Instant::now())
    }
}
