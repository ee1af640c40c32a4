//! Watches: whom they notify, what they select, how little they hold, and what they survive.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use runtime::{Index, Json, Key, Kind, ListMode, Metadata, Operator, Selection, Settings};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, Options,
    fault::{Calls, Fault, FaultProxy, Verb},
};
use tokio_util::sync::CancellationToken;

use crate::world::{World, run, settings, until};

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
    let mut notified = Vec::new();
    for _ in 0..3 {
        notified.push(first.next().await.key.name.to_string());
    }
    notified.sort();
    assert_eq!(notified, ["a", "b", "c"]);
    assert_eq!(second.next().await.key, map);
    Ok(())
}

#[tokio::test]
async fn our_own_writes_are_notified_once_and_as_our_own() -> Result<()> {
    let world = World::new("own").await?;
    let mut operator = world.operator();
    let kind = Kind::new("configmaps", operator.writer("test"), |map: Json<ConfigMap>| {
        let data = map.content["data"]["a"].as_str().map(str::to_owned);
        (map.metadata.name.as_deref() == Some("own")).then_some(data)
    });
    let notified = Arc::new(Mutex::new(Vec::new()));
    let (log, namespace) = (notified.clone(), world.namespace.clone());
    operator.watch(&kind, move |change| {
        if *change.key.namespace == *namespace {
            let (before, after) = (change.before.cloned().flatten(), change.after.cloned().flatten());
            log.lock().unwrap().push((change.from_watch, before, after));
        }
    });
    let key = Key::new(world.namespace.clone(), "own");
    let one = Some("1".to_owned());
    // Nothing watches yet, so nothing can be notified.
    kind.create(&key, &json!({"metadata": {"name": "own"}, "data": {"a": "1"}})).await?;
    assert_eq!(*notified.lock().unwrap(), [(false, None, one.clone())]);
    run(operator).await?;
    let api = Api::<ConfigMap>::namespaced(world.client.clone(), &world.namespace);
    api.delete("own", &DeleteParams::default()).await?;
    until("the deletion is reported", || notified.lock().unwrap().len() > 1).await?;
    assert_eq!(notified.lock().unwrap()[1], (true, one, None), "what the list said of our own write was no news");
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

/// A layer's mistake where no round is around it to catch the panic.
#[tokio::test]
async fn a_panic_costs_one_cache_and_neither_the_others_nor_the_operator() -> Result<()> {
    static IS_WELL: AtomicBool = AtomicBool::new(false);
    #[allow(clippy::needless_pass_by_value, reason = "the form that every kind's filter has")]
    fn project(map: ConfigMap) -> Option<()> {
        let is_poison = map.metadata.name.as_deref() == Some("poison");
        assert!(!is_poison || IS_WELL.load(Ordering::SeqCst), "poisoned");
        is_poison.then_some(())
    }
    let world = World::new("poison").await?;
    let mut operator = world.operator();
    let fragile = Kind::new("configmaps", operator.writer("test"), project);
    let sound = Kind::new("configmaps", operator.writer("test"), |map: Metadata<ConfigMap>| map.metadata.name);
    operator.watch(&fragile, |_| {});
    operator.watch(&sound, |_| {});
    let metrics = operator.metrics.clone();
    let (health, running) = run(operator).await?;

    let poison = serde_json::from_value(json!({"metadata": {"name": "poison"}}))?;
    let api = Api::<ConfigMap>::namespaced(world.client.clone(), &world.namespace);
    api.create(&PostParams::default(), &poison).await?;
    let key = Key::new(world.namespace.clone(), "poison");
    until("the other cache has it", || sound.get(&key).is_some()).await?;
    until("the panic is reported", || {
        health.notes().get("cache configmaps").is_some_and(|why| why == "panic: poisoned")
    })
    .await?;
    assert!(health.readiness().values().all(Result::is_ok) && !running.is_finished());
    let text = metrics.encode()?;
    let counted = text.lines().find_map(|line| line.strip_prefix("strata_watch_panics_total ")).unwrap();
    assert!(counted.parse::<u32>()? >= 1);
    IS_WELL.store(true, Ordering::SeqCst);
    until("it is filled again", || fragile.get(&key).is_some() && health.notes().is_empty()).await?;
    assert!(!running.is_finished());
    Ok(())
}

#[tokio::test]
async fn many_projections_share_one_watch_and_a_write_enters_all_of_them() -> Result<()> {
    let world = World::new("projections").await?;
    let proxy = FaultProxy::start(admin(ControlPlane::shared().await?)?, 1).await?;
    let world = World { operators: proxy.client().await?, ..world };
    let mut operator = world.operator();
    let whole = Kind::new("configmaps", operator.writer("test"), |map: Json<ConfigMap>| Some(map.live()));
    let ours = Kind::new("configmaps", operator.writer("test"), |map: Metadata<ConfigMap>| map.metadata.labels);
    operator.watch(&whole, |_| {});
    let labels = Some("app=ours".to_owned());
    let notified = Arc::new(Mutex::new(Vec::new()));
    let (log, namespace) = (notified.clone(), world.namespace.clone());
    operator.watch_selected(&ours, Selection { labels, ..Selection::default() }, move |change| {
        if *change.key.namespace == *namespace {
            log.lock().unwrap().push(change.after.is_some());
        }
    });
    run(operator).await?;
    let watches = || {
        let of_maps =
            |seen: &&testbed::fault::Seen| seen.request.is_for("configmaps") && seen.request.verb == Verb::Watch;
        proxy.requests().iter().filter(of_maps).count()
    };
    assert_eq!(watches(), 1);

    let held = proxy.hold_events("configmaps");
    let key = Key::new(world.namespace.clone(), "a");
    let body = json!({"metadata": {"name": "a", "labels": {"app": "ours"}}});
    let version = whole.create(&key, &body).await?;
    assert_eq!(ours.get(&key).expect("it is known at once").version, version);
    whole.patch(&key, None, &json!({"metadata": {"labels": {"app": "theirs"}}})).await?;
    assert!(ours.get(&key).is_none() && whole.get(&key).is_some());
    assert_eq!(*notified.lock().unwrap(), [true, false], "and notified as if the watch had");
    held.release();
    let back = Patch::Merge(json!({"metadata": {"labels": {"app": "ours"}}}));
    let api = Api::<ConfigMap>::namespaced(world.client.clone(), &world.namespace);
    api.patch("a", &PatchParams::default(), &back).await?;
    until("it is back", || ours.get(&key).is_some()).await?;
    assert_eq!(*notified.lock().unwrap(), [true, false, true]);
    Ok(())
}

fn admin(control_plane: &ControlPlane) -> Result<kube::config::Kubeconfig> {
    Ok(kube::config::Kubeconfig::read_from(control_plane.kubeconfig())?)
}

/// An operator that watches ConfigMaps through this client.
fn through(client: kube::Client, mode: ListMode) -> (Operator, Arc<Kind<Metadata<ConfigMap>, String>>) {
    let settings = Settings { list_mode: Some(mode), ..settings() };
    let mut operator = Operator::new(client, settings, process::Clock::default(), CancellationToken::new());
    let maps = Kind::new("configmaps", operator.writer("test"), |map: Metadata<ConfigMap>| map.metadata.name);
    operator.watch(&maps, |_| {});
    (operator, maps)
}

#[tokio::test]
async fn a_server_without_streaming_lists_is_read_in_pages() -> Result<()> {
    let flags = vec!["--feature-gates=WatchList=false".to_owned()];
    let options = Options { fsync: false, apiserver_flags: flags, ..Options::bare() };
    let control_plane = ControlPlane::start(options).await?;
    let namespace = control_plane.namespace("pages").await?;
    let operators = runtime::connect(control_plane.config_as(&testbed::User::admin()).await?)?;
    // Configuration says that it streams, as a version would.
    let (operator, maps) = through(operators, ListMode::Streaming);
    run(operator).await?;
    let api = Api::<ConfigMap>::namespaced(control_plane.client().await?, &namespace);
    let body = serde_json::from_value(json!({"metadata": {"name": "a"}}))?;
    api.create(&PostParams::default(), &body).await?;
    until("it is seen", || maps.get(&Key::new(namespace.clone(), "a")).is_some()).await?;
    control_plane.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_history_that_is_gone_when_a_watch_starts_is_listed_anew() -> Result<()> {
    let world = World::new("gone").await?;
    let proxy = FaultProxy::start(admin(ControlPlane::shared().await?)?, 2).await?;
    let (operator, maps) = through(proxy.client().await?, ListMode::Paged);
    run(operator).await?;
    let expired = proxy.inject(Calls::of(Verb::Watch, "configmaps").at_most(1), Fault::Status(410));
    let lists = || proxy.requests().iter().filter(|seen| seen.request.verb == Verb::List).count();
    let before = lists();
    // The first watch may still be opening, and then there is none to cut.
    let cut = async {
        loop {
            proxy.cut_watches("configmaps");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        reached = expired.reached() => drop(reached?),
        () = cut => {}
    }
    let body = serde_json::from_value(json!({"metadata": {"name": "a"}}))?;
    Api::<ConfigMap>::namespaced(world.client.clone(), &world.namespace).create(&PostParams::default(), &body).await?;
    until("it is seen", || maps.get(&Key::new(world.namespace.clone(), "a")).is_some()).await?;
    assert!(lists() > before);
    Ok(())
}

/// Nothing here waits for a resync.
const RESYNC: std::time::Duration = std::time::Duration::from_mins(2);
