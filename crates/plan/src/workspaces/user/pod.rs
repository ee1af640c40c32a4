//! What a code-server's pod says about why it is not ready.

use api::condition::Reason;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::build::NAME;
use crate::Why;
use crate::kubelet;

/// The part of a pod that explains why it does not start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFacts {
    /// Why the code-server's own container waits: reason and message.
    pub waiting: Option<(Box<str>, Box<str>)>,
    /// A container that admission added and that does not start: name, reason and message.
    pub foreign: Option<(Box<str>, Box<str>, Box<str>)>,
    /// Why no node takes it.
    pub unschedulable: Option<Box<str>>,
}

impl PodFacts {
    /// From a pod's `status`.
    pub fn read(status: &Value) -> Self {
        let text = |value: &Value| -> Box<str> { value.as_str().unwrap_or_default().into() };
        let list = |field: &str| status[field].as_array().map(Vec::as_slice).unwrap_or_default();
        let (all, initial) = (list("containerStatuses"), list("initContainerStatuses"));
        // Kubelet sorts statuses by name, and admission may add a sidecar: only the name distinguishes ours.
        let ours = all.iter().find(|one| one["name"] == NAME).or_else(|| all.first().filter(|_| all.len() == 1));
        let beside = all.iter().filter(|one| ours.is_some_and(|ours| !std::ptr::eq(*one, ours)));
        let waiting = |container: &Value| {
            let waiting = container.pointer("/state/waiting")?;
            Some((text(&waiting["reason"]), text(&waiting["message"])))
        };
        let foreign = |container: &Value| {
            let (word, message) = waiting(container).filter(|(word, _)| kubelet::problem(word).is_some())?;
            Some((text(&container["name"]), word, message))
        };
        let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let unschedulable = conditions.iter().find(|c| c["type"] == "PodScheduled" && c["reason"] == "Unschedulable");
        Self {
            waiting: ours.and_then(waiting),
            foreign: initial.iter().chain(beside).find_map(foreign),
            unschedulable: unschedulable.map(|condition| text(&condition["message"])),
        }
    }

    /// Whether kubelet waits before it pulls the image again.
    pub(super) fn is_backing_off(&self) -> bool {
        let foreign = self.foreign.as_ref().map(|(_, word, _)| word);
        self.waiting.as_ref().map(|(word, _)| word).or(foreign).is_some_and(|word| &**word == "ImagePullBackOff")
    }

    /// What waiting alone does not repair.
    pub(super) fn problem(&self) -> Option<Why> {
        if let Some((word, message)) = &self.waiting
            && let Some(reason) = kubelet::problem(word)
        {
            return Some(Why { reason, message: format!("The code-server does not start: {word}: {message}") });
        }
        if let Some((name, word, message)) = &self.foreign {
            let message = format!("The container {name} beside the code-server does not start: {word}: {message}");
            return Some(Why { reason: kubelet::problem(word)?, message });
        }
        let message = self.unschedulable.as_ref()?;
        Some(Why { reason: Reason::SchedulingFailed, message: format!("No node can run the code-server: {message}") })
    }
}
