//! `strata drain` as a user runs it.

use anyhow::{Context, Result};
use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    core::v1::{Node, Pod},
    events::v1::Event,
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::json;
use testbed::{User, kwok, until_allowed};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::place::{Place, Said, run, strata};

/// A node of its own with pods that a ReplicaSet would create again.
struct Drained {
    place: Place,
    node: String,
    pods: Api<Pod>,
}

impl Drained {
    async fn new(replicas: i32) -> Result<Self> {
        let place = Place::new().await?;
        let client = place.control_plane.client().await?;
        let node = format!("node-{}", place.namespace);
        let mut object = kwok::node(&node, 100);
        // Nothing is scheduled there that does not ask for it.
        let taint = json!([{ "key": "test", "value": "drain", "effect": "NoSchedule" }]);
        object.spec.get_or_insert_default().taints = serde_json::from_value(taint)?;
        Api::<Node>::all(client.clone()).create(&PostParams::default(), &object).await?;
        let labels = json!({ "app": "web" });
        let set = json!({
            "metadata": { "name": "web" },
            "spec": { "replicas": replicas, "selector": { "matchLabels": labels }, "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "nodeSelector": { "kubernetes.io/hostname": node }, "terminationGracePeriodSeconds": 1,
                    "tolerations": [{ "key": "test", "operator": "Exists" }],
                    "containers": [{ "name": "main", "image": kwok::Behaviour::Ready.image() }],
                },
            } },
        });
        let sets = Api::<ReplicaSet>::namespaced(client.clone(), &place.namespace);
        sets.create(&PostParams::default(), &serde_json::from_value(set)?).await?;
        let is_ready = |set: Option<&ReplicaSet>| {
            let status = set.and_then(|set| set.status.as_ref());
            status.is_some_and(|status| status.ready_replicas.unwrap_or_default() == replicas)
        };
        await_condition(sets, "web", is_ready).await?;
        let pods = Api::namespaced(client, &place.namespace);
        Ok(Self { place, node, pods })
    }

    async fn budget(&self, least: i32) -> Result<()> {
        let client = self.place.control_plane.client().await?;
        let budgets = Api::<PodDisruptionBudget>::namespaced(client, &self.place.namespace);
        let spec = json!({ "minAvailable": least, "selector": { "matchLabels": { "app": "web" } } });
        let budget = json!({ "metadata": { "name": "web" }, "spec": spec });
        budgets.create(&PostParams::default(), &serde_json::from_value(budget)?).await?;
        let is_counted = |budget: Option<&PodDisruptionBudget>| {
            let status = budget.and_then(|budget| budget.status.as_ref());
            status.is_some_and(|status| status.observed_generation.is_some() && status.current_healthy > 0)
        };
        await_condition(budgets, "web", is_counted).await?;
        Ok(())
    }

    async fn drain(&self, more: &[&str]) -> Result<Said> {
        run(self.command(more)).await
    }

    fn command(&self, more: &[&str]) -> tokio::process::Command {
        let mut command = strata(&["drain", &self.node, "--kubeconfig"]);
        command.arg(&self.place.kubeconfig).args(more);
        command
    }

    async fn is_cordoned(&self) -> Result<bool> {
        let nodes = Api::<Node>::all(self.place.control_plane.client().await?);
        Ok(nodes.get(&self.node).await?.spec.unwrap_or_default().unschedulable == Some(true))
    }
}

#[tokio::test]
async fn a_node_is_drained_with_progress_and_a_dry_run_changes_nothing() -> Result<()> {
    let drained = Drained::new(3).await?;
    let preview = drained.drain(&["--dry-run"]).await?.data()?;
    assert_eq!(
        preview.lines().filter(|line| line.contains("evict") && line.contains("to be evicted")).count(),
        3,
        "{preview}"
    );
    assert!(!drained.is_cordoned().await?);

    let said = drained.drain(&[]).await?;
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(said.out, format!("node/{} drained\n", drained.node));
    assert!(said.err.contains(&format!("node {} is cordoned", drained.node)), "{said:?}");
    assert_eq!(said.err.matches(": gone").count(), 3, "{said:?}");
    assert!(said.err.contains("3 pods are gone, 0 stay"), "{said:?}");
    assert!(drained.is_cordoned().await?);
    Ok(())
}

