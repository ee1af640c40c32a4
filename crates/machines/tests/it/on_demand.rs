//! Machines for Pods that ask for one. All operators of this process see all Pods, so each test has groups of its own.

use anyhow::{Context, Result};
use api::machine::NstanceMachine;
use k8s_openapi::api::{
    core::v1::{Binding, Node, Pod},
    events::v1::Event,
};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use serde_json::{Value, json};
use testbed::{
    ControlPlane,
    fault::{Calls, Fault, FaultProxy, Injected, Verb},
    kwok::{BEHAVIOUR_ANNOTATION, NODE_LABEL},
};

use crate::scene::Scene;

/// Nodes with this label take the Pod of the same value.
const ROOM: &str = "strata.test/room";

/// A scene with one static group of no size, and a namespace of a team beside it.
struct Stage {
    scene: Scene,
    group: String,
    team: String,
}

impl Stage {
    async fn new(name: &str) -> Result<Self> {
        let mut stage = Self::without_operator(name).await?;
        stage.scene.start().await?;
        Ok(stage)
    }

    async fn without_operator(name: &str) -> Result<Self> {
        let group = format!("{name}-group");
        let groups = json!({ (group.as_str()): { "template": "typed", "size": 0 } });
        let scene = Scene::without_operator(name, &["a"], groups).await?;
        let team = ControlPlane::shared().await?.namespace("team").await?;
        Ok(Self { scene, group, team })
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.scene.client.clone(), &self.team)
    }

    /// A Pod that fits on no node, with these annotations.
    async fn create(&self, name: &str, annotations: Value) -> Result<Pod> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "annotations": annotations },
            "spec": {
                "containers": [{ "name": "a", "image": "registry.test/a:1" }],
                "nodeSelector": { ROOM: format!("{}-{name}", self.team) },
                "terminationGracePeriodSeconds": 0,
            },
        });
        Ok(self.pods().create(&PostParams::default(), &serde_json::from_value(pod)?).await?)
    }

    async fn ask(&self, name: &str) -> Result<Pod> {
        self.create(name, json!({ "on-demand.nstance.dev/group": self.group })).await
    }

    /// The Machine and the NstanceMachine of a Pod, if there are any.
    async fn made(&self, pod: &Pod) -> Result<(Option<DynamicObject>, Option<NstanceMachine>)> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let selection = ListParams::default().labels(&format!("nstance.dev/on-demand-pod-uid={uid}"));
        let mut machines = self.scene.capi("Machine").list(&selection).await?.items;
        let mut members = self.scene.api::<NstanceMachine>().list(&selection).await?.items;
        assert!(machines.len() <= 1 && members.len() <= 1, "{machines:?} {members:?}");
        Ok((machines.pop(), members.pop()))
    }

    /// Looks until it is so; else says how far the Pod's Machine is.
    async fn until<F: Future<Output = Result<bool>>>(
        &self,
        pod: &Pod,
        what: &str,
        look: impl FnMut() -> F,
    ) -> Result<()> {
        let Err(error) = self.scene.until(what, look).await else { return Ok(()) };
        let (machine, member) = self.made(pod).await?;
        let machine = machine.map(|machine| machine.data);
        let member = member.map(|member| json!([member.metadata.finalizers, member.spec, member.status]));
        Err(error.context(format!("Machine {}, NstanceMachine {}", json!(machine), json!(member))))
    }

    /// Waits for both.
    async fn until_made(&self, pod: &Pod) -> Result<(DynamicObject, NstanceMachine)> {
        let is_made = || async { Ok(matches!(self.made(pod).await?, (Some(_), Some(_)))) };
        self.scene.until("Machine and NstanceMachine", is_made).await?;
        let (machine, member) = self.made(pod).await?;
        Ok((machine.context("it was there")?, member.context("it was there")?))
    }

    /// Waits until nothing of what was made for a Pod is left.
    async fn until_gone(&self, pod: &Pod) -> Result<()> {
        let is_gone = || async { Ok(matches!(self.made(pod).await?, (None, None))) };
        self.until(pod, "Machine and NstanceMachine are gone", is_gone).await
    }

    /// Waits for an event about a Pod whose note contains this.
    async fn until_event(&self, pod: &str, kind: &str, reason: &str, words: &str) -> Result<()> {
        let events: Api<Event> = Api::namespaced(self.scene.client.clone(), &self.team);
        let is_recorded = || async {
            let all = events.list(&ListParams::default()).await?;
            let is_it = |event: &Event| {
                event.regarding.as_ref().is_some_and(|object| object.name.as_deref() == Some(pod))
                    && (event.type_.as_deref(), event.reason.as_deref()) == (Some(kind), Some(reason))
                    && event.note.as_ref().is_some_and(|note| note.contains(words))
            };
            Ok(all.items.iter().any(is_it))
        };
        self.scene.until(&format!("{reason} for {pod}: {words}"), is_recorded).await
    }

    /// Binds a Pod to a node that was there before it, as a scheduler would.
    async fn bind_elsewhere(&self, name: &str) -> Result<()> {
        let nodes = Api::<Node>::all(self.scene.client.clone());
        let simulated = nodes.list(&ListParams::default().labels(&format!("{NODE_LABEL}=true"))).await?;
        let oldest = simulated.items.into_iter().min_by_key(|node| node.metadata.creation_timestamp.clone());
        let node = oldest.and_then(|node| node.metadata.name).context("there are simulated nodes")?;
        let binding: Binding = serde_json::from_value(
            json!({ "metadata": { "name": name }, "target": { "kind": "Node", "name": node } }),
        )?;
        let answer: Value = self.pods().create_subresource("binding", name, &PostParams::default(), &binding).await?;
        assert_eq!(answer["status"], "Success", "{answer}");
        Ok(())
    }
}

