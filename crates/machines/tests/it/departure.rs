//! Ways out, with pods and budgets in them: of a shard's members, of a whole pool, past a deadline, and of what is lost.

use std::time::Duration;

use anyhow::{Context, Result};
use api::machine::NstanceMachine;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Node, Pod},
    events::v1::Event,
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    gate::Gate,
    machine::{
        budget, create_machine, delete_machine, instances, is_there, machines, pod, settled, until_condition,
        until_gone,
    },
    scene::Scene,
};

const BOTH: &[&str] = &["a", "b"];

async fn lift(scene: &Scene) -> Result<()> {
    scene.api::<PodDisruptionBudget>().delete("all", &DeleteParams::default()).await?;
    Ok(())
}

/// The instance of a member that the shard has.
fn of_shard(scene: &Scene, shard: &str) -> Option<String> {
    let is_of = |id: &&String| scene.zones.cloud.order(id).is_some_and(|order| order.shard == shard);
    instances(scene).iter().find(is_of).cloned()
}

#[tokio::test]
async fn a24_a36_a37_members_are_drained_before_their_shard_or_their_pool_goes() -> Result<()> {
    let scene = Scene::new("departure", BOTH).await?;
    scene.create_pool("web", BOTH, Some(2)).await?;
    settled(&scene, 2).await?;
    let leaving = of_shard(&scene, "b").context("one is on b")?;
    pod(&scene, "one", &leaving).await?;
    budget(&scene).await?;
    scene.patch_pool("web", json!({ "spec": { "shards": ["a"] } })).await?;
    until_condition(&scene, &leaving, "Drained", "False/BlockedByPDB").await?;
    scene.until_sizes("web", &["a"], &[Some(2)]).await?;
    assert_eq!(scene.sizes("web", BOTH).await?, [Some(2), Some(1)], "the group stays while a member does");
    assert!(is_there(&scene, &leaving));
    lift(&scene).await?;
    until_gone(&scene, &leaving).await?;
    assert!(scene.api::<Pod>().get_opt("one").await?.is_none(), "it was evicted");
    scene.until_sizes("web", BOTH, &[Some(2), None]).await?;
    scene.until("its shard group is gone", || async { Ok(scene.shard_group("web", "b").await?.is_none()) }).await?;

    let held = settled(&scene, 2).await?.remove(0);
    pod(&scene, "two", &held).await?;
    budget(&scene).await?;
    scene.capi("MachinePool").delete("web", &DeleteParams::default()).await?;
    until_condition(&scene, &held, "Drained", "False/BlockedByPDB").await?;
    scene.until("the other one is gone", || async { Ok(instances(&scene) == [held.clone()]) }).await?;
    assert!(scene.pool("web").await?.is_some() && scene.shard_group("web", "a").await?.is_some());
    lift(&scene).await?;
    let is_gone = || async { Ok(scene.pool("web").await?.is_none() && machines(&scene).await?.is_empty()) };
    scene.until("the pool is gone", is_gone).await?;
    assert!(scene.api::<Pod>().get_opt("two").await?.is_none(), "it was evicted");
    assert_eq!((instances(&scene), scene.sizes("web", BOTH).await?), (vec![], vec![None, None]));
    let is_gone = || async { Ok(scene.capi("MachinePool").get_opt("web").await?.is_none()) };
    scene.until("its MachinePool is gone", is_gone).await
}

