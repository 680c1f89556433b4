//! Two transactions that share a session, or a key.

use crate::{
    Bug, ONE, ONE_DECIDES, SECOND,
    participant::Temper::{self, MayRefuse, Willing},
    scenario::{Left, NO_FAULTS, OldLeader, Plan, Scenario},
    walk,
};

/// The first branch is one transaction, the second another.
pub fn two(clients: [Plan; 2], tempers: [Temper; 3], left: Left) -> Scenario {
    Scenario {
        tempers,
        of: [0, 1, 1],
        clients,
        vote_timeout_ms: 30,
        settle_grace_ms: 0,
        left,
        old_leader: OldLeader::Crashes,
        bug: Bug::None,
    }
}

/// Two instances of a program in one session.
pub fn instances() -> [Plan; 2] {
    let plan = Plan { opens: 1, ..Plan::default() };
    [Plan { instance: Some(1), commits: &[ONE], ..plan }, Plan { instance: Some(2), commits: &[SECOND], ..plan }]
}

/// Two attempts at one thing.
pub fn attempts() -> [Plan; 2] {
    let plan = Plan { begins: 1, key: true, ..Plan::default() };
    [Plan { commits: &[ONE], ..plan }, Plan { begins: 2, commits: &[SECOND], ..plan }]
}

#[test]
fn a_second_instance_fences_the_first() {
    let seen = walk("session", two(instances(), [Willing, MayRefuse, Willing], NO_FAULTS));
    assert!(seen.committed > 0 && seen.aborted > 0, "{seen:?}");
    let left = Left { elections: 1, ..NO_FAULTS };
    walk("session and leader change", two(instances(), [Willing; 3], left));
    let left = Left { wakes: 1, ..NO_FAULTS };
    walk("session and deadline", two(instances(), [Willing; 3], left));
}

#[test]
fn an_instance_that_begins_early_and_one_that_opens_again() {
    let [first, second] = instances();
    let begins = [Plan { begins: 1, ..first }, second];
    let seen = walk("session, begun early", two(begins, [Willing; 3], NO_FAULTS));
    assert!(seen.committed > 0 && seen.aborted > 0, "{seen:?}");
    let again = [Plan { opens: 2, ..first }, second];
    walk("session, opened again", two(again, [Willing; 3], NO_FAULTS));
}

/// What the predecessor gave to one branch is waited for, however long it takes.
#[test]
fn a_session_waits_for_a_branch_that_decides() {
    let [first, second] = instances();
    let delegates = [Plan { commits: &[ONE_DECIDES], ..first }, second];
    let left = Left { elections: 1, wakes: 1, ..NO_FAULTS };
    let seen = walk("session and delegation", two(delegates, [MayRefuse, Willing, Willing], left));
    assert!(seen.committed > 0 && seen.aborted > 0, "{seen:?}");
}

#[test]
fn one_instance_follows_another_through_a_leader_that_lingers() {
    let left = Left { elections: 1, ..NO_FAULTS };
    let lingers = Scenario { old_leader: OldLeader::Lingers, ..two(instances(), [Willing; 3], left) };
    walk("session, lingering leader", lingers);
}

/// s27: the same instance has asked for the end of its earlier transaction, and goes on with the next.
#[test]
fn s27_a_late_end_of_an_earlier_transaction_does_not_end_the_next() {
    let [first, second] = instances();
    let same = [first, Plan { instance: Some(1), begins: 1, ..second }];
    let left = Left { rollbacks: 1, ..NO_FAULTS };
    let seen = walk("late end", two(same, [Willing; 3], left));
    assert!(seen.committed > 0 && seen.aborted > 0, "{seen:?}");
}

#[test]
fn one_attempt_at_a_time_works_under_a_key() {
    let left = Left { rollbacks: 1, ..NO_FAULTS };
    let seen = walk("key", two(attempts(), [MayRefuse, Willing, Willing], left));
    assert!(seen.committed > 0 && seen.aborted > 0, "{seen:?}");
    let left = Left { elections: 1, ..NO_FAULTS };
    walk("key and leader change", two(attempts(), [MayRefuse, Willing, Willing], left));
    let left = Left { wakes: 1, ..NO_FAULTS };
    walk("key and timeouts", two(attempts(), [Willing; 3], left));
}