#[tokio::test]
async fn a62_a64_a_pod_gets_a_valid_machine_that_goes_with_it() -> Result<()> {
    let stage = Stage::new("od-made").await?;
    let annotations = json!({ "on-demand.nstance.dev/group": stage.group, "on-demand.nstance.dev/shard": "a" });
    let pod = stage.create("job", annotations).await?;
    let (machine, member) = stage.until_made(&pod).await?;
    let name = machine.metadata.name.clone().unwrap();
    assert!(name.starts_with("on-demand-job-"), "{name}");
    assert_eq!(machine.metadata.annotations.unwrap()["nstance.dev/on-demand-pod"], format!("{}/job", stage.team));
    assert_eq!(machine.data["spec"]["clusterName"], "dev--default");
    assert_eq!(machine.data["spec"]["failureDomain"], "a");
    assert_eq!(member.metadata.name.as_deref(), Some(name.as_str()));
    assert_eq!(member.spec.unwrap().group(), stage.group);
    stage.until_event("job", "Normal", "OnDemandRequested", &name).await?;
    // Cluster API has taken it up, and is its only controller.
    let is_known = || async {
        let (Some(machine), Some(member)) = stage.made(&pod).await? else { return Ok(false) };
        let owners = member.metadata.owner_references.unwrap_or_default();
        assert_eq!(owners.iter().filter(|owner| owner.controller == Some(true)).count(), 1, "{owners:?}");
        // Cluster API names the provider ID and links the Node only of what it accepts.
        Ok(matches!(machine.data["status"]["phase"].as_str(), Some("Provisioned" | "Running")))
    };
    stage.until(&pod, "Cluster API provisions the Machine", is_known).await?;
    stage.pods().delete("job", &DeleteParams::default()).await?;
    stage.until_gone(&pod).await?;
    assert_eq!(stage.scene.zones.cloud.machines().len(), 0, "nothing is left of it");
    Ok(())
}

#[tokio::test]
async fn a63_the_older_annotations_count_and_the_newer_win() -> Result<()> {
    let stage = Stage::new("od-older").await?;
    let old = stage.create("old", json!({ "nstance.dev/on-demand-group": stage.group })).await?;
    assert_eq!(stage.until_made(&old).await?.1.spec.unwrap().group(), stage.group);
    let annotations = json!({ "nstance.dev/on-demand-group": "od-other", "on-demand.nstance.dev/group": stage.group });
    let both = stage.create("both", annotations).await?;
    assert_eq!(stage.until_made(&both).await?.1.spec.unwrap().group(), stage.group);
    let words = format!("{} of on-demand.nstance.dev/group counts, od-other", stage.group);
    stage.until_event("both", "Warning", "GroupAmbiguous", &words).await
}

#[tokio::test]
async fn a64_a97_a_machine_goes_when_its_pod_runs_elsewhere_or_has_ended() -> Result<()> {
    let stage = Stage::new("od-moved").await?;
    let moved = stage.ask("moved").await?;
    let annotations = json!({ "on-demand.nstance.dev/group": stage.group, BEHAVIOUR_ANNOTATION: "slow-start" });
    let ended = stage.create("ended", annotations).await?;
    stage.until_made(&moved).await?;
    stage.until_made(&ended).await?;
    stage.bind_elsewhere("moved").await?;
    stage.until_gone(&moved).await?;
    stage.until_event("moved", "Normal", "OnDemandReleased", "was scheduled to node").await?;
    assert!(stage.pods().get_opt("moved").await?.is_some(), "the Pod is left alone");

    let status = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
    stage.pods().patch_status("ended", &PatchParams::default(), &status).await?;
    stage.until_gone(&ended).await
}

