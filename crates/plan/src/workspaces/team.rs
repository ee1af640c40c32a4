//! Workspace: HelmReleases, Users, network policies, Ingresses and configs.

mod config;
mod decide;
mod derive;
mod network;
mod report;

pub(super) use config::hash_name;
pub use decide::{Observed, plan, rival};
pub use derive::{MOST_TAKEN, Source, Surroundings, derive};
pub use network::Endpoint;
pub use report::status;
