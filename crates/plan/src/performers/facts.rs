//! What the cache keeps of a pod and of a Service: the few fields decisions depend on, small,
//! because thousands of them stay in memory.

use std::time::Duration;

use api::condition::Reason;
use api::performer::{
    GENERATION_ANNOTATION, INPUT_HASH_ANNOTATION, Performer, REPLACEMENTS_ANNOTATION, VERSION_ANNOTATION,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use crate::kubelet;

/// A pod as decisions see it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodFacts {
    pub uid: Box<str>,
    pub resource_version: Box<str>,
    /// Uid of the owner reference with `controller: true`.
    pub owner_uid: Option<Box<str>>,
    pub created_at: Option<Timestamp>,
    pub deletion: Option<Deletion>,
    /// Whether finalizers keep the pod after its deletion.
    pub has_finalizers: bool,
    pub phase: PodPhase,
    /// Status of the Ready condition.
    pub is_ready: bool,
    /// Transition time of the Ready condition, whatever its status.
    pub ready_changed_at: Option<Timestamp>,
    pub scheduled: Scheduled,
    /// The performer's own container ([`api::performer::CONTAINER_NAME`]), while it waits.
    pub waiting: Option<Box<Waiting>>,
    /// A container that admission added and that does not start, of several the first by kubelet's order.
    pub foreign: Option<Box<Foreign>>,
    /// Latest end of that container (`state.terminated`, else `lastState.terminated`).
    pub exit: Option<Box<Exit>>,
    /// Restarts of that container.
    pub restarts: u32,
    /// `status.reason` and `status.message`, for example of an eviction.
    pub ended: Option<Box<str>>,
    /// Image of that container; empty where it cannot be distinguished from others.
    pub image: Box<str>,
    /// [`api::performer::IMAGE_ANNOTATION`], kept only where it differs from `image`.
    pub asked_image: Option<Box<str>>,
    /// By whom that image was set.
    pub image_writer: ImageWriter,
    /// [`api::performer::INPUT_HASH_ANNOTATION`]; absent on pods of the original operator.
    pub input_hash: Option<Box<str>>,
    /// [`api::performer::VERSION_ANNOTATION`].
    pub version: Option<Box<str>>,
    /// [`api::performer::GENERATION_ANNOTATION`]; absent on pods of the original operator and of our earlier versions.
    pub made_for: Option<i64>,
    /// [`api::performer::REPLACEMENTS_ANNOTATION`].
    pub replacements: u32,
    /// Whether [`api::performer::LABEL_PERFORMER`] holds the Performer's name, so that the Service
    /// finds the pod.
    pub is_selected: bool,
}

impl PodFacts {
    /// Whether this pod was made for a later generation of this very Performer. Then the Performer at hand is old: the
    /// first list after a start may be of any age.
    pub fn is_newer_than(&self, performer: &Performer) -> bool {
        let meta = &performer.metadata;
        self.owner_uid.as_deref() == meta.uid.as_deref() && self.made_for > meta.generation
    }

    /// Whether clients that connect to the Service reach it.
    pub(super) fn is_up(&self) -> bool {
        self.deletion.is_none() && self.phase == PodPhase::Running && self.is_ready && self.is_selected
    }

    /// A pod the API server just took. Its uid and version come with the next watch event.
    pub(super) fn of_new(pod: &Pod, now: Timestamp) -> Self {
        let annotation = |name| pod.metadata.annotations.as_ref().and_then(|all| all.get(name));
        let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.as_deref());
        Self {
            created_at: Some(now),
            image: image.unwrap_or_default().into(),
            input_hash: annotation(INPUT_HASH_ANNOTATION).map(|hash| hash.as_str().into()),
            version: annotation(VERSION_ANNOTATION).map(|version| version.as_str().into()),
            made_for: annotation(GENERATION_ANNOTATION).and_then(|generation| generation.parse().ok()),
            replacements: annotation(REPLACEMENTS_ANNOTATION).and_then(|n| n.parse().ok()).unwrap_or(0),
            is_selected: true,
            ..Self::default()
        }
    }
}

/// Who set the image of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageWriter {
    /// Us, also where admission rewrote what we sent, or it is not known.
    #[default]
    Us,
    SomeoneElse,
}

/// A deletion under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// `metadata.deletionTimestamp`: for pods the end of the grace period, not its beginning.
    pub at: Timestamp,
    /// `metadata.deletionGracePeriodSeconds`.
    pub grace: Duration,
}

impl Deletion {
    /// When the deletion was asked for, by the server's clock.
    pub(super) fn asked_at(self) -> Timestamp {
        self.at.checked_sub(self.grace).unwrap_or(self.at)
    }
}

/// `status.phase` of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodPhase {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
    /// Also for words Kubernetes may add.
    #[serde(other)]
    Unknown,
}

impl PodPhase {
    /// Reads `status.phase`; a pod whose status was never written is pending.
    pub fn read(text: Option<&str>) -> Self {
        match text {
            None | Some("" | "Pending") => Self::Pending,
            Some("Running") => Self::Running,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            Some(_) => Self::Unknown,
        }
    }

    pub(super) fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The PodScheduled condition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Scheduled {
    /// Not read yet.
    #[default]
    NotYet,
    /// `True`, since then.
    Yes(Option<Timestamp>),
    /// `False` with reason `Unschedulable`, and the scheduler's message.
    Unschedulable(Box<str>),
}

/// A container that does not run yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Kubelet's word, for example `ImagePullBackOff`.
    pub reason: Box<str>,
    pub message: Box<str>,
}

impl Waiting {
    /// What waiting alone does not repair, as far as kubelet's word says so.
    pub fn problem(&self) -> Option<Reason> {
        kubelet::problem(&self.reason)
    }
}

/// An init container or sidecar that the Performer does not name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    pub name: Box<str>,
    pub waiting: Waiting,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub code: i32,
    /// For example `OOMKilled` or `Error`.
    pub reason: Box<str>,
    pub finished_at: Option<Timestamp>,
}

/// A Service as decisions see it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceFacts {
    pub uid: Box<str>,
    pub resource_version: Box<str>,
    /// Uid of the owner reference with `controller: true`.
    pub owner_uid: Option<Box<str>>,
    pub deletion: Option<Deletion>,
    pub service_type: ServiceType,
    /// Labels and their values. No map: one with a single entry takes five times the memory.
    pub selector: Box<[(Box<str>, Box<str>)]>,
    pub ports: Box<[PortFacts]>,
}

/// `spec.type` of a Service; only one of them is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServiceType {
    #[default]
    ClusterIp,
    Other,
}

impl ServiceType {
    /// Reads `spec.type`; absent means `ClusterIP`.
    pub fn read(text: Option<&str>) -> Self {
        if matches!(text, None | Some("ClusterIP")) { Self::ClusterIp } else { Self::Other }
    }
}

/// One port of a Service, as far as we own it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortFacts {
    pub name: Box<str>,
    pub port: i32,
    pub target: TargetPort,
    /// Whether the protocol is TCP.
    pub is_tcp: bool,
}

/// `targetPort` of a Service port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetPort {
    Number(i32),
    Name(Box<str>),
}