#[tokio::test]
async fn a97_a_group_that_no_shard_has_is_a_warning_that_names_those_there_are() -> Result<()> {
    let stage = Stage::new("od-unknown").await?;
    let pod = stage.create("job", json!({ "on-demand.nstance.dev/group": "od-none" })).await?;
    let words = format!("no shard has the group od-none; the groups there are: {}", stage.group);
    stage.until_event("job", "Warning", "UnknownGroup", &words).await?;
    assert!(matches!(stage.made(&pod).await?, (None, None)));
    // Corrected, it is served.
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { "on-demand.nstance.dev/group": stage.group } } }));
    stage.pods().patch("job", &PatchParams::default(), &patch).await?;
    stage.until_made(&pod).await?;
    Ok(())
}

#[tokio::test]
async fn a64_what_an_earlier_operator_left_half_made_is_finished_or_removed() -> Result<()> {
    let mut stage = Stage::new("od-left").await?;
    let (kept, lost) = (stage.ask("kept").await?, stage.ask("lost").await?);
    let (machine, _) = stage.until_made(&kept).await?;
    stage.until_made(&lost).await?;
    stage.scene.stop().await?;
    // As if it had ended between its two writes; and a Pod goes while no operator runs.
    let members = stage.scene.api::<NstanceMachine>();
    let name = machine.metadata.name.clone().unwrap();
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    members.patch(&name, &PatchParams::default(), &free).await?;
    members.delete(&name, &DeleteParams::default()).await?;
    stage.pods().delete("lost", &DeleteParams::default()).await?;
    stage.scene.start().await?;
    let (after, _) = stage.until_made(&kept).await?;
    assert_eq!(after.metadata.uid, machine.metadata.uid, "the Machine is the same");
    stage.until_gone(&lost).await
}

#[tokio::test]
async fn a93_pods_of_an_external_cluster_are_served_by_the_administrators_kubeconfig() -> Result<()> {
    let mut stage = Stage::without_operator("od-external").await?;
    let control_plane = ControlPlane::shared().await?;
    let kubeconfig = std::fs::read_to_string(control_plane.kubeconfig())?;
    let secret = |value: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": {
                "name": "dev--default-kubeconfig", "namespace": stage.scene.namespace,
                "labels": { "cluster.x-k8s.io/cluster-name": "dev--default" },
            },
            "stringData": { "value": value },
        })
    };
    // Nothing listens there.
    let away = kubeconfig.replace(control_plane.server(), "https://127.0.0.1:1");
    control_plane.install(&[secret(&away)]).await?;
    let right = secret(&kubeconfig);
    stage.scene.endpoint = Some(control_plane.server().to_owned());
    stage.scene.start().await?;
    let pod = stage.ask("job").await?;
    let is_provisioned = || async {
        let cluster = stage.scene.capi("Cluster").get_opt("dev--default").await?;
        Ok(cluster.is_some_and(|cluster| cluster.data["status"]["initialization"]["infrastructureProvisioned"] == true))
    };
    stage.scene.until("the Cluster is provisioned", is_provisioned).await?;
    assert!(matches!(stage.made(&pod).await?, (None, None)), "what is unknown is not served");
    // The administrator exchanges it.
    control_plane.install(&[right]).await?;
    stage.until_made(&pod).await?;
    stage.until_event("job", "Normal", "OnDemandRequested", "is made for this Pod").await?;
    stage.pods().delete("job", &DeleteParams::default()).await?;
    stage.until_gone(&pod).await
}

