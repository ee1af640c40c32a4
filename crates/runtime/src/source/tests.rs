use std::{collections::BTreeMap, sync::atomic::Ordering};

use process::Health;
use tokio::time::sleep;

use super::{tally::MENTIONED, *};
use crate::{
    key::Key,
    metrics::Metrics,
    queue::{Next, Queue},
};

const SECOND: Duration = Duration::from_secs(1);

fn config() -> SourceConfig {
    SourceConfig { debounce: Duration::from_millis(200), connect: SECOND * 10, silence: SECOND * 45 }
}

struct World {
    sources: Sources<String, u64>,
    /// Peers of which something was new, with the time.
    notices: Arc<Mutex<Vec<(String, Duration)>>>,
}

impl World {
    fn new() -> Self {
        let (notices, clock) = (Arc::<Mutex<Vec<_>>>::default(), Clock::default());
        let (noted, began) = (notices.clone(), clock.instant());
        let sources = Sources::new("test", config(), clock.clone(), move |peer: &String| {
            noted.lock().unwrap().push((peer.clone(), clock.instant() - began));
        });
        tokio::spawn(sources.clone().run(Health::default().pulse("test")));
        Self { sources, notices }
    }

    fn get(&self, peer: &str) -> Snapshot<u64> {
        self.sources.get(&peer.to_owned()).unwrap()
    }

    /// Value and interruption.
    fn says(&self, peer: &str) -> (Option<u64>, Option<String>) {
        let snapshot = self.get(peer);
        (snapshot.value.as_deref().copied(), snapshot.interruption)
    }
}

/// A stream that says one number more every `period`.
async fn count(feed: Feed<u64>, period: Duration) -> Result<(), Lost> {
    loop {
        feed.put(feed.last().map_or(0, |last| *last + 1));
        sleep(period).await;
    }
}

#[derive(Debug, PartialEq)]
enum Decision {
    ActOn(u64),
    WaitFor(String),
}

/// What a plan does: it acts on what is known and young, and leaves alone what is unknown, whatever was known before.
fn decide(fact: &Fact<u64>) -> Decision {
    match fact {
        Fact::Known { value, age } if *age <= SECOND => Decision::ActOn(*value),
        Fact::Known { age, .. } => Decision::WaitFor(format!("{age:?} old")),
        Fact::Unknown { why, .. } => Decision::WaitFor(why.message.clone()),
    }
}

/// What a controller does: looks at its peers when it is notified, and at nothing else.
#[tokio::test(start_paused = true)]
async fn dead_slow_and_panicking_peers_delay_no_other() {
    let clock = Clock::default();
    let queue = Arc::new(Queue::new(clock.clone(), Duration::from_hours(1)));
    let enqueued = queue.clone();
    let sources = Sources::<String, u64>::new("shards", config(), clock.clone(), move |peer: &String| {
        enqueued.changed(&Key::new("", peer.as_str()));
    });
    tokio::spawn(sources.clone().run(Health::default().pulse("shards")));
    // Many more than may connect at once, and all before the one that is well.
    for number in 0..100 {
        sources.set(format!("dead {number}"), |_| std::future::pending());
        sources.set(format!("refusing {number}"), |_| async { Err(Lost::new("connection refused")) });
        sources.set(format!("slow {number}"), |feed: Feed<u64>| async move {
            sleep(SECOND * 9).await;
            count(feed, SECOND * 30).await
        });
    }
    for number in 0..5 {
        sources.set(format!("panicking {number}"), |feed: Feed<u64>| async move {
            feed.put(7);
            sleep(SECOND * 30).await;
            panic!("out of order")
        });
    }
    sources.set("well".to_owned(), |feed| count(feed, SECOND));
    sleep(SECOND * 60).await;
    let began = clock.instant();
    let mut rounds = 0;
    let mut seen = BTreeMap::<String, u64>::new();
    let mut decided = BTreeMap::<String, Decision>::new();
    while clock.instant() - began < Duration::from_mins(10) {
        let turn = queue.next().await;
        let peer = turn.key.name.to_string();
        let snapshot = sources.get(&peer).unwrap();
        let decision = decide(&snapshot.fact(|value| *value));
        if peer == "well" {
            rounds += 1;
            assert!(matches!(decision, Decision::ActOn(_)), "{decision:?}");
        }
        decided.insert(peer.clone(), decision);
        assert!(snapshot.sequence >= seen.insert(peer, snapshot.sequence).unwrap_or(0));
        queue.done(&turn.key, Next::Settled, false);
    }
    assert!((595..=605).contains(&rounds), "{rounds}");
    let says = |peer: &str| sources.get(&peer.to_owned()).unwrap();
    assert_eq!(says("dead 7").value, None);
    assert!(says("dead 7").interruption.unwrap().starts_with("no answer within"));
    assert_eq!(says("refusing 7").interruption.as_deref(), Some("connection refused"));
    assert_eq!(says("panicking 3").value.as_deref(), Some(&7));
    let slow = (0..100).filter(|number| says(&format!("slow {number}")).interruption.is_none()).count();
    assert!(slow > 50, "also slow ones get through: {slow}");
    assert_eq!(decided["refusing 7"], Decision::WaitFor("connection refused".to_owned()));
    assert_eq!(decide(&says("dead 7").fact(|value| *value)), Decision::WaitFor(says("dead 7").interruption.unwrap()));
    let tally = sources.tally();
    assert!(tally.panics > 50 && tally.losses > tally.panics, "{tally:?}");
    assert_eq!(tally.interruptions.len(), MENTIONED);
}

