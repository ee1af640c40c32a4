//! What callers ask of the runner, and what helm then gets.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use runtime::{Key, child::Private, jobs};

use super::{
    command::{Operation, OperationKind},
    output::Failure,
};

/// One operation on one release: a description, for values and credentials are read when its turn has come.
pub struct Request {
    /// Namespace and name of the release.
    pub key: Key,
    /// In whose turn it may start; that namespace is charged for its memory. None: in the turn of the key's own.
    pub namespaces: Vec<Arc<str>>,
    pub operation: OperationKind,
    /// What the caller knows this request by; comes back in [`Finished`](super::Finished).
    pub label: Arc<str>,
    /// helm's own limit for each wait.
    pub timeout: Duration,
    /// For all of it, where that is more than one operation of helm.
    pub time: Option<Duration>,
    /// Bytes, instead of the configured.
    pub memory: Option<u64>,
    pub contents: Reading,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of {}", self.operation.as_str(), self.label, self.key)
    }
}

/// Reads what helm is to get.
pub type Reading = Box<dyn FnOnce() -> BoxFuture<'static, Result<Contents, Unread>> + Send>;

/// Work that must be done before helm begins.
pub type First = Box<dyn FnOnce() -> BoxFuture<'static, Result<(), Failure>> + Send + Sync>;

/// Why there is nothing that helm could be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// What the operation was planned on has changed; the text says what.
    Outdated(String),
    Failed(Failure),
}

/// What helm gets.
pub struct Contents {
    pub operation: Operation,
    /// In order: later files win.
    pub values: Vec<Private>,
    pub kubeconfig: Option<Private>,
    /// Further files by name, in helm's working directory: repositories, registry credentials, authorities.
    pub files: Vec<(&'static str, Private)>,
    /// Cut out of every message.
    pub secrets: Vec<Private>,
    /// YAML documents; whatever they hold is cut out as well.
    pub secret_values: Vec<Private>,
    /// What must be done before helm begins.
    pub first: Option<First>,
    /// What helm must have done before.
    pub before: Option<Operation>,
}

impl Contents {
    pub fn new(operation: Operation) -> Self {
        Self {
            operation,
            values: Vec::new(),
            kubeconfig: None,
            files: Vec::new(),
            secrets: Vec::new(),
            secret_values: Vec::new(),
            first: None,
            before: None,
        }
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").field("operation", &self.operation).finish_non_exhaustive()
    }
}

/// Why a request is not even put in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the operation may use {asked} bytes, and one helm operation may use {most} of what all may together")]
    TooLarge { asked: u64, most: u64 },
    #[error("the operation may use {asked} bytes, and helm needs at least {least}")]
    TooSmall { asked: u64, least: u64 },
    #[error("the operator stops")]
    Draining,
}

impl From<jobs::Refused> for Refused {
    fn from(refused: jobs::Refused) -> Self {
        match refused {
            jobs::Refused::TooLarge { asked, most, .. } => Self::TooLarge { asked, most },
            jobs::Refused::Draining => Self::Draining,
        }
    }
}
