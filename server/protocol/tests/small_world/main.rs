//! An exhaustive walk of a small world: one transaction with three branches, two nodes of which each may lead, a log,
//! a client that retries, and a network that delivers late, never or many times. The ledger and the coordinator are
//! the product's; the world around them, the participants and the oracle are not.
//!
//! Checked in every state (numbers as in the list of invariants): I1 one outcome for all, I2 it never changes,
//! I3 COMMITTED only if every YES stands in the log, I8 and I9 at the participants; in the runs without faults I4; by
//! healing, I5 and that the leader then keeps nothing.

#![allow(unreachable_pub, reason = "the modules of a test are its own")]
#![allow(clippy::disallowed_types, reason = "a set of visited states is never iterated over")]

mod action;
mod bugs;
mod explore;
mod heal;
#[path = "../oracle/mod.rs"]
mod oracle;
mod participant;
mod step;
mod world;

use bugs::Bug;
use explore::{Seen, Walk, explore};
use participant::Temper::{self, MayRefuse, Reader, Willing};
use world::{Attempt, Left, OldLeader, Scenario};

const ALL: Attempt = Attempt { list: &[1, 2, 3], brought: &[], delegate: None };
const TWO: Attempt = Attempt { list: &[1, 2], brought: &[], delegate: None };
const ONE: Attempt = Attempt { list: &[1], brought: &[], delegate: None };
const ONE_THREE: Attempt = Attempt { list: &[1, 3], brought: &[], delegate: None };
const LAST: Attempt = Attempt { list: &[3], brought: &[], delegate: None };
const NONE: Attempt = Attempt { list: &[], brought: &[], delegate: None };
const BROUGHT: Attempt = Attempt { list: &[1, 2, 3], brought: &[1, 2, 3], delegate: None };
/// The last branch cannot prepare: it decides once the others have promised.
const LAST_RESOURCE: Attempt = Attempt { list: &[1, 3], brought: &[], delegate: Some(3) };
const LAST_RESOURCE_BROUGHT: Attempt = Attempt { list: &[1, 3], brought: &[1], delegate: Some(3) };
const ONE_PHASE: Attempt = Attempt { list: &[3], brought: &[], delegate: Some(3) };
const NO_FAULTS: Left = Left {
    rollbacks: 0,
    elections: 0,
    wakes: 0,
    unreachable: 0,
    restarts: 0,
    inquiries: 0,
    interruptions: 0,
    pushes: 0,
};

/// A walk of up to some 300,000 states takes some seconds; one that outgrows this has to be bounded more tightly.
const MOST_STATES: usize = 1_000_000;

fn scenario(tempers: [Temper; 3], commits: &'static [Attempt], left: Left) -> Scenario {
    Scenario {
        tempers,
        enlists: &[],
        commits,
        vote_timeout_ms: 30,
        left,
        old_leader: OldLeader::Crashes,
        bug: Bug::None,
    }
}

/// Walks it all, prints what was seen, and fails with a trace.
fn walk(name: &str, scenario: Scenario) -> Seen {
    let walk = Walk { breadth_first: false, heal_one_in: 16, most_states: MOST_STATES };
    match explore(scenario, walk) {
        Ok(seen) => {
            println!("{name}: {seen:?}");
            seen
        }
        Err(trace) => panic!("{name}: {trace}"),
    }
}

#[test]
fn without_faults_every_yes_commits() {
    let votes_are_asked = scenario([Willing, Willing, Reader], &[ALL, ALL], NO_FAULTS);
    let enlisted = Scenario { enlists: &[1, 2], ..scenario([Willing; 3], &[LAST, LAST], NO_FAULTS) };
    let brought = scenario([Willing; 3], &[BROUGHT, BROUGHT], NO_FAULTS);
    for scenario in [votes_are_asked, enlisted, brought] {
        let seen = walk("no faults", scenario);
        assert_eq!(seen.aborted, 0, "I4: {seen:?}");
    }
}

#[test]
fn a_leader_change_and_a_client_that_retries() {
    let left = Left { elections: 1, ..NO_FAULTS };
    let seen = walk("leader change", scenario([Willing, MayRefuse, Willing], &[ALL, ALL], left));
    assert!(seen.committed > 0 && seen.aborted > 0, "{seen:?}");
}

#[test]
fn the_leadership_goes_and_comes_back() {
    let left = Left { elections: 2, ..NO_FAULTS };
    walk("two leader changes", scenario([Willing, MayRefuse, Willing], &[ALL], left));
}

#[test]
fn a_deposed_leader_that_does_not_know_it() {
    let left = Left { elections: 1, ..NO_FAULTS };
    let scenario = scenario([Willing, Reader, MayRefuse], &[ONE_THREE, ONE_THREE], left);
    walk("lingering leader", Scenario { old_leader: OldLeader::Lingers, ..scenario });
}

#[test]
fn a_rollback_at_any_time() {
    walk("rollback", scenario([Willing, MayRefuse, Willing], &[ALL], Left { rollbacks: 1, ..NO_FAULTS }));
    let left = Left { rollbacks: 1, elections: 1, ..NO_FAULTS };
    walk("rollback and leader change", scenario([Willing; 3], &[TWO, TWO], left));
}