#[tokio::test]
async fn a47_a49_a98_a_drain_that_a_budget_holds_is_acknowledged_in_time_and_a_warning_names_the_pods() -> Result<()> {
    // A tenth of it is the time in which the acknowledgement must arrive.
    let groups = json!({ "web": { "template": "web", "size": 2, "drain_timeout": "50s" } });
    let mut scene = Scene::without_operator("departure-late", &["a"], groups).await?;
    let gate = Gate::before(&scene.zones, "a").await?;
    scene.write_addresses("config.yaml", &gate.addresses(&scene.zones))?;
    scene.start().await?;
    // Past its deadline a shard deletes what was not acknowledged, and nothing is left to acknowledge.
    let go = async |victim: &str, acknowledged: usize| {
        scene.zones.cloud.give_notice(victim);
        scene.until("the instance is gone", || async { Ok(!is_there(&scene, victim)) }).await?;
        assert_eq!(gate.count("AcknowledgeDrained"), acknowledged, "{:?}", gate.calls());
        anyhow::Ok(())
    };
    // An instance without a Node.
    let (victim, nodes) = (settled(&scene, 2).await?.remove(0), Api::<Node>::all(scene.client.clone()));
    nodes.delete(&victim, &DeleteParams::default()).await?;
    scene.until("its Node is gone", || async { Ok(nodes.get_opt(&victim).await?.is_none()) }).await?;
    go(&victim, 1).await?;
    until_gone(&scene, &victim).await?;

    let victim = settled(&scene, 2).await?.remove(0);
    pod(&scene, "one", &victim).await?;
    budget(&scene).await?;
    go(&victim, 2).await?;
    let events: Api<Event> = Api::namespaced(scene.client.clone(), "default");
    let is_named = || async {
        let about = |event: &Event| {
            event.regarding.as_ref().is_some_and(|object| object.name.as_ref() == Some(&victim))
                && event.reason.as_deref() == Some("DrainTimedOut")
                && event.note.as_ref().is_some_and(|note| note.contains(&format!("{}/one", scene.namespace)))
        };
        Ok(events.list(&ListParams::default()).await?.items.iter().any(about))
    };
    scene.until("a warning names the pod", is_named).await
}

#[tokio::test]
async fn a49_the_next_operator_keeps_to_the_deadline_of_a_drain_that_another_began() -> Result<()> {
    let groups = json!({ "web": { "template": "web", "size": 1, "drain_timeout": "90s" } });
    let mut scene = Scene::without_operator("departure-next", &["a"], groups).await?;
    let gate = Gate::before(&scene.zones, "a").await?;
    scene.write_addresses("config.yaml", &gate.addresses(&scene.zones))?;
    scene.start().await?;
    let victim = settled(&scene, 1).await?.remove(0);
    pod(&scene, "one", &victim).await?;
    budget(&scene).await?;
    scene.zones.cloud.give_notice(&victim);
    let nodes = Api::<Node>::all(scene.client.clone());
    let is_cordoned = || async {
        let node = nodes.get(&victim).await?;
        Ok(node.spec.and_then(|spec| spec.unschedulable) == Some(true))
    };
    scene.until("the drain has begun", is_cordoned).await?;
    scene.kill().await?;
    // With all of its time again, the next one would acknowledge when the shard has deleted the instance.
    tokio::time::sleep(Duration::from_secs(8)).await;
    scene.start().await?;
    scene.until("the instance is gone", || async { Ok(!is_there(&scene, &victim)) }).await?;
    assert!(gate.count("AcknowledgeDrained") > 0, "{:?}", gate.calls());
    Ok(())
}

