//! The helm runner: with a fake helm for load and misbehaviour, with the real one for everything else. And HelmReleases
//! on a real API server, with the real helm, by an operator that has the rights which the chart gives it.
#![expect(clippy::unwrap_used, reason = "all of this is tests; clippy takes only the marked functions for such")]

mod fake;
mod harness;
mod lifetime;
mod release;
mod source;

mod canary;
mod capture;
mod change;
mod depend;
mod drift;
mod failure;
mod identity;
mod origin;
mod removal;
mod restart;
mod schema;
mod space;
mod world;
