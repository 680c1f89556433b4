//! The commands.

use std::{
    process::ExitCode,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use clap::{Parser, Subcommand};
use verdict_sim_tests::{
    flaws::Flaw,
    report::Report,
    swarm::{self, Batch, Flow},
};

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
    Run {
        #[arg(long, default_value_t = 100)]
        seeds: u64,
        /// The first seed; the time of day if it is not given.
        #[arg(long)]
        first: Option<u64>,
        #[arg(long, default_value_t = 2)]
        jobs: usize,
        /// A seeded bug.
        #[arg(long, value_parser = flaw)]
        flaw: Option<Flaw>,
        /// Goes on after a seed that failed.
        #[arg(long)]
        keep_going: bool,
    },
    /// Runs one seed and shows what came of it.
    Replay {
        seed: u64,
        #[arg(long, value_parser = flaw)]
        flaw: Option<Flaw>,
        /// Shows who did what and when.
        #[arg(long)]
        trace: bool,
    },
    /// Runs seeds twice: both runs must be the same, to the byte.
    Twice {
        seed: u64,
        /// How many seeds from this one on.
        #[arg(long, default_value_t = 1)]
        seeds: u64,
    },
    /// Shows for each seeded bug how many seeds it takes to find it.
    Flaws {
        #[arg(long, default_value_t = 200)]
        seeds: u64,
        #[arg(long)]
        first: Option<u64>,
        #[arg(long, default_value_t = 2)]
        jobs: usize,
    },
}

fn flaw(name: &str) -> Result<Flaw, String> {
    Flaw::of_name(name).ok_or_else(|| {
        let names: Vec<&str> = Flaw::ALL.iter().map(|flaw| flaw.name()).collect();
        format!("no seeded bug {name:?}; there are {}", names.join(", "))
    })
}

fn fresh() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs() * 1_000)
}

pub(super) fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run { seeds, first, jobs, flaw, keep_going } => {
            let first = first.unwrap_or_else(fresh);
            run(&Batch { first, seeds, jobs, flaw }, keep_going)
        }
        Command::Replay { seed, flaw, trace } => {
            let report = swarm::one(seed, flaw, trace);
            for line in report.trace.iter().filter(|_| trace) {
                println!("{line}");
            }
            show(&report);
            for (name, count) in &report.counters {
                println!("{count:>10}  {name}");
            }
            code(report.passed())
        }
        Command::Twice { seed, seeds } => twice(seed, seeds),
        Command::Flaws { seeds, first, jobs } => flaws(first.unwrap_or_else(fresh), seeds, jobs),
    }
}

fn code(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(report: &Report) {
    println!(
        "seed {}: {} lines, trace hash {:016x}, {:?} simulated",
        report.seed, report.lines, report.hash, report.simulated
    );
    for violation in &report.violations {
        println!("  VIOLATION {violation}");
    }
}

fn run(batch: &Batch, keep_going: bool) -> ExitCode {
    println!("seeds {} to {}", batch.first, batch.first + batch.seeds.saturating_sub(1));
    let begun = Instant::now();
    let mut done = 0;
    let totals = swarm::many(batch, |report| {
        done += 1;
        if !report.passed() {
            show(report);
            println!("  {}", swarm::reproduce(report.seed, batch.flaw));
            if !keep_going {
                return Flow::Stop;
            }
        }
        if done % 50 == 0 {
            eprintln!("{done} of {} seeds, {:.0} s", batch.seeds, begun.elapsed().as_secs_f64());
        }
        Flow::Go
    });
    print!("{totals}");
    println!("{:.1} s of wall time", begun.elapsed().as_secs_f64());
    for danger in totals.unseen() {
        println!("never seen: {danger}");
    }
    if !totals.failed.is_empty() {
        let shown: Vec<String> = totals.failed.iter().take(20).map(u64::to_string).collect();
        println!("failed: {} of {}: {}", totals.failed.len(), totals.seeds, shown.join(" "));
    }
    code(totals.failed.is_empty())
}

fn twice(first: u64, seeds: u64) -> ExitCode {
    let mut same = true;
    for seed in first..first.saturating_add(seeds) {
        let (one, other) = (swarm::one(seed, None, true), swarm::one(seed, None, true));
        if one.hash == other.hash {
            println!("seed {seed}: {} lines, the same twice: {:016x}", one.lines, one.hash);
            continue;
        }
        same = false;
        println!("seed {seed}: {:016x} and {:016x}", one.hash, other.hash);
        let lines = one.trace.iter().zip(&other.trace);
        if let Some((at, (one, other))) = lines.enumerate().find(|(_, (one, other))| one != other) {
            println!("  line {at}:\n  {one}\n  {other}");
        }
    }
    code(same)
}

fn flaws(first: u64, seeds: u64, jobs: usize) -> ExitCode {
    let mut all = true;
    for flaw in Flaw::ALL {
        let mut tried = 0;
        let mut found = None;
        swarm::many(&Batch { first, seeds, jobs, flaw: Some(flaw) }, |report| {
            tried += 1;
            if report.passed() {
                return Flow::Go;
            }
            found = Some((report.seed, report.violations[0].to_string()));
            Flow::Stop
        });
        match found {
            Some((seed, by)) => println!("{flaw:<22} found after {tried} seeds, by seed {seed}: {by}"),
            None => {
                all = false;
                println!("{flaw:<22} NOT FOUND in {tried} seeds");
            }
        }
    }
    code(all)
}
