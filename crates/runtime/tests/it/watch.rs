//! Watches: whom they tell, what they select, and how little they hold.

use std::sync::{Arc, Mutex};

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use runtime::{Index, Json, Key, Kind, Metadata, Selection};
use serde_json::{Value, json};

use crate::world::{World, run, until};

fn secret(name: &str, labels: Value) -> Secret {
    let metadata = json!({"name": name, "labels": labels});
    serde_json::from_value(json!({"metadata": metadata, "stringData": {"password": "hunter2"}})).expect("a Secret")
}

#[tokio::test]
async fn a_watch_of_metadata_brings_no_content_and_only_what_is_selected() -> Result<()> {
    let world = World::new("metadata").await?;
    let api = Api::<Secret>::namespaced(world.client.clone(), &world.namespace);
    api.create(&PostParams::default(), &secret("selected", json!({"owner": "helm", "status": "deployed"}))).await?;
    api.create(&PostParams::default(), &secret("other", json!({}))).await?;

    let mut operator = world.operator();
    let writer = operator.writer("test");
    let kind = Kind::new("secrets", writer.clone(), |secret: Metadata<Secret>| secret.metadata.labels);
    let owned_by_helm = Selection { labels: Some("owner=helm".into()), ..Selection::default() };
    operator.watch_selected(&kind, owned_by_helm, |_| {});
    run(operator).await?;

    let selected = Key::new(world.namespace.clone(), "selected");
    assert_eq!(kind.get(&selected).expect("it is selected").value["status"], "deployed");
    assert!(kind.get(&Key::new(world.namespace.clone(), "other")).is_none());
    // Leaving the selection is leaving the cache.
    let relabel = Patch::Merge(json!({"metadata": {"labels": {"owner": null}}}));
    api.patch("selected", &PatchParams::default(), &relabel).await?;
    until("the Secret is forgotten", || kind.get(&selected).is_none()).await?;

    // The content is there for the one who asks.
    let read: Secret = writer.read("secrets", &selected).await?.expect("it exists");
    assert_eq!(read.data.expect("it has content")["password"].0, b"hunter2");
    assert!(writer.read::<Secret>("secrets", &Key::new(world.namespace.clone(), "absent")).await?.is_none());
    let labels = kind.read(&selected).await?.expect("it exists").metadata.labels;
    assert_eq!(json!(labels), json!({"status": "deployed"}));
    Ok(())
}

#[tokio::test]
async fn one_change_reaches_all_whom_it_concerns_in_every_queue() -> Result<()> {
    let world = World::new("queues").await?;
    let mut operator = world.operator();
    let (first, second) = (operator.queue(RESYNC), operator.queue(RESYNC));
    // Objects of our own that speak of a ConfigMap.
    let index = Arc::new(Index::default());
    let map = Key::new(world.namespace.clone(), "map");
    for name in ["a", "b", "c"] {
        index.set(&Key::new("releases", name), [map.clone()]);
    }
    let kind = Kind::new("configmaps", operator.writer("test"), |map: Json<ConfigMap>| Some(map.live()));
    let (to_first, to_second, namespace) = (first.clone(), second.clone(), world.namespace.clone());
    operator.watch(&kind, move |change| {
        index.keys(change.key).iter().for_each(|key| to_first.changed(key));
        if *change.key.namespace == *namespace && &*change.key.name == "map" {
            to_second.changed(change.key);
        }
    });
    run(operator).await?;
    let body = serde_json::from_value(json!({"metadata": {"name": "map"}}))?;
    Api::<ConfigMap>::namespaced(world.client.clone(), &world.namespace).create(&PostParams::default(), &body).await?;
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(first.next().await.key.name.to_string());
    }
    told.sort();
    assert_eq!(told, ["a", "b", "c"]);
    assert_eq!(second.next().await.key, map);
    Ok(())
}

#[tokio::test]
async fn our_own_writes_are_told_once_and_as_our_own() -> Result<()> {
    let world = World::new("own").await?;
    let mut operator = world.operator();
    let kind = Kind::new("configmaps", operator.writer("test"), |map: Json<ConfigMap>| {
        let data = map.content["data"]["a"].as_str().map(str::to_owned);
        (map.metadata.name.as_deref() == Some("own")).then_some(data)
    });
    let told = Arc::new(Mutex::new(Vec::new()));
    let (log, namespace) = (told.clone(), world.namespace.clone());
    operator.watch(&kind, move |change| {
        if *change.key.namespace == *namespace {
            let (before, after) = (change.before.cloned().flatten(), change.after.cloned().flatten());
            log.lock().unwrap().push((change.is_heard, before, after));
        }
    });
    let key = Key::new(world.namespace.clone(), "own");
    let one = Some("1".to_owned());
    // Nothing watches yet, so nothing can be heard.
    kind.create(&key, &json!({"metadata": {"name": "own"}, "data": {"a": "1"}})).await?;
    assert_eq!(*told.lock().unwrap(), [(false, None, one.clone())]);
    run(operator).await?;
    let api = Api::<ConfigMap>::namespaced(world.client.clone(), &world.namespace);
    api.delete("own", &DeleteParams::default()).await?;
    until("the deletion is told", || told.lock().unwrap().len() > 1).await?;
    assert_eq!(told.lock().unwrap()[1], (true, one, None), "what the list said of our own write was no news");
    Ok(())
}

#[tokio::test]
async fn an_object_that_is_no_longer_ours_to_keep_is_forgotten() -> Result<()> {
    let world = World::new("relabelled").await?;
    let mut operator = world.operator();
    let kind = Kind::new("configmaps", operator.writer("test"), |map: Metadata<ConfigMap>| {
        map.metadata.labels.and_then(|mut labels| labels.remove("ours"))
    });
    operator.watch(&kind, |_| {});
    run(operator).await?;
    let key = Key::new(world.namespace.clone(), "map");
    let api = Api::<ConfigMap>::namespaced(world.client.clone(), &world.namespace);
    let body = serde_json::from_value(json!({"metadata": {"name": "map", "labels": {"ours": "yes"}}}))?;
    api.create(&PostParams::default(), &body).await?;
    until("it is kept", || kind.get(&key).is_some()).await?;
    let relabel = Patch::Merge(json!({"metadata": {"labels": {"ours": null}}}));
    api.patch("map", &PatchParams::default(), &relabel).await?;
    until("it is forgotten", || kind.get(&key).is_none()).await
}

#[tokio::test]
async fn a_kind_without_namespaces_is_watched_and_read() -> Result<()> {
    let world = World::new("cluster-scoped").await?;
    let mut operator = world.operator();
    let kind = Kind::new("namespaces", operator.writer("test"), |namespace: Json<Namespace>| {
        namespace.status["phase"].as_str().map(str::to_owned)
    });
    operator.watch(&kind, |_| {});
    run(operator).await?;
    let key = Key::new("", world.namespace.clone());
    assert_eq!(kind.get(&key).expect("it is there").value, "Active");
    assert_eq!(kind.read(&key).await?.expect("it is there").status["phase"], "Active");
    let marked = kind.patch(&key, None, &json!({"metadata": {"labels": {"marked": "yes"}}})).await?;
    assert_eq!(kind.get(&key).expect("it is there").version, marked);
    Ok(())
}

/// Nothing here waits for a resync.
const RESYNC: std::time::Duration = std::time::Duration::from_mins(2);
