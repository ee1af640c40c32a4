//! What can go wrong, and what to do about it.

use std::{fmt, time::Duration};

/// A request or a change that did not succeed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct Error {
    /// Method and path, such as `POST /servers`.
    pub operation: String,
    pub cause: Cause,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// The API refused; `code` is the vendor's.
    Refused {
        status: u16,
        code: String,
        message: String,
        retry_after: Option<Duration>,
    },
    /// No connection, or one that ended too early: whether the request was carried out is not known.
    Unreachable {
        why: String,
    },
    /// No whole answer in time: whether the request was carried out is not known.
    Late {
        limit: Duration,
    },
    /// An answer that is not what the API documents.
    Undecodable {
        why: String,
        is_cut_short: bool,
    },
    /// An answer longer than any the API has.
    TooLong {
        limit: usize,
    },
    ActionFailed {
        command: String,
        code: String,
        message: String,
    },
    /// The API no longer knows the action: how it ended is not known.
    ActionVanished {
        id: i64,
    },
    ActionOverdue {
        id: i64,
        command: String,
        limit: Duration,
    },
    /// The name is taken by a resource without our labels.
    Foreign {
        kind: &'static str,
        name: String,
        id: i64,
    },
    /// The requests that are left are kept for urgent ones, or there are none.
    BudgetSpent {
        retry_after: Duration,
    },
    /// The list changed each time while its pages were read.
    ListChanged,
    /// The API carried the change out and does not show it.
    Unseen,
    /// The token has characters that no token has.
    BadToken,
    BadEndpoint {
        endpoint: String,
    },
}

/// How to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Try again: it may well succeed.
    Transient,
    /// Another change is in the way: try again after a look.
    Conflict,
    /// The request is wrong: it fails until what it asks for changes.
    Invalid,
    /// It fails until a person acts: a limit, a protection, a foreign resource.
    Terminal,
    /// No room at this location for this type.
    Capacity,
    RateLimited,
    Unauthorised,
}

/// What one error code means; the vendor adds codes, so the status decides about the rest.
fn class_of(code: &str, status: u16) -> Class {
    match code {
        "conflict"
        | "locked"
        | "resource_locked"
        | "uniqueness_error"
        | "resource_in_use"
        | "server_not_stopped"
        | "server_already_attached"
        | "server_already_added"
        | "load_balancer_already_attached"
        | "target_already_defined"
        | "source_port_already_used"
        | "firewall_already_applied"
        | "ip_not_available"
        | "volume_already_attached"
        | "server_not_attached_to_network"
        | "load_balancer_not_attached_to_network" => Class::Conflict,
        "invalid_input"
        | "json_error"
        | "not_found"
        | "invalid_server_type"
        | "invalid_load_balancer_type"
        | "unsupported_error"
        | "deprecated_api_endpoint"
        | "method_not_allowed"
        | "networks_overlap"
        | "no_subnet_available"
        | "ip_not_owned"
        | "firewall_resource_not_found" => Class::Invalid,
        "resource_limit_exceeded" | "protected" => Class::Terminal,
        "resource_unavailable" | "placement_error" | "no_space_left_in_location" => Class::Capacity,
        "rate_limit_exceeded" => Class::RateLimited,
        "unauthorized" | "forbidden" | "token_readonly" => Class::Unauthorised,
        "service_error" | "unknown_error" | "server_error" | "bad_gateway" | "timeout" | "unavailable"
        | "maintenance" | "robot_unavailable" | "action_failed" => Class::Transient,
        _ => match status {
            401 | 403 => Class::Unauthorised,
            409 | 423 => Class::Conflict,
            412 => Class::Capacity,
            429 => Class::RateLimited,
            // Not the API's own word: it says `not_found`.
            404 if code.is_empty() => Class::Transient,
            400..=499 => Class::Invalid,
            _ => Class::Transient,
        },
    }
}

impl Error {
    pub(crate) fn new(operation: impl Into<String>, cause: Cause) -> Self {
        Self { operation: operation.into(), cause }
    }

    pub fn class(&self) -> Class {
        match &self.cause {
            Cause::Refused { status, code, .. } => class_of(code, *status),
            Cause::ActionFailed { code, .. } => class_of(code, 500),
            Cause::Unreachable { .. }
            | Cause::Late { .. }
            | Cause::ActionVanished { .. }
            | Cause::ListChanged
            | Cause::Unseen => Class::Transient,
            Cause::Undecodable { is_cut_short, .. } => {
                if *is_cut_short {
                    Class::Transient
                } else {
                    Class::Terminal
                }
            }
            Cause::ActionOverdue { .. } => Class::Conflict,
            Cause::TooLong { .. } | Cause::Foreign { .. } => Class::Terminal,
            Cause::BudgetSpent { .. } => Class::RateLimited,
            Cause::BadToken => Class::Unauthorised,
            Cause::BadEndpoint { .. } => Class::Invalid,
        }
    }

    /// When trying again can help; `None` where something else has to change first.
    pub fn retry_after(&self) -> Option<Duration> {
        match (&self.cause, self.class()) {
            (Cause::BudgetSpent { retry_after }, _) => Some(*retry_after),
            (Cause::Refused { retry_after: Some(time), .. }, Class::RateLimited) => Some(*time),
            // Faults of the API pass in seconds, other people's actions too.
            (_, Class::Transient | Class::Conflict | Class::RateLimited) => Some(Duration::from_secs(5)),
            // A location is full for minutes to hours.
            (_, Class::Capacity) => Some(Duration::from_mins(5)),
            (_, Class::Invalid | Class::Terminal | Class::Unauthorised) => None,
        }
    }

