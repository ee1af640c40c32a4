//! Faults on demand. They are set from outside the simulated API.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The request is carried out and the connection closed instead of answered.
    LostResponse,
    /// The connection is closed before anything is done.
    Cut,
    /// The answer comes this much later.
    Slow(Duration),
    /// Nothing is done and the answer is this status with this code.
    Error { status: u16, code: String },
    /// The actions that the request begins stay running until the faults are cleared.
    StuckAction,
    /// The actions that the request begins end with an error.
    FailedAction,
    /// The actions that the request begins are not known to the API afterwards.
    VanishedAction,
    /// No host has room: anywhere, or at one location, or for one server type.
    Capacity { location: Option<String>, server_type: Option<String> },
    /// The project's requests are spent; they come back at the usual rate.
    RateLimit,
}

/// A text that names no fault or no operation.
#[derive(Debug, thiserror::Error)]
pub enum BadFault {
    #[error(
        "{0:?} is not an operation: write a method and a path without /v1 and query, such as \"POST /servers\"; * stands \
         for one part"
    )]
    Operation(String),
    #[error(
        "{0:?} is not a kind of fault: use lost-response, cut, slow=SECONDS, 409, 423, 429, 500, 502, 503, 504, \
         stuck-action, failed-action, vanished-action, capacity or rate-limit"
    )]
    Kind(String),
}

impl std::str::FromStr for Kind {
    type Err = BadFault;

    fn from_str(text: &str) -> Result<Self, BadFault> {
        let seconds = |text: &str| text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let error = |status, code: &str| Self::Error { status, code: code.to_owned() };
        Ok(match text {
            "lost-response" => Self::LostResponse,
            "cut" => Self::Cut,
            "409" => error(409, "conflict"),
            "423" => error(423, "locked"),
            "429" => error(429, "rate_limit_exceeded"),
            "500" => error(500, "server_error"),
            "502" => error(502, "bad_gateway"),
            "503" => error(503, "unavailable"),
            "504" => error(504, "timeout"),
            "stuck-action" => Self::StuckAction,
            "failed-action" => Self::FailedAction,
            "vanished-action" => Self::VanishedAction,
            "capacity" => Self::Capacity { location: None, server_type: None },
            "rate-limit" => Self::RateLimit,
            other => {
                let slow = other.strip_prefix("slow=").and_then(seconds).map(Self::Slow);
                slow.ok_or_else(|| BadFault::Kind(other.to_owned()))?
            }
        })
    }
}

/// In the form that is read; what a fault is limited to is added.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LostResponse => f.write_str("lost-response"),
            Self::Cut => f.write_str("cut"),
            Self::Slow(time) => write!(f, "slow={}", time.as_secs_f64()),
            Self::Error { status, .. } => write!(f, "{status}"),
            Self::StuckAction => f.write_str("stuck-action"),
            Self::FailedAction => f.write_str("failed-action"),
            Self::VanishedAction => f.write_str("vanished-action"),
            Self::Capacity { location, server_type } => {
                f.write_str("capacity")?;
                [location, server_type].into_iter().flatten().try_for_each(|only| write!(f, " {only}"))
            }
            Self::RateLimit => f.write_str("rate-limit"),
        }
    }
}

/// A fault and where it applies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Method and whole path, without `/v1`; `*` stands for one part of the path.
    pub operation: String,
    pub kind: Kind,
    /// How often it still happens; `None` for until cleared.
    pub times: Option<u32>,
}

/// The faults of one simulator.
#[derive(Debug)]
pub struct Faults {
    active: Mutex<Vec<Fault>>,
    /// Counts the clearings: stuck actions wait for the next one.
    cleared: watch::Sender<u64>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { active: Mutex::default(), cleared: watch::Sender::new(0) }
    }
}

impl Faults {
    pub fn add(&self, operation: &str, kind: Kind, times: Option<u32>) -> Result<(), BadFault> {
        let refused = || BadFault::Operation(operation.to_owned());
        let (method, path) = operation.split_once(' ').ok_or_else(refused)?;
        let is_fine = method == "*" || ["GET", "POST", "PUT", "DELETE"].contains(&method);
        // Such a path would be met by no request.
        let is_path = path.starts_with('/') && !path.starts_with("/v1") && !path.contains('?') && !path.ends_with('/');
        if !is_fine || !is_path {
            return Err(refused());
        }
        self.active().push(Fault { operation: operation.to_owned(), kind, times });
        Ok(())
    }

    pub fn list(&self) -> Vec<Fault> {
        self.active().clone()
    }

    /// Ends all faults; actions that hang go on.
    pub fn clear(&self) {
        self.active().clear();
        self.cleared.send_modify(|count| *count += 1);
    }

