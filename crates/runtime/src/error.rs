//! What can go wrong in a round, in four classes that decide retry, condition and metric label.

use std::time::Duration;

use kube::core::Status;
pub use plan::fact::Class;
use plan::{
    fact::Failure,
    round::{Progress, Refusal, Why},
};

/// The reason of a 404 that is about one object. One for a path that is not served is plain text, without a reason.
const NOT_FOUND: &str = "NotFound";

/// What the API server says, with code 500, where it cannot reach an admission webhook.
const WEBHOOK_DOWN: &str = "failed calling webhook";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server answered with a failure.
    #[error("{verb} {resource}: {} ({})", status.message, status.code)]
    Api { verb: &'static str, resource: &'static str, status: Box<Status>, retry_after: Option<Duration> },
    /// No answer: connection, TLS.
    #[error("{verb} {resource}")]
    Client { verb: &'static str, resource: &'static str, source: Box<kube::Error> },
    #[error("{verb} {resource}: {place}")]
    Undecodable { verb: &'static str, resource: &'static str, place: String },
    #[error("{verb} {resource}: no answer within {limit:?}")]
    TimedOut { verb: &'static str, resource: &'static str, limit: Duration },
    /// The lease may have lapsed: another replica may be acting, so we must not.
    #[error("{verb} {resource}: not the leader")]
    NotLeader { verb: &'static str, resource: &'static str },
    /// What was planned on is not so any more: the next round sees what there is now.
    #[error("the object changed after it was planned")]
    Outdated,
    /// As [`Self::NotLeader`], before anything was sent.
    #[error("leadership lost")]
    LeadLost,
    /// The round or job took longer than it may.
    #[error("deadline exceeded")]
    OutOfTime,
    /// Trying again at once would not help; the words are for the status.
    #[error("{}", .0.message)]
    Refused(Why),
    /// Another peer than the API server failed.
    #[error("{peer}: {}", failure.message)]
    Peer { peer: String, failure: Failure, retry_after: Option<Duration> },
    #[error("panic: {0}")]
    Panicked(String),
}

impl Error {
    /// From an answer that says no.
    pub(crate) fn refused(
        verb: &'static str,
        resource: &'static str,
        head: &http::response::Parts,
        body: &[u8],
    ) -> Self {
        let (status, retry_after) = refusal(head, body);
        Self::Api { verb, resource, status, retry_after }
    }

    /// From a request that was not made by a [`Writer`](crate::Writer) but in the name of another account.
    pub fn of_client(verb: &'static str, resource: &'static str, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Api { verb, resource, status, retry_after: None },
            source => Self::Client { verb, resource, source: Box::new(source) },
        }
    }

    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Api { status, .. } => Some(status),
            _ => None,
        }
    }

    /// The same failure in other words, where those of the server may quote what must not be repeated.
    #[must_use]
    pub fn with_message(mut self, message: String) -> Self {
        if let Self::Api { status, .. } = &mut self {
            status.message = message;
        }
        self
    }

    /// There is no such object.
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(|status| status.code == 404 && status.reason == NOT_FOUND)
    }

    /// The server does not serve the kind, or something in front of it answered. Whether the object exists is unknown:
    /// a definition may be replaced, or a version of it not served, while its objects stay.
    pub fn is_not_served(&self) -> bool {
        self.status().is_some_and(|status| status.code == 404 && status.reason != NOT_FOUND)
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
        match self {
            Self::NotLeader { .. } | Self::LeadLost | Self::Outdated => return Class::Conflict,
            Self::Refused(_) => return Class::Invalid,
            Self::Peer { failure, .. } => return failure.class,
            _ if self.is_namespace_terminating() => return Class::Conflict,
            _ => {}
        }
        if let Self::Client { source, .. } = self
            && matches!(**source, kube::Error::BuildRequest(_))
        {
            return Class::Terminal;
        }
        let Some(status) = self.status() else { return Class::Transient };
        match status.code {
            404 if self.is_not_found() => Class::Conflict,
            409 => Class::Conflict,
            // 405: nothing can be created while the definition is being deleted. Both end with another definition.
            403..=405 => Class::Invalid,
            400 | 413 | 415 | 422 => Class::Terminal,
            _ => Class::Transient,
        }
    }

    /// What the server asked us to wait (429, 503).
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Api { retry_after, .. } | Self::Peer { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the same peer is not worth another request in this round: it does not answer, asks for patience or
    /// fails itself, or we may not write to it any more. A webhook that cannot be reached concerns what it is called for.
    pub(crate) fn stops_peer(&self) -> bool {
        match self {
            Self::Api { status, .. } if status.message.contains(WEBHOOK_DOWN) => false,
            Self::Api { status, .. } => status.code == 429 || status.code >= 500,
            Self::Client { source, .. } => !matches!(**source, kube::Error::BuildRequest(_)),
            Self::TimedOut { .. } | Self::NotLeader { .. } | Self::LeadLost | Self::OutOfTime => true,
            Self::Peer { failure, .. } => failure.class == Class::Transient,
            Self::Undecodable { .. } | Self::Outdated | Self::Refused(_) | Self::Panicked(_) => false,
        }
    }

    /// What a report needs to know of it.
    pub(crate) fn progress<D>(&self) -> Progress<D> {
        let refused = match self {
            Self::Refused(blocked) => Some(Refusal::Because(blocked.clone())),
            _ if self.is_namespace_terminating() => Some(Refusal::NamespaceTerminating),
            Self::Api { resource, .. } if self.is_not_served() => Some(Refusal::Rejected(format!(
                "the API server does not serve {resource}; check that its CustomResourceDefinition is installed"
            ))),
            Self::Api { status, .. } if matches!(status.code, 400 | 403 | 405 | 422) => {
                Some(Refusal::Rejected(status.message.clone()))
            }
            _ => None,
        };
        let (class, retry) = (self.class(), self.retry_after());
        let message = match self {
            Self::Api { status, .. } => status.message.clone(),
            Self::TimedOut { limit, .. } => {
                format!("no answer within {limit:?}; check whether an admission webhook hangs")
            }
            _ => Chain(self).to_string(),
        };
        refused.map_or(Progress::Failed { class, retry, message }, Progress::Refused)
    }
}

