//! An exhaustive walk of a small world: two nodes of which each may lead, a log, three branches of one transaction, or of
//! two that share a session or a key, clients that retry, and a network that delivers late, never or many times. The
//! ledger and the coordinator are the product's; the world around them, the participants and the oracle are not.
//!
//! Checked in every state (numbers as in the list of invariants): I1 one outcome for all, I2 it never changes,
//! I3 COMMITTED only if every YES stands in the log and its work is kept, I6 only what is in the log is acknowledged,
//! I8 and I9 at the participants, I10 nobody works beside his successor, I11 one attempt has the key; in the runs
//! without faults I4; by healing, I5 and that the leader then keeps nothing.

#![allow(unreachable_pub, reason = "the modules of a test are its own")]
#![allow(clippy::disallowed_types, reason = "a set of visited states is never iterated over")]

mod action;
mod branches;
mod bugs;
mod checks;
mod digest;
mod explore;
mod heal;
mod hears;
mod nodes;
mod one;
#[path = "../oracle/mod.rs"]
mod oracle;
mod participant;
mod possible;
mod scenario;
mod seams;
mod seeded;
mod step;
mod tidy;
mod two;
mod world;

use std::{
    io::Write as _,
    sync::atomic::{AtomicUsize, Ordering},
};

use bugs::Bug;
use explore::{Seen, Walk, explore};
use participant::Temper;
use scenario::{Attempt, Left, OldLeader, Plan, Scenario};

const ALL: Attempt = list(&[1, 2, 3]);
const TWO: Attempt = list(&[1, 2]);
const ONE: Attempt = list(&[1]);
const SECOND: Attempt = list(&[2]);
const ONE_THREE: Attempt = list(&[1, 3]);
const LAST: Attempt = list(&[3]);
const NONE: Attempt = list(&[]);
const BROUGHT: Attempt = Attempt { brought: &[1, 2, 3], ..ALL };
const TWO_BROUGHT: Attempt = Attempt { brought: &[1, 2], ..TWO };
/// A vote for a branch that its client does not speak for.
const FORGED: Attempt = Attempt { forged: &[1], ..ONE };
const HALF_BROUGHT: Attempt = Attempt { brought: &[1], ..TWO };
/// The last branch cannot prepare: it decides once the others have promised.
const LAST_RESOURCE: Attempt = Attempt { delegate: Some(3), ..ONE_THREE };
const LAST_RESOURCE_BROUGHT: Attempt = Attempt { brought: &[1], ..LAST_RESOURCE };
const ONE_DECIDES: Attempt = Attempt { delegate: Some(1), ..ONE };
const ONE_PHASE: Attempt = Attempt { delegate: Some(3), ..LAST };

/// A walk of up to some 300,000 states takes some seconds; one that outgrows this has to be bounded more tightly.
const MOST_STATES: usize = 1_000_000;

static IN_ALL: AtomicUsize = AtomicUsize::new(0);

const fn list(list: &'static [u32]) -> Attempt {
    Attempt { list, brought: &[], forged: &[], delegate: None }
}

/// One transaction of all branches.
fn scenario(tempers: [Temper; 3], commits: &'static [Attempt], left: Left) -> Scenario {
    let plan = Plan { commits, ..Plan::default() };
    Scenario {
        tempers,
        of: [0; 3],
        clients: [plan, Plan::default()],
        vote_timeout_ms: 30,
        settle_grace_ms: 0,
        left,
        old_leader: OldLeader::Crashes,
        bug: Bug::None,
    }
}

/// The same, with branches that the client enlists before.
fn enlisting(enlists: &'static [u32], mut scenario: Scenario) -> Scenario {
    scenario.clients[0].enlists = enlists;
    scenario
}

/// The same, with a client that settles what it has prepared itself, and a cluster that does so if it takes too long.
fn settled_by_its_client(scenario: Scenario) -> Scenario {
    Scenario { settle_grace_ms: 40, ..scenario }
}

/// Walks it all, prints what was seen, and fails with a trace.
fn walk(name: &str, scenario: Scenario) -> Seen {
    let walk = Walk { breadth_first: false, most_states: MOST_STATES };
    match explore(scenario, walk) {
        Ok(seen) => {
            let in_all = IN_ALL.fetch_add(seen.states, Ordering::Relaxed) + seen.states;
            // Not println: that is kept back of a test that passes.
            writeln!(std::io::stderr(), "small world, {name}: {seen}; {in_all} states in all so far").ok();
            seen
        }
        Err(trace) => panic!("{name}: {trace}"),
    }
}