#[tokio::test]
async fn past_the_timeout_pod_and_budget_are_named_and_a_warning_is_recorded() -> Result<()> {
    let drained = Drained::new(2).await?;
    drained.budget(2).await?;
    let said = drained.drain(&["--timeout", "15s"]).await?.refusal(3)?;
    let (namespace, node) = (&drained.place.namespace, &drained.node);
    assert!(said.contains(&format!("error: node {node} is not drained after 15s:\n  {namespace}/web-")), "{said}");
    assert!(said.contains(&format!("PodDisruptionBudget {namespace}/web allows no eviction now")), "{said}");
    assert!(
        said.contains(&format!("hint: the node stays cordoned: run it again to go on, or `kubectl uncordon {node}`")),
        "{said}"
    );
    let events = Api::<Event>::namespaced(drained.place.control_plane.client().await?, "default");
    let events = events.list(&ListParams::default()).await?;
    let about = |event: &&Event| event.regarding.as_ref().and_then(|it| it.name.as_ref()) == Some(node);
    let warning = events.items.iter().filter(about).find(|event| event.reason.as_deref() == Some("DrainTimedOut"));
    let note = warning.and_then(|event| event.note.clone()).context("a warning")?;
    assert!(note.contains(&format!("{namespace}/web-")) && note.contains("PodDisruptionBudget"), "{note}");
    assert_eq!(drained.pods.list(&ListParams::default()).await?.items.len(), 2);
    Ok(())
}

#[tokio::test]
async fn a_blocked_pod_goes_when_its_budget_allows_it() -> Result<()> {
    let drained = Drained::new(2).await?;
    drained.budget(2).await?;
    let mut command = drained.command(&[]);
    let mut child = command.stderr(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stderr.take().context("piped")?).lines();
    while let Some(line) = lines.next_line().await? {
        if line.contains("PodDisruptionBudget") {
            break;
        }
    }
    let budgets =
        Api::<PodDisruptionBudget>::namespaced(drained.place.control_plane.client().await?, &drained.place.namespace);
    let patch = Patch::Merge(json!({ "spec": { "minAvailable": 0 } }));
    budgets.patch("web", &PatchParams::default(), &patch).await?;
    while lines.next_line().await?.is_some() {}
    assert_eq!(child.wait().await?.code(), Some(0));
    Ok(())
}

#[tokio::test]
async fn pods_that_nothing_creates_again_are_named_and_left_without_force() -> Result<()> {
    let drained = Drained::new(1).await?;
    let pod = json!({
        "metadata": { "name": "bare" },
        "spec": {
            "nodeName": drained.node, "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": kwok::Behaviour::Ready.image() }],
        },
    });
    drained.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let said = drained.drain(&[]).await?.refusal(1)?;
    let named = format!("nothing would create these pods again elsewhere:\n  {}/bare\nhint:", drained.place.namespace);
    assert!(said.contains(&named) && said.contains("--force"), "{said}");
    assert!(!drained.is_cordoned().await?);
    assert!(drained.drain(&["--dry-run"]).await?.data()?.contains("nothing creates it again (--force)"));
    assert_eq!(drained.drain(&["--force"]).await?.code, 0);
    Ok(())
}

#[tokio::test]
async fn a_missing_node_and_missing_rights_end_the_command_at_once() -> Result<()> {
    let drained = Drained::new(1).await?;
    let mut command = strata(&["drain", "not-there", "--kubeconfig"]);
    command.arg(&drained.place.kubeconfig);
    let said = run(command).await?.refusal(1)?;
    assert!(said.contains("error: there is no Node not-there\nhint: `kubectl get nodes`"), "{said}");

    let stranger = drained.place.control_plane.kubeconfig_as(&User::named("stranger")).await?;
    let mut command = strata(&["drain", &drained.node, "--kubeconfig"]);
    command.arg(stranger);
    let said = run(command).await?.refusal(1)?;
    assert!(said.contains("error: cannot read the node: ") && said.contains("forbidden"), "{said}");
    assert!(said.contains("hint: a drain needs list and watch of nodes"), "{said}");

    let rules = json!([{ "apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "watch"] }]);
    let group = "rbac.authorization.k8s.io";
    let (kind, api_version) = ("ClusterRole", format!("{group}/v1"));
    let role = json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": "reader" }, "rules": rules });
    let binding = json!({
        "apiVersion": api_version, "kind": "ClusterRoleBinding", "metadata": { "name": "reader" },
        "roleRef": { "apiGroup": group, "kind": kind, "name": "reader" },
        "subjects": [{ "apiGroup": group, "kind": "User", "name": "reader" }],
    });
    drained.place.control_plane.install(&[role, binding]).await?;
    let reader = User::named("reader");
    until_allowed(&drained.place.control_plane.client().await?, &reader, "watch", "", "pods", "").await?;
    let mut command = strata(&["drain", &drained.node, "--kubeconfig"]);
    command.arg(drained.place.control_plane.kubeconfig_as(&reader).await?);
    let said = run(command).await?.refusal(1)?;
    assert!(said.contains(&format!("error: cannot cordon node {}: ", drained.node)), "{said}");
    Ok(())
}
