//! Kubernetes Events: recorded once per transition, never in the way of a round.

mod waiting;

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Client, Resource,
    api::{ObjectMeta, PostParams, Request},
};
use process::{Clock, Pulse};
use serde::de::IgnoredAny;
use tokio::{sync::Notify, time::sleep};

use self::waiting::{Item, Waiting};
use crate::{cluster::Cluster, error::Brief, lease::Leadership, metrics::Metrics, queue::Queue};

/// Rounds go first: an event is written when no key waits for a round, but not later than this.
const LATEST: Duration = Duration::from_secs(1);
/// How often the queues are asked whether a key waits, while an event does: short beside [`LATEST`].
const LOOK: Duration = Duration::from_millis(50);
/// Events written at once, of one namespace one: a write that hangs on a webhook holds up the events of its namespace
/// alone, and all together take few of the API server's slots.
const WRITES: usize = 4;
/// How long an attempt waits for its answer.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an event that gets no answer is tried: a slow moment of the API server must not cost it, and a webhook that
/// hangs must not hold its turn for long.
const ATTEMPTS: u8 = 3;
/// With the hash behind it the event's own name stays below the limit of 253.
const LONGEST_NAME: usize = 200;
/// The API server refuses longer notes.
const LONGEST_NOTE: usize = 1024;

/// What happened to which object.
#[derive(Clone, Debug)]
pub struct Occurrence {
    pub regarding: ObjectReference,
    pub is_warning: bool,
    pub reason: String,
    pub action: String,
    pub note: String,
    /// Distinguishes this occurrence from others with the same words (a pod's uid, a generation). The same occurrence
    /// reported again, by a restarted process too, gets the same name and so is stored once.
    pub discriminator: String,
}

/// Clones share what waits.
#[derive(Clone, Debug)]
pub struct Recorder {
    handle: Arc<Handle>,
    /// Where the objects are; `None` for the cluster that the operator runs for.
    cluster: Option<Cluster>,
}

/// Dropped with the last recorder.
#[derive(Debug)]
struct Handle {
    line: Arc<Line>,
    clock: Clock,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.line.lock().is_closed = true;
        self.line.changed.notify_one();
    }
}

/// What recorders and the publisher share.
#[derive(Debug, Default)]
struct Line {
    waiting: Mutex<Waiting>,
    changed: Notify,
    /// Whose rounds go first.
    queues: Mutex<Vec<Arc<Queue>>>,
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_round_waiting(&self) -> bool {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.iter().any(|queue| queue.has_waiting())
    }
}

pub(crate) struct Publisher {
    line: Arc<Line>,
    client: Client,
    clock: Clock,
    leadership: Leadership,
    instance: String,
    metrics: Arc<Metrics>,
}

impl Recorder {
    pub(crate) fn new(
        client: Client,
        clock: Clock,
        leadership: Leadership,
        instance: String,
        metrics: Arc<Metrics>,
    ) -> (Self, Publisher) {
        let line = Arc::<Line>::default();
        let handle = Arc::new(Handle { line: line.clone(), clock: clock.clone() });
        (Self { handle, cluster: None }, Publisher { line, client, clock, leadership, instance, metrics })
    }

    /// For objects of this cluster: their events are stored beside them.
    #[must_use]
    pub fn in_cluster(&self, cluster: &Cluster) -> Self {
        Self { handle: self.handle.clone(), cluster: (!cluster.is_own()).then(|| cluster.clone()) }
    }

    pub fn record(&self, occurrence: Occurrence) {
        let Handle { line, clock } = &*self.handle;
        let cluster = self.cluster.clone();
        line.lock().push(Item { occurrence, cluster, at: clock.now(), since: clock.instant(), attempts: 0 });
        line.changed.notify_one();
    }

    /// From now on rounds of this queue go before events.
    pub(crate) fn give_way_to(&self, queue: Arc<Queue>) {
        self.handle.line.queues.lock().unwrap_or_else(PoisonError::into_inner).push(queue);
    }
}

impl Publisher {
    pub(crate) async fn run(self, pulse: Pulse) {
        let mut writes = FuturesUnordered::new();
        loop {
            while writes.len() < WRITES
                && let Some((namespace, item, limit)) = self.take()
            {
                let write = self.publish(item, limit);
                writes.push(async move { (namespace, write.await) });
            }
            let (is_waiting, is_over) = {
                let waiting = self.line.lock();
                (waiting.oldest().is_some() && writes.len() < WRITES, waiting.is_closed && waiting.is_empty())
            };
            if is_over && writes.is_empty() {
                // Others may still stop, a helm of half a minute for one: no sign of life is due from here.
                pulse.retire();
                return;
            }
            tokio::select! {
                Some((namespace, written)) = writes.next() => {
                    let mut waiting = self.line.lock();
                    waiting.written(namespace);
                    match written {
                        Written::Stored => {}
                        // Behind the others of its namespace. It has the same name each time, so it is stored once. An
                        // operator that stops does not wait for it.
                        Written::Unanswered(item) if item.attempts < ATTEMPTS && !waiting.is_closed => {
                            waiting.push_again(*item);
                        }
                        Written::Unanswered(_) | Written::Refused => self.metrics.event_dropped(),
                    }
                }
                () = self.line.changed.notified() => {}
                () = sleep(LOOK), if is_waiting => {}
                () = pulse.tick() => {}
            }
        }
    }