    fn active(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the first fault that applies to this request, once.
    pub(super) fn take(&self, method: &Method, path: &str, body: &serde_json::Value) -> Option<Taken> {
        let mut active = self.active();
        let index = active.iter().position(|fault| applies(fault, method, path, body))?;
        let (operation, kind) = (active[index].operation.clone(), active[index].kind.clone());
        if let Some(times) = &mut active[index].times {
            *times = times.saturating_sub(1);
            if *times == 0 {
                active.remove(index);
            }
        }
        Some(Taken { operation, kind })
    }

    /// Puts back what was taken and did not happen.
    pub(super) fn restore(&self, Taken { operation, kind }: Taken) {
        let mut active = self.active();
        match active.iter_mut().find(|fault| fault.operation == operation && fault.kind == kind) {
            Some(fault) => fault.times = fault.times.map(|times| times + 1),
            None => active.push(Fault { operation, kind, times: Some(1) }),
        }
    }

    /// Changes with the next clearing.
    pub(super) fn clearings(&self) -> watch::Receiver<u64> {
        self.cleared.subscribe()
    }
}

/// A fault that meets one request.
#[derive(Debug, PartialEq)]
pub(super) struct Taken {
    operation: String,
    pub kind: Kind,
}

fn applies(fault: &Fault, method: &Method, path: &str, body: &serde_json::Value) -> bool {
    let Some((wanted_method, wanted_path)) = fault.operation.split_once(' ') else { return false };
    let (mut wanted, mut parts) = (wanted_path.split('/'), path.split('/'));
    let is_path = loop {
        match (wanted.next(), parts.next()) {
            (None, None) => break true,
            (Some(wanted), Some(part)) if wanted == "*" || wanted == part => {}
            _ => break false,
        }
    };
    let names = |field: &str, wanted: &Option<String>| {
        wanted.as_ref().is_none_or(|wanted| body[field].as_str() == Some(wanted.as_str()))
    };
    let is_there = match &fault.kind {
        Kind::Capacity { location, server_type } => names("location", location) && names("server_type", server_type),
        _ => true,
    };
    is_path && is_there && (wanted_method == "*" || wanted_method == method.as_str())
}

impl Kind {
    /// The answer of a fault that is only an answer.
    pub(super) fn refusal(&self) -> Option<super::refusal::Refusal> {
        match self {
            Self::Error { status, code } => {
                let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let known = ["conflict", "locked", "rate_limit_exceeded", "server_error", "bad_gateway", "unavailable"];
                let code = known.into_iter().chain(["timeout"]).find(|known| known == code).unwrap_or("unknown_error");
                Some(super::refusal::Refusal::new(status, code, format!("the simulator was asked for {status}")))
            }
            Self::Capacity { .. } => Some(super::refusal::Refusal::capacity()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_operation_is_a_method_and_a_whole_path() {
        let faults = Faults::default();
        faults.add("POST /servers", Kind::LostResponse, Some(1)).unwrap();
        faults.add("POST /servers/*/actions/poweron", Kind::StuckAction, None).unwrap();
        let take = |method: Method, path: &str| faults.take(&method, path, &json!({})).map(|taken| taken.kind);
        assert_eq!(take(Method::GET, "/servers"), None);
        assert_eq!(take(Method::POST, "/servers/7/actions/poweroff"), None);
        assert_eq!(take(Method::POST, "/servers"), Some(Kind::LostResponse));
        assert_eq!(take(Method::POST, "/servers"), None, "it was for one time");
        for _ in 0..2 {
            assert_eq!(take(Method::POST, "/servers/7/actions/poweron"), Some(Kind::StuckAction));
        }
        assert_eq!(faults.list().len(), 1);
        faults.clear();
        assert_eq!(faults.list(), []);
    }

    #[test]
    fn capacity_may_be_missing_at_one_place_only() {
        let faults = Faults::default();
        let kind = Kind::Capacity { location: Some("fsn1".into()), server_type: None };
        faults.add("POST /servers", kind.clone(), None).unwrap();
        let take = |location: &str| faults.take(&Method::POST, "/servers", &json!({ "location": location }));
        assert_eq!(take("nbg1"), None);
        assert_eq!(take("fsn1").map(|taken| taken.kind), Some(kind));
    }

    #[test]
    fn texts_that_name_nothing_say_what_would() {
        for text in ["slow=0.5", "lost-response", "423", "capacity", "stuck-action"] {
            assert_eq!(text.parse::<Kind>().unwrap().to_string(), text);
        }
        for text in ["slow=x", "slow=-1", "418", "", "Lost"] {
            assert!(text.parse::<Kind>().unwrap_err().to_string().contains("lost-response"), "{text}");
        }
        for operation in [
            "POST",
            "/servers",
            "FETCH /servers",
            "POST servers",
            "GET /v1/servers",
            "GET /servers?page=2",
            "GET /servers/",
        ] {
            assert!(Faults::default().add(operation, Kind::Cut, None).is_err(), "{operation}");
        }
    }
}