#[tokio::test(start_paused = true)]
async fn what_a_peer_said_last_is_kept_with_its_age_when_it_is_lost() {
    let world = World::new();
    world.sources.set("a".to_owned(), |feed: Feed<u64>| async move {
        feed.put(5);
        sleep(SECOND * 3).await;
        Err(std::io::Error::other("reset by peer").into())
    });
    sleep(SECOND).await;
    assert_eq!(world.says("a"), (Some(5), None));
    sleep(SECOND * 2 + SECOND / 2).await;
    let lost = world.get("a");
    assert_eq!((lost.value.as_deref(), lost.interruption.as_deref()), (Some(&5), Some("reset by peer")));
    assert_eq!((lost.age, lost.sequence), (Some(SECOND * 3 + SECOND / 2), 1));
    let why = Failure { class: Class::Transient, message: "reset by peer".to_owned() };
    let last = Some((5, SECOND * 3 + SECOND / 2));
    assert_eq!(lost.fact(|value| *value), Fact::Unknown { why, last });
    // The same again, after a second or a little more: known, and no other value.
    sleep(SECOND).await;
    let back = world.get("a");
    assert!(back.interruption.is_none() && back.age < Some(SECOND));
    assert_eq!(back.sequence, 1);
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_lost_and_one_that_confirms_is_not() {
    let world = World::new();
    world.sources.set("silent".to_owned(), |feed: Feed<u64>| async move {
        feed.put(1);
        std::future::pending().await
    });
    world.sources.set("calm".to_owned(), |feed: Feed<u64>| async move {
        feed.put(1);
        loop {
            sleep(SECOND * 30).await;
            feed.confirm();
        }
    });
    sleep(SECOND * 46).await;
    assert_eq!(world.says("silent"), (Some(1), Some("silent for 45s".to_owned())));
    assert_eq!(world.says("calm"), (Some(1), None));
    assert_eq!(world.get("calm").age, Some(SECOND * 16));
}

#[tokio::test(start_paused = true)]
async fn changes_that_follow_each_other_are_notified_of_once() {
    let world = World::new();
    world.sources.set("a".to_owned(), |feed: Feed<u64>| async move {
        for value in 0..10 {
            feed.put(value);
            sleep(Duration::from_millis(10)).await;
        }
        sleep(SECOND * 5).await;
        feed.put(10);
        // The same again is no news.
        feed.put(10);
        std::future::pending().await
    });
    sleep(SECOND * 10).await;
    let at: Vec<u128> = world.notices.lock().unwrap().iter().map(|(_, at)| at.as_millis()).collect();
    assert_eq!(at.len(), 3, "{at:?}");
    assert!(at[0] < 10 && (200..220).contains(&at[1]) && (5100..5200).contains(&at[2]), "{at:?}");
    assert_eq!(world.get("a").sequence, 11);
}

#[tokio::test(start_paused = true)]
async fn a_source_is_exchanged_and_removed_and_what_a_former_one_still_says_is_dropped() {
    let world = World::new();
    let kept = Arc::<Mutex<Option<Feed<u64>>>>::default();
    let keeping = kept.clone();
    world.sources.set("a".to_owned(), move |feed: Feed<u64>| {
        *keeping.lock().unwrap() = Some(feed.clone());
        async move {
            feed.put(1);
            std::future::pending().await
        }
    });
    sleep(SECOND).await;
    world.sources.set("a".to_owned(), |feed: Feed<u64>| async move {
        sleep(SECOND).await;
        feed.put(2);
        std::future::pending().await
    });
    sleep(SECOND / 2).await;
    assert_eq!(world.says("a"), (Some(1), Some(NOT_YET.to_owned())));
    let former = kept.lock().unwrap().take().unwrap();
    former.put(99);
    assert_eq!(world.says("a").0, Some(1));
    sleep(SECOND).await;
    assert_eq!(world.says("a"), (Some(2), None));
    former.put(99);
    assert_eq!(world.says("a").0, Some(2));
    world.sources.remove(&"a".to_owned());
    assert!(world.sources.get(&"a".to_owned()).is_none() && world.sources.peers().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_poller_asks_every_period_and_at_once_if_wanted_and_minds_what_it_is_asked_for() {
    let world = World::new();
    let asked = Arc::<AtomicU64>::default();
    let counted = asked.clone();
    let ask = move || {
        let number = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            match number {
                3 => Err(Lost::new("too many requests").retry_after(SECOND * 100)),
                4 => std::future::pending().await,
                number => Ok(number),
            }
        }
    };
    world.sources.set("a".to_owned(), poll(SECOND * 30, SECOND * 5, ask));
    sleep(SECOND).await;
    assert_eq!(world.says("a"), (Some(0), None));
    world.sources.hurry(&"a".to_owned());
    sleep(SECOND).await;
    assert_eq!(world.says("a").0, Some(1));
    sleep(SECOND * 30).await;
    assert_eq!(world.says("a").0, Some(2));
    sleep(SECOND * 30).await;
    assert_eq!(world.says("a"), (Some(2), Some("too many requests".to_owned())));
    sleep(SECOND * 90).await;
    assert_eq!(asked.load(Ordering::Relaxed), 4);
    // Given up after five seconds, and asked again after one more.
    sleep(SECOND * 20).await;
    assert_eq!(world.says("a"), (Some(5), None));
}

#[tokio::test(start_paused = true)]
async fn waits_grow_to_half_a_minute_and_differ_between_peers() {
    let world = World::new();
    let times = Arc::<Mutex<BTreeMap<&'static str, Vec<Instant>>>>::default();
    for peer in ["a", "b"] {
        let times = times.clone();
        world.sources.set(peer.to_owned(), move |_| {
            times.lock().unwrap().entry(peer).or_default().push(Clock::default().instant());
            async { Err(Lost::new("no")) }
        });
    }
    sleep(Duration::from_mins(10)).await;
    let times = times.lock().unwrap();
    let waits = |peer| times[peer].windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>();
    for peer in ["a", "b"] {
        let waits = waits(peer);
        assert!(waits[0] >= SECOND && waits[0] <= SECOND * 2, "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= SECOND * 30) && waits.last() >= Some(&(SECOND * 20)), "{waits:?}");
    }
    assert_ne!(waits("a")[..5], waits("b")[..5]);
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_panics_costs_its_peer_one_connection() {
    let clock = Clock::default();
    let sources =
        Sources::<String, u64>::new("test", config(), clock, |peer: &String| assert_ne!(peer, "a", "listening"));
    tokio::spawn(sources.clone().run(Health::default().pulse("test")));
    for peer in ["a", "b"] {
        sources.set(peer.to_owned(), |feed| count(feed, SECOND));
    }
    sleep(SECOND * 20).await;
    assert_eq!(sources.get(&"b".to_owned()).unwrap().interruption, None);
    assert_eq!(sources.get(&"b".to_owned()).unwrap().sequence, 20);
    assert!(sources.get(&"a".to_owned()).unwrap().sequence > 1 && sources.tally().panics > 1);
}

#[tokio::test(start_paused = true)]
async fn trouble_is_counted_and_named() {
    let world = World::new();
    world.sources.set("well".to_owned(), |feed| count(feed, SECOND));
    world.sources.set("dead".to_owned(), |_| async { Err(Lost::new("connection refused")) });
    sleep(SECOND / 2).await;
    let tally = world.sources.tally();
    assert_eq!(tally.to_string(), "1 of 2 unknown: dead: connection refused (never connected)");
    let (all, metrics) = (AllSources::default(), Metrics::default());
    metrics.collect(Box::new(all.clone()));
    assert!(!metrics.encode().unwrap().contains("strata_source"));
    all.add(Arc::new(world.sources.clone()));
    let text = metrics.encode().unwrap();
    for line in [
        r#"strata_source_peers{source="test",state="known"} 1"#,
        r#"strata_source_peers{source="test",state="unknown"} 1"#,
        r#"strata_source_losses_total{source="test"} 1"#,
        r#"strata_source_panics_total{source="test"} 0"#,
        r#"strata_source_silence_seconds{source="test"} 0.5"#,
    ] {
        assert!(text.lines().any(|other| other.starts_with(line)), "{line} is missing in\n{text}");
    }
}
