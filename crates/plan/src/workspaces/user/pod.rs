//! What a code-server's pod says about why it is not ready.

use api::condition::Reason;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Why;

/// The part of a pod that explains why it does not start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFacts {
    /// Why the container waits: reason and message.
    pub waiting: Option<(Box<str>, Box<str>)>,
    /// Why no node takes it.
    pub unschedulable: Option<Box<str>>,
}

impl PodFacts {
    /// From a pod's `status`.
    pub fn read(status: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().into();
        let waiting = status.pointer("/containerStatuses/0/state/waiting");
        let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let unschedulable = conditions.iter().find(|c| c["type"] == "PodScheduled" && c["reason"] == "Unschedulable");
        Self {
            waiting: waiting.map(|waiting| (text(&waiting["reason"]), text(&waiting["message"]))),
            unschedulable: unschedulable.map(|condition| text(&condition["message"])),
        }
    }

    /// What waiting alone does not repair.
    pub(super) fn problem(&self) -> Option<Why> {
        if let Some((word, message)) = &self.waiting {
            let reason = match &**word {
                "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => {
                    Reason::ImagePullFailed
                }
                "CreateContainerConfigError" | "CreateContainerError" => Reason::ContainerConfigError,
                "CrashLoopBackOff" => Reason::CrashLoop,
                _ => return None,
            };
            return Some(Why { reason, message: format!("The code-server does not start: {word}: {message}") });
        }
        let message = self.unschedulable.as_ref()?;
        Some(Why { reason: Reason::SchedulingFailed, message: format!("No node can run the code-server: {message}") })
    }
}
