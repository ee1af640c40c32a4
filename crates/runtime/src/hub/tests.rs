#![allow(clippy::unnecessary_wraps, clippy::needless_pass_by_value, reason = "the form that every kind's filter has")]

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use plan::fact::Fact;
use serde_json::json;

use super::*;
use crate::{
    key::Key,
    kind::{Cache, Deleted, Kind},
    scripted::{Answer, End, Script, World, event, labelled, map, page, quiet},
    selection::Selection,
    view::{Json, Metadata, View},
    watch::ListMode,
};

/// What a listener was notified of: from outside or not, name, and whether the object is there.
type Log = Arc<Mutex<Vec<String>>>;

fn labels(labels: &str) -> Selection {
    Selection { labels: Some(labels.to_owned()), ..Selection::default() }
}

/// A kind that is watched, and what it was notified of.
fn watched<W: View<DynamicType = ()>>(
    world: &World,
    selection: Selection,
    project: fn(W) -> Option<()>,
) -> (Arc<Kind<W, ()>>, Log) {
    let kind = Kind::new("configmaps", world.cluster.writer("test"), project);
    let log = Log::default();
    let noted = log.clone();
    world.cluster.watch(&kind, selection, move |change| {
        let (sign, from) =
            (if change.after.is_some() { '+' } else { '-' }, if change.from_watch { "" } else { "own " });
        noted.lock().unwrap().push(format!("{from}{sign}{}", change.key.name));
    });
    (kind, log)
}

fn whole(_: Json<ConfigMap>) -> Option<()> {
    Some(())
}

fn metadata(_: Metadata<ConfigMap>) -> Option<()> {
    Some(())
}

fn taken(log: &Log) -> Vec<String> {
    std::mem::take(&mut *log.lock().unwrap())
}

async fn moment() {
    sleep(Duration::from_millis(10)).await;
}

