//! The object itself.

use super::{PLURAL, PerformerSpec, PerformerStatus};
use crate::kind::kind;

kind!(
    /// One AVS workload. The published schema does not require `spec`, so an object without one can be stored.
    Performer,
    PLURAL,
    PerformerSpec,
    PerformerStatus
);
