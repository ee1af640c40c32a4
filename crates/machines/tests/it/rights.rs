//! What the operator, Cluster API's managers and the account of the workload cluster may do is what they do, by the audit
//! log of the API server.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use api::machine::{API_VERSION, GROUP, NstanceMachine, NstanceMachinePool, PRE_DRAIN_HOOK};
use k8s_openapi::api::{
    core::v1::{Pod, Secret},
    rbac::v1::PolicyRule,
};
use kube::{
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use runtime::{ListMode, rights};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, User,
    audit::Entry,
    fault::{Calls, Fault, FaultProxy, Verb},
    kwok::Behaviour,
};

use crate::{scene::Scene, space::until};

/// Of the operator.
const ACCOUNT: &str = "strata";
const NAME: &str = "dev--default";
/// Of Cluster API's controllers.
const MANAGER: &str = "system:serviceaccount:capi-system:capi-manager";
const BOTH: &[&str] = &["a", "b"];

/// ` pods/eviction create`, `cluster.x-k8s.io machines get`, …
fn granted(rules: impl IntoIterator<Item = PolicyRule>) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for rule in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                all.extend(rule.verbs.iter().map(|verb| format!("{group} {resource} {verb}")));
            }
        }
    }
    all
}

fn used(entries: &[Entry]) -> BTreeSet<String> {
    let of_resources = entries.iter().filter(|entry| !entry.resource.is_empty() && entry.code != 403);
    let text = |entry: &Entry| {
        let slash = if entry.subresource.is_empty() { "" } else { "/" };
        format!("{} {}{slash}{} {}", entry.group, entry.resource, entry.subresource, entry.verb)
    };
    of_resources.map(text).collect()
}

/// One operator in its namespace, with the layer's rights and no others, that meets a conflict at each kind of write.
struct Life {
    scene: Scene,
    /// A static group of one instance on each shard; all operators see all Pods, so it has a name of its own.
    fixed: String,
    proxy: FaultProxy,
    user: String,
}

impl Life {
    async fn new(name: &str, list_mode: ListMode) -> Result<Self> {
        let fixed = format!("{name}-fixed");
        let groups = json!({ fixed.as_str(): { "template": "web", "size": 1 } });
        let mut scene = Scene::without_operator(name, BOTH, groups).await?;
        let namespace = scene.namespace.clone();
        let control_plane = ControlPlane::shared().await?;
        let mut objects: Vec<Value> = rights::rbac(&namespace, ACCOUNT, machines::rights::CLUSTER).objects().into();
        // Those of the whole cluster are another's of the same name for each namespace.
        for object in objects.iter_mut().filter(|object| object["metadata"]["namespace"].is_null()) {
            let named = format!("{ACCOUNT}-{namespace}");
            object["metadata"]["name"] = json!(named);
            if object["kind"] == "ClusterRoleBinding" {
                object["roleRef"]["name"] = json!(named);
            }
        }
        let own = machines::rights::OWN_NAMESPACE;
        let (role, binding) = rights::layer_role(&namespace, ACCOUNT, "machines", own);
        objects.extend([json!(role), json!(binding)]);
        control_plane.install(&objects).await?;
        let user = User::service_account(&namespace, ACCOUNT);
        let upstream = Kubeconfig::read_from(control_plane.kubeconfig_as(&user).await?)?;
        let proxy = FaultProxy::start(upstream, 17).await?;
        for resource in [
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
        ] {
            proxy.inject(Calls::writes(resource).at_most(1), Fault::Status(409));
        }
        proxy.inject(Calls::of(Verb::Create, "pods/eviction").at_most(1), Fault::CutBeforeCommit);
        scene.kubeconfig = Some(proxy.kubeconfig_path());
        scene.list_mode = Some(list_mode);
        Ok(Self { scene, fixed, proxy, user: format!("system:serviceaccount:{namespace}:{ACCOUNT}") })
    }

