//! The helm runner: with a fake helm for load and misbehaviour, with the real one for everything else.
#![expect(clippy::unwrap_used, reason = "all of this is tests; clippy takes only the marked functions for such")]

mod fake;
mod harness;
mod lifetime;
mod release;
mod source;
