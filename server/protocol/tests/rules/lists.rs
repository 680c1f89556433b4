//! Which branches a transaction has: design.md sections 3 and 4.

use verdict_protocol::{Command, Order, Outcome, ReasonCode, Refusal, Rules, State};

use crate::build::*;

#[test]
fn m42_the_closed_list_is_what_was_registered_and_what_is_listed() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(enlist(x, &[1, 2]));
    log.ok(prepare(x, listed(&[2, 3])));
    let open = log.ledger.transaction(x).unwrap();
    assert_eq!(open.branches.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
    for number in [2, 3] {
        log.ok(vote(x, number, PREPARED));
    }
    assert_eq!(log.outcome(x), None, "branch 1 was enlisted, and is not dropped by a list without it");
    log.ok(vote(x, 1, PREPARED));
    assert_eq!(log.outcome(x), Some(Outcome::Committed));
}

#[test]
fn enlisting_again_is_taken_in_every_state_of_an_open_transaction() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(enlist(x, &[1]));
    log.ok(enlist(x, &[1]));
    log.ok(prepare(x, listed(&[1])));
    log.ok(enlist(x, &[1]));
    log.ok(vote(x, 1, PREPARED));
    log.ok(enlist(x, &[1]));
    assert_eq!(log.ledger.transaction(x).unwrap().branches.len(), 1);
    log.ok(settled(x, 1));
    assert_eq!(log.ledger.status(x).state, State::Ended);
    log.ok(enlist(x, &[1]));
    // One that refused, and so never hears an outcome, was registered all the same.
    log.ok(prepare(xid(2), voted(&[(1, REFUSED), (2, READ_ONLY)])));
    assert_eq!(log.ledger.status(xid(2)).state, State::Ended);
    log.ok(enlist(xid(2), &[1, 2]));
    assert_eq!(log.apply(enlist(xid(2), &[3])), Err(Refusal::Closed));
}

#[test]
fn m11_s30_nothing_new_is_enlisted_once_the_list_is_closed() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, listed(&[1])));
    assert_eq!(log.apply(enlist(x, &[2])), Err(Refusal::Closed));
    log.ok(abort(x));
    assert_eq!(log.apply(enlist(x, &[2])), Err(Refusal::Closed));
    log.ok(settled(x, 1));
    assert_eq!(log.ledger.status(x).state, State::Ended);
    assert_eq!(log.apply(enlist(x, &[2])), Err(Refusal::Closed));
}

#[test]
fn a_number_stands_for_one_branch() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(enlist(x, &[1]));
    let mut other = new(1);
    other.payload = vec![9].into();
    let branches = vec![other.clone()];
    assert_eq!(log.apply(Command::Enlist { xid: x, branches, timeout_ms: 1 }), Err(Refusal::Mismatch));
    let mut list = listed(&[1]);
    list[0].branch = other;
    assert_eq!(log.apply(prepare(x, list.clone())), Err(Refusal::Mismatch));
    list.extend(listed(&[1]));
    assert_eq!(log.apply(prepare(xid(2), list)), Err(Refusal::Mismatch), "nor twice in one list");
    assert_eq!(log.ledger.status(xid(2)).state, State::Unknown);
}

#[test]
fn a_prepare_with_another_list_changes_nothing_and_is_a_mismatch() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, listed(&[1, 2])));
    assert_eq!(log.apply(prepare(x, listed(&[1]))), Err(Refusal::Mismatch));
    assert_eq!(log.apply(prepare(x, listed(&[1, 2, 3]))), Err(Refusal::Mismatch));
    assert_eq!(log.ledger.transaction(x).unwrap().branches.len(), 2);
    log.ok(prepare(x, listed(&[2, 1])));
}

#[test]
fn s20_a_prepare_that_is_repeated_after_the_decision_is_taken() {
    let (mut log, x) = (Log::new(), xid(1));
    let list = voted(&[(1, PREPARED), (2, PREPARED)]);
    log.ok(prepare(x, list.clone()));
    log.ok(prepare(x, list.clone()));
    log.ok(settled(x, 1));
    log.ok(settled(x, 2));
    log.ok(prepare(x, list));
    assert_eq!(log.apply(prepare(x, listed(&[1]))), Err(Refusal::Mismatch), "another list, though it has ended");
    assert_eq!(log.outcome(x), Some(Outcome::Committed));
}

#[test]
fn aborted_holds_for_every_list() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(abort(x));
    log.ok(prepare(x, voted(&[(1, PREPARED)])));
    assert_eq!(log.outcome(x), Some(Outcome::Aborted));
    assert!(matches!(log.ledger.order(branch(x, 1)), Order::Rollback(_)));
}

#[test]
fn too_many_branches_are_refused_and_with_a_prepare_recorded_as_aborted() {
    let (mut log, x) = (Log::new(), xid(1));
    let limit = |answer: Result<(), Refusal>| matches!(answer, Err(Refusal::Limit { limit: 4, .. }));
    log.ok(enlist(x, &[1, 2, 3]));
    assert!(limit(log.apply(enlist(x, &[4, 5]))));
    assert_eq!(log.outcome(x), None);
    assert!(limit(log.apply(prepare(x, voted(&[(4, PREPARED), (5, PREPARED)])))));
    assert_eq!(log.outcome(x), Some(Outcome::Aborted));
    assert_eq!(log.ledger.status(x).reason.unwrap().code, ReasonCode::Limit);
}

#[test]
fn a_full_table_refuses_new_work_and_keeps_room_for_what_is_open() {
    let mut log = Log::with(Rules { max_open: 1, ..RULES });
    log.ok(prepare(xid(1), listed(&[1])));
    assert!(matches!(log.apply(enlist(xid(2), &[1])), Err(Refusal::Limit { limit: 1, .. })));
    assert_eq!(log.outcome(xid(2)), None);
    assert!(matches!(log.apply(prepare(xid(3), voted(&[(1, PREPARED)]))), Err(Refusal::Limit { .. })));
    assert_eq!(log.outcome(xid(3)), Some(Outcome::Aborted), "a commit that brought votes is refused for good");
    log.ok(vote(xid(1), 1, PREPARED));
    log.ok(settled(xid(1), 1));
    log.ok(enlist(xid(2), &[1]));
}

#[test]
fn nothing_is_taken_before_the_cluster_is_founded_and_it_is_founded_once() {
    let mut log = Log { ledger: verdict_protocol::Ledger::new(), index: 0, now: at(0) };
    assert_eq!(log.apply(enlist(xid(1), &[1])), Err(Refusal::NotFounded));
    let found = |byte, rules| {
        let (cluster, secret) = (verdict_protocol::ClusterId([byte; 16]), verdict_protocol::Secret([byte; 32]));
        Command::Found { cluster, secret, rules }
    };
    log.ok(found(1, RULES));
    log.ok(found(2, Rules::default()));
    assert_eq!(log.ledger.cluster(), Some(verdict_protocol::ClusterId([1; 16])));
    assert_eq!(*log.ledger.rules(), RULES);
}

#[test]
fn a_bucket_of_no_width_stops_nobody() {
    let mut log = Log::with(Rules { bucket_ms: 0, ..RULES });
    log.ok(abort(xid(1)));
    assert_eq!(log.outcome(xid(1)), Some(Outcome::Aborted));
}
