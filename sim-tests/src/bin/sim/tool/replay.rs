//! One seed again.

use std::{
    io::{self, BufWriter, Write as _},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use verdict_sim_tests::{report::Report, swarm};

use super::{Scenario, code};

#[derive(Args, Debug)]
pub(super) struct Options {
    #[command(flatten)]
    scenario: Scenario,
    /// Shows who did what and when.
    #[arg(long)]
    trace: bool,
    /// Of the trace, only from this second of simulated time on.
    #[arg(long, value_name = "SECONDS", requires = "trace")]
    from: Option<f64>,
    /// Of the trace, only up to this second of simulated time.
    #[arg(long, value_name = "SECONDS", requires = "trace")]
    to: Option<f64>,
    /// Of the trace, only the lines in which this stands: a place such as node-1, an xid, FAULT.
    #[arg(long, value_name = "TEXT", requires = "trace")]
    who: Option<String>,
}

pub(super) fn replay(options: &Options) -> ExitCode {
    let report = swarm::planned(options.scenario.plan(), options.trace, swarm::HANGS);
    if options.trace {
        let mut out = BufWriter::new(io::stdout().lock());
        for line in report.trace.iter().filter(|line| is_wanted(options, line)) {
            // Whoever reads it may have seen enough.
            if writeln!(out, "{line}").is_err() {
                break;
            }
        }
    }
    show(&report);
    for (name, count) in &report.counters {
        println!("{count:>10}  {name}");
    }
    for (name, spread) in report.spreads.iter().filter(|(_, spread)| spread.count() > 0) {
        println!("    {name}: {spread}");
    }
    code(report.passed())
}

fn is_wanted(options: &Options, line: &str) -> bool {
    let at: f64 = line.split_whitespace().next().and_then(|at| at.parse().ok()).unwrap_or_default();
    options.from.is_none_or(|from| at >= from)
        && options.to.is_none_or(|to| at <= to)
        && options.who.as_ref().is_none_or(|who| line.contains(who.as_str()))
}

pub(super) fn show(report: &Report) {
    let Report { seed, lines, hash, simulated, .. } = report;
    println!("seed {seed}: {lines} lines, trace hash {hash:016x}, {:.1} s simulated", simulated.as_secs_f64());
    for violation in &report.violations {
        println!("  VIOLATION {violation}");
    }
}

pub(super) fn twice(first: u64, seeds: u64) -> ExitCode {
    let mut same = true;
    let again = |seed, wordy| swarm::one(seed, None, wordy);
    for seed in first..first.saturating_add(seeds) {
        let (one, other) = (again(seed, false), again(seed, false));
        if (one.hash, one.lines) == (other.hash, other.lines) {
            println!("seed {seed}: {} lines, the same twice: {:016x}", one.lines, one.hash);
            continue;
        }
        same = false;
        println!("seed {seed}: {:016x} and {:016x}", one.hash, other.hash);
        let (one, other) = (again(seed, true), again(seed, true));
        let lines = one.trace.iter().zip(&other.trace);
        match lines.enumerate().find(|(_, (one, other))| one != other) {
            Some((at, (one, other))) => println!("  they part at line {at}:\n  {one}\n  {other}"),
            None => println!("  their traces do not part within the shorter one, when run a second time"),
        }
    }
    code(same)
}

/// How long ago, in words.
pub(super) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
