//! The contracts of Cluster API, rule by rule: what its own controllers make of what this layer reports. The rules are
//! those of its book (`developer/providers/contracts`); of the definitions `api::machine::tests` shows the rest, and
//! templates have a test of their own.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::{
    Api,
    api::{DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{scene::Scene, space::resource};

const NAME: &str = "dev--default";

/// All that the rules speak of, as it is now.
struct Seen {
    cluster: Value,
    infra_cluster: Value,
    control_plane: Value,
    machine_pool: Value,
    infra_pool: Value,
    machine: Value,
    infra_machine: Value,
    node: Value,
    kubeconfig: Value,
}

fn whole(object: DynamicObject) -> Value {
    json!({ "metadata": object.metadata, "spec": object.data["spec"], "status": object.data["status"] })
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let all = object["status"]["conditions"].as_array();
    all.and_then(|all| all.iter().find(|one| one["type"] == kind)).unwrap_or(&Value::Null)
}

impl Seen {
    /// `None` while something is missing.
    async fn now(scene: &Scene) -> Result<Option<Self>> {
        let ours = |kind: &str| -> Api<DynamicObject> {
            Api::namespaced_with(scene.client.clone(), &scene.namespace, &resource(kind))
        };
        let Some(machine) = scene.capi("Machine").list(&ListParams::default()).await?.items.pop() else {
            return Ok(None);
        };
        let name = machine.metadata.name.clone().context("a name")?;
        let found = (
            scene.capi("Cluster").get_opt(NAME).await?,
            ours("NstanceCluster").get_opt(NAME).await?,
            ours("NstanceControlPlane").get_opt(NAME).await?,
            ours("NstanceMachine").get_opt(&name).await?,
            Api::<Node>::all(scene.client.clone()).get_opt(&name).await?,
            scene.api::<Secret>().get_opt(&format!("{NAME}-kubeconfig")).await?,
        );
        let (Some(cluster), Some(infra), Some(control_plane), Some(infra_machine), Some(node), Some(secret)) = found
        else {
            return Ok(None);
        };
        Ok(Some(Self {
            cluster: whole(cluster),
            infra_cluster: whole(infra),
            control_plane: whole(control_plane),
            machine_pool: whole(scene.capi("MachinePool").get("web").await?),
            infra_pool: whole(ours("NstanceMachinePool").get("web").await?),
            machine: whole(machine),
            infra_machine: whole(infra_machine),
            node: json!(node),
            kubeconfig: json!(secret),
        }))
    }

    /// Rules that do not hold.
    fn broken(&self) -> Vec<&'static str> {
        let rules = [self.of_cluster(), self.of_control_plane(), self.of_pool(), self.of_machine()].concat();
        rules.into_iter().filter(|(_, holds)| !holds).map(|(rule, _)| rule).collect()
    }

    fn of_cluster(&self) -> Vec<(&'static str, bool)> {
        let Self { cluster, infra_cluster: ours, .. } = self;
        let domains = cluster["status"]["failureDomains"].as_array().cloned().unwrap_or_default();
        let names: Vec<_> = domains.iter().map(|domain| domain["name"].as_str().unwrap_or_default()).collect();
        let endpoint = &cluster["spec"]["controlPlaneEndpoint"];
        let is_provisioned = &cluster["status"]["initialization"]["infrastructureProvisioned"];
        vec![
            (
                "InfraCluster: control plane endpoint",
                endpoint == &ours["spec"]["controlPlaneEndpoint"] && endpoint.is_object(),
            ),
            ("InfraCluster: failure domains", names == ["a"]),
            ("InfraCluster: initialization completed", is_provisioned == true),
            ("InfraCluster: conditions", condition(cluster, "InfrastructureReady")["status"] == "True"),
            ("InfraCluster: pausing", condition(ours, "Paused")["status"] == "False"),
        ]
    }

    fn of_control_plane(&self) -> Vec<(&'static str, bool)> {
        let Self { cluster, control_plane: ours, kubeconfig, .. } = self;
        let is_initialized = &cluster["status"]["initialization"]["controlPlaneInitialized"];
        let is_kubeconfig = kubeconfig["type"] == "cluster.x-k8s.io/secret"
            && kubeconfig["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"] == NAME
            && kubeconfig["data"]["value"].is_string();
        vec![
            ("ControlPlane: initialization completed", is_initialized == true),
            (
                "ControlPlane: replicas (none: it is managed elsewhere)",
                ours["status"]["externalManagedControlPlane"] == true,
            ),
            ("ControlPlane: conditions", condition(cluster, "ControlPlaneAvailable")["status"] == "True"),
            ("ControlPlane: pausing", condition(ours, "Paused")["status"] == "False"),
            ("Cluster kubeconfig management", is_kubeconfig),
            (
                "Cluster kubeconfig management: it serves",
                condition(cluster, "RemoteConnectionProbe")["status"] == "True",
            ),
        ]
    }

    fn of_pool(&self) -> Vec<(&'static str, bool)> {
        let Self { machine_pool, infra_pool: ours, machine, infra_machine, .. } = self;
        let ids = &ours["spec"]["providerIDList"];
        let is_listed =
            ids.as_array().is_some_and(|ids| ids.len() == 1) && &machine_pool["spec"]["providerIDList"] == ids;
        let is_provisioned = &machine_pool["status"]["initialization"]["infrastructureProvisioned"];
        let labels = &infra_machine["metadata"]["labels"];
        let is_labelled =
            labels["cluster.x-k8s.io/pool-name"] == "web" && labels["cluster.x-k8s.io/cluster-name"] == NAME;
        let owners = machine["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        vec![
            ("InfraMachinePool: provider ID list", is_listed),
            (
                "InfraMachinePool: instances",
                ours["status"]["infrastructureMachineKind"] == "NstanceMachine" && is_labelled,
            ),
            ("InfraMachinePool: Machines of its instances", owners.iter().any(|owner| owner["kind"] == "MachinePool")),
            ("InfraMachinePool: replicas", ours["status"]["replicas"] == 1 && machine_pool["status"]["replicas"] == 1),
            ("InfraMachinePool: initialization completed", is_provisioned == true),
            ("InfraMachinePool: conditions", condition(ours, "Ready")["status"] == "True"),
            ("InfraMachinePool: pausing", condition(ours, "Paused")["status"] == "False"),
        ]
    }

    fn of_machine(&self) -> Vec<(&'static str, bool)> {
        let Self { machine, infra_machine: ours, node, .. } = self;
        let id = &ours["spec"]["providerID"];
        let is_same = id.is_string() && id == &machine["spec"]["providerID"] && id == &node["spec"]["providerID"];
        let addresses = &machine["status"]["addresses"];
        let is_provisioned = &machine["status"]["initialization"]["infrastructureProvisioned"];
        let failure_domain = (&machine["status"]["failureDomain"], &ours["status"]["failureDomain"]);
        vec![
            ("InfraMachine: provider ID", is_same),
            ("InfraMachine: failure domain", failure_domain.0 == "a" && failure_domain.1 == "a"),
            ("InfraMachine: addresses", addresses == &node["status"]["addresses"] && addresses.is_array()),
            ("InfraMachine: initialization completed", is_provisioned == true),
            ("InfraMachine: conditions", condition(machine, "InfrastructureReady")["status"] == "True"),
            ("InfraMachine: pausing", condition(ours, "Paused")["status"] == "False"),
        ]
    }
}