    pub fn code(&self) -> Option<&str> {
        match &self.cause {
            Cause::Refused { code, .. } | Cause::ActionFailed { code, .. } => Some(code),
            _ => None,
        }
    }

    /// By the API's own word: what a proxy answers in its place says nothing about a resource.
    pub fn is_not_found(&self) -> bool {
        matches!(&self.cause, Cause::Refused { code, .. } if code == "not_found")
    }

    /// The request itself may be repeated soon, after a look where it changes something.
    pub(crate) fn is_passing(&self) -> bool {
        let in_the_way = ["conflict", "locked", "uniqueness_error", "resource_in_use"];
        match self.class() {
            // How an action failed is for the caller to see, who may want something else now.
            Class::Transient | Class::RateLimited => {
                !matches!(self.cause, Cause::BudgetSpent { .. } | Cause::ActionFailed { .. })
            }
            Class::Conflict => self.code().is_some_and(|code| in_the_way.contains(&code)),
            _ => false,
        }
    }

    fn remedy(&self) -> &'static str {
        match (&self.cause, self.class()) {
            (Cause::BadEndpoint { .. }, _) => {
                "write it as https://api.hetzner.cloud/v1 (HCLOUD_ENDPOINT); http is for addresses of this machine only"
            }
            (Cause::Foreign { .. }, _) => "rename it, delete it, or choose another name",
            (Cause::TooLong { .. } | Cause::Undecodable { .. }, Class::Terminal)
            | (Cause::Refused { status: 404, .. }, Class::Transient) => {
                "check that HCLOUD_ENDPOINT names Hetzner's API and no proxy answers in its place"
            }
            (Cause::ActionVanished { .. }, _) => "look at the resource to see how it ended",
            (Cause::ActionOverdue { .. }, _) => "it may still end; look at the resource again",
            (_, Class::Transient) => "it is tried again",
            (_, Class::Conflict) => "it is tried again when the other change has ended",
            (_, Class::Invalid) => "correct what is asked for",
            (_, Class::Terminal) => "raise the limit or lift the protection in Hetzner's console",
            (_, Class::Capacity) => "wait, or choose another location or server type",
            (_, Class::RateLimited) => "it is tried again when requests are left",
            (_, Class::Unauthorised) => "use a token of this project that may read and write",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.operation, self.cause, self.remedy())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { status, code, message, .. } => write!(f, "{message} ({code}, status {status})"),
            Self::Unreachable { why } => write!(f, "no answer: {why}"),
            Self::Late { limit } => write!(f, "no whole answer within {limit:?}"),
            Self::Undecodable { why, is_cut_short: true } => write!(f, "the answer ends too early: {why}"),
            Self::Undecodable { why, .. } => write!(f, "the answer is not what the API documents: {why}"),
            Self::TooLong { limit } => write!(f, "the answer is longer than {limit} bytes"),
            Self::ActionFailed { command, code, message } => write!(f, "{command} failed: {message} ({code})"),
            Self::ActionVanished { id } => write!(f, "the API no longer knows action {id}"),
            Self::ActionOverdue { id, command, limit } => {
                write!(f, "{command} (action {id}) has not ended within {limit:?}")
            }
            Self::Foreign { kind, name, id } => write!(f, "{kind} {name} (id {id}) exists without our labels"),
            Self::BudgetSpent { retry_after } => write!(f, "the project's requests are spent for {retry_after:?}"),
            Self::ListChanged => f.write_str("the list changed each time it was read"),
            Self::Unseen => f.write_str("the change was accepted and is not visible"),
            Self::BadToken => f.write_str("the token is empty or has characters that no token has"),
            Self::BadEndpoint { endpoint } => write!(f, "{endpoint:?} is not an address of the API"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: u16, code: &str, class: Class, is_passing: bool) {
        let (code, message) = (code.to_owned(), String::new());
        let error = Error::new("GET /x", Cause::Refused { status, code, message, retry_after: None });
        assert_eq!((error.class(), error.is_passing()), (class, is_passing), "{error}");
        let is_hopeless = matches!(class, Class::Invalid | Class::Terminal | Class::Unauthorised);
        assert_eq!(error.retry_after().is_none(), is_hopeless, "{error}");
    }

    #[test]
    fn codes_decide_and_unknown_ones_leave_it_to_the_status() {
        check(409, "uniqueness_error", Class::Conflict, true);
        check(423, "locked", Class::Conflict, true);
        check(423, "protected", Class::Terminal, false);
        check(409, "ip_not_available", Class::Conflict, false);
        check(412, "resource_unavailable", Class::Capacity, false);
        check(422, "placement_error", Class::Capacity, false);
        check(429, "rate_limit_exceeded", Class::RateLimited, true);
        check(401, "unauthorized", Class::Unauthorised, false);
        check(403, "resource_limit_exceeded", Class::Terminal, false);
        check(422, "service_error", Class::Transient, true);
        check(503, "", Class::Transient, true);
        check(404, "not_found", Class::Invalid, false);
        check(404, "", Class::Transient, true);
        check(418, "teapot_error", Class::Invalid, false);
        check(409, "later_error", Class::Conflict, false);
    }
}
