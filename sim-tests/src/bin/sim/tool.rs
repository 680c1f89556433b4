//! The commands. Exit code 0: all held; 1: something did not; 2: the command line is wrong.

mod batch;
mod replay;
mod shrink;

use std::{
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use clap::{Args, Parser, Subcommand};
use verdict_sim_tests::{classic, flaws::Flaw, overrides::Overrides, plan::Plan};

use super::mutants;

/// Verdict in a deterministic simulation.
#[derive(Debug, Parser)]
#[command(name = "sim")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs many seeds.
    Run(batch::Options),
    /// Runs one seed and shows what came of it.
    Replay(replay::Options),
    /// Runs seeds twice: both runs must be the same, to the byte.
    Twice {
        seed: u64,
        /// How many seeds from this one on.
        #[arg(long, default_value_t = 1)]
        seeds: u64,
    },
    /// Finds a smaller scenario in which a seed still fails.
    Shrink(shrink::Options),
    /// Prints the four situations of two-phase commit, on a classic coordinator and on Verdict, as a table.
    Scenarios {
        /// Writes it into README.md.
        #[arg(long)]
        record: bool,
    },
    /// Shows for each seeded bug how many seeds it takes to find it.
    Mutants(mutants::Arguments),
}

/// Which scenario: a seed, perhaps with a seeded bug, perhaps a smaller one.
#[derive(Args, Clone, Debug)]
struct Scenario {
    seed: u64,
    /// A seeded bug.
    #[arg(long, value_parser = flaw)]
    flaw: Option<Flaw>,
    #[command(flatten)]
    overrides: Overrides,
}

impl Scenario {
    fn plan(&self) -> Plan {
        self.overrides.apply(Plan::draw(self.seed, self.flaw))
    }
}

fn flaw(name: &str) -> Result<Flaw, String> {
    Flaw::of_name(name).ok_or_else(|| {
        let names: Vec<&str> = Flaw::ALL.iter().map(|flaw| flaw.name()).collect();
        format!("no seeded bug {name:?}; there are {}", names.join(", "))
    })
}

pub(super) fn fresh() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs() * 1_000)
}

pub(super) fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(options) => batch::run(&options),
        Command::Replay(options) => replay::replay(&options),
        Command::Twice { seed, seeds } => replay::twice(seed, seeds),
        Command::Shrink(options) => shrink::shrink(&options),
        Command::Mutants(arguments) => mutants::run(&arguments),
        Command::Scenarios { record } => scenarios(record),
    }
}

fn scenarios(record: bool) -> ExitCode {
    let table = classic::table();
    print!("{table}");
    if record && let Err(error) = classic::record(&table) {
        eprintln!("README.md can't be renewed: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn code(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
