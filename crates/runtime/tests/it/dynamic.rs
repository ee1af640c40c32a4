//! Watches that begin and end while the operator runs.

use std::sync::{Arc, Mutex};

use anyhow::Result;
use k8s_openapi::{
    api::core::v1::ConfigMap, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::world::{World, run, until};

/// What was notified about one namespace: kind, name, generation before and after.
type Notified = Arc<Mutex<Vec<(String, String, Option<i64>, Option<i64>)>>>;

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

fn crd() -> CustomResourceDefinition {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}}});
    let names = json!({"kind": "Later", "plural": "laters", "singular": "later"});
    let spec = json!({"group": "example.com", "names": names, "scope": "Namespaced", "versions": [version]});
    serde_json::from_value(json!({"metadata": {"name": "laters.example.com"}, "spec": spec})).unwrap()
}

#[tokio::test]
async fn a_kind_is_watched_from_when_it_is_wanted_and_exists_until_it_is_released() -> Result<()> {
    let world = World::new("dynamic").await?;
    let mut operator = world.operator();
    let notified = Notified::default();
    let (log, namespace) = (notified.clone(), world.namespace.clone());
    let watches = operator.dynamic_watches(move |kind, change| {
        if *change.key.namespace == *namespace && &*change.key.name != "kube-root-ca.crt" {
            let generation = |trace: Option<&runtime::Trace>| trace.and_then(|trace| trace.generation);
            let (before, after) = (generation(change.before), generation(change.after));
            log.lock().unwrap().push((kind.kind.clone(), change.key.name.to_string(), before, after));
        }
    });
    let said = || notified.lock().unwrap().iter().map(|(kind, name, ..)| format!("{kind} {name}")).collect::<Vec<_>>();
    let (health, running) = run(operator).await?;
    let maps = GroupVersionKind::gvk("", "v1", "ConfigMap");
    let laters = GroupVersionKind::gvk("example.com", "v1", "Later");
    assert_eq!(watches.readiness(&maps), Err("not watched".to_owned()));
    watches.ensure(&laters);
    watches.ensure(&maps);
    watches.ensure(&maps);

    // The absent kind holds up neither the other nor the operator.
    until("ConfigMaps are known", || watches.readiness(&maps).is_ok()).await?;
    let interruption = Err("the kind does not exist".to_owned());
    until("the interruption is reported", || watches.readiness(&laters) == interruption).await?;
    let api = Api::<ConfigMap>::namespaced(world.client.clone(), &world.namespace);
    api.create(&PostParams::default(), &map("a")).await?;
    until("the new ConfigMap is reported", || said() == ["ConfigMap a"]).await?;
    assert!(health.readiness().values().all(Result::is_ok) && !running.is_finished());

    // It comes later, and its spec can be distinguished from its status.
    let crds = Api::<CustomResourceDefinition>::all(world.client.clone());
    crds.create(&PostParams::default(), &crd()).await?;
    until("the kind is known", || watches.readiness(&laters).is_ok()).await?;
    let resource = ApiResource::from_gvk_with_plural(&laters, "laters");
    let objects = Api::<DynamicObject>::namespaced_with(world.client.clone(), &world.namespace, &resource);
    let object = DynamicObject::new("x", &resource).data(json!({"spec": {"size": 1}}));
    objects.create(&PostParams::default(), &object).await?;
    objects.patch_status("x", &PatchParams::default(), &Patch::Merge(json!({"status": {"ready": true}}))).await?;
    let patch = |patch: Value| Patch::Merge(patch);
    objects.patch("x", &PatchParams::default(), &patch(json!({"spec": {"size": 2}}))).await?;
    objects.delete("x", &DeleteParams::default()).await?;
    until("its changes are reported", || notified.lock().unwrap().last().is_some_and(|last| last.3.is_none())).await?;
    let generations: Vec<_> =
        notified.lock().unwrap()[1..].iter().map(|(_, _, before, after)| (*before, *after)).collect();
    assert_eq!(generations, [(None, Some(1)), (Some(1), Some(1)), (Some(1), Some(2)), (Some(2), None)]);

    watches.release(&maps);
    api.create(&PostParams::default(), &map("unwatched")).await?;
    objects.create(&PostParams::default(), &object).await?;
    until("the other kind is still reported", || notified.lock().unwrap().len() == 6).await?;
    assert_eq!(said().last().unwrap(), "Later x");
    assert!(!said().contains(&"ConfigMap unwatched".to_owned()));
    // The kind is gone: interruption again, and nothing else.
    crds.delete("laters.example.com", &DeleteParams::default()).await?;
    until("the loss of the kind is reported", || watches.readiness(&laters).is_err()).await?;
    assert!(health.readiness().values().all(Result::is_ok) && !running.is_finished());
    Ok(())
}

#[tokio::test]
async fn a_kind_that_may_not_be_read_is_trouble_and_nothing_more() -> Result<()> {
    let control_plane = testbed::ControlPlane::shared().await?;
    let world = World::new("forbidden").await?;
    let operators = runtime::connect(control_plane.config_as(&testbed::User::named("nobody")).await?)?;
    let mut operator = World { operators, ..world }.operator();
    let watches = operator.dynamic_watches(|_, _| {});
    let (health, running) = run(operator).await?;
    let secrets = GroupVersionKind::gvk("", "v1", "Secret");
    watches.ensure(&secrets);
    let is_forbidden = || matches!(watches.readiness(&secrets), Err(why) if why.contains("is forbidden"));
    until("the missing right is reported", is_forbidden).await?;
    assert!(health.readiness().values().all(Result::is_ok) && !running.is_finished());
    Ok(())
}