/// What an answer says no with, and how long it asks us to wait: a Status, or plain text from a filter in front of the
/// API server.
pub(crate) fn refusal(head: &http::response::Parts, body: &[u8]) -> (Box<Status>, Option<Duration>) {
    let status = serde_json::from_slice(body).unwrap_or_else(|_| {
        let reason = head.status.canonical_reason().unwrap_or_default();
        Status::failure(String::from_utf8_lossy(body).trim(), reason)
    });
    (status.with_code(head.status.as_u16()).boxed(), retry_after(&head.headers))
}

/// How long an answer asks to wait before the request is sent again.
pub(crate) fn retry_after(headers: &http::HeaderMap) -> Option<Duration> {
    let header = headers.get(http::header::RETRY_AFTER)?;
    header.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

/// Where an answer could not be decoded, without what stands there.
pub(crate) fn undecodable(error: &serde_json::Error) -> String {
    format!("the answer is not of the expected form (line {}, column {})", error.line(), error.column())
}

/// An error with its sources on one line, each shown once: many errors quote their source themselves.
pub(crate) struct Chain<'a>(pub &'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = self.0.to_string();
        let mut source = self.0.source();
        while let Some(error) = source {
            let text = error.to_string();
            if !shown.contains(&text) {
                shown = format!("{shown}: {text}");
            }
            source = error.source();
        }
        f.write_str(&shown)
    }
}

/// An error of kube in few words: of a refusal what the server said, without the whole Status; of an answer that could
/// not be decoded where, without what stands there, which may be a secret.
pub(crate) struct Brief<'a>(pub &'a kube::Error);

impl std::fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            kube::Error::Api(status) => write!(f, "{} ({})", status.message, status.code),
            kube::Error::SerdeError(error) => f.write_str(&undecodable(error)),
            other => Chain(other).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16, retry_after: Option<&str>, body: &str) -> Error {
        let mut response = http::Response::builder().status(code);
        if let Some(seconds) = retry_after {
            response = response.header("retry-after", seconds);
        }
        Error::refused("create", "pods", &response.body(()).unwrap().into_parts().0, body.as_bytes())
    }

    fn api(code: u16) -> Error {
        let reason = if code == 404 { NOT_FOUND } else { "" };
        answer(code, None, &format!(r#"{{"kind":"Status","message":"no","reason":"{reason}","code":0}}"#))
    }

    #[test]
    fn a_404_is_about_an_object_only_if_the_api_server_says_so() {
        assert!(api(404).is_not_found() && !api(404).is_not_served());
        for body in ["404 page not found\n", "<html>Not Found</html>", "", r#"{"error":"NotFound"}"#] {
            let error = answer(404, None, body);
            assert!(!error.is_not_found() && error.is_not_served(), "{body}");
            assert_eq!(error.class(), Class::Invalid, "{body}");
            let Progress::<()>::Refused(Refusal::Rejected(message)) = error.progress() else { panic!("{body}") };
            assert!(message.starts_with("the API server does not serve pods"), "{message}");
        }
    }

    #[test]
    fn a_refusal_in_plain_text_keeps_its_words_and_its_patience() {
        let error = answer(429, Some("7"), "Too many requests, please try again later.\n");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
        assert_eq!(error.class(), Class::Transient);
        assert!(error.to_string().contains("please try again later"), "{error}");
        assert_eq!(api(503).retry_after(), None);
    }

    #[test]
    fn classes_follow_the_answer() {
        let classes = [404, 409, 403, 405, 400, 422, 429, 500, 503, 504].map(|code| api(code).class().label());
        assert_eq!(
            classes,
            [
                "conflict",
                "conflict",
                "invalid",
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

    #[test]
    fn a_webhook_that_is_down_does_not_make_the_api_server_silent() {
        assert!(api(500).stops_peer());
        let body = r#"{"kind":"Status","message":"Internal error occurred: failed calling webhook \"policy\": refused","code":500}"#;
        let error = answer(500, None, body);
        assert!(!error.stops_peer(), "other objects may be written");
        assert_eq!(error.class(), Class::Transient);
    }
}
