//! Events about Pods, each once.

use std::collections::BTreeSet;

use k8s_openapi::api::{core::v1::ObjectReference, events::v1::Event};
use plan::{
    event::EventKind,
    machines::on_demand::{Notice, PodName},
    object::digest,
};
use runtime::{Cluster, Key, Kind, Occurrence, Recorder};
use serde_json::{Value, json};

use crate::MANAGER;

/// With the digest behind it the event's name stays below the limit of 253.
const LONGEST_NAME: usize = 200;

/// New events of one look: each may be a request that is waited for, and what Pods need comes before what is said of them.
const MOST_NEW: usize = 50;

type Said = (PodName, &'static str, String);

/// Records what is new about Pods.
pub(super) struct Notices {
    recorder: Recorder,
    /// What holds at present, and was recorded.
    said: BTreeSet<Said>,
}

impl Notices {
    pub fn new(recorder: Recorder) -> Self {
        Self { recorder, said: BTreeSet::new() }
    }

    /// These hold now. What was recorded and holds no more may be recorded again. False if some are left for the next look.
    pub async fn keep(&mut self, notices: Vec<Notice>, cluster: &Cluster) -> bool {
        let said = |notice: &Notice| (notice.pod.clone(), notice.event.reason, notice.about.clone());
        let now: BTreeSet<Said> = notices.iter().map(said).collect();
        self.said.retain(|known| now.contains(known));
        let mut new = notices.into_iter().filter(|notice| !self.said.contains(&said(notice))).collect::<Vec<_>>();
        let is_all = new.len() <= MOST_NEW;
        new.truncate(MOST_NEW);
        for notice in new {
            if self.said.insert(said(&notice)) {
                self.record(Some(notice), cluster).await;
            }
        }
        is_all
    }

    /// Nothing holds now.
    pub fn forget(&mut self) {
        self.said.clear();
    }

    /// An event must not fail anything: what becomes of it is not looked at.
    pub async fn record(&self, notice: Option<Notice>, cluster: &Cluster) {
        let Some(Notice { pod, event, about }) = notice else { return };
        let discriminator = format!("{}/{about}", pod.uid);
        if cluster.name().is_empty() {
            self.recorder.record(Occurrence {
                regarding: ObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: Some(pod.name),
                    namespace: Some(pod.namespace),
                    uid: Some(pod.uid),
                    ..ObjectReference::default()
                },
                is_warning: event.kind == EventKind::Warning,
                reason: event.reason.to_owned(),
                action: event.action.to_owned(),
                note: event.note,
                discriminator,
            });
            return;
        }
        // The recorder writes in the operator's own cluster; this Pod is in another one.
        let events: std::sync::Arc<Kind<Event, ()>> = Kind::new("events", cluster.writer(MANAGER), |_| None);
        let body = body(&pod, &event, &discriminator, cluster.server_clock().now());
        let key = Key::new(pod.namespace.as_str(), body["metadata"]["name"].as_str().unwrap_or_default());
        if let Err(error) = events.create(&key, &body).await {
            tracing::debug!(why = process::explained(&error), reason = event.reason, "event not stored");
        }
    }
}

fn body(pod: &PodName, event: &plan::event::Event, discriminator: &str, now: Option<jiff::Timestamp>) -> Value {
    let digest = digest(&json!([discriminator, event.reason]));
    let short: String = pod.name.chars().take(LONGEST_NAME).collect();
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": format!("{short}.{digest}"), "namespace": pod.namespace },
        "eventTime": now.map(|now| format!("{now:.6}")),
        "reportingController": "strata.dev/operator",
        "reportingInstance": "strata",
        "action": event.action,
        "reason": event.reason,
        "type": if event.kind == EventKind::Warning { "Warning" } else { "Normal" },
        "note": event.note,
        "regarding": {
            "apiVersion": "v1", "kind": "Pod", "name": pod.name, "namespace": pod.namespace, "uid": pod.uid,
        },
    })
}
