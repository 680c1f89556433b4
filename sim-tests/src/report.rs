//! What came of a seed, and of many.

use std::{collections::BTreeMap, fmt, time::Duration};

/// A sentence that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub what: String,
}

/// What is counted, by its name. Those that begin with `!` are dangers that a batch must have seen.
pub type Counters = BTreeMap<&'static str, u64>;

/// What came of a seed.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub seed: u64,
    /// Of the whole history.
    pub hash: u64,
    pub lines: u64,
    pub simulated: Duration,
    pub violations: Vec<Violation>,
    pub counters: Counters,
    /// How long branches were in doubt, each.
    pub in_doubt: Vec<Duration>,
    /// How long transactions stayed undecided after their deadline, and branches in doubt, while a majority was
    /// connected (I7), each.
    pub late: Vec<Duration>,
    pub blocked: Vec<Duration>,
    /// The history, if it was asked for or something is wrong.
    pub trace: Vec<String>,
}

impl Report {
    #[must_use]
    pub fn passed(&self) -> bool {
        self.violations.is_empty()
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// What came of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub seeds: u64,
    pub failed: Vec<u64>,
    pub simulated: Duration,
    pub counters: Counters,
    in_doubt: Vec<Duration>,
    late: Vec<Duration>,
    blocked: Vec<Duration>,
}

impl Totals {
    pub fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.simulated += report.simulated;
        if !report.passed() {
            self.failed.push(report.seed);
        }
        for (name, count) in &report.counters {
            let total = self.counters.entry(name).or_default();
            // A maximum stays one.
            *total = if name.ends_with("at most") { (*total).max(*count) } else { *total + count };
        }
        self.in_doubt.extend(&report.in_doubt);
        self.late.extend(&report.late);
        self.blocked.extend(&report.blocked);
    }

    /// Dangers that no seed has met.
    #[must_use]
    pub fn unseen(&self) -> Vec<&'static str> {
        DANGERS.iter().copied().filter(|danger| self.counters.get(danger).copied().unwrap_or(0) == 0).collect()
    }
}

/// Situations that a batch must have been in.
pub const DANGERS: [&str; 8] = [
    "! a leader died while branches were in doubt",
    "! an outcome was told by another node than the one that logged it",
    "! a torn tail was cut",
    "! a snapshot was sent to a follower",
    "! a node fetched from a peer what its disk had lost",
    "! a branch was asked to prepare twice",
    "! an outcome came twice",
    "! a rollback came before its prepare",
];

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.simulated.as_secs_f64() / 3600.0;
        writeln!(f, "{} seeds, {} failed, {hours:.2} simulated hours", self.seeds, self.failed.len())?;
        for (name, count) in &self.counters {
            writeln!(f, "{count:>10}  {name}")?;
        }
        for (name, durations) in [
            ("in doubt, per branch", &self.in_doubt),
            ("in doubt, per branch, with a majority connected (I7)", &self.blocked),
            ("undecided past the deadline, per transaction, with a majority connected (I7)", &self.late),
        ] {
            let mut sorted = durations.clone();
            sorted.sort_unstable();
            if let Some(most) = sorted.last() {
                let at = |share: usize| sorted[(sorted.len() - 1) * share / 1_000];
                let (p50, p99, p999) = (at(500), at(990), at(999));
                writeln!(f, "    {name}: p50 {p50:?}, p99 {p99:?}, p99.9 {p999:?}, most {most:?}")?;
            }
        }
        Ok(())
    }
}
