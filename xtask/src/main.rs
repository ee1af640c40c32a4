//! Tasks of the repository: `cargo xtask --help`.

mod acceptance;
mod bench;
mod campaign;
mod ci;
mod codegen;
mod deny;
mod first_start;
mod report;
mod tidy;
mod tools;
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
    Ci {
        /// Busy loops beside the tests: what passes only on an idle machine fails
        #[arg(long, default_value_t = 0, value_name = "N")]
        busy: usize,
    },
    /// Run the tests whose name contains NAME, built as the whole workspace is
    Test {
        /// Part of a test's name, such as p17 or queue::
        name: String,
        /// Passed on to the test programs, such as --nocapture
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Build every missing program that dev and tests run, or print the path of one
    Tools {
        #[command(subcommand)]
        query: Option<ToolQuery>,
    },
    /// Write CRDs, roles, install.yaml and reference pages from the code
    Codegen {
        /// Write nothing; fail and name what is stale
        #[arg(long)]
        check: bool,
    },
    /// Check crate arrows, file sizes and banned names
    Tidy,
    /// Compare docs/acceptance.md with the report of the last whole test run
    Acceptance {
        /// Put every test named pNN_… into row PNN instead, and drop names of tests that are gone
        #[arg(long)]
        update: bool,
    },
    /// Measure a layer against a real control plane (operator: profile dist; prints versions and conditions)
    Bench {
        #[command(subcommand)]
        benchmark: bench::Benchmark,
    },
    /// Measure the first start of a fresh clone with empty caches, on an idle machine
    FirstStart,
    /// Disturb the operator or a zone's servers at seeded moments and see whether everything recovers
    Campaign {
        #[command(subcommand)]
        campaign: campaign::Campaign,
    },
}

#[derive(Subcommand)]
enum ToolQuery {
    /// Print the path of one program, building it first where it is missing
    Path {
        /// kubectl, helm, etcd, …
        name: String,
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
        Task::Ci { busy } => ci::run(busy),
        Task::Test { name, arguments } => {
            let mut cargo = workspace::cargo(["test", "--workspace", "--", &name]);
            workspace::run(cargo.args(arguments))
        }
        Task::Tools { query: None } => tools::build_all(),
        Task::Tools { query: Some(ToolQuery::Path { name }) } => {
            println!("{}", tools::path(&name)?.display());
            Ok(())
        }
        Task::Codegen { check } => codegen::run(check),
        Task::Tidy => tidy::run(),
        Task::Acceptance { update: true } => ci::update_acceptance(),
        Task::Acceptance { update: false } => ci::acceptance(),
        Task::Bench { benchmark } => bench::run(&benchmark),
        Task::FirstStart => first_start::run(),
        Task::Campaign { campaign } => campaign::run(&campaign),
    }
}