    /// The next event to write now, and how long its write may take. Without the lead all are dropped: another replica
    /// sees and reports what there is.
    fn take(&self) -> Option<(Arc<str>, Item, Duration)> {
        let now = self.clock.instant();
        let mut waiting = self.line.lock();
        let left = self.leadership.time_left();
        if left.is_none() {
            waiting.clear();
        }
        let oldest = waiting.oldest();
        let is_late = oldest.is_some_and(|since| now.saturating_duration_since(since) >= LATEST);
        let is_due = oldest.is_some() && (waiting.is_closed || is_late || !self.line.is_round_waiting());
        let taken = if is_due { waiting.take(now) } else { None };
        for _ in 0..std::mem::take(&mut waiting.dropped) {
            self.metrics.event_dropped();
        }
        let (namespace, item) = taken?;
        Some((namespace, item, left?.min(PUBLISH_TIMEOUT)))
    }

    /// A write must not outlive the lead, so `limit` is what is left of it at most.
    async fn publish(&self, mut item: Item, limit: Duration) -> Written {
        item.attempts += 1;
        let client = item.cluster.as_ref().map_or_else(|| self.client.clone(), Cluster::client);
        let namespace = item.occurrence.regarding.namespace.as_deref().unwrap_or("default");
        let path = Event::url_path(&(), Some(namespace));
        let event = event(item.occurrence.clone(), &self.instance, item.at);
        let body = serde_json::to_vec(&event).expect("an event is plain data");
        let create = async {
            let request = Request::new(path).create(&PostParams::default(), body).map_err(kube::Error::BuildRequest)?;
            // The answer repeats what was sent.
            client.request::<IgnoredAny>(request).await
        };
        match tokio::time::timeout(limit, create).await {
            Ok(Ok(IgnoredAny)) => Written::Stored,
            Ok(Err(kube::Error::Api(status))) if status.is_already_exists() => Written::Stored,
            Ok(Err(error)) => {
                tracing::debug!(error = %Brief(&error), reason = event.reason, "event not stored");
                Written::Refused
            }
            Err(_) => {
                tracing::debug!(attempts = item.attempts, reason = event.reason, "event not stored: no answer");
                Written::Unanswered(Box::new(item))
            }
        }
    }
}

/// How a write ended.
enum Written {
    Stored,
    Refused,
    /// In time.
    Unanswered(Box<Item>),
}

