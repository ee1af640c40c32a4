//! Workspace: HelmReleases, Users, network policies, Ingresses and configs.

mod config;
mod decide;
mod derive;
mod network;
mod report;
mod source;

pub(super) use config::hash_name;
pub use decide::{InputsOf, Observed, plan, rival};
pub use derive::{Surroundings, derive};
pub use network::Endpoint;
pub use report::{RoundOf, report};
pub use source::{MOST_TAKEN, Note, Source, SourceAsk};
