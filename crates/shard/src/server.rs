//! The server of one shard.
//!
//! A [`term::Term`] is one lead: it holds what storage and provider say in memory, answers requests and carries rounds
//! out. It ends with its lead; the next one begins with what is stored.

mod memory;
mod request;
mod round;
mod term;
mod watch;

pub use term::{Context, Term, TermError};
pub use watch::{Hub, Watched};

#[cfg(test)]
mod tests;
