//! The vendor's errors: status, code, message and details, as its documentation lists them.

use http::StatusCode;
use serde_json::{Value, json};

/// An answer that is an error.
#[derive(Debug)]
pub(super) struct Refusal {
    pub status: StatusCode,
    pub code: &'static str,
    message: String,
    details: Value,
}

impl Refusal {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), details: Value::Null }
    }

    /// One field of the request is missing or wrong.
    pub fn invalid(field: &str, message: impl Into<String>) -> Self {
        let message = message.into();
        let details = json!({ "fields": [{ "name": field, "messages": [message] }] });
        let message = format!("invalid input in field '{field}': {message}");
        Self { details, ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_input", message) }
    }

    pub fn not_found(kind: &str, id: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("{kind} with ID '{id}' not found"))
    }

    /// A path or method that the API does not have.
    pub fn no_route() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "not found")
    }

    pub fn not_unique(field: &str, message: impl Into<String>) -> Self {
        let details = json!({ "fields": [{ "name": field }] });
        Self { details, ..Self::new(StatusCode::CONFLICT, "uniqueness_error", message) }
    }

    /// The documentation gives no status for codes of single operations; clients go by the code.
    pub fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    pub fn locked(kind: &str) -> Self {
        Self::new(StatusCode::LOCKED, "locked", format!("{kind} is locked because of a running action"))
    }

    pub fn protected(kind: &str) -> Self {
        Self::new(StatusCode::LOCKED, "protected", format!("{kind} deletion is protected"))
    }

    pub fn limit(name: &str, message: impl Into<String>) -> Self {
        let details = json!({ "limits": [{ "name": name }] });
        Self { details, ..Self::new(StatusCode::FORBIDDEN, "resource_limit_exceeded", message) }
    }

    /// No host has room for the server.
    pub fn capacity() -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, "resource_unavailable", "error during placement")
    }

    pub fn body(&self) -> Value {
        json!({ "error": { "code": self.code, "message": self.message, "details": self.details } })
    }
}
