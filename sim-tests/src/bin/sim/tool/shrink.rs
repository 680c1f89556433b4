//! A smaller scenario that still fails.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use verdict_sim_tests::{shrink, swarm};

use super::Scenario;

#[derive(Args, Debug)]
pub(super) struct Options {
    #[command(flatten)]
    scenario: Scenario,
    /// How long to look for smaller ones, in seconds of wall time.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    budget: u64,
}

pub(super) fn shrink(options: &Options) -> ExitCode {
    let Scenario { seed, flaw, overrides } = &options.scenario;
    let budget = Duration::from_secs(options.budget);
    match shrink::shrink(*seed, *flaw, overrides.clone(), budget, |step| println!("{step}")) {
        None => {
            println!("seed {seed} holds: there is nothing to shrink");
            ExitCode::SUCCESS
        }
        Some(shrunk) => {
            println!("{} runs; what is left: {}", shrunk.runs, shrunk.size);
            println!("  VIOLATION {}", shrunk.violation);
            println!("  {}", swarm::reproduce(*seed, *flaw, &shrunk.overrides));
            ExitCode::FAILURE
        }
    }
}
