//! Which pods go first, and which are only waited for.

use anyhow::Result;
use plan::drain::{Behaviour, End, Holds, Order, Plan, PodSelector, Rule, Standing, Stays};
use serde_json::{Value, json};
use testbed::kwok;

use crate::{
    engine::{Engine, ended, order, until},
    place::Place,
};

fn rule(name: &str, behaviour: Behaviour, selector: Value, namespace: Value) -> Rule {
    let parse = |selector: Value| serde_json::from_value(selector).unwrap();
    let pods = vec![PodSelector { selector: parse(selector), namespace: parse(namespace) }];
    Rule { name: name.to_owned(), behaviour, machines: vec![], pods }
}

fn stands(plan: &Plan, name: &str, holds: Holds) -> bool {
    plan.pods.iter().any(|(pod, standing)| pod.name == name && *standing == Standing::Holds(holds.clone()))
}

#[tokio::test]
async fn a_tier_goes_when_the_one_before_it_is_gone() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    place.pod("early", &node, json!({ "metadata": { "labels": { "app": "early" } } })).await?;
    let held = json!([{ "name": "main", "image": kwok::Behaviour::HeldDeletion.image() }]);
    place.pod("ordinary", &node, json!({ "spec": { "containers": held } })).await?;
    place.pod("critical", &node, json!({ "spec": { "priorityClassName": "system-cluster-critical" } })).await?;
    let early =
        rule("early", Behaviour::Drain { order: -1 }, json!({ "matchLabels": { "app": "early" } }), Value::Null);
    let engine = Engine::start(&place.proxy).await?;
    let mut drain = engine.begin(&node, Order { rules: vec![early], ..order("one") }, None);
    until(&mut drain, "the second tier waits", |plan| {
        stands(plan, "ordinary", Holds::Terminating) && stands(plan, "critical", Holds::Later)
    })
    .await?;
    assert_eq!(place.evictions(), [("early".to_owned(), 1), ("ordinary".to_owned(), 1)]);
    kwok::Behaviour::Ready.set(&place.pods, "ordinary").await?;
    assert_eq!(ended(&mut drain).await?.end, Some(End::Drained));
    let names: Vec<String> = place.evictions().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["early", "ordinary", "critical"]);
    assert_eq!(place.evicted_once().len(), 3);
    Ok(())
}

#[tokio::test]
async fn a_pod_that_is_to_complete_is_waited_for_and_not_evicted() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    let label = json!({ "cluster.x-k8s.io/drain": "wait-completed" });
    place.pod("batch", &node, json!({ "metadata": { "labels": label }, "spec": { "restartPolicy": "Never" } })).await?;
    let engine = Engine::start(&place.proxy).await?;
    let mut drain = engine.begin(&node, order("one"), None);
    until(&mut drain, "waiting", |plan| stands(plan, "batch", Holds::Completes)).await?;
    kwok::Behaviour::Succeeded.set(&place.pods, "batch").await?;
    assert_eq!(ended(&mut drain).await?.end, Some(End::Drained));
    assert!(place.evictions().is_empty());
    Ok(())
}

#[tokio::test]
async fn a_rule_may_leave_out_the_pods_of_a_namespace() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    place.pod("one", &node, json!({})).await?;
    let namespace = json!({ "matchLabels": { "kubernetes.io/metadata.name": place.namespace } });
    let skip = rule("skip", Behaviour::Skip, Value::Null, namespace);
    let engine = Engine::start(&place.proxy).await?;
    let plan = ended(&mut engine.begin(&node, Order { rules: vec![skip], ..order("one") }, None)).await?;
    assert_eq!(plan.end, Some(End::Drained));
    assert_eq!(plan.pods[0].1, Standing::Stays(Stays::Rule("skip".to_owned())));
    assert!(place.evictions().is_empty());
    Ok(())
}

#[tokio::test]
async fn volumes_are_waited_for_until_they_are_detached() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    place.pod("one", &node, json!({})).await?;
    let attached = |volumes: Value| kube::api::Patch::Merge(json!({ "status": { "volumesAttached": volumes } }));
    let set = async |volumes: Value| {
        place.nodes.patch_status(&node, &kube::api::PatchParams::default(), &attached(volumes)).await
    };
    set(json!([{ "name": "kubernetes.io/csi/test^1", "devicePath": "" }])).await?;
    let engine = Engine::start(&place.proxy).await?;
    let mut drain = engine.begin(&node, Order { waits_for_volumes: true, ..order("one") }, None);
    let plan = until(&mut drain, "only the volume left", |plan| !plan.volumes.is_empty()).await?;
    assert!(plan.leftovers().contains("kubernetes.io/csi/test^1"), "{}", plan.leftovers());
    set(json!([])).await?;
    assert_eq!(ended(&mut drain).await?.end, Some(End::Drained));
    assert_eq!(place.evicted_once(), ["one"]);
    Ok(())
}
