//! Events about Pods, each once.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use plan::{
    event::EventKind,
    machines::on_demand::{Notice, PodName},
};
use runtime::{Cluster, Occurrence, Recorder};

/// New events of one look: what Pods need comes before what is said of them.
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
    pub fn keep(&mut self, notices: Vec<Notice>, cluster: &Cluster) -> bool {
        let said = |notice: &Notice| (notice.pod.clone(), notice.event.reason, notice.about.clone());
        let now: BTreeSet<Said> = notices.iter().map(said).collect();
        self.said.retain(|known| now.contains(known));
        let mut new = notices.into_iter().filter(|notice| !self.said.contains(&said(notice))).collect::<Vec<_>>();
        let is_all = new.len() <= MOST_NEW;
        new.truncate(MOST_NEW);
        for notice in new {
            if self.said.insert(said(&notice)) {
                self.record(Some(notice), cluster);
            }
        }
        is_all
    }

    /// Nothing holds now.
    pub fn forget(&mut self) {
        self.said.clear();
    }

    pub fn record(&self, notice: Option<Notice>, cluster: &Cluster) {
        let Some(Notice { pod, event, about }) = notice else { return };
        let discriminator = format!("{}/{about}", pod.uid);
        self.recorder.in_cluster(cluster).record(Occurrence {
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
    }
}
