//! A failing seed becomes a smaller scenario that fails in the same way, and whose one line brings it back.
#![cfg(madsim)]

use std::time::Duration;

use clap::Parser;
use verdict_sim_tests::{
    flaws::Flaw,
    overrides::Overrides,
    plan::{Fault, Plan},
    shrink, swarm,
};

const FLAW: Option<Flaw> = Some(Flaw::VoteInvented);

/// The options of `sim replay`, as far as they concern the scenario.
#[derive(Debug, Parser)]
struct Line {
    #[arg(value_parser = ["replay"])]
    command: String,
    seed: u64,
    #[arg(long)]
    flaw: Option<String>,
    #[arg(long)]
    trace: bool,
    #[command(flatten)]
    overrides: Overrides,
}

#[test]
fn a_failing_seed_shrinks_to_a_few_transactions() {
    let fails = |seed: &u64| !swarm::one(*seed, FLAW, false).passed();
    let seed = (1..50).find(fails).expect("the seeded bug is found within 50 seeds");
    let mut steps = Vec::new();
    let budget = Duration::from_secs(90);
    let shrunk = shrink::shrink(seed, FLAW, Overrides::default(), budget, |step| steps.push(step.to_owned()))
        .expect("it fails when it is run again");
    println!("{}", steps.join("\n"));

    let whole = Plan::draw(seed, FLAW);
    assert!(shrunk.size.transactions <= 10, "{}", shrunk.size);
    assert!(shrunk.size.length < whole.length / 2, "{}", shrunk.size);
    assert!(shrunk.size.faults.len() <= whole.faults.len() / 2, "{}", shrunk.size);

    // The one line that it prints is read as the command line reads it, and shows the same.
    let line = swarm::reproduce(seed, FLAW, &shrunk.overrides);
    let options = line.split_once(" -- ").expect("cargo's options come first").1;
    let read = Line::try_parse_from(["sim"].into_iter().chain(options.split_whitespace())).expect("it is well formed");
    assert_eq!((read.command.as_str(), read.seed, read.trace), ("replay", seed, true));
    assert_eq!((read.flaw, &read.overrides), (FLAW.map(|flaw| flaw.to_string()), &shrunk.overrides));
    let report = swarm::planned(read.overrides.apply(Plan::draw(seed, FLAW)), false, swarm::HANGS);
    assert_eq!(report.lines, shrunk.size.lines);
    assert!(report.violations.contains(&shrunk.violation), "{:?}", report.violations);
}

#[test]
fn what_is_left_out_changes_nothing_else() {
    let (seed, plan) = (1..)
        .map(|seed| (seed, Plan::draw(seed, None)))
        .find(|(_, plan)| plan.faults.len() > 5 && plan.nodes > 3)
        .expect("there are many seeds");
    let gone: Vec<Fault> = plan.faults.keys().copied().take(2).collect();
    let smaller = Overrides { without: gone.clone(), nodes: Some(3), banks: Some(99), ..Overrides::default() };
    let left = smaller.apply(Plan::draw(seed, None));
    for (fault, gap) in &plan.faults {
        let expected = (!gone.contains(fault)).then_some(gap);
        assert_eq!(left.faults.get(fault), expected, "{fault}");
    }
    assert_eq!((left.nodes, left.banks, left.length), (3, plan.banks, plan.length));
}
