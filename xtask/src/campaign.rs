//! `cargo xtask campaign`: tests with seeded chance, for as long as the user wants. A short part runs with the tests.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Subcommand;

use crate::workspace;

/// A campaign, named for what must survive it.
#[derive(Subcommand)]
pub enum Campaign {
    /// Kill the operator, helm, or both at seeded moments; every Helm release must reach its end without help
    Releases {
        /// How many kills
        #[arg(long, default_value_t = 200, value_name = "N")]
        points: u32,
        /// Repeats the choices of a former run, which printed it [default: a new one each time]
        #[arg(long, value_name = "S")]
        seed: Option<u64>,
    },
    /// Kill a zone's servers at seeded points of storage writes and provider calls, and as processes at seeded moments;
    /// no instance may be lost or doubled
    Shard {
        /// How many points; for every 25 of them a process is killed as well
        #[arg(long, default_value_t = 5000, value_name = "N")]
        points: u32,
        /// Repeats the choices of a former run, which printed it [default: a new one each time]
        #[arg(long, value_name = "S")]
        seed: Option<u64>,
        /// How long each half may take, however many points are left; how many were reached is printed
        #[arg(long, default_value_t = 30, value_name = "M")]
        minutes: u32,
    },
    /// Kill the operator at writes and calls to shards while pools and machines come, change and go; no instance may be
    /// lost or doubled, and none may go before its Node is drained
    Machines {
        /// How many points
        #[arg(long, default_value_t = 500, value_name = "N")]
        points: u32,
        /// Repeats the choices of a former run, which printed it [default: a new one each time]
        #[arg(long, value_name = "S")]
        seed: Option<u64>,
    },
}

/// A kill of a process takes a second, one on the stepped clock a few milliseconds: so that neither waits for the other.
const POINTS_PER_KILL: u32 = 25;

pub fn run(campaign: &Campaign) -> Result<()> {
    // Not the whole workspace. With strata among them, features of dependencies are those of the workspace all the same.
    let (packages, test, points, seed, minutes) = match campaign {
        Campaign::Releases { points, seed } => (&["strata"][..], "w27_whoever_is_killed", points, seed, None),
        // Two tests: one with servers on the stepped clock, one with processes.
        Campaign::Shard { points, seed, minutes } => {
            (&["shard", "strata"][..], "a78_servers_", points, seed, Some(*minutes))
        }
        Campaign::Machines { points, seed } => {
            (&["machines", "strata"][..], "killed_at_any_write_or_call", points, seed, None)
        }
    };
    let kills = points.div_ceil(POINTS_PER_KILL);
    let new = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seed = seed.unwrap_or_else(new);
    eprintln!("campaign: {points} points, --seed {seed}");
    let mut cargo = workspace::cargo(["test", "--lib", "--test", "it"]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    cargo.args(["--", test, "--nocapture"]);
    if let Some(minutes) = minutes {
        cargo.env("STRATA_CAMPAIGN_MINUTES", minutes.to_string());
    }
    cargo.env("STRATA_CAMPAIGN_POINTS", points.to_string()).env("STRATA_CAMPAIGN_SEED", seed.to_string());
    cargo.env("STRATA_CAMPAIGN_KILLS", kills.to_string());
    workspace::run(&mut cargo)
}
