//! Kubernetes Events: recorded once per transition, never in the way of a round.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use process::{Clock, Pulse};
use tokio::sync::mpsc;

use crate::{error::Brief, lease::Leadership, metrics::Metrics};

/// Enough for a burst of every object of a large cluster; beyond it events are dropped and counted, because a slow
/// API server must not make the operator's memory grow.
const WAITING_EVENTS: usize = 8192;
/// An event is worth one attempt of this length, not more.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
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

#[derive(Clone, Debug)]
pub struct Recorder {
    sender: mpsc::Sender<Occurrence>,
    metrics: Arc<Metrics>,
}

pub(crate) struct Publisher {
    waiting: mpsc::Receiver<Occurrence>,
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
        let (sender, waiting) = mpsc::channel(WAITING_EVENTS);
        (Self { sender, metrics: metrics.clone() }, Publisher { waiting, client, clock, leadership, instance, metrics })
    }

    pub fn record(&self, occurrence: Occurrence) {
        if self.sender.try_send(occurrence).is_err() {
            self.metrics.event_dropped();
        }
    }
}

impl Publisher {
    pub(crate) async fn run(mut self, pulse: Pulse) {
        loop {
            pulse.beat();
            let occurrence = tokio::select! {
                occurrence = self.waiting.recv() => occurrence,
                () = pulse.tick() => continue,
            };
            let Some(occurrence) = occurrence else { return };
            let is_stored = match self.leadership.time_left() {
                Some(left) => self.publish(occurrence, left.min(PUBLISH_TIMEOUT)).await,
                None => false,
            };
            if !is_stored {
                self.metrics.event_dropped();
            }
        }
    }

    /// Whether it is stored. A write must not outlive the lead, so `limit` is what is left of it at most.
    async fn publish(&self, occurrence: Occurrence, limit: Duration) -> bool {
        let api: Api<Event> =
            Api::namespaced(self.client.clone(), occurrence.regarding.namespace.as_deref().unwrap_or("default"));
        let event = event(occurrence, &self.instance, self.clock.now());
        match tokio::time::timeout(limit, api.create(&PostParams::default(), &event)).await {
            Ok(Ok(_)) => return true,
            Ok(Err(kube::Error::Api(status))) if status.is_already_exists() => return true,
            Ok(Err(error)) => tracing::debug!(error = %Brief(&error), reason = event.reason, "event not stored"),
            Err(_) => tracing::debug!(reason = event.reason, "event not stored: no answer"),
        }
        false
    }
}

fn event(occurrence: Occurrence, instance: &str, now: jiff::Timestamp) -> Event {
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
        event_time: Some(MicroTime(now)),
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
        Occurrence {
            regarding: ObjectReference {
                name: Some("a".into()),
                namespace: Some("n".into()),
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
    fn the_same_occurrence_has_the_same_name_whoever_tells_it() {
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
            let started = clock.instant();
            publisher.run(process::Health::default().pulse("events")).await;
            let waited = waited.map_or(Duration::ZERO, Duration::from_secs);
            assert_eq!(clock.instant() - started, waited, "with {left} s of the lead left");
        }
        assert!(metrics.encode().unwrap().contains("strata_events_dropped_total 3"));
    }

    #[test]
    fn long_notes_are_cut_at_a_character() {
        let note = event(occurrence(&"ä".repeat(900)), "i", jiff::Timestamp::UNIX_EPOCH).note.unwrap();
        assert!(note.len() <= LONGEST_NOTE && note.ends_with('…'));
    }
}
