//! What the simulation must show each time: the same seed gives the same history, fresh seeds hold, and the checks find
//! seeded bugs.
#![cfg(madsim)]

use std::{
    collections::BTreeSet,
    env,
    time::{SystemTime, UNIX_EPOCH},
};

use verdict_sim_tests::{
    mutants::{self, How},
    overrides::Overrides,
    report::{Report, Totals},
    swarm::{self, Batch, Flow},
};

/// Seeds at a time, in each test.
const JOBS: usize = 2;

/// So many transactions are decided under faults each time, by so many seeds at most.
const DECIDED: u64 = 100_000;
const MOST_SEEDS: u64 = 5_000;
/// And by the way so many seeds that nobody has seen; each night there are more.
const FRESH: u64 = 60;

fn from_env(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 1..=20 {
        let (one, other) = (swarm::one(seed, None, false), swarm::one(seed, None, false));
        assert!(one.lines > 100, "seed {seed} did nothing");
        assert_eq!((one.hash, one.lines), (other.hash, other.lines), "seed {seed} differs from itself");
    }
}

/// From 1 on, as many seeds as it takes to decide [`DECIDED`] transactions.
#[test]
fn a_hundred_thousand_transactions_hold() {
    let mut decided = 0;
    let totals = hold(1, MOST_SEEDS, |report| {
        let outcomes = ["transactions committed", "transactions aborted"];
        decided += outcomes.map(|name| report.counters.get(name).copied().unwrap_or(0)).iter().sum::<u64>();
        if decided >= DECIDED { Flow::Stop } else { Flow::Go }
    });
    assert!(decided >= DECIDED, "{} seeds decided {decided} transactions only", totals.seeds);
}

/// Seeds that nobody has seen, from the time of day on. `SIM_FIRST` and `SIM_SEEDS` choose others.
#[test]
fn fresh_seeds_hold() {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs() * 1_000);
    hold(from_env("SIM_FIRST").unwrap_or(clock), from_env("SIM_SEEDS").unwrap_or(FRESH), |_| Flow::Go);
}

fn hold(first: u64, seeds: u64, mut go_on: impl FnMut(&Report) -> Flow) -> Totals {
    println!("seeds from {first} on");
    let mut failures = Vec::new();
    let totals = swarm::many(&Batch { first, seeds, jobs: JOBS, flaw: None }, |report| {
        if !report.passed() {
            let said: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
            failures.push(format!(
                "{}\n  {}",
                swarm::reproduce(report.seed, None, &Overrides::default()),
                said.join("\n  ")
            ));
        }
        go_on(report)
    });
    println!("{totals}");
    assert!(failures.is_empty(), "{} seeds of {} failed:\n{}", failures.len(), totals.seeds, failures.join("\n"));
    assert_eq!(totals.shortcomings(), Vec::<String>::new());
    totals
}

/// The corpus: seeds that once failed, and those that find a seeded bug, without the bug.
#[test]
fn kept_seeds_hold() {
    let killers = mutants::killers(include_str!("../seeds/killers")).expect("the killers are well recorded");
    let kept = include_str!("../seeds/failed").lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let failed = kept.map(|line| {
        let seed = line.split_whitespace().next().and_then(|seed| seed.parse().ok());
        seed.unwrap_or_else(|| panic!("seeds/failed: {line:?} does not begin with a seed"))
    });
    let seeds: BTreeSet<u64> = failed.chain(killers.values().map(|(seed, _)| *seed)).collect();
    assert!(!seeds.is_empty(), "nothing is kept");
    for seed in seeds {
        let report = swarm::one(seed, None, false);
        assert!(report.passed(), "seed {seed}: {:?}", report.violations);
    }
}

/// Those that are wrappers, by their recorded killers. `sim mutants --recorded` tries the patched ones too.
#[test]
fn seeded_bugs_are_found_by_their_killers() {
    let killers = mutants::killers(include_str!("../seeds/killers")).expect("the killers are well recorded");
    let mut missed = Vec::new();
    for mutant in &mutants::ALL {
        let (How::Wrapper(flaw), Some((seed, _))) = (mutant.how, killers.get(&mutant.number)) else { continue };
        if swarm::one(*seed, Some(flaw), false).passed() {
            missed.push(format!("{flaw} by seed {seed}"));
        }
    }
    assert!(missed.is_empty(), "not found any more: {missed:?}; renew the killers with `sim mutants --record`");
}
