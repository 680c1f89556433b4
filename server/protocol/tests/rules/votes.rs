//! What votes do: design.md section 3.

use verdict_protocol::{Change, Order, Outcome, ReasonCode, Refusal, SettledItem, Settlement, State};

use crate::build::*;

#[test]
fn the_last_vote_decides_in_its_own_entry() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, listed(&[1, 2])));
    log.ok(vote(x, 1, PREPARED));
    assert_eq!(log.outcome(x), None);
    log.ok(vote(x, 2, READ_ONLY));
    let outcome = log.ledger.outcome(x).unwrap();
    assert_eq!((outcome.value(), outcome.index()), (Outcome::Committed, log.index));
}

#[test]
fn m41_a_prepare_that_comes_after_the_last_vote_decides_as_well() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(enlist(x, &[1, 2]));
    log.ok(vote(x, 1, PREPARED));
    log.ok(vote(x, 2, PREPARED));
    assert_eq!(log.outcome(x), None, "the list is open");
    log.ok(prepare(x, listed(&[])));
    assert_eq!(log.outcome(x), Some(Outcome::Committed));
}

#[test]
fn votes_brought_along_decide_with_one_append() {
    let (mut log, x) = (Log::new(), xid(1));
    let changes = log.changes(prepare(x, voted(&[(1, PREPARED), (2, PREPARED)])));
    assert_eq!(changes, [Change::Decided { xid: x, outcome: log.ledger.outcome(x).unwrap() }]);
    assert_eq!(log.outcome(x), Some(Outcome::Committed));
    assert_eq!(log.ledger.in_doubt_count(), 1);
}

#[test]
fn m7_some_votes_brought_along_do_not_decide() {
    let (mut log, x) = (Log::new(), xid(1));
    let mut list = voted(&[(1, PREPARED)]);
    list.extend(listed(&[2]));
    assert_eq!(log.changes(prepare(x, list)), [Change::Closed { xid: x, deadline: at(2_000) }]);
    assert_eq!(log.outcome(x), None);
}

#[test]
fn all_read_only_leaves_nothing_to_settle() {
    let (mut log, x) = (Log::new(), xid(1));
    let changes = log.changes(prepare(x, voted(&[(1, READ_ONLY), (2, READ_ONLY)])));
    assert_eq!(changes.last(), Some(&Change::Ended { xid: x }));
    assert_eq!((log.outcome(x), log.ledger.open_count()), (Some(Outcome::Committed), 0));
}

#[test]
fn refused_aborts_at_once_even_before_the_list_is_closed() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(enlist(x, &[1, 2]));
    log.ok(vote(x, 2, REFUSED));
    assert_eq!(log.outcome(x), Some(Outcome::Aborted));
    let reason = log.ledger.status(x).reason.unwrap();
    assert_eq!(reason.code, ReasonCode::Refused);
    assert!(reason.text.contains("branch 2 (seats)"), "{reason:?}");
}

#[test]
fn refused_after_prepared_aborts_and_is_a_broken_promise() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, listed(&[1, 2])));
    log.ok(vote(x, 1, PREPARED));
    let changes = log.changes(vote(x, 1, REFUSED));
    assert_eq!(changes[0], Change::PromiseBroken { branch: branch(x, 1) });
    assert_eq!(log.outcome(x), Some(Outcome::Aborted));
}

#[test]
fn a_refusal_that_prepare_brings_after_prepared_is_one_too() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(enlist(x, &[1]));
    log.ok(vote(x, 1, PREPARED));
    let changes = log.changes(prepare(x, voted(&[(1, REFUSED)])));
    assert_eq!(changes[0], Change::PromiseBroken { branch: branch(x, 1) });
    assert_eq!(log.outcome(x), Some(Outcome::Aborted));
}

#[test]
fn the_first_vote_counts() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, listed(&[1, 2])));
    log.ok(vote(x, 1, READ_ONLY));
    log.ok(vote(x, 1, PREPARED));
    log.ok(vote(x, 2, PREPARED));
    assert!(matches!(log.ledger.order(branch(x, 1)), Order::Rollback(_)), "a reader has nothing to commit");
    assert!(matches!(log.ledger.order(branch(x, 2)), Order::Commit(_)));
}

#[test]
fn a_vote_never_creates_a_transaction_or_a_branch() {
    let (mut log, x) = (Log::new(), xid(1));
    assert_eq!(log.apply(vote(x, 1, PREPARED)), Err(Refusal::UnknownTransaction));
    assert_eq!(log.apply(vote(x, 1, REFUSED)), Err(Refusal::UnknownTransaction));
    assert_eq!(log.ledger.status(x).state, State::Unknown);
    log.ok(enlist(x, &[1]));
    assert_eq!(log.apply(vote(x, 2, PREPARED)), Err(Refusal::UnknownBranch));
    assert_eq!(log.apply(vote(x, 2, REFUSED)), Err(Refusal::UnknownBranch));
    assert_eq!(log.outcome(x), None);
}

