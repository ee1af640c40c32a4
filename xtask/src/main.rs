//! Tasks of the repository: `cargo xtask --help`.

mod acceptance;
mod ci;
mod deny;
mod report;
mod tidy;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Everything the repository needs beyond plain Cargo.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every check and every test, as the automatic check of a change does
    Ci,
    /// Run the tests whose name contains NAME, built as the whole workspace is
    Test {
        /// Part of a test's name, such as p17 or queue::
        name: String,
        /// Passed on to the test programs, such as --nocapture
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Check crate arrows, file sizes and banned names
    Tidy,
    /// Compare docs/acceptance.md with the report of the last whole test run
    Acceptance,
    /// Measure a layer against a real API server (release build; prints versions and conditions)
    Bench {
        /// The benchmark, named for its layer: performers
        layer: String,
        /// Passed on to the benchmark, such as --count 5000 --json
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    match task {
        Task::Ci => ci::run(),
        Task::Test { name, arguments } => {
            let mut cargo = workspace::cargo(["test", "--workspace", "--", &name]);
            workspace::run(cargo.args(arguments))
        }
        Task::Tidy => tidy::run(),
        Task::Acceptance => ci::acceptance(),
        Task::Bench { layer, arguments } => {
            let mut cargo = workspace::cargo(["bench", "--package", "strata", "--bench", &layer, "--"]);
            workspace::run(cargo.args(arguments))
        }
    }
}
