//! What a round may do, and what came of it.

use k8s_openapi::api::core::v1::{Pod, Service};
use serde_json::Value;

/// One effect on the cluster. Idempotent; names its object by uid wherever it takes something away.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Store this list as the Performer's `metadata.finalizers` (it holds ours), provided nobody
    /// changed the Performer meanwhile.
    AddFinalizer { finalizers: Vec<String> },
    /// Delete the pod, provided it still is this one in this version. `replacements` is the count
    /// the next pod carries: keep it for [`super::Observed::replacements`] until that pod exists.
    DeletePod { uid: Box<str>, resource_version: Box<str>, cause: Cause, replacements: u32 },
    /// Create the pod. Should the name exist, that is [`Outcome::Failed`]: whose it is, the next
    /// round sees.
    CreatePod(Box<Pod>),
    /// Create the Service; an existing name is treated as for [`Action::CreatePod`].
    CreateService(Box<Service>),
    /// Send this JSON merge patch, which carries uid and resource version. Not server-side apply:
    /// the port list is keyed by number and protocol, so a port that someone renumbered would stay
    /// beside ours under the same name, and the server would refuse both.
    RepairService { patch: Value },
    /// Delete the Service, provided it still is this one.
    DeleteService { uid: Box<str>, resource_version: Box<str> },
    /// Store this list as the Performer's `metadata.finalizers` (ours taken out), provided nobody
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

/// What came of one action. A round has one outcome for each action it tried: the first that is not
/// done is the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, or found done already (a missing object on delete is done).
    Done,
    /// The API server refuses the object as it is: quota, admission, validation (403, 422).
    Rejected { message: String },
    /// The namespace is going away; nothing can be created there.
    NamespaceTerminating,
    /// The API server could not carry it out, for example because it cannot reach a webhook, or it gave no answer in
    /// time. Most of that passes within seconds, so it is told only when it lasts.
    Unable { message: String },
    /// Anything else that may pass, like a conflict. The round is tried again.
    Failed,
}
