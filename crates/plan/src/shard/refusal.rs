//! Why a request is refused.

use std::fmt;

/// The codes of gRPC that a decision can end in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// A field has a value that is never right.
    InvalidArgument,
    /// The value would be right if the group were not static.
    FailedPrecondition,
    NotFound,
    AlreadyExists,
    /// Belongs to another tenant.
    PermissionDenied,
    ResourceExhausted,
}

/// A refused request: the code for programs, and a text that names the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: Code,
    pub message: String,
}

impl Refusal {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}
