//! Whole-system tests of the binary.

mod dev;
mod harness;
mod kill;
mod process;
mod scene;
