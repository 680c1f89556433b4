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
    /// What was blocked longest while a majority was connected (I7).
    pub longest: Option<(Duration, String)>,
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
    /// What was blocked longest, and in which seed.
    pub longest: Option<(Duration, u64, String)>,
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
        if let Some((of, what)) = &report.longest
            && self.longest.as_ref().is_none_or(|(most, ..)| most < of)
        {
            self.longest = Some((*of, report.seed, what.clone()));
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
        let of = |name: &&'static str| {
            let least = if self.seeds < WHOLE_BATCH { 0 } else { LEAST * self.seeds / LEAST_IN };
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

/// So often, for each so many seeds, a batch must have been in each of these situations.
const LEAST: u64 = 10;
const LEAST_IN: u64 = 400;

/// Situations that a batch must have been in.
pub const DANGERS: [&str; 33] = [
    "! a leader died while branches were in doubt",
    "! the leader died between the last vote and its append",
    "! a participant died between vote and outcome",
    "! a deposed leader was resumed with work in hand",
    "! a majority came back while branches were in doubt",
    "! an outcome was told by another node than the one that logged it",
    "! a write or a sync of the log failed",
    "! a torn tail was cut",
    "! a snapshot was sent to a follower",
    "! a snapshot was sent while transactions were voting",
    "! a log was purged while branches were in doubt",
    "! a node fetched from a peer what its disk had lost",
    "! an append was overtaken by others",
    "! a branch was asked to prepare twice",
    "! a vote came after the decision",
    "! an outcome came twice",
    "! a rollback came before its prepare",
    "! a seat that was promised was refused to another",
    "! a reader found a transaction in all its lists",
    "! a branch was given the decision",
    "! a branch was fenced before it decided",
    "! a fence came after the decision",
    "! a key was given to an attempt",
    "! a session was taken over",
    "! a client settled what it had prepared",
    "! somebody voted for a branch that is not his",
    "! a stream was attached again while a branch of it was in doubt",
    "! an agent ended what was left prepared in its database",
    "! a branch could be ended by its session alone",
    "! a database prepared what was decided before",
    "! an operator aborted a transaction",
    "! an operator was refused",
    "calm seeds",
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
        if let Some((of, seed, what)) = &self.longest {
            writeln!(f, "    longest with a majority connected: {of:?} in seed {seed}: {what}")?;
        }
        Ok(())
    }
}
