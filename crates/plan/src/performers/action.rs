//! What a round may do, and what came of it.

use k8s_openapi::api::core::v1::{Pod, Service};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Ages;

/// One effect on the cluster. Idempotent; names its object by uid wherever it takes something away.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Store this list as the Performer's `metadata.finalizers` (it holds ours), provided no other client
    /// changed the Performer meanwhile.
    AddFinalizer { finalizers: Vec<String> },
    /// Delete the pod, provided it still is this one in this version. `replacements` is the count
    /// the next pod carries; [`super::Observed::replacements`] has it until that pod exists.
    DeletePod { uid: Box<str>, resource_version: Box<str>, cause: Cause, replacements: u32 },
    /// Create the pod. Should the name exist, the action fails: whose it is, the next round sees.
    CreatePod(Box<Pod>),
    /// Create the Service; an existing name is treated as for [`Action::CreatePod`].
    CreateService(Box<Service>),
    /// Send this JSON merge patch, which carries uid and resource version. Not server-side apply:
    /// the port list is keyed by number and protocol, so a port that someone renumbered would stay
    /// beside ours under the same name, and the server would refuse both.
    RepairService { patch: Value },
    /// Delete the Service, provided it still is this one.
    DeleteService { uid: Box<str>, resource_version: Box<str> },
    /// Store this list as the Performer's `metadata.finalizers` (ours taken out), provided no other client
    /// changed the Performer meanwhile.
    ReleaseFinalizer { finalizers: Vec<String> },
}

/// Why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Another image or version is asked for.
    Upgrade,
    /// Another input changed.
    SpecChanged,
    /// The pod ended.
    Ended,
    /// Scheduled, and still pending after the limit.
    PendingTooLong,
    /// Someone edited the running pod: its image, or the label its Service finds it by.
    Edited,
    /// The Performer is being deleted.
    Deletion,
}

/// The uid of what an action created.
pub type Created = Option<Box<str>>;

/// What is remembered between rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// The count of the last executed `DeletePod`, 0 after the next `CreatePod`.
    pub replacements: u32,
    /// How long what is waited on has lasted.
    pub ages: Ages,
}
