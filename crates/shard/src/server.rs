//! The server of one shard.
//!
//! A [`term::Term`] is one lead: it holds what storage and provider say in memory, answers requests and carries rounds
//! out. It ends with its lead; the next one begins with what is stored.

mod dynamic;
mod election_port;
mod entries;
mod follow_up;
mod groups;
mod limits;
mod listener;
mod listing;
mod memory;
mod missing;
mod pending;
mod place;
mod purge;
mod quarantine;
mod request;
mod round;
mod run;
mod said;
mod schedule;
mod service;
mod standby;
mod standing;
mod stream;
mod term;
mod watch;

pub(crate) use election_port::PORTS;
pub use limits::{Limits, Unary};
pub use listener::Listener;
pub use run::{Bound, Identity, Options, Ports, RunError, run};
pub use service::{agent_service, operator_service, registration_service};
pub use standing::Standing;
pub use term::{Context, Term, TermError};
pub use watch::{Hub, Watched};

#[cfg(test)]
mod tests;