#[test]
fn m10_a_late_yes_changes_nothing_and_hears_the_outcome() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, listed(&[1, 2])));
    log.ok(abort(x));
    let (answers, changes) = log.apply_all(vec![vote(x, 1, PREPARED), vote(x, 2, PREPARED)]);
    assert_eq!(answers, [Ok(()), Ok(())]);
    let again = |number| Change::TellAgain { branch: branch(x, number) };
    assert_eq!(changes, [again(1), again(2)]);
    assert_eq!(log.outcome(x), Some(Outcome::Aborted));
    log.ok(settled(x, 1));
    assert_eq!(log.changes(vote(x, 1, PREPARED)), [], "it has acknowledged the outcome");
}

#[test]
fn a_late_no_is_reported_only_of_who_had_promised() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, voted(&[(1, PREPARED), (2, READ_ONLY)])));
    let broken = [Change::PromiseBroken { branch: branch(x, 1) }];
    for _ in ["open", "ended"] {
        assert_eq!(log.changes(vote(x, 1, REFUSED)), broken);
        assert_eq!(log.changes(vote(x, 2, REFUSED)), [], "a reader that lost its memory of it");
        assert_eq!(log.changes(vote(x, 3, REFUSED)), [], "a stranger");
        assert_eq!(log.outcome(x), Some(Outcome::Committed));
        log.ok(settled(x, 1));
    }
}

#[test]
fn s21_a_rollback_or_a_deadline_meets_votes_that_are_complete() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, voted(&[(1, PREPARED)])));
    log.ok(abort(x));
    assert_eq!(log.outcome(x), Some(Outcome::Committed));
}

#[test]
fn m43_only_who_promised_and_was_listed_hears_commit() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, listed(&[1, 2])));
    assert_eq!(log.ledger.order(branch(x, 1)), Order::Wait);
    assert_eq!(log.ledger.order(branch(x, 9)), Order::RollbackUnlisted, "the list is closed without it");
    log.ok(vote(x, 1, PREPARED));
    log.ok(vote(x, 2, READ_ONLY));
    for _ in ["open", "ended"] {
        assert!(matches!(log.ledger.order(branch(x, 1)), Order::Commit(_)));
        assert!(matches!(log.ledger.order(branch(x, 2)), Order::Rollback(_)));
        assert!(matches!(log.ledger.order(branch(x, 9)), Order::Rollback(_)));
        log.ok(settled(x, 1));
    }
}

#[test]
fn m26_m44_a_presumption_touches_only_the_unknown() {
    let (mut log, x) = (Log::new(), xid(1));
    let presume = |x| verdict_protocol::Command::PresumeAbort { xid: x };
    log.ok(enlist(x, &[1]));
    log.ok(presume(x));
    assert_eq!((log.outcome(x), log.ledger.order(branch(x, 1))), (None, Order::Wait));
    log.ok(prepare(x, voted(&[(1, PREPARED)])));
    log.ok(presume(x));
    assert!(matches!(log.ledger.order(branch(x, 1)), Order::Commit(_)));
    log.ok(presume(xid(2)));
    assert_eq!(log.outcome(xid(2)), Some(Outcome::Aborted));
    assert_eq!(log.ledger.status(xid(2)).reason.unwrap().code, ReasonCode::Presumed);
    log.ok(prepare(xid(2), voted(&[(1, PREPARED)])));
    assert_eq!(log.outcome(xid(2)), Some(Outcome::Aborted), "the commit came too late");
}

#[test]
fn m25_it_ends_when_every_branch_has_acknowledged() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(settled(x, 1));
    log.ok(prepare(x, voted(&[(1, PREPARED), (2, PREPARED)])));
    log.ok(settled(x, 1));
    log.ok(settled(x, 1));
    assert_eq!(log.ledger.status(x).state, State::Decided);
    assert_eq!(log.changes(settled(x, 2)), [Change::Settled { branch: branch(x, 2) }, Change::Ended { xid: x }]);
    assert_eq!((log.ledger.open_count(), log.ledger.in_doubt_count()), (0, 0));
    assert_eq!(log.ledger.status(x).state, State::Ended);
}

#[test]
fn an_acknowledgement_before_the_decision_is_none() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, listed(&[1])));
    assert_eq!(log.changes(settled(x, 1)), []);
    log.ok(vote(x, 1, PREPARED));
    assert_eq!(log.ledger.transaction(x).unwrap().unsettled().count(), 1);
}

#[test]
fn a_heuristic_settlement_stays_for_an_operator_to_see() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, voted(&[(1, PREPARED)])));
    let item = SettledItem { branch: branch(x, 1), settlement: Settlement::HeuristicRollback };
    log.ok(verdict_protocol::Command::Settled { items: vec![item] });
    assert_eq!((log.ledger.status(x).state, log.ledger.in_doubt_count()), (State::Decided, 0));
}
