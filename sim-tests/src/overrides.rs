//! A smaller scenario than the seed's own: what is left out of the plan, as the command line says it.
//!
//! Applied after everything was drawn: each fault has a stream of chance of its own, so that what is left strikes as it
//! did (as far as the smaller world lets it: what a node does after a restart hangs on everything before).

use std::{collections::BTreeSet, fmt, str::FromStr, time::Duration};

use clap::Args;

use crate::plan::{Fault, Mood, Plan, Weather};

/// What is changed of a plan.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Kinds of faults that never strike.
    #[arg(long, value_name = "FAULT,…", value_delimiter = ',', value_parser = fault)]
    pub without: Vec<Fault>,
    /// How long faults strike and clients work, at most, in simulated milliseconds.
    #[arg(long, value_name = "MS")]
    pub length_ms: Option<u64>,
    /// Nodes of the cluster, at most.
    #[arg(long, value_name = "N", value_parser = at_least_three)]
    pub nodes: Option<u64>,
    /// Participants, at most.
    #[arg(long, value_name = "N", value_parser = at_least_two)]
    pub banks: Option<usize>,
    /// Databases with agents, at most.
    #[arg(long, value_name = "N")]
    pub databases: Option<usize>,
    /// Clients, at most.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub clients: Option<usize>,
    /// Transactions that a client works on at a time, at most.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub lanes: Option<usize>,
    /// Transactions that all clients begin, at most.
    #[arg(long, value_name = "N")]
    pub transactions: Option<u64>,
    /// Every participant is reached at its door.
    #[arg(long)]
    pub doors_only: bool,
    /// No message is lost, late or doubled, except by faults that cut links.
    #[arg(long)]
    pub fair_weather: bool,
    /// No bank refuses for no reason, stalls or dies at its vote.
    #[arg(long)]
    pub even_tempered: bool,
    /// Every clock is right until a fault sets it wrong.
    #[arg(long)]
    pub true_clocks: bool,
}

fn fault(name: &str) -> Result<Fault, String> {
    Fault::ALL.into_iter().find(|fault| fault.to_string() == name).ok_or_else(|| {
        let names: Vec<String> = Fault::ALL.iter().map(Fault::to_string).collect();
        format!("no kind of fault {name:?}; there are {}", names.join(", "))
    })
}

fn at_least_one(text: &str) -> Result<usize, String> {
    at_least(1, text)
}

fn at_least_two(text: &str) -> Result<usize, String> {
    at_least(2, text)
}

fn at_least_three(text: &str) -> Result<u64, String> {
    at_least(3, text)
}

fn at_least<T: FromStr<Err: fmt::Display> + PartialOrd + fmt::Display>(least: T, text: &str) -> Result<T, String> {
    match text.parse() {
        Ok(number) if number >= least => Ok(number),
        Ok(number) => Err(format!("{number} is too few: {least} or more")),
        Err(error) => Err(format!("{text:?} is not a number: {error}")),
    }
}

impl Overrides {
    /// The plan of a smaller scenario. Nothing grows: a limit above what the seed has changes nothing.
    #[must_use]
    pub fn apply(&self, mut plan: Plan) -> Plan {
        for fault in &self.without {
            plan.faults.remove(fault);
        }
        if let Some(length) = self.length_ms {
            plan.length = plan.length.min(Duration::from_millis(length));
        }
        plan.nodes = plan.nodes.min(self.nodes.unwrap_or(u64::MAX));
        plan.far = plan.far.min(plan.nodes);
        plan.banks = plan.banks.min(self.banks.unwrap_or(usize::MAX));
        plan.databases = plan.databases.min(self.databases.unwrap_or(usize::MAX));
        plan.clients = plan.clients.min(self.clients.unwrap_or(usize::MAX));
        plan.lanes = plan.lanes.min(self.lanes.unwrap_or(usize::MAX));
        plan.transactions = plan.transactions.min(self.transactions.unwrap_or(u64::MAX));
        if self.doors_only {
            plan.streams.clear();
        }
        if self.fair_weather {
            plan.weather = Weather::default();
        }
        if self.even_tempered {
            plan.mood = Mood::default();
        }
        if self.true_clocks {
            plan.skews.clear();
        }
        plan
    }

    /// The same, but for this kind of fault.
    #[must_use]
    pub fn also_without(&self, faults: &[Fault]) -> Self {
        let without: BTreeSet<Fault> = self.without.iter().chain(faults).copied().collect();
        Self { without: without.into_iter().collect(), ..self.clone() }
    }
}

/// As the command line takes it, with a blank before each option.
impl fmt::Display for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { without, length_ms, nodes, banks, databases, clients, lanes, transactions, .. } = self;
        if !without.is_empty() {
            let names: Vec<String> = without.iter().map(Fault::to_string).collect();
            write!(f, " --without {}", names.join(","))?;
        }
        let numbers = [
            ("length-ms", *length_ms),
            ("nodes", *nodes),
            ("banks", banks.map(|banks| banks as u64)),
            ("databases", databases.map(|databases| databases as u64)),
            ("clients", clients.map(|clients| clients as u64)),
            ("lanes", lanes.map(|lanes| lanes as u64)),
            ("transactions", *transactions),
        ];
        for (name, value) in numbers {
            if let Some(value) = value {
                write!(f, " --{name} {value}")?;
            }
        }
        let flags = [
            ("doors-only", self.doors_only),
            ("fair-weather", self.fair_weather),
            ("even-tempered", self.even_tempered),
            ("true-clocks", self.true_clocks),
        ];
        for (name, set) in flags {
            if set {
                write!(f, " --{name}")?;
            }
        }
        Ok(())
    }
}
