//! What came of a seed, and of many.

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::{chart::Chart, spread::Spread};

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
    /// How long things lasted, by what they are.
    pub spreads: BTreeMap<&'static str, Spread>,
    /// Who led, who was down, which faults struck.
    pub chart: Chart,
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

/// Of a batch with failures, or a long one, so many seeds are kept to be looked at.
const SHOWN: usize = 40;
/// Seeds that held and are kept all the same.
const SAMPLE: usize = 8;
/// A batch of this size goes where the danger is.
pub const WHOLE_BATCH: u64 = 200;

/// A seed to look at.
#[derive(Clone, Debug)]
pub struct Shown {
    pub seed: u64,
    pub hash: u64,
    pub violations: Vec<Violation>,
    pub chart: Chart,
}

/// What came of many seeds. Its size does not depend on how many.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub seeds: u64,
    pub simulated: Duration,
    pub counters: Counters,
    pub spreads: BTreeMap<&'static str, Spread>,
    /// How many seeds failed.
    pub failed: u64,
    /// The first that failed.
    pub failures: Vec<Shown>,
    /// The first that held.
    pub sample: Vec<Shown>,
}

impl Totals {
    pub fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.simulated += report.simulated;
        self.failed += u64::from(!report.passed());
        let (kept, most) = if report.passed() { (&mut self.sample, SAMPLE) } else { (&mut self.failures, SHOWN) };
        if kept.len() < most {
            let Report { seed, hash, violations, chart, .. } = report.clone();
            kept.push(Shown { seed, hash, violations, chart });
        }
        for (name, count) in &report.counters {
            let total = self.counters.entry(name).or_default();
            // A maximum stays one.
            *total = if name.ends_with("at most") { (*total).max(*count) } else { *total + count };
        }
        for (name, spread) in &report.spreads {
            self.spreads.entry(name).or_default().add(spread);
        }
    }

    /// Each danger: how often it was met, and how often a batch of this size must meet it.
    #[must_use]
    pub fn dangers(&self) -> Vec<(&'static str, u64, u64)> {
        let of = |(name, least): &(&'static str, u64)| {
            let least = if self.seeds < WHOLE_BATCH { 0 } else { *least };
            (*name, self.counters.get(name).copied().unwrap_or(0), least)
        };
        DANGERS.iter().map(of).collect()
    }

    /// Why the batch does not pass; nothing, if it does.
    #[must_use]
    pub fn shortcomings(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.failed > 0 {
            wrong.push(format!("{} of {} seeds failed", self.failed, self.seeds));
        }
        for (name, met, _) in self.dangers().into_iter().filter(|(_, met, least)| met < least) {
            wrong.push(format!("too seldom where the danger is, {met} times in {} seeds: {name}", self.seeds));
        }
        wrong
    }
}

/// Situations that a batch must have been in, and how often at least.
pub const DANGERS: [(&str, u64); 8] = [
    ("! a leader died while branches were in doubt", 1),
    ("! an outcome was told by another node than the one that logged it", 1),
    ("! a torn tail was cut", 1),
    ("! a snapshot was sent to a follower", 1),
    ("! a node fetched from a peer what its disk had lost", 1),
    ("! a branch was asked to prepare twice", 1),
    ("! an outcome came twice", 1),
    ("! a rollback came before its prepare", 1),
];

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.simulated.as_secs_f64() / 3600.0;
        writeln!(f, "{} seeds, {} failed, {hours:.2} simulated hours", self.seeds, self.failed)?;
        for (name, count) in &self.counters {
            writeln!(f, "{count:>10}  {name}")?;
        }
        for (name, spread) in self.spreads.iter().filter(|(_, spread)| spread.count() > 0) {
            writeln!(f, "    {name}: {spread}")?;
        }
        Ok(())
    }
}