#[tokio::test]
async fn a69_cluster_api_takes_what_each_rule_of_its_contracts_says() -> Result<()> {
    let scene = Scene::new("contract", &["a"]).await?;
    scene.create_pool("web", &["a"], Some(1)).await?;
    let nodes = Api::<Node>::all(scene.client.clone());
    let mut broken = vec!["not looked at"];
    let seen = &mut broken;
    let wait = async {
        loop {
            if let Some(found) = Box::pin(Seen::now(&scene)).await? {
                *seen = found.broken();
                if seen.is_empty() {
                    return anyhow::Ok(());
                }
                // As its kubelet would.
                if found.node["status"]["addresses"].is_null() {
                    let addresses = json!([{ "type": "InternalIP", "address": "10.0.0.1" }, { "type": "Hostname", "address": "web" }]);
                    let patch = Patch::Merge(json!({ "status": { "addresses": addresses } }));
                    let name = found.node["metadata"]["name"].as_str().unwrap_or_default();
                    nodes.patch_status(name, &PatchParams::default(), &patch).await?;
                }
            }
            tokio::time::sleep(crate::scene::LOOK).await;
        }
    };
    let waited = tokio::time::timeout(crate::scene::PATIENCE, wait).await;
    waited.with_context(|| format!("rules that do not hold: {broken:?}"))?
}