#[tokio::test]
async fn a53_a60_an_own_instance_that_is_lost_is_not_deleted_again_and_another_is_deleted_once() -> Result<()> {
    let groups = json!({ "web": { "template": "web", "size": 0 } });
    let mut scene = Scene::without_operator("departure-lost", &["a"], groups).await?;
    let gate = Gate::before(&scene.zones, "a").await?;
    scene.write_addresses("config.yaml", &gate.addresses(&scene.zones))?;
    scene.start().await?;
    for name in ["lost", "mine"] {
        create_machine(&scene, name, "web", None).await?;
    }
    settled(&scene, 2).await?;
    let found = scene.api::<NstanceMachine>().get("lost").await?;
    let id = found.status.and_then(|status| status.instance_id).context("its instance")?;
    scene.zones.cloud.set_status(&id, None);
    until_gone(&scene, "lost").await?;
    scene.until_event("lost", ("Warning", "ServerDeleted"), "the shard").await?;
    assert!(scene.api::<NstanceMachine>().get_opt("lost").await?.is_none());
    assert_eq!(gate.count("DeleteInstance"), 0, "there is nothing to delete");
    delete_machine(&scene, "mine").await?;
    until_gone(&scene, "mine").await?;
    assert_eq!((gate.count("CreateInstance"), gate.count("DeleteInstance")), (2, 1), "{:?}", gate.calls());
    assert_eq!(instances(&scene), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a14_a36_nothing_is_released_before_the_list_of_shards_was_read() -> Result<()> {
    let groups = json!({ "own": { "template": "web", "size": 0 } });
    let mut scene = Scene::without_operator("departure-unread", &["a"], groups).await?;
    let gate = Gate::before(&scene.zones, "a").await?;
    let list = gate.addresses(&scene.zones);
    let file = scene.write_addresses("config.yaml", &list)?;
    scene.start().await?;
    scene.create_pool("web", &["a"], Some(1)).await?;
    create_machine(&scene, "mine", "own", None).await?;
    settled(&scene, 2).await?;
    scene.stop().await?;

    let maps = scene.api::<ConfigMap>();
    let edit = async |data: Value| {
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "shards" }, "data": data });
        maps.patch("shards", &PatchParams::apply("test").force(), &Patch::Apply(map)).await
    };
    edit(json!({ "a": "127.0.0.1" })).await?;
    scene.capi("MachinePool").delete("web", &DeleteParams::default()).await?;
    delete_machine(&scene, "mine").await?;
    scene.shards_config_map = Some("shards".to_owned());
    let running = scene.spawn(file, None).await?;
    let has_failed = |controller: &str| {
        let line = format!(
            "strata_reconcile_errors_total{{controller=\"{controller}\",namespace=\"{}\",class=\"transient\"}}",
            scene.namespace
        );
        anyhow::Ok(running.metrics.encode()?.contains(&line))
    };
    let have_failed = || async {
        Ok(has_failed("nstancemachinepool")? && has_failed("nstanceshardgroup")? && has_failed("nstancemachine")?)
    };
    scene.until("rounds of every kind have failed", have_failed).await?;
    let is_named = || async {
        let note = running.health.notes().remove("machines configuration").unwrap_or_default();
        Ok(note.contains("the port is missing") && note.contains("until its list of shards was read"))
    };
    scene.until("a note names what is wrong", is_named).await?;
    assert!(scene.pool("web").await?.is_some() && scene.shard_group("web", "a").await?.is_some());
    assert!(scene.api::<NstanceMachine>().get_opt("mine").await?.is_some());
    assert_eq!((gate.count("DeleteGroup"), gate.count("DeleteInstance"), instances(&scene).len()), (0, 0, 2));

    edit(json!({ "config.yaml": json!({ "shards": list }).to_string() })).await?;
    until_gone(&scene, "mine").await?;
    let are_gone = || async { Ok(scene.pool("web").await?.is_none() && instances(&scene).is_empty()) };
    scene.until("the pool and all instances are gone", are_gone).await?;
    assert!(gate.count("DeleteGroup") > 0 && gate.count("DeleteInstance") > 0, "{:?}", gate.calls());
    running.stop().await
}

#[tokio::test]
async fn a98_a_paused_pool_takes_no_replicas_until_it_is_not() -> Result<()> {
    let scene = Scene::new("departure-pause", &["a"]).await?;
    scene.create_pool("web", &["a"], Some(1)).await?;
    let member = settled(&scene, 1).await?;
    let paused = |value| json!({ "metadata": { "annotations": { "cluster.x-k8s.io/paused": value } } });
    scene.patch_pool("web", paused(json!(""))).await?;
    scene.until_pool("web", "Paused", "True/Paused").await?;
    for replicas in [3, 0] {
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        let scaled = scene.capi("MachinePool").patch("web", &PatchParams::default(), &patch).await?;
        let is_seen = || async {
            let status = scene.pool("web").await?.and_then(|pool| pool.status);
            Ok(status.and_then(|status| status.observed_owner_generation) == scaled.metadata.generation)
        };
        scene.until("the pool has seen it", is_seen).await?;
    }
    let size = scene.shard_group("web", "a").await?.and_then(|group| group.spec).map(|spec| spec.size());
    assert_eq!((size, scene.sizes("web", &["a"]).await?), (Some(1), vec![Some(1)]));
    assert_eq!(settled(&scene, 1).await?, member);
    scene.scale("web", 2).await?;
    scene.patch_pool("web", paused(Value::Null)).await?;
    scene.until_sizes("web", &["a"], &[Some(2)]).await?;
    scene.until_pool("web", "Paused", "False/NotPaused").await?;
    Ok(())
}
