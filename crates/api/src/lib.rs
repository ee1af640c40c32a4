//! The kinds strata serves, as Rust types: what users write, what we report, and the names both
//! sides rely on. No behaviour beyond decoding and schema.

pub mod condition;
mod decode;
mod kind;
pub mod machine;
pub mod performer;
#[cfg(test)]
mod published;
mod schema;
pub mod workspace;
