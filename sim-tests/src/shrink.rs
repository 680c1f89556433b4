//! From a seed that fails to a smaller scenario in which the same invariant still fails.
//!
//! ```text
//!   seed fails ─▶ half the length? half the faults? fewer clients, transactions? fair weather? ─▶ still fails: keep
//!        ▲                                                                                             │
//!        └──────────────────────────────── until nothing can go any more, or time is up ◀──────────────┘
//! ```
//!
//! Greedy: what can go is tried in large pieces first, then one by one. A smaller scenario is another history, so each
//! step is a new run; it counts only if the same invariant fails in it.

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::{
    flaws::Flaw,
    overrides::Overrides,
    plan::{Fault, Plan},
    report::{Report, Violation},
    swarm,
};

/// What came of it.
#[derive(Clone, Debug)]
pub struct Shrunk {
    pub overrides: Overrides,
    pub size: Size,
    /// What fails in the smaller scenario.
    pub violation: Violation,
    /// How many scenarios were run.
    pub runs: usize,
}

/// How large a scenario is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    pub faults: Vec<Fault>,
    pub length: Duration,
    pub nodes: u64,
    pub banks: usize,
    pub clients: usize,
    pub lanes: usize,
    /// Transactions that were decided.
    pub transactions: u64,
    /// Lines of its trace.
    pub lines: u64,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { faults, length, nodes, banks, clients, lanes, transactions, lines } = self;
        let faults: Vec<String> = faults.iter().map(Fault::to_string).collect();
        let faults = if faults.is_empty() { "no faults".to_owned() } else { faults.join(", ") };
        let length = length.as_millis();
        write!(f, "{faults}; {length} ms, {nodes} nodes, {banks} banks, {clients} clients with {lanes} lanes, ")?;
        write!(f, "{transactions} transactions decided, {lines} lines")
    }
}

impl Size {
    fn of(plan: &Plan, report: &Report) -> Self {
        let count = |name| report.counters.get(name).copied().unwrap_or(0);
        Self {
            faults: plan.faults.keys().copied().collect(),
            length: plan.length,
            nodes: plan.nodes,
            banks: plan.banks,
            clients: plan.clients,
            lanes: plan.lanes,
            transactions: count("transactions committed") + count("transactions aborted"),
            lines: report.lines,
        }
    }
}

struct Search<'a> {
    seed: u64,
    flaw: Option<Flaw>,
    invariant: &'static str,
    patience: Duration,
    until: Instant,
    best: Shrunk,
    tell: &'a mut dyn FnMut(&str),
}

/// Finds a smaller scenario; none if the seed does not fail. Tells of each step that was made.
pub fn shrink(
    seed: u64,
    flaw: Option<Flaw>,
    from: Overrides,
    budget: Duration,
    mut tell: impl FnMut(&str),
) -> Option<Shrunk> {
    let begun = Instant::now();
    let plan = from.apply(Plan::draw(seed, flaw));
    let report = swarm::planned(plan.clone(), false, swarm::HANGS);
    let violation = report.violations.first()?.clone();
    let size = Size::of(&plan, &report);
    tell(&format!("seed {seed} fails, {violation}\n  {size}"));
    let invariant = violation.invariant;
    let mut search = Search {
        seed,
        flaw,
        invariant,
        // Smaller ones take less, unless they hang as the seed does.
        patience: (begun.elapsed() * 3 + Duration::from_secs(5)).min(swarm::HANGS),
        until: begun + budget,
        best: Shrunk { overrides: from, size, violation, runs: 1 },
        tell: &mut tell,
    };
    while search.round() {}
    Some(search.best)
}

impl Search<'_> {
    /// Whether there was time, and something could go.
    fn round(&mut self) -> bool {
        let before = self.best.overrides.clone();
        self.shorter();
        self.fewer_transactions();
        self.fewer_faults();
        self.attempt(Overrides { doors_only: true, ..self.best.overrides.clone() });
        self.attempt(Overrides { fair_weather: true, ..self.best.overrides.clone() });
        self.attempt(Overrides { even_tempered: true, ..self.best.overrides.clone() });
        self.attempt(Overrides { true_clocks: true, ..self.best.overrides.clone() });
        self.fewer_machines();
        self.best.overrides != before && Instant::now() < self.until
    }

    /// Half as long, then three quarters.
    fn shorter(&mut self) {
        for share in [0.25, 0.5, 0.75, 0.9] {
            loop {
                let length_ms = u64::try_from(self.best.size.length.mul_f64(share).as_millis()).unwrap_or(u64::MAX);
                let smaller = Overrides { length_ms: Some(length_ms), ..self.best.overrides.clone() };
                if length_ms < 20 || !self.attempt(smaller) {
                    break;
                }
            }
        }
    }

    fn fewer_transactions(&mut self) {
        for (share, of) in [(1, 8), (1, 2), (3, 4), (9, 10)] {
            loop {
                let had = self.best.overrides.transactions.unwrap_or(self.best.size.transactions);
                let smaller = Overrides { transactions: Some(had * share / of), ..self.best.overrides.clone() };
                if had * share / of == 0 || !self.attempt(smaller) {
                    break;
                }
            }
        }
        while let Some(had) = self.best.overrides.transactions.filter(|had| *had > 1) {
            if !self.attempt(Overrides { transactions: Some(had - 1), ..self.best.overrides.clone() }) {
                break;
            }
        }
    }

    /// All, half of them, a quarter, each.
    fn fewer_faults(&mut self) {
        let mut piece = self.best.size.faults.len();
        while piece > 0 {
            for gone in self.best.size.faults.clone().chunks(piece) {
                self.attempt(self.best.overrides.also_without(gone));
            }
            piece /= 2;
        }
    }

    fn fewer_machines(&mut self) {
        if self.best.size.nodes > 3 {
            self.attempt(Overrides { nodes: Some(3), ..self.best.overrides.clone() });
        }
        self.attempt(Overrides { databases: Some(0), ..self.best.overrides.clone() });
        while self.best.size.banks > 2 {
            let banks = Some(self.best.size.banks - 1);
            if !self.attempt(Overrides { banks, ..self.best.overrides.clone() }) {
                break;
            }
        }
        while self.best.size.clients > 1 {
            let clients = Some(self.best.size.clients - 1);
            if !self.attempt(Overrides { clients, ..self.best.overrides.clone() }) {
                break;
            }
        }
        while self.best.size.lanes > 1 {
            let lanes = Some(self.best.size.lanes - 1);
            if !self.attempt(Overrides { lanes, ..self.best.overrides.clone() }) {
                break;
            }
        }
    }

    /// Whether the same still fails in this one; then it is the best so far.
    fn attempt(&mut self, overrides: Overrides) -> bool {
        if overrides == self.best.overrides || Instant::now() >= self.until {
            return false;
        }
        let plan = overrides.apply(Plan::draw(self.seed, self.flaw));
        let report = swarm::planned(plan.clone(), false, self.patience);
        self.best.runs += 1;
        let Some(violation) = report.violations.iter().find(|violation| violation.invariant == self.invariant) else {
            return false;
        };
        self.best.violation = violation.clone();
        self.best.size = Size::of(&plan, &report);
        self.best.overrides = overrides;
        (self.tell)(&format!("  {}\n   {}", self.best.size, self.best.overrides));
        true
    }
}
