//! Pods whose budgets do not let all of them go at once.

use anyhow::Result;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use plan::drain::{End, Holds, Plan};
use serde_json::{Value, json};
use testbed::{User, fault::FaultProxy, kwok::Behaviour};
use tokio::time::Instant;

use crate::{
    engine::{Engine, ended, order, until},
    place::{Place, wait},
};

/// Nothing moves before the budget does.
fn is_blocked(plan: &Plan) -> bool {
    plan.blocked().is_some() && plan.left().all(|(_, holds)| matches!(holds, Holds::Blocked { .. }))
}

#[tokio::test]
async fn a46_what_a_budget_blocks_waits_for_its_change_and_is_asked_once() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    for name in ["one", "two", "three", "four"] {
        place.pod(name, &node, json!({})).await?;
    }
    place.budget("web", 3, 1).await?;
    let engine = Engine::start(&place.proxy).await?;
    let mut drain = engine.begin(&node, order("one"), None);
    let blocked = until(&mut drain, "all but one blocked", |plan| is_blocked(plan) && plan.left().count() == 3).await?;
    let named = blocked.leftovers();
    assert!(named.contains(&format!("PodDisruptionBudget {}/web", place.namespace)), "{named}");
    assert!(named.contains(&format!("{}/one", place.namespace)), "{named}");
    assert_eq!(place.evicted_once(), ["four"], "and no attempt in vain");
    place.set_budget("web", 0).await?;
    assert_eq!(ended(&mut drain).await?.end, Some(End::Drained));
    assert_eq!(place.evicted_once(), ["four", "one", "three", "two"]);
    assert_eq!(place.reads(), 0);
    Ok(())
}

#[tokio::test]
async fn drains_of_several_nodes_share_a_budget_without_an_attempt_in_vain() -> Result<()> {
    let place = Place::new().await?;
    let nodes = [place.node().await?, place.node().await?];
    for (node, names) in nodes.iter().zip([["a", "b"], ["c", "d"]]) {
        for name in names {
            place.pod(name, node, json!({})).await?;
        }
    }
    place.budget("web", 2, 2).await?;
    let engine = Engine::start(&place.proxy).await?;
    let mut drains = nodes.each_ref().map(|node| engine.begin(node, order("all"), None));
    for drain in &mut drains {
        until(drain, "blocked or gone", |plan| is_blocked(plan) || plan.end.is_some()).await?;
    }
    assert_eq!(place.evicted_once().len(), 2);
    place.set_budget("web", 0).await?;
    for drain in &mut drains {
        assert_eq!(ended(drain).await?.end, Some(End::Drained));
    }
    assert_eq!(place.evicted_once(), ["a", "b", "c", "d"]);
    Ok(())
}

#[tokio::test]
async fn pods_move_to_another_node_one_by_one_as_their_budget_allows() -> Result<()> {
    let place = Place::new().await?;
    let nodes = [place.node().await?, place.node().await?];
    let cordon = |is_cordoned: bool| Patch::Merge(json!({ "spec": { "unschedulable": is_cordoned } }));
    place.nodes.patch(&nodes[1], &PatchParams::default(), &cordon(true)).await?;
    let labels = json!({ "app": "web" });
    let deployment = json!({
        "metadata": { "name": "web" },
        "spec": { "replicas": 5, "selector": { "matchLabels": labels }, "template": {
            "metadata": { "labels": labels },
            "spec": {
                "nodeSelector": { "place": place.namespace }, "terminationGracePeriodSeconds": 1,
                "tolerations": [{ "key": "test", "operator": "Exists" }],
                "containers": [{ "name": "main", "image": Behaviour::Ready.image() }],
            },
        } },
    });
    let deployments = Api::<Deployment>::namespaced(place.client.clone(), &place.namespace);
    deployments.create(&PostParams::default(), &serde_json::from_value(deployment)?).await?;
    let is_ready = |deployment: Option<&Deployment>| {
        let status = deployment.and_then(|deployment| deployment.status.as_ref());
        status.is_some_and(|status| status.ready_replicas == Some(5))
    };
    wait(deployments, "web", is_ready).await?;
    place.nodes.patch(&nodes[1], &PatchParams::default(), &cordon(false)).await?;
    place.budget("web", 4, 1).await?;

    let engine = Engine::start(&place.proxy).await?;
    assert_eq!(ended(&mut engine.begin(&nodes[0], order("one"), None)).await?.end, Some(End::Drained));
    assert_eq!((place.evicted_once().len(), place.reads()), (5, 0));
    let on_node = ListParams::default().fields(&format!("spec.nodeName={}", nodes[0]));
    let left = Api::<Pod>::namespaced(place.client.clone(), &place.namespace).list(&on_node).await?;
    assert!(left.items.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_pod_with_two_budgets_is_named_and_goes_when_one_is_left() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    place.pod("one", &node, json!({})).await?;
    place.budget("first", 0, 1).await?;
    place.budget("second", 0, 1).await?;
    let engine = Engine::start(&place.proxy).await?;
    let mut drain = engine.begin(&node, order("one"), None);
    let plan = until(&mut drain, "both named", |plan| plan.blocked().is_some()).await?;
    let named = plan.leftovers();
    assert!(named.contains("/first") && named.contains("/second"), "{named}");
    assert!(place.evictions().is_empty());
    place.budgets.delete("second", &DeleteParams::default()).await?;
    assert_eq!(ended(&mut drain).await?.end, Some(End::Drained));
    assert_eq!(place.evicted_once(), ["one"]);
    Ok(())
}

/// What a workload cluster grants: everything but budgets.
fn rights() -> [Value; 2] {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
    let rules = [
        rule("", &["nodes"], &["get", "list", "watch", "patch"]),
        rule("", &["pods"], &["get", "list", "watch"]),
        rule("", &["pods/eviction"], &["create"]),
    ];
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "drainer" },
        "rules": rules,
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "drainer" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "drainer" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "drainer" }],
    });
    [role, binding]
}

#[tokio::test]
async fn where_budgets_may_not_be_read_the_servers_refusals_speak_for_them() -> Result<()> {
    let place = Place::new().await?;
    let node = place.node().await?;
    place.pod("one", &node, json!({})).await?;
    place.pod("free", &node, json!({ "metadata": { "labels": { "app": "other" } } })).await?;
    place.budget("web", 1, 0).await?;
    place.control_plane.install(&rights()).await?;
    let user = place.control_plane.kubeconfig_as(&User::named("drainer")).await?;
    let place = Place { proxy: FaultProxy::start(Kubeconfig::read_from(user)?, 7).await?, ..place };
    let (engine, began) = (Engine::start(&place.proxy).await?, Instant::now());
    let mut drain = engine.begin(&node, order("one"), None);
    let plan = until(&mut drain, "refused", |plan| is_blocked(plan) && plan.left().count() == 1).await?;
    assert!(plan.leftovers().contains("The disruption budget web needs 1 healthy pods"), "{}", plan.leftovers());
    place.set_budget("web", 0).await?;
    assert_eq!(ended(&mut drain).await?.end, Some(End::Drained));
    let evictions = place.evictions();
    assert!(evictions.contains(&("free".to_owned(), 1)), "{evictions:?}");
    // One that was refused, and one for each ten seconds until the budget allowed it.
    let most = 2 + usize::try_from(began.elapsed().as_secs() / 10)?;
    assert!(evictions.iter().any(|(name, count)| name == "one" && (2..=most).contains(count)), "{evictions:?}");
    Ok(())
}