    /// What the original leaves: no control plane, no endpoint, and a token that has expired.
    async fn leave_original(&self) -> Result<()> {
        let metadata = json!({ "name": NAME, "namespace": self.scene.namespace });
        let reference = json!({ "apiGroup": GROUP, "kind": "NstanceCluster", "name": NAME });
        let secret = json!({
            "name": format!("{NAME}-kubeconfig"), "namespace": self.scene.namespace,
            "labels": { "cluster.x-k8s.io/cluster-name": NAME },
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
        Ok(ControlPlane::shared().await?.install(&objects).await?)
    }

    async fn machines(&self) -> Result<Vec<DynamicObject>> {
        Ok(self.scene.capi("Machine").list(&ListParams::default()).await?.items)
    }

    async fn settled(&self, count: usize) -> Result<Vec<String>> {
        let look = || async {
            let found = self.machines().await?;
            let is_settled = |machine: &DynamicObject| {
                let has_hook = machine.metadata.annotations.iter().any(|all| all.contains_key(PRE_DRAIN_HOOK));
                has_hook && machine.data["status"]["nodeRef"]["name"].is_string()
            };
            Ok(found.len() == count && found.iter().all(is_settled))
        };
        self.scene.until(&format!("{count} Machines with Nodes and our hook"), look).await?;
        Ok(self.machines().await?.into_iter().filter_map(|machine| machine.metadata.name).collect())
    }

    /// A pool grows, shrinks through a drain, leaves a shard and goes.
    async fn lead_a_pool(&self, name: &str) -> Result<()> {
        let scene = &self.scene;
        let everywhere = json!({ "selector": {}, "namespaceSelector": {} });
        let rule = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDrainRule",
            "metadata": { "name": "all", "namespace": scene.namespace },
            "spec": { "drain": { "behavior": "Drain", "order": 1 }, "pods": [everywhere] },
        });
        ControlPlane::shared().await?.install(&[rule]).await?;
        scene.create_pool(name, BOTH, Some(2)).await?;
        // Two and the static group's, which are imported: one on each shard.
        let members = self.settled(4).await?;
        let of_pool = scene.api::<NstanceMachine>().list(&ListParams::default()).await?.items;
        let is_of = |member: &&NstanceMachine| member.spec.as_ref().is_some_and(|spec| spec.group() == name);
        let victim = of_pool.iter().find(is_of).and_then(|member| member.metadata.name.clone()).context("a member")?;
        assert!(members.contains(&victim));
        self.run_a_pod("one", &victim).await?;
        scene.capi("Machine").delete(&victim, &DeleteParams::default()).await?;
        scene.scale(name, 1).await?;
        self.settled(3).await?;
        assert!(scene.api::<Pod>().get_opt("one").await?.is_none(), "it was evicted");
        scene.scale(name, 0).await?;
        self.settled(2).await?;
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
            "metadata": { "name": "job", "annotations": { "on-demand.nstance.dev/group": self.fixed } },
            "spec": {
                "containers": [{ "name": "main", "image": Behaviour::Ready.image() }],
                "nodeSelector": { "strata.test/room": "none" }, "terminationGracePeriodSeconds": 0,
            },
        });
        scene.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        self.settled(3).await?;
        scene.api::<Pod>().delete("job", &DeleteParams::default()).await?;
        self.settled(2).await?;
        Ok(())
    }

    /// A machine without a Machine, whose instance the shard does not have.
    async fn lose_a_stray(&self) -> Result<()> {
        let members = self.scene.api::<NstanceMachine>();
        let stray = json!({
            "apiVersion": API_VERSION, "kind": "NstanceMachine", "metadata": { "name": "stray" },
            "spec": { "group": self.fixed },
        });
        members.create(&PostParams::default(), &serde_json::from_value(stray)?).await?;
        let gone = Patch::Merge(json!({ "status": { "instanceID": "gone", "shard": "a" } }));
        members.patch_status("stray", &PatchParams::default(), &gone).await?;
        self.scene.until("the stray is gone", || async { Ok(members.get_opt("stray").await?.is_none()) }).await
    }

    /// Without an operator, and without its hook, Cluster API empties a Node by itself.
    async fn leave_a_drain_to_cluster_api(&self) -> Result<()> {
        let name = self.settled(2).await?.remove(0);
        self.run_a_pod("two", &name).await?;
        let machines = self.scene.capi("Machine");
        let no_hook = Patch::Merge(json!({ "metadata": { "annotations": { PRE_DRAIN_HOOK: null } } }));
        machines.patch(&name, &PatchParams::default(), &no_hook).await?;
        machines.delete(&name, &DeleteParams::default()).await?;
        let is_gone = || async { Ok(self.scene.api::<Pod>().get_opt("two").await?.is_none()) };
        self.scene.until("Cluster API has evicted the pod", is_gone).await
    }

    async fn run_a_pod(&self, name: &str, node: &str) -> Result<()> {
        let pod = json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 1, "tolerations": [{ "operator": "Exists" }],
                "containers": [{ "name": "main", "image": Behaviour::Ready.image() }],
            },
        });
        self.scene.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(())
    }

    /// A MachineDeployment makes a pair from a template, and gives it up.
    async fn stamp_out(&self) -> Result<()> {
        let namespace = &self.scene.namespace;
        let metadata = json!({ "name": "stamped", "namespace": namespace });
        let reference = json!({ "apiGroup": GROUP, "kind": "NstanceMachineTemplate", "name": "stamped" });
        let labels = json!({ "stamped": "yes" });
        let objects = [
            json!({
                "apiVersion": API_VERSION, "kind": "NstanceMachineTemplate", "metadata": metadata,
                "spec": { "template": { "spec": { "group": self.fixed } } },
            }),
            json!({
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "metadata": metadata,
                "spec": {
                    "clusterName": NAME, "replicas": 1, "selector": { "matchLabels": labels },
                    "template": {
                        "metadata": { "labels": labels },
                        "spec": {
                            "clusterName": NAME, "bootstrap": { "dataSecretName": "" },
                            "infrastructureRef": reference,
                        },
                    },
                },
            }),
        ];
        ControlPlane::shared().await?.install(&objects).await?;
        self.settled(3).await?;
        let none = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
        self.scene.capi("MachineDeployment").patch("stamped", &PatchParams::default(), &none).await?;
        self.settled(2).await?;
        self.scene.capi("MachineDeployment").delete("stamped", &DeleteParams::default()).await?;
        Ok(())
    }
}

