use k8s_openapi::api::core::v1::ConfigMap;
use kube::{core::Status, runtime::watcher};
use tokio::time::sleep;

use super::*;
use crate::{
    followers::Subscriber,
    kind::{Cache, Kind},
    scripted::{Answer, End, Script, World, bookmark, event, map, page, quiet, slow_page},
    view::Metadata,
};

type Maps = Arc<Kind<Metadata<ConfigMap>, ()>>;

const STREAM: &str = "sendInitialEvents=true";
const PAGED: &str = "limit=500";

fn watched(world: &World) -> Maps {
    let maps = Kind::new("configmaps", world.cluster.writer("test"), |_: Metadata<ConfigMap>| Some(()));
    world.cluster.watch(&maps, Selection::default(), |_| {});
    maps
}

fn names(maps: &Maps) -> Vec<String> {
    let mut names: Vec<_> = maps.store().keys().iter().map(|key| key.name.to_string()).collect();
    names.sort();
    names
}

/// Watches what the script says, for some time.
async fn watch(script: &Script, mode: Option<ListMode>, lasts: Duration) -> (World, Maps) {
    let world = script.world(mode);
    let maps = watched(&world);
    world.run();
    sleep(lasts).await;
    (world, maps)
}

#[tokio::test(start_paused = true)]
async fn a_refused_stream_is_read_in_pages_and_tried_again_later() {
    let script = Script::new([Answer::Refusal(422, None), page(5, "", [map("a", 3)])]);
    let expired = event("ERROR", serde_json::json!({"code": 410, "message": "too old"}));
    script.then([Answer::Lines(vec![event("ADDED", map("b", 6)), expired.clone()], End::Closed)]);
    script.then([page(8, "", [map("b", 6)]), quiet()]);
    let (_world, maps) = watch(&script, Some(ListMode::Streaming), Duration::from_secs(10)).await;
    assert_eq!(names(&maps), ["b"]);
    assert!(maps.readiness().is_ok());
    assert_eq!((script.count(STREAM), script.count(PAGED)), (1, 2), "{:?}", script.requests());

    // Ten minutes later the history is gone again, and the server was upgraded.
    script.then([quiet()]);
    // A watch that the server does not end is followed by a look at how far it is.
    script.then((0..9).flat_map(|_| [page(8, "", []), quiet()]));
    sleep(STREAM_AGAIN).await;
    let streamed = vec![event("ADDED", map("c", 20)), bookmark(21, true)];
    script.then([Answer::Refusal(410, None), Answer::Lines(streamed, End::Silent)]);
    sleep(Duration::from_mins(3)).await;
    assert_eq!((names(&maps), script.count(STREAM)), (vec!["c".to_owned()], 2), "{:?}", script.requests());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_know_streams_is_asked_for_pages() {
    for lines in [vec![event("ADDED", map("a", 3))], vec![event("ADDED", map("a", 3)), bookmark(4, false)]] {
        let script = Script::new([Answer::Lines(lines, End::Silent), page(5, "", [map("b", 4)]), quiet()]);
        let (_world, maps) = watch(&script, Some(ListMode::Streaming), Duration::from_secs(25)).await;
        assert_eq!(names(&maps), ["b"]);
        assert!(maps.readiness().is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_history_that_is_gone_when_a_watch_starts_is_listed_anew() {
    let script = Script::new([page(5, "", [map("a", 3)]), Answer::Refusal(410, None)]);
    script.then([page(9, "", [map("b", 8)]), quiet()]);
    let (_world, maps) = watch(&script, Some(ListMode::Paged), Duration::from_secs(10)).await;
    assert_eq!(names(&maps), ["b"]);
    assert_eq!(maps.freshness().interruption, None);
    assert!(script.requests()[3].contains("resourceVersion=9"), "{:?}", script.requests());
}

#[tokio::test(start_paused = true)]
async fn a_first_list_gets_through_however_long_it_takes() {
    // Five minutes, an object every fifteen seconds.
    let mut lines: Vec<_> = (0..20).map(|index| event("ADDED", map(&format!("m{index:02}"), 100 + index))).collect();
    lines.push(bookmark(200, true));
    for (after, _) in &mut lines {
        *after = Duration::from_secs(15);
    }
    let script = Script::new([Answer::Lines(lines, End::Silent)]);
    let (_world, maps) = watch(&script, Some(ListMode::Streaming), Duration::from_secs(316)).await;
    assert!(maps.readiness().is_ok());
    assert_eq!((names(&maps).len(), script.requests().len()), (20, 1), "{:?}", script.requests());
    // The same connection does not stay for ten minutes: it might be dead.
    script.then([quiet()]);
    sleep(WATCH + WATCH_MARGIN).await;
    assert!(script.requests()[1].contains("resourceVersion=200"), "{:?}", script.requests());

    let minute = Duration::from_secs(65);
    let pages = [("x", "a"), ("y", "b"), ("", "c")].map(|(next, name)| slow_page(minute, 5, next, [map(name, 3)]));
    let script = Script::new(pages);
    script.then([quiet()]);
    let (_world, maps) = watch(&script, Some(ListMode::Paged), minute * 3 + Duration::from_secs(1)).await;
    assert_eq!(names(&maps), ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn pages_that_expire_are_read_again_in_fewer_requests() {
    let script = Script::new([page(5, "x", [map("gone", 3)]), Answer::Refusal(410, None)]);
    script.then([page(9, "", [map("a", 7), map("b", 8)]), quiet()]);
    let (_world, maps) = watch(&script, Some(ListMode::Paged), Duration::from_secs(1)).await;
    assert_eq!(names(&maps), ["a", "b"]);
    assert!(script.requests()[2].ends_with("limit=5000"), "{:?}", script.requests());
    // If that does not help, it is an interruption like others, and not a request without limit.
    let script =
        Script::new([page(5, "x", []), Answer::Refusal(410, None), page(6, "y", []), Answer::Refusal(410, None)]);
    let (_world, maps) = watch(&script, Some(ListMode::Paged), Duration::from_secs(1)).await;
    assert_eq!(maps.readiness(), Err("list: scripted (410)".to_owned()));
    assert!(script.requests()[4].ends_with("limit=500"), "{:?}", script.requests());
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_too_long_is_asked_for_in_smaller_ones() {
    let too_long = || Answer::Blank(pages::LONGEST_PAGE + 1);
    let script = Script::new([page(5, "x", [map("a", 3)]), too_long()]);
    script.then([page(5, "y", [map("b", 4)]), page(5, "", [map("c", 4)]), quiet()]);
    let (_world, maps) = watch(&script, Some(ListMode::Paged), Duration::from_secs(1)).await;
    assert_eq!(names(&maps), ["a", "b", "c"]);
    let expected = ["limit=500", "limit=500&continue=x", "limit=125&continue=x", "limit=125&continue=y"];
    for (request, expected) in script.requests().iter().zip(expected) {
        assert!(request.ends_with(expected), "{:?}", script.requests());
    }

    // One object alone: there is no smaller page.
    let script = Script::new((0..5).map(|_| too_long()));
    let (_world, maps) = watch(&script, Some(ListMode::Paged), Duration::from_millis(50)).await;
    assert!(script.requests()[4].ends_with("limit=1"), "{:?}", script.requests());
    assert_eq!(maps.readiness(), Err("list: a page of one object is longer than 33554432 bytes".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn an_overloaded_server_is_left_alone_for_as_long_as_it_asks() {
    let script = Script::new([Answer::Refusal(429, Some(7)), page(5, "", [map("a", 3)]), quiet()]);
    let (_world, maps) = watch(&script, Some(ListMode::Paged), Duration::from_millis(6900)).await;
    assert_eq!(script.requests().len(), 1);
    assert_eq!(maps.readiness(), Err("list: scripted (429)".to_owned()));
    sleep(Duration::from_millis(200)).await;
    assert_eq!(names(&maps), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_deleted_while_a_list_streams_is_not_there() {
    let lines = vec![
        event("ADDED", map("a", 3)),
        event("ADDED", map("b", 4)),
        event("DELETED", map("a", 6)),
        bookmark(7, true),
    ];
    let script = Script::new([Answer::Lines(lines, End::Silent)]);
    let (_world, maps) = watch(&script, Some(ListMode::Streaming), Duration::from_secs(1)).await;
    assert_eq!(names(&maps), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_broken_watch_goes_on_where_it_was_and_a_short_one_does_not_turn_in_circles() {
    let script = Script::new([page(5, "", [map("a", 3)])]);
    script.then([Answer::Lines(vec![event("MODIFIED", map("a", 9)), bookmark(12, false)], End::Broken)]);
    script.then((0..100).flat_map(|_| [page(20, "", []), Answer::Lines(vec![], End::Closed)]));
    let (world, maps) = watch(&script, Some(ListMode::Paged), Duration::from_secs(10)).await;
    assert_eq!(maps.store().version(&crate::Key::new("n", "a")), Some(9));
    assert!(script.requests()[3].contains("resourceVersion=12"), "{:?}", script.requests());
    // 100, 200, … 3200 ms, 5 s.
    assert!(script.count("watch=true") < 12, "{:?}", script.requests());
    assert_eq!(maps.freshness().interruption.as_deref(), Some("watch: ended at once"));
    assert_eq!(maps.readiness(), Ok(()), "an old view is still a view");
    let text = world.context.metrics.encode().unwrap();
    assert!(text.contains(r#"strata_watch_errors_total{resource="configmaps"}"#), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_versions_went_back_is_listed_anew() {
    let script = Script::new([page(500, "", [map("a", 3), map("b", 400)]), Answer::Lines(vec![], End::Broken)]);
    // Restored from a backup of version 40: a watch from 500 would say nothing for a long time.
    script.then([page(40, "", [map("a", 3)]), page(40, "", [map("a", 3)]), quiet()]);
    let (_world, maps) = watch(&script, Some(ListMode::Paged), Duration::from_secs(2)).await;
    assert!(script.requests()[2].contains("limit=1"), "{:?}", script.requests());
    assert!(script.requests()[4].contains("resourceVersion=40"), "{:?}", script.requests());
    // What is newer than the list is read before it is believed to be gone.
    let newer = crate::Key::new("n", "b");
    assert!(maps.get(&newer).is_some());
    script.then([Answer::Refusal(404, None)]);
    maps.settle(&newer).await.unwrap();
    assert!(maps.get(&newer).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_early_however_politely_is_followed_by_a_look_at_the_servers_version() {
    let closed_after =
        |seconds| Answer::Lines(vec![(Duration::from_secs(seconds), bookmark(500, false).1)], End::Closed);
    let script = Script::new([page(500, "", [map("a", 3)])]);
    // As long as asked for, then the server is restarted from a backup of version 40.
    script.then([closed_after(60), closed_after(30)]);
    script.then([page(40, "", [map("a", 3)]), page(40, "", [map("a", 3)]), quiet()]);
    let (_world, maps) = watch(&script, Some(ListMode::Paged), Duration::from_secs(100)).await;
    let requests = script.requests();
    let is = |index: usize, part: &str| assert!(requests[index].contains(part), "{requests:?}");
    is(2, "resourceVersion=500");
    is(3, "limit=1");
    is(5, "resourceVersion=40");
    assert_eq!((requests.len(), maps.freshness().interruption), (6, None));
}

#[tokio::test(start_paused = true)]
async fn only_the_servers_404_says_that_a_kind_is_not_defined() {
    for (answer, is_undefined) in [(404, true), (403, false)] {
        let script = Script::new([Answer::Refusal(answer, None)]);
        let (_world, maps) = watch(&script, Some(ListMode::Paged), Duration::from_millis(50)).await;
        assert_eq!(maps.is_undefined(), is_undefined, "{:?}", maps.readiness());
    }
    // Words that a proxy chose.
    let words = serde_json::json!({"code": 500, "message": "upstream failed (404)"});
    let script = Script::new([Answer::Lines(vec![event("ERROR", words)], End::Closed)]);
    let (_world, maps) = watch(&script, Some(ListMode::Streaming), Duration::from_millis(50)).await;
    assert!(!maps.is_undefined());
    maps.interrupted(Some("list: upstream failed (404)".to_owned().into()));
    assert!(!maps.is_undefined(), "words decide nothing");
}

#[tokio::test(start_paused = true)]
async fn the_server_is_asked_once_whether_it_streams() {
    for (minor, expected) in [("33", PAGED), ("34+", STREAM)] {
        let version = serde_json::json!({"major": "1", "minor": minor, "gitVersion": "", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
        let script = Script::new([Answer::Object(Duration::ZERO, version)]);
        watch(&script, None, Duration::from_secs(1)).await;
        assert_eq!((script.count("/version"), script.count(expected)), (1, 1), "{:?}", script.requests());
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_decoded_is_doubted_and_holds_up_no_other() {
    let mut odd = map("odd", 4);
    odd["metadata"]["finalizers"] = serde_json::json!("hunter2");
    let script = Script::new([page(5, "", [odd, map("a", 3)]), quiet()]);
    let (world, maps) = watch(&script, Some(ListMode::Paged), Duration::from_secs(1)).await;
    assert_eq!(names(&maps), ["a"]);
    script.then([Answer::Refusal(404, None)]);
    maps.settle(&crate::Key::new("n", "odd")).await.unwrap();
    assert_eq!(script.count("GET /api/v1/namespaces/n/configmaps/odd"), 1, "its round begins with a read");
    drop(world);
}

/// What is logged, as text.
#[derive(Clone, Default)]
struct Logged(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_never_decodes_is_warned_of_once_a_minute_and_counted_each_time() {
    let logged = Logged::default();
    let writer = logged.clone();
    // Tests that run beside this one have no subscriber: without one for all, what they meet first may stay switched off.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry());
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let odd = |version| {
        let mut odd = map("odd", version);
        odd["metadata"]["finalizers"] = serde_json::json!("hunter2");
        let (_, event) = event("MODIFIED", odd);
        (Duration::from_secs(1), event)
    };
    let script = Script::new([page(5, "", []), Answer::Lines((10..60).map(odd).collect(), End::Closed)]);
    let script = script.with_hanging_reads();
    script.then([page(60, "", []), Answer::Lines((60..100).map(odd).collect(), End::Silent)]);
    let (world, _maps) = watch(&script, Some(ListMode::Paged), Duration::from_secs(95)).await;
    let text = world.context.metrics.encode().unwrap();
    assert!(text.contains("strata_watch_undecodable_objects_total{resource=\"configmaps\"} 90\n"), "{text}");
    let logged = String::from_utf8(logged.0.lock().unwrap().clone()).unwrap();
    assert_eq!(logged.matches("n/odd: ").count(), 2, "{logged}");
}

#[test]
fn an_interruption_is_reported_in_one_sentence_and_once() {
    let status = Status::failure("pods is forbidden", "Forbidden").with_code(403).boxed();
    let error = WatchError::Refused { verb: "list", status: status.clone(), retry_after: None };
    assert_eq!(error.to_string(), "list: pods is forbidden (403)");
    let error = watcher::Error::InitialListFailed(kube::Error::Api(status));
    assert_eq!(describe(&error), "list: pods is forbidden (403)");

    let refused = std::io::Error::other("connection refused");
    let error = WatchError::lost("watch")(kube::Error::ReadEvents(refused)).to_string();
    assert_eq!(error.matches("connection refused").count(), 1, "{error}");
}

#[test]
fn an_unreadable_answer_is_not_quoted() {
    let error = decode::<u8>("watch", br#""hunter2""#).unwrap_err();
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_any_length_is_read_to_its_limit() {
    let script = Script::new([Answer::LongRefusal(500, 1 << 20)]);
    let (_world, maps) = watch(&script, Some(ListMode::Paged), Duration::from_secs(1)).await;
    let why = maps.readiness().unwrap_err();
    assert!(why.starts_with("list: xxx") && why.ends_with("(500)") && why.len() < 70_000, "{} bytes", why.len());
}

#[tokio::test(start_paused = true)]
async fn what_a_restored_server_brings_is_read_although_no_round_asks() {
    let changed = Answer::Lines(vec![event("MODIFIED", map("a", 6))], End::Silent);
    let script = Script::new([page(100, "", [map("a", 100)]), Answer::Lines(vec![], End::Broken)]);
    // The server's versions went back, and the object changes after that.
    script.then([page(5, "", []), page(5, "", [map("a", 5)]), changed]);
    script.then([Answer::Object(Duration::ZERO, map("a", 6))]);
    let world = script.world(Some(ListMode::Paged));
    let maps = Kind::new("configmaps", world.cluster.writer("test"), |_: Metadata<ConfigMap>| Some(()));
    let news = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = news.clone();
    world.cluster.watch(&maps, Selection::default(), move |change| log.lock().unwrap().push(change.from_watch));
    world.run();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(
        maps.store().version(&crate::Key::new("n", "a")),
        Some(100),
        "what speaks against the store is not believed"
    );
    let before = news.lock().unwrap().len();
    sleep(Duration::from_secs(20)).await;
    assert_eq!(maps.store().version(&crate::Key::new("n", "a")), Some(6), "{:?}", script.requests());
    assert_eq!(news.lock().unwrap()[before..], [true], "as if the watch had brought it");
}
