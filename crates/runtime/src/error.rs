//! What can go wrong in a round, in four classes that decide retry, condition and metric label.

use std::time::Duration;

use kube::core::Status;

/// The class decides what happens next; the text is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// The same call may succeed later: retried with growing delay.
    Transient,
    /// Our view was old: retried as soon as the view has moved.
    Conflict,
    /// Refused as it stands (quota, admission): retried with growing delay, since others can lift the refusal.
    Invalid,
    /// Wrong in itself: waits for a change of the object or the next resync.
    Terminal,
}

impl Class {
    pub fn label(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Conflict => "conflict",
            Self::Invalid => "invalid",
            Self::Terminal => "terminal",
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server answered with a failure.
    #[error("{verb} {resource}: {} ({})", status.message, status.code)]
    Api { verb: &'static str, resource: &'static str, status: Box<Status> },
    /// No answer: connection, TLS, decoding.
    #[error("{verb} {resource}")]
    Client { verb: &'static str, resource: &'static str, source: Box<kube::Error> },
    #[error("{verb} {resource}: no answer within {limit:?}")]
    TimedOut { verb: &'static str, resource: &'static str, limit: Duration },
    /// The lease may have lapsed: another replica may be acting, so we must not.
    #[error("{verb} {resource}: not the leader")]
    NotLeader { verb: &'static str, resource: &'static str },
    #[error("panic: {0}")]
    Panicked(String),
}

impl Error {
    pub(crate) fn from_kube(verb: &'static str, resource: &'static str, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Api { verb, resource, status },
            other => Self::Client { verb, resource, source: Box::new(other) },
        }
    }

    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Api { status, .. } => Some(status),
            _ => None,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(|s| s.code == 404)
    }

    pub fn is_already_exists(&self) -> bool {
        self.status().is_some_and(Status::is_already_exists)
    }

    /// The namespace is being deleted: nothing can or should be created in it.
    pub fn is_namespace_terminating(&self) -> bool {
        self.status()
            .and_then(|s| s.details.as_ref())
            .is_some_and(|details| details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating"))
    }

    pub fn class(&self) -> Class {
        let Some(status) = self.status() else { return Class::Transient };
        match status.code {
            404 | 409 => Class::Conflict,
            403 => Class::Invalid,
            400 | 405 | 413 | 415 | 422 => Class::Terminal,
            _ => Class::Transient,
        }
    }

    /// What the server asked us to wait (429, 503).
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self.status()?.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(code: u16) -> Error {
        Error::Api { verb: "create", resource: "pods", status: Status::failure("no", "").with_code(code).boxed() }
    }

    #[test]
    fn classes_follow_the_answer() {
        let classes = [404, 409, 403, 400, 422, 429, 500, 503, 504].map(|code| api(code).class().label());
        assert_eq!(
            classes,
            [
                "conflict",
                "conflict",
                "invalid",
                "terminal",
                "terminal",
                "transient",
                "transient",
                "transient",
                "transient"
            ]
        );
        assert_eq!(Error::Panicked("x".into()).class(), Class::Transient);
    }
}
