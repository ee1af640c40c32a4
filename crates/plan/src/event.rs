//! What is recorded about an object, in the form of Kubernetes Events.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Normal,
    Warning,
}

/// One Kubernetes Event about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    pub reason: &'static str,
    /// What was done or tried, one word (`events.k8s.io` wants it).
    pub action: &'static str,
    pub note: String,
}