fn event(occurrence: Occurrence, instance: &str, at: jiff::Timestamp) -> Event {
    let Occurrence { regarding, is_warning, reason, action, mut note, discriminator } = occurrence;
    if note.len() > LONGEST_NOTE {
        let end = (0..=LONGEST_NOTE - '…'.len_utf8()).rev().find(|end| note.is_char_boundary(*end)).unwrap_or(0);
        note.truncate(end);
        note.push('…');
    }
    let mut hasher = DefaultHasher::new();
    (&regarding.uid, &reason, &note, &discriminator).hash(&mut hasher);
    // Names of objects are ASCII; a cut one must not end in a dot or dash.
    let name: String = regarding.name.iter().flat_map(|name| name.chars()).take(LONGEST_NAME).collect();
    let name = name.trim_end_matches(['.', '-']);
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:016x}", hasher.finish())),
            namespace: regarding.namespace.clone(),
            ..ObjectMeta::default()
        },
        type_: Some(if is_warning { "Warning" } else { "Normal" }.into()),
        reason: Some(reason),
        action: Some(action),
        note: Some(note),
        event_time: Some(MicroTime(at)),
        reporting_controller: Some("strata.dev/operator".into()),
        reporting_instance: Some(instance.to_owned()),
        regarding: Some(regarding),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occurrence(note: &str) -> Occurrence {
        occurrence_in("n", note)
    }

    pub(super) fn occurrence_in(namespace: &str, note: &str) -> Occurrence {
        Occurrence {
            regarding: ObjectReference {
                name: Some("a".into()),
                namespace: Some(namespace.into()),
                uid: Some("u".into()),
                ..Default::default()
            },
            is_warning: false,
            reason: "PodCreated".into(),
            action: "Create".into(),
            note: note.into(),
            discriminator: "pod-1".into(),
        }
    }

    #[test]
    fn the_same_occurrence_has_the_same_name_whichever_replica_records_it() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let name = |occurrence, instance| event(occurrence, instance, now).metadata.name;
        assert_eq!(name(occurrence("x"), "one"), name(occurrence("x"), "two"));
        let other = Occurrence { discriminator: "pod-2".into(), ..occurrence("x") };
        assert_ne!(name(occurrence("x"), "one"), name(other, "one"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_given_up_when_the_lead_ends() {
        // The kernel accepts the connection, and nothing ever answers.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", silent.local_addr().unwrap()).parse().unwrap();
        let client = crate::connect(kube::Config::new(server)).unwrap();
        let (clock, metrics) = (Clock::default(), Arc::<Metrics>::default());
        for (left, waited) in [(1, Some(1)), (60, Some(5)), (0, None)] {
            let until = clock.instant() + Duration::from_secs(left);
            let leadership = Leadership::until(until, clock.clone());
            let (recorder, publisher) =
                Recorder::new(client.clone(), clock.clone(), leadership, "i".into(), metrics.clone());
            recorder.record(occurrence("x"));
            drop(recorder);
            let (started, health) = (clock.instant(), process::Health::default());
            publisher.run(health.pulse("events")).await;
            let waited = waited.map_or(Duration::ZERO, Duration::from_secs);
            assert_eq!(clock.instant() - started, waited, "with {left} s of the lead left");
            tokio::time::advance(Duration::from_mins(1)).await;
            assert_eq!(health.stalled(), [""; 0], "it has ended as it should");
        }
        assert!(metrics.encode().unwrap().contains("strata_events_dropped_total 3"));
    }

    /// A server that stores every event but those of the namespace `hangs`, and notes which and when.
    #[derive(Clone, Default)]
    struct Server(Arc<Mutex<Vec<(String, Duration)>>>);

    impl Server {
        fn client(&self, clock: &Clock) -> Client {
            let (server, clock, began) = (self.clone(), clock.clone(), clock.instant());
            let answer = move |request: http::Request<axum::body::Body>| {
                let (server, at) = (server.clone(), clock.instant() - began);
                async move {
                    let namespace = request.uri().path().split('/').nth(5).unwrap_or_default().to_owned();
                    if namespace == "hangs" {
                        std::future::pending::<()>().await;
                    }
                    server.0.lock().unwrap().push((namespace, at));
                    http::Response::new(axum::body::Body::from(r#"{"metadata": {}}"#))
                }
            };
            Client::new(axum::Router::new().fallback(answer), "default")
        }

        fn stored(&self, namespace: &str) -> Vec<Duration> {
            let stored = self.0.lock().unwrap();
            stored.iter().filter(|(other, _)| other == namespace).map(|(_, at)| *at).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_another_cluster_are_stored_there_and_its_silence_delays_no_other() {
        let (own, other, clock) = (Server::default(), Server::default(), Clock::default());
        let (recorder, _metrics) = publishing(&own, Leadership::always(clock.clone()));
        let common = crate::cluster::Common {
            clock: clock.clone(),
            leadership: Leadership::always(clock.clone()),
            timeout: PUBLISH_TIMEOUT,
            list_mode: None,
            watches: crate::followers::WatchMetrics::default(),
        };
        let cluster = Cluster::new("other", other.client(&clock), &common);
        let there = recorder.in_cluster(&cluster);
        there.record(occurrence_in("team", "x"));
        sleep(Duration::from_millis(10)).await;
        assert_eq!((other.stored("team").len(), own.stored("team").len()), (1, 0));
        // However many namespaces of it wait, one write of the few is its own.
        let silent = Server::default();
        let hanging = Cluster::new("silent", silent.client(&clock), &common);
        let there = recorder.in_cluster(&hanging);
        (0..2 * WRITES).for_each(|_| there.record(occurrence_in("hangs", "x")));
        (0..2 * WRITES).for_each(|number| there.record(occurrence_in(&format!("n{number}"), "x")));
        sleep(Duration::from_millis(10)).await;
        recorder.record(occurrence_in("calm", "x"));
        sleep(Duration::from_millis(10)).await;
        assert_eq!((own.stored("calm").len(), silent.stored("n0").len()), (1, 0));
    }

    fn publishing(server: &Server, leadership: Leadership) -> (Recorder, Arc<Metrics>) {
        let (clock, metrics) = (Clock::default(), Arc::<Metrics>::default());
        let client = server.client(&clock);
        let (recorder, publisher) = Recorder::new(client, clock, leadership, "i".into(), metrics.clone());
        tokio::spawn(publisher.run(process::Health::default().pulse("events")));
        (recorder, metrics)
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_whose_events_hang_delays_no_other() {
        let server = Server::default();
        let (recorder, metrics) = publishing(&server, Leadership::always(Clock::default()));
        for number in 0..2000 {
            recorder.record(occurrence_in("hangs", &number.to_string()));
        }
        recorder.record(occurrence_in("calm", "x"));
        sleep(Duration::from_millis(10)).await;
        assert_eq!(server.stored("calm"), [Duration::ZERO]);
        // Its own wait no longer than they are of use.
        sleep(Duration::from_mins(6)).await;
        recorder.record(occurrence_in("hangs", "late"));
        sleep(Duration::from_secs(30)).await;
        assert!(metrics.encode().unwrap().contains("strata_events_dropped_total 2001"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_gets_no_answer_is_tried_three_times_behind_the_others_and_a_refused_one_once() {
        for (silent, stored, dropped) in [(2, vec!["b", "refused", "a"], 1), (3, vec!["b", "refused"], 2)] {
            let (left, seen) = (Arc::new(Mutex::new(silent)), Arc::<Mutex<Vec<String>>>::default());
            let answer = {
                let seen = seen.clone();
                move |body: String| {
                    let event: Event = serde_json::from_str(&body).unwrap();
                    let note = event.note.unwrap();
                    let is_silent = note == "a" && {
                        let mut left = left.lock().unwrap();
                        let is_silent = *left > 0;
                        *left -= i32::from(is_silent);
                        is_silent
                    };
                    let seen = seen.clone();
                    async move {
                        if is_silent {
                            std::future::pending::<()>().await;
                        }
                        let code =
                            if note == "refused" { http::StatusCode::FORBIDDEN } else { http::StatusCode::CREATED };
                        seen.lock().unwrap().push(note);
                        (code, r#"{"metadata": {}}"#)
                    }
                }
            };
            let client = Client::new(axum::Router::new().fallback(answer), "default");
            let (clock, metrics) = (Clock::default(), Arc::<Metrics>::default());
            let leadership = Leadership::always(clock.clone());
            let (recorder, publisher) = Recorder::new(client, clock, leadership, "i".into(), metrics.clone());
            tokio::spawn(publisher.run(process::Health::default().pulse("events")));
            recorder.record(occurrence("a"));
            recorder.record(occurrence("b"));
            recorder.record(occurrence("refused"));
            sleep(Duration::from_mins(1)).await;
            assert_eq!(*seen.lock().unwrap(), stored);
            let line = format!("strata_events_dropped_total {dropped}");
            assert!(metrics.encode().unwrap().contains(&line), "after {silent} silent attempts");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_give_way_to_rounds_for_a_second_at_most() {
        let (server, clock) = (Server::default(), Clock::default());
        let (recorder, _metrics) = publishing(&server, Leadership::always(clock.clone()));
        let queue = Arc::new(Queue::new(clock, Duration::from_hours(1)));
        recorder.give_way_to(queue.clone());
        queue.changed(&crate::Key::new("n", "a"));
        recorder.record(occurrence("busy"));
        sleep(Duration::from_secs(2)).await;
        assert_eq!(server.stored("n").len(), 1);
        assert!((LATEST..LATEST + LOOK * 2).contains(&server.stored("n")[0]), "{:?}", server.stored("n"));
        recorder.record(occurrence("soon idle"));
        sleep(Duration::from_millis(200)).await;
        assert_eq!(server.stored("n").len(), 1);
        queue.next().await;
        sleep(LOOK * 2).await;
        assert_eq!(server.stored("n").len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_when_the_lead_ends_is_dropped() {
        let (server, clock) = (Server::default(), Clock::default());
        let until = clock.instant() + Duration::from_millis(500);
        let (recorder, metrics) = publishing(&server, Leadership::until(until, clock.clone()));
        let queue = Arc::new(Queue::new(clock, Duration::from_hours(1)));
        recorder.give_way_to(queue.clone());
        queue.changed(&crate::Key::new("n", "a"));
        (0..10).for_each(|number| recorder.record(occurrence(&number.to_string())));
        sleep(Duration::from_secs(2)).await;
        assert!(server.stored("n").is_empty());
        assert!(metrics.encode().unwrap().contains("strata_events_dropped_total 10"));
    }

    #[test]
    fn long_notes_are_cut_at_a_character() {
        let note = event(occurrence(&"ä".repeat(900)), "i", jiff::Timestamp::UNIX_EPOCH).note.unwrap();
        assert!(note.len() <= LONGEST_NOTE && note.ends_with('…'));
    }
}