async fn entries(user: &str) -> Result<Vec<Entry>> {
    let mut entries = ControlPlane::shared().await?.audit().entries()?;
    entries.retain(|entry| entry.user == user);
    Ok(entries)
}

/// No request asks for it; admission does, where a cluster enforces owners' rights.
const BY_ADMISSION: &str = "infrastructure.cluster.x-k8s.io nstancemachinepools/finalizers update";

const NOT_SEEN: [&str; 0] = [];

#[tokio::test]
async fn a94_the_rights_of_the_operator_and_of_the_managers_are_what_they_use() -> Result<()> {
    let mut operators = Vec::new();
    for (name, list_mode, is_original) in
        [("rights", ListMode::Streaming, false), ("rights-paged", ListMode::Paged, true)]
    {
        let mut life = Life::new(name, list_mode).await?;
        if is_original {
            life.leave_original().await?;
        }
        life.scene.start().await?;
        life.settled(2).await.with_context(|| format!("{:?}", life.proxy.requests().len()))?;
        life.lead_a_pool(&format!("{name}-web")).await?;
        life.serve_a_pod().await?;
        life.lose_a_stray().await?;
        life.stamp_out().await?;
        let nonce = life.scene.api::<Secret>().get_opt("nstance-operator-nonce").await?;
        assert!(nonce.is_none(), "the nonce was used");
        life.scene.stop().await?;
        life.leave_a_drain_to_cluster_api().await?;
        operators.push(life);
    }
    let rules = machines::rights::CLUSTER.iter().chain(machines::rights::OWN_NAMESPACE).chain(rights::CLUSTER);
    let granted_to_operator = granted(rules.map(rights::Right::rule));
    let mut asked = Vec::new();
    let mut unused = BTreeSet::new();
    // The server logs a watch when it has noticed its end.
    let are_used = until("what is granted is used", async || {
        asked.clear();
        for life in &operators {
            asked.extend(entries(&life.user).await?);
        }
        unused = granted_to_operator.difference(&used(&asked)).cloned().collect();
        Ok(unused.len() <= 1)
    });
    are_used.await.with_context(|| format!("not used: {unused:?}"))?;
    assert_eq!(unused, BTreeSet::from([BY_ADMISSION.to_owned()]));
    let beyond: Vec<_> = used(&asked).difference(&granted_to_operator).cloned().collect();
    assert!(beyond.is_empty(), "{beyond:?}");
    let forbidden: Vec<_> = asked.iter().filter(|entry| entry.code == 403).collect();
    assert!(forbidden.is_empty(), "{forbidden:?}");
    let namespaces: BTreeSet<_> = operators.iter().map(|life| life.scene.namespace.as_str()).collect();
    let is_foreign = |entry: &&Entry| entry.resource == "secrets" && !namespaces.contains(entry.namespace.as_str());
    let foreign: Vec<_> = asked.iter().filter(is_foreign).collect();
    assert!(foreign.is_empty(), "Secrets of another namespace: {foreign:?}");

    let roles = (machines::LAYER.roles)();
    let rules_of = |name: &str| {
        let role = roles.iter().find(|role| role.metadata.name.as_deref() == Some(name));
        role.and_then(|role| role.rules.clone()).unwrap_or_default()
    };
    let mut managers = entries(MANAGER).await?;
    managers.retain(|entry| entry.group == GROUP);
    assert_eq!(used(&managers), granted(rules_of("strata-capi-manager")), "Cluster API's managers");
    let forbidden: Vec<_> = managers.iter().filter(|entry| entry.code == 403).collect();
    assert!(forbidden.is_empty(), "{forbidden:?}");

    let mut workload = Vec::new();
    for namespace in namespaces {
        workload.extend(entries(&format!("system:serviceaccount:{namespace}:nstance-capi-workload")).await?);
    }
    let granted_to_workload = granted(rules_of("strata-capi-workload"));
    let unused: Vec<_> = granted_to_workload.difference(&used(&workload)).cloned().collect();
    assert_eq!(unused, NOT_SEEN, "the account of the workload cluster");
    let beyond: Vec<_> = used(&workload).difference(&granted_to_workload).cloned().collect();
    let forbidden: Vec<_> = workload.iter().filter(|entry| entry.code == 403).collect();
    assert!(beyond.is_empty() && forbidden.is_empty(), "{beyond:?} {forbidden:?}");
    Ok(())
}