#[tokio::test]
async fn a97_a_pod_runs_on_the_node_made_for_it_and_all_goes_when_it_has_ended() -> Result<()> {
    let stage = Stage::new("od-runs").await?;
    let pod = stage.ask("job").await?;
    stage.until_made(&pod).await?;
    let nodes = Api::<Node>::all(stage.scene.client.clone());
    let instance = || async {
        let (_, member) = stage.made(&pod).await?;
        anyhow::Ok(member.and_then(|member| member.status).and_then(|status| status.instance_id))
    };
    let has_joined = || async {
        let Some(id) = instance().await? else { return Ok(false) };
        Ok(nodes.get_opt(&id).await?.is_some())
    };
    stage.until(&pod, "the instance joins as a Node", has_joined).await?;
    let id = instance().await?.context("it has an instance")?;
    assert_eq!(stage.scene.sizes(&stage.group, &["a"]).await?, [Some(0)], "it does not count for its group");
    // As its kubelet and its template would.
    let room = json!({ "cpu": "1", "memory": "1Gi", "pods": "10" });
    let room = Patch::Merge(json!({ "status": { "allocatable": room, "capacity": room } }));
    nodes.patch_status(&id, &PatchParams::default(), &room).await?;
    let label = Patch::Merge(json!({ "metadata": { "labels": { ROOM: format!("{}-job", stage.team) } } }));
    nodes.patch(&id, &PatchParams::default(), &label).await?;
    let runs = || async {
        let pod = stage.pods().get("job").await?;
        let node = pod.spec.and_then(|spec| spec.node_name);
        let phase = pod.status.and_then(|status| status.phase);
        Ok(node.as_ref() == Some(&id) && phase.as_deref() == Some("Running"))
    };
    stage.until(&pod, "the Pod runs there", runs).await?;
    let is_linked = || async {
        let (machine, _) = stage.made(&pod).await?;
        Ok(machine.context("its Machine stays")?.data["status"]["nodeRef"]["name"] == id.as_str())
    };
    stage.until(&pod, "Cluster API links Machine and Node", is_linked).await?;

    let ends = Patch::Merge(json!({ "metadata": { "annotations": { BEHAVIOUR_ANNOTATION: "succeeded" } } }));
    stage.pods().patch("job", &PatchParams::default(), &ends).await?;
    stage.until_gone(&pod).await?;
    assert_eq!(stage.scene.zones.cloud.machines().len(), 0, "its instance is gone");
    stage.until_event("job", "Normal", "OnDemandReleased", "the Pod has ended").await
}

#[tokio::test]
async fn what_a_shard_refuses_is_a_warning_and_leaves_nothing() -> Result<()> {
    let stage = Stage::new("od-refused").await?;
    let kind = "on-demand.nstance.dev/instance-type";
    let pod = stage.create("job", json!({ "on-demand.nstance.dev/group": stage.group, kind: "huge" })).await?;
    stage.until_event("job", "Warning", "OnDemandRefused", "instance_type").await?;
    stage.until_gone(&pod).await?;
    assert_eq!(stage.scene.zones.cloud.machines().len(), 0);
    // Corrected, it is a new request.
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { kind: "small" } } }));
    stage.pods().patch("job", &PatchParams::default(), &patch).await?;
    stage.until_made(&pod).await?;
    let is_made = || async { Ok(stage.scene.zones.cloud.machines().len() == 1) };
    stage.scene.until("its instance is made", is_made).await
}

/// Kills the operator at the write that is held, and starts another one.
async fn strike(stage: &mut Stage, proxy: &FaultProxy, held: Injected) -> Result<()> {
    held.reached().await?;
    stage.scene.kill().await?;
    held.cut();
    proxy.clear();
    stage.scene.start().await
}

#[tokio::test]
async fn killed_at_any_write_each_pod_has_one_machine_and_none_is_left() -> Result<()> {
    let mut stage = Stage::without_operator("od-killed").await?;
    let upstream = Kubeconfig::read_from(ControlPlane::shared().await?.kubeconfig())?;
    let proxy = FaultProxy::start(upstream, 11).await?;
    stage.scene.kubeconfig = Some(proxy.kubeconfig_path());
    stage.scene.start().await?;
    let namespace = stage.scene.namespace.clone();
    let calls = |verb, resource: &str| Calls::of(verb, resource).in_namespace(&namespace);
    let mut points = 0;
    for (name, fault) in [("before", Fault::HoldBeforeCommit), ("after", Fault::HoldAfterCommit)] {
        for resource in ["machines", "nstancemachines"] {
            let held = proxy.inject(calls(Verb::Create, resource), fault);
            let pod = stage.ask(&format!("{name}-{resource}")).await?;
            strike(&mut stage, &proxy, held).await.with_context(|| format!("create {resource} {fault:?}"))?;
            stage.until_made(&pod).await?;
            points += 1;
        }
        let gone = format!("{name}-machines");
        let pod = stage.pods().get(&gone).await?;
        let held = proxy.inject(calls(Verb::Delete, "machines"), fault);
        stage.pods().delete(&gone, &DeleteParams::default()).await?;
        strike(&mut stage, &proxy, held).await.with_context(|| format!("delete machines {fault:?}"))?;
        stage.until_gone(&pod).await?;
        points += 1;
    }
    println!("killed at {points} points");
    Ok(())
}