#[tokio::test(start_paused = true)]
async fn one_watch_serves_all_that_is_selected_within_it() {
    let ours = |name: &str, version| labelled(name, version, json!({"app": "ours", "tier": "web"}));
    let script = Script::new([page(5, "", [ours("a", 2), map("b", 3)])]);
    let left = labelled("a", 9, json!({"tier": "web"}));
    let lines = vec![event("ADDED", ours("c", 6)), event("MODIFIED", left), event("DELETED", ours("c", 10))];
    script.then([Answer::Lines(lines, End::Silent)]);
    let world = script.world(Some(ListMode::Paged));
    // The narrow ones come first: nothing is open before all have been asked for.
    let (narrow, narrow_log) = watched(&world, labels("app=ours,tier"), metadata);
    let (_named, named_log) =
        watched(&world, Selection { fields: Some("metadata.name=b".to_owned()), ..Selection::default() }, whole);
    let (wide, wide_log) = watched(&world, Selection::default(), whole);
    world.run();
    moment().await;
    assert_eq!(script.requests().len(), 2, "{:?}", script.requests());
    assert_eq!(script.count("labelSelector"), 0);
    assert_eq!(taken(&wide_log), ["+a", "+b", "+c", "+a", "-c"]);
    assert_eq!(taken(&narrow_log), ["+a", "+c", "-a", "-c"]);
    assert_eq!(taken(&named_log), ["+b"]);
    assert_eq!((wide.store().keys().len(), narrow.store().keys().len()), (2, 0));
    assert!(wide.readiness().is_ok() && narrow.readiness().is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_the_open_watch_does_not_show_has_its_own() {
    let script = Script::default();
    let world = script.world(Some(ListMode::Paged));
    watched(&world, labels("a=b"), metadata);
    watched(&world, labels("a=b"), whole);
    watched(&world, labels("a=c"), whole);
    watched(&world, Selection { fields: Some("data.x=y".to_owned()), ..Selection::default() }, whole);
    world.run();
    moment().await;
    let mut asked = script.requests();
    asked.sort();
    let expected = ["fieldSelector=data.x%3Dy", "labelSelector=a%3Db", "labelSelector=a%3Dc"];
    let expected = expected.map(|selector| format!("GET /api/v1/configmaps?&{selector}&limit=500"));
    assert_eq!(asked, expected);
}

#[tokio::test(start_paused = true)]
async fn the_objects_of_one_namespace_are_asked_for_there() {
    let script = Script::new([page(5, "", [map("a", 2)]), quiet()]);
    let world = script.world(Some(ListMode::Paged));
    watched(&world, Selection::in_namespace("n"), metadata);
    let (_one, one_log) = watched(&world, Selection::of(&Key::new("n", "a")), metadata);
    world.run();
    moment().await;
    let asked = script.requests();
    assert!(asked.iter().all(|request| request.starts_with("GET /api/v1/namespaces/n/configmaps?")), "{asked:?}");
    assert_eq!(asked.len(), 2, "one list and one watch serve both: {asked:?}");
    assert_eq!(taken(&one_log), ["+a"]);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_comes_later_is_filled_and_one_that_leaves_takes_its_watch_along() {
    let script = Script::new([page(5, "", [map("a", 2)]), quiet()]);
    let world = script.world(Some(ListMode::Paged));
    let (_first, first_log) = watched(&world, Selection::default(), whole);
    world.run();
    moment().await;
    script.then([page(7, "", [map("a", 2), labelled("b", 6, json!({"x": "y"}))]), quiet()]);
    let second = Kind::new("configmaps", world.cluster.writer("test"), metadata);
    let subscription = second.subscribe(labels("x=y"), AFTER_PANIC);
    moment().await;
    assert_eq!(second.store().keys(), [Key::new("n", "b")]);
    // What was known is no news to the first.
    assert_eq!(taken(&first_log), ["+a", "+b"]);
    assert_eq!(script.requests().len(), 4);
    drop(subscription);
    assert_eq!(world.cluster.hub().lock().len(), 1, "the first still follows");

    let alone =
        Kind::new("configmaps", world.cluster.writer("test"), |_: Json<k8s_openapi::api::core::v1::Pod>| Some(()));
    let subscription = alone.subscribe(Selection::default(), AFTER_PANIC);
    moment().await;
    assert_eq!(script.count("GET /api/v1/pods"), 1);
    assert_eq!(world.cluster.hub().lock().len(), 2);
    drop(subscription);
    moment().await;
    assert_eq!(world.cluster.hub().lock().len(), 1);
    let tasks = world.context.health.readiness();
    assert!(tasks.contains_key("task watch configmaps") && tasks.len() == 2, "{tasks:?}");
}

#[tokio::test(start_paused = true)]
async fn a_write_is_known_to_all_at_once_and_its_echo_is_not_even_decoded() {
    static DECODED: AtomicU64 = AtomicU64::new(0);
    let script = Script::new([page(5, "", [])]);
    let echo = |name, version| event("ADDED", labelled(name, version, json!({"app": "ours"})));
    let (mut late, mut later) = (echo("a", 6), echo("b", 7));
    (late.0, later.0) = (Duration::from_secs(5), Duration::from_secs(5));
    script.then([Answer::Lines(vec![late, later], End::Silent)]);
    let world = script.world(Some(ListMode::Paged));
    let (writing, writing_log) = watched(&world, Selection::default(), |_: Json<ConfigMap>| {
        DECODED.fetch_add(1, Ordering::Relaxed);
        Some(())
    });
    let (selecting, selecting_log) = watched(&world, labels("app=ours"), metadata);
    let (_other, other_log) = watched(&world, labels("app=theirs"), whole);
    world.run();
    moment().await;
    let key = Key::new("n", "a");
    script.then([Answer::Object(Duration::ZERO, labelled("a", 6, json!({"app": "ours"})))]);
    writing.create(&key, &json!({})).await.unwrap();
    assert_eq!((taken(&writing_log), taken(&selecting_log)), (vec!["own +a".to_owned()], vec!["+a".to_owned()]));
    assert_eq!(selecting.store().version(&key), Some(6));
    sleep(Duration::from_secs(11)).await;
    assert_eq!((taken(&writing_log), taken(&selecting_log)), (vec!["+b".to_owned()], vec!["+b".to_owned()]));
    assert_eq!(DECODED.load(Ordering::Relaxed), 2, "one answer and one event");

    // A write that takes it out of the selection, and a deletion.
    script.then([Answer::Object(Duration::ZERO, labelled("b", 8, json!({"app": "theirs"})))]);
    writing.patch(&Key::new("n", "b"), None, &json!({})).await.unwrap();
    assert_eq!((taken(&selecting_log), taken(&other_log)), (vec!["-b".to_owned()], vec!["+b".to_owned()]));
    script.then([Answer::Object(Duration::ZERO, json!({"kind": "Status", "status": "Success"}))]);
    writing.delete(&key, "uid", "6").await.unwrap();
    assert_eq!((taken(&selecting_log), selecting.store().keys().len()), (vec!["-a".to_owned()], 0));
}

#[tokio::test(start_paused = true)]
async fn a_stranger_that_a_read_found_stays_until_it_is_gone() {
    let script = Script::new([page(5, "", [map("stranger", 3)])]);
    let (mut changed, mut gone) = (event("MODIFIED", map("stranger", 6)), event("DELETED", map("stranger", 7)));
    (changed.0, gone.0) = (Duration::from_secs(5), Duration::from_secs(5));
    script.then([Answer::Lines(vec![changed, gone], End::Silent)]);
    let world = script.world(Some(ListMode::Paged));
    let (_wide, _) = watched(&world, Selection::default(), whole);
    let (narrow, log) = watched(&world, labels("app=ours"), whole);
    world.run();
    moment().await;
    let key = Key::new("n", "stranger");
    assert!(narrow.get(&key).is_none());
    script.then([Answer::Object(Duration::ZERO, map("stranger", 3))]);
    narrow.refresh(&key).await.unwrap();
    sleep(Duration::from_secs(6)).await;
    assert_eq!(narrow.store().version(&key), Some(3), "as if the server had selected");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(taken(&log), ["own +stranger", "-stranger"]);
    assert!(narrow.strangers().is_empty());
}

#[tokio::test(start_paused = true)]
async fn several_listeners_of_a_kind_are_notified_in_their_order() {
    let script = Script::new([page(5, "", [map("a", 2)]), quiet()]);
    let world = script.world(Some(ListMode::Paged));
    let kind = Kind::new("configmaps", world.cluster.writer("test"), whole);
    let log = Log::default();
    for name in ["first", "second", "third"] {
        let log = log.clone();
        world.cluster.watch(&kind, Selection::default(), move |_| log.lock().unwrap().push(name.to_owned()));
    }
    world.run();
    moment().await;
    assert_eq!(taken(&log), ["first", "second", "third"]);
    assert_eq!(script.count("limit=500"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_reached_in_another_way_is_unknown_until_it_is_listed_anew() {
    let script = Script::new([page(5, "", [map("a", 2)]), quiet()]);
    let world = script.world(Some(ListMode::Paged));
    let (kind, log) = watched(&world, Selection::default(), whole);
    world.run();
    moment().await;
    let known = |kind: &Kind<_, _>| matches!(kind.freshness().fact(kind.store().keys().len()), Fact::Known { .. });
    assert!(known(&kind) && world.cluster.freshness().is_known());
    let other = Script::default();
    world.cluster.exchange(other.client());
    for _ in 0..2 {
        assert!(!kind.freshness().is_known() && !world.cluster.freshness().is_known());
        let fact = kind.freshness().fact(kind.store().keys().len());
        let Fact::Unknown { why, last: Some((1, _)) } = fact else { panic!("{fact:?}") };
        assert_eq!(why.message, "not listed since the kubeconfig changed");
        // The list is asked for, and the server has not answered yet.
        moment().await;
    }
    assert_eq!(other.requests().len(), 1);
    let again = Script::new([page(9, "", [map("b", 7)]), quiet()]);
    world.cluster.exchange(again.client());
    moment().await;
    assert!(known(&kind) && world.cluster.freshness().is_known());
    assert_eq!(taken(&log), ["+a", "+b", "-a"]);
}

#[tokio::test(start_paused = true)]
async fn a_namesake_in_a_cluster_that_was_made_anew_is_seen() {
    let script = Script::new([page(60, "", [map("a", 50)]), quiet()]);
    let world = script.world(Some(ListMode::Paged));
    let (kind, log) = watched(&world, Selection::default(), whole);
    world.run();
    moment().await;
    let joins = (Duration::from_secs(5), event("ADDED", map("a", 10)).1);
    let other = Script::new([page(9, "", []), Answer::Lines(vec![joins], End::Silent), Answer::Refusal(404, None)]);
    world.cluster.exchange(other.client());
    moment().await;
    kind.settle(&Key::new("n", "a")).await.unwrap();
    // The second time as doubtful: the list lacks what is newer than it.
    assert_eq!(taken(&log), ["+a", "+a", "own -a"]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(taken(&log), ["+a"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_known_of_a_cluster_that_is_removed_is_dropped_and_unknown() {
    let script = Script::new([page(5, "", [map("a", 2)]), quiet()]);
    let world = script.world(Some(ListMode::Paged));
    let (kind, log) = watched(&world, Selection::default(), whole);
    world.run();
    moment().await;
    world.cluster.close();
    assert_eq!(taken(&log), ["+a", "-a"]);
    let gone = |kind: &Kind<_, _>| (kind.store().keys().len(), kind.store().is_synced(), kind.freshness());
    let unknown = Freshness { age: None, interruption: Some("the cluster was removed".to_owned()) };
    assert_eq!(gone(&kind), (0, false, unknown.clone()));
    assert!(matches!(kind.freshness().fact(()), Fact::Unknown { last: None, .. }));
    // The answer to a write that was under way.
    script.then([Answer::Object(Duration::ZERO, map("b", 6))]);
    kind.create(&Key::new("n", "b"), &json!({})).await.unwrap();
    assert_eq!(gone(&kind), (0, false, unknown));
    assert_eq!(taken(&log), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_costs_one_subscriber_until_it_is_filled_anew() {
    static IS_WELL: AtomicBool = AtomicBool::new(false);
    fn poisoned(map: Metadata<ConfigMap>) -> Option<()> {
        assert!(map.metadata.name.as_deref() != Some("poison") || IS_WELL.load(Ordering::Relaxed), "poisoned");
        Some(())
    }
    let script = Script::new([page(5, "", [map("a", 2)])]);
    let mut poison = event("ADDED", map("poison", 6));
    poison.0 = Duration::from_secs(5);
    script.then([Answer::Lines(vec![poison, event("ADDED", map("b", 7))], End::Silent)]);
    let world = script.world(Some(ListMode::Paged));
    let (fragile, fragile_log) = watched(&world, Selection::default(), poisoned);
    let (_sound, sound_log) = watched(&world, Selection::default(), whole);
    let running = world.run();
    sleep(Duration::from_secs(5)).await;
    moment().await;
    assert_eq!(taken(&fragile_log), ["+a"]);
    assert_eq!(taken(&sound_log), ["+a", "+poison", "+b"], "the other goes on");
    assert_eq!(fragile.freshness().interruption.as_deref(), Some("panic: poisoned"));
    assert_eq!(fragile.mention().as_deref(), Some("panic: poisoned"), "it is mentioned without being unready");
    assert!(fragile.readiness().is_ok() && fragile.get(&Key::new("n", "a")).is_some(), "what was known stays");

    // After a second it is filled again, and panics again.
    let all = || page(8, "", [map("a", 2), map("b", 7), map("poison", 6)]);
    script.then([all(), quiet()]);
    sleep(AFTER_PANIC).await;
    assert_eq!(script.count("limit=500"), 2);
    assert_eq!(fragile.freshness().interruption.as_deref(), Some("panic: poisoned"));
    assert_eq!(taken(&sound_log), [""; 0]);
    // Two seconds after that, all is well, and listeners are notified of everything again: nothing is known of what was
    // missed.
    IS_WELL.store(true, Ordering::Relaxed);
    taken(&fragile_log);
    script.then([all(), quiet()]);
    sleep(AFTER_PANIC).await;
    assert_eq!(script.count("limit=500"), 2, "the wait grows");
    sleep(AFTER_PANIC).await;
    assert_eq!((script.count("limit=500"), fragile.freshness().interruption), (3, None));
    assert_eq!(taken(&fragile_log), ["+a", "+b", "+poison"]);
    assert!(world.context.metrics.encode().unwrap().contains("strata_watch_panics_total 2\n"));
    assert!(!running.is_finished());
}

#[tokio::test(start_paused = true)]
async fn what_a_deletion_leaves_is_not_taken_for_gone_where_the_answer_cannot_be_read() {
    let script = Script::new([page(5, "", [map("a", 3)]), quiet()]);
    let world = script.world(Some(ListMode::Paged));
    let (maps, log) = watched(&world, Selection::default(), whole);
    world.run();
    moment().await;
    let key = Key::new("n", "a");
    script.then([Answer::Object(Duration::ZERO, json!({"kind": "ConfigMap", "metadata": {"finalizers": "odd"}}))]);
    assert_eq!(maps.delete(&key, "uid", "3").await.unwrap(), Deleted::Terminating);
    assert_eq!((maps.store().version(&key), taken(&log)), (Some(3), vec!["+a".to_owned()]));
    script.then([Answer::Refusal(404, None)]);
    maps.settle(&key).await.unwrap();
    assert_eq!((maps.store().version(&key), taken(&log)), (None, vec!["own -a".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn any_read_settles_the_doubts_before_it() {
    let script = Script::new([page(5, "", [map("a", 3)]), quiet()]);
    let world = script.world(Some(ListMode::Paged));
    let (maps, _) = watched(&world, Selection::default(), whole);
    world.run();
    moment().await;
    let key = Key::new("n", "a");
    maps.doubt(key.clone());
    // As after a conflict.
    script.then([Answer::Refusal(404, None)]);
    maps.refresh(&key).await.unwrap();
    let asked = script.requests().len();
    maps.settle(&key).await.unwrap();
    assert_eq!(script.requests().len(), asked, "it is not read twice");
}

#[tokio::test(start_paused = true)]
async fn what_is_followed_for_a_while_is_watched_no_longer_than_that() {
    let script = Script::new([page(5, "", []), quiet()]);
    let world = script.world(Some(ListMode::Paged));
    let kind = Kind::new("configmaps", world.cluster.writer("test"), whole);
    let mut news = kind.news();
    let following = world.cluster.follow(&kind, Selection::default(), |_| {});
    assert!(!kind.is_settled(), "nothing was listed yet");
    world.run();
    news.changed().await.unwrap();
    moment().await;
    assert!(kind.is_settled() && kind.freshness().is_known(), "an empty list is news as well");
    drop(following);
    moment().await;
    assert!(world.cluster.hub().lock().is_empty());
    let asked = script.requests().len();
    sleep(Duration::from_mins(5)).await;
    assert_eq!(script.requests().len(), asked);

    // A cluster that is removed takes along what is followed.
    script.then([page(6, "", [map("a", 2)]), quiet()]);
    let kind = Kind::new("configmaps", world.cluster.writer("test"), whole);
    let _following = world.cluster.follow(&kind, Selection::default(), |_| {});
    moment().await;
    assert_eq!(kind.store().keys().len(), 1);
    world.cluster.close();
    assert!(kind.store().keys().is_empty() && !kind.freshness().is_known());
}
