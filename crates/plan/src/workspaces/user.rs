//! User: a code-server with a volume that outlives it.

mod build;
mod decide;
mod pod;
mod report;

pub use build::{DEFAULT_IMAGE, claim_name, derive, exposure_host, object_name, pod_name, slug_of_pod};
pub use decide::{Observed, is_listed, plan};
pub use pod::PodFacts;
pub use report::{RoundOf, report};
