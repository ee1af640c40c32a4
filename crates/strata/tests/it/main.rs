//! Whole-system tests of the binary.

#[cfg(feature = "dev")]
mod dev;