#[test]
fn a_deadline_at_any_time() {
    walk("deadline", scenario([Willing, Reader, Willing], &[ALL], Left { wakes: 1, ..NO_FAULTS }));
    let left = Left { wakes: 1, elections: 1, ..NO_FAULTS };
    walk("deadline and leader change", scenario([Willing, MayRefuse, Willing], &[TWO], left));
}

#[test]
fn participants_that_cannot_be_reached() {
    let left = Left { unreachable: 1, wakes: 1, ..NO_FAULTS };
    walk("unreachable", scenario([Willing, Reader, Willing], &[TWO], left));
}

#[test]
fn a_proposer_that_does_not_learn_what_became_of_it() {
    let left = Left { interruptions: 2, wakes: 1, ..NO_FAULTS };
    walk("interruptions", scenario([Willing; 3], &[TWO], left));
}

#[test]
fn a_participant_that_restarts() {
    let left = Left { restarts: 1, elections: 1, ..NO_FAULTS };
    walk("restart", scenario([Willing, Reader, Willing], &[ALL, ALL], left));
}

#[test]
fn votes_brought_along_and_branches_that_ask_before_the_list_is_there() {
    let left = Left { inquiries: 1, ..NO_FAULTS };
    let seen = walk("brought votes", scenario([Willing; 3], &[BROUGHT, BROUGHT], left));
    assert!(seen.committed > 0 && seen.aborted > 0, "presumed aborted, or committed first: {seen:?}");
}

#[test]
fn branches_that_push_their_votes() {
    let left = Left { pushes: 1, elections: 1, ..NO_FAULTS };
    walk("pushed votes", Scenario { enlists: &[1, 2, 3], ..scenario([Willing, Reader, Willing], &[NONE], left) });
}

#[test]
fn one_branch_that_decides() {
    let left = Left { elections: 1, rollbacks: 1, wakes: 1, ..NO_FAULTS };
    let seen = walk("one phase", scenario([Willing, Willing, MayRefuse], &[ONE_PHASE, ONE_PHASE], left));
    assert!(seen.committed > 0 && seen.aborted > 0, "{seen:?}");
    let left = Left { restarts: 1, unreachable: 1, wakes: 1, ..NO_FAULTS };
    walk("one phase, restart", scenario([Willing; 3], &[ONE_PHASE], left));
}

#[test]
fn a_last_resource_decides_after_the_others() {
    let left = Left { elections: 1, rollbacks: 1, ..NO_FAULTS };
    let seen = walk("last resource", scenario([Willing, Willing, MayRefuse], &[LAST_RESOURCE, LAST_RESOURCE], left));
    assert!(seen.committed > 0 && seen.aborted > 0, "{seen:?}");
    let left = Left { wakes: 2, unreachable: 1, restarts: 1, ..NO_FAULTS };
    walk("last resource, deadline", scenario([MayRefuse, Willing, Willing], &[LAST_RESOURCE], left));
    let left = Left { elections: 1, inquiries: 1, ..NO_FAULTS };
    walk("last resource, votes brought", scenario([Willing; 3], &[LAST_RESOURCE_BROUGHT, LAST_RESOURCE_BROUGHT], left));
    let left = Left { elections: 1, ..NO_FAULTS };
    let lingering = scenario([Willing; 3], &[LAST_RESOURCE], left);
    walk("last resource, lingering leader", Scenario { old_leader: OldLeader::Lingers, ..lingering });
}

#[test]
fn a_branch_that_is_left_out_of_the_list() {
    let left = Left { inquiries: 1, elections: 1, ..NO_FAULTS };
    walk("left out", scenario([Willing; 3], &[ONE_THREE, ONE], left));
}

/// Each seeded bug is found, by the sentence that it breaks, on a short way.
#[test]
fn seeded_bugs_are_found() {
    let election = Left { elections: 1, ..NO_FAULTS };
    let cases: [(Bug, &str, &'static [Attempt], Left); 10] = [
        (Bug::M5, "I1", &[TWO], NO_FAULTS),
        (Bug::M6, "I5", &[ALL], election),
        (Bug::M7, "I8", &[TWO], NO_FAULTS),
        (Bug::M9, "I8", &[TWO], Left { unreachable: 1, ..NO_FAULTS }),
        (Bug::M13, "I9", &[TWO], Left { rollbacks: 1, ..NO_FAULTS }),
        (Bug::M24, "I5", &[TWO], Left { unreachable: 1, ..NO_FAULTS }),
        (Bug::M50, "I", &[LAST_RESOURCE], Left { rollbacks: 1, ..NO_FAULTS }),
        (Bug::M51, "I3", &[ONE_PHASE], NO_FAULTS),
        (Bug::M52, "I3", &[LAST_RESOURCE], NO_FAULTS),
        (Bug::M43, "I1", &[ONE_THREE, ONE], Left { inquiries: 1, ..election }),
    ];
    for (bug, sentence, commits, left) in cases {
        let walk = Walk { breadth_first: true, heal_one_in: 1, most_states: MOST_STATES };
        let found = explore(Scenario { bug, ..scenario([Willing; 3], commits, left) }, walk);
        let trace = found.err().unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: {trace}");
        assert!(trace.starts_with(sentence), "{bug:?} breaks another sentence than {sentence}: {trace}");
        assert!(trace.lines().count() < 25, "{bug:?} is found late");
    }
}
