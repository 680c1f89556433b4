//! What operators may say, and what it takes.

use verdict_protocol::{Command, Outcome, ReasonCode, Refusal, Resolution, SettledItem, Settlement, State, Xid};

use crate::build::*;

fn resolve(xid: Xid, resolution: Resolution, force: bool) -> Command {
    Command::Resolve { xid, resolution, word: word(), force }
}

fn forget(xid: Xid, force: bool) -> Command {
    Command::Forget { xid, word: word(), force }
}

fn is_refused_without_force(log: &mut Log, command: impl Fn(bool) -> Command) {
    let answer = log.apply(command(false));
    assert!(matches!(answer, Err(Refusal::NeedsForce { .. })), "{answer:?}");
    log.ok(command(true));
}

#[test]
fn the_undecided_is_aborted_and_never_committed() {
    for voting in [false, true] {
        let (mut log, x) = (Log::new(), xid(1));
        log.ok(if voting { prepare(x, listed(&[1])) } else { enlist(x, &[1]) });
        assert_eq!(log.apply(resolve(x, Resolution::Decide(Outcome::Committed), true)), Err(Refusal::NotPromised));
        let settle = Resolution::Settle { number: 1, settlement: Settlement::Done };
        assert_eq!(log.apply(resolve(x, settle, true)), Err(Refusal::Undecided));
        assert_eq!(log.apply(forget(x, true)), Err(Refusal::Undecided));
        log.ok(resolve(x, Resolution::Decide(Outcome::Aborted), false));
        log.ok(resolve(x, Resolution::Decide(Outcome::Aborted), false));
        assert_eq!(log.ledger.status(x).reason.unwrap().code, ReasonCode::Operator);
        assert_eq!(log.apply(resolve(x, Resolution::Decide(Outcome::Committed), true)), Err(Refusal::Closed));
    }
}

#[test]
fn the_delegated_takes_force_both_ways() {
    for outcome in [Outcome::Committed, Outcome::Aborted] {
        let (mut log, x) = (Log::new(), xid(1));
        let branches = listed(&[1]);
        log.ok(Command::Prepare { xid: x, branches, vote_timeout_ms: 1, delegate: Some(1), session: None });
        is_refused_without_force(&mut log, |force| resolve(x, Resolution::Decide(outcome), force));
        assert_eq!(log.outcome(x), Some(outcome));
        let left = log.ledger.transaction(x).unwrap().unsettled().count();
        assert_eq!(left, 1, "it is told, and its answer shows what it did");
        let settlement = Settlement::HeuristicRollback;
        let item = SettledItem { branch: branch(x, 1), settlement };
        log.ok(Command::Settled { items: vec![item] });
        let open = log.ledger.transaction(x).unwrap();
        assert_eq!((open.branches[&1].settlement, open.words.len()), (Some(settlement), 1), "shown until forgotten");
        log.ok(forget(x, false));
        assert_eq!((log.ledger.open_count(), log.outcome(x)), (0, Some(outcome)));
        log.ok(forget(x, false));
        let other = if outcome == Outcome::Committed { Outcome::Aborted } else { Outcome::Committed };
        log.ok(resolve(x, Resolution::Decide(outcome), false));
        assert_eq!(log.apply(resolve(x, Resolution::Decide(other), true)), Err(Refusal::Closed), "also once it ended");
    }
}

#[test]
fn a_branch_that_will_never_answer_is_settled_by_word() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, voted(&[(1, PREPARED), (2, PREPARED)])));
    log.ok(resolve(x, Resolution::Settle { number: 1, settlement: Settlement::Done }, false));
    let lost = |force| resolve(x, Resolution::Settle { number: 2, settlement: Settlement::HeuristicRollback }, force);
    is_refused_without_force(&mut log, lost);
    log.ok(lost(false));
    let other = resolve(x, Resolution::Settle { number: 2, settlement: Settlement::Done }, true);
    assert_eq!(log.apply(other), Err(Refusal::Closed), "what was said stays");
    let stranger = resolve(x, Resolution::Settle { number: 9, settlement: Settlement::Done }, true);
    assert_eq!(log.apply(stranger), Err(Refusal::UnknownBranch));
    assert_eq!((log.ledger.in_doubt_count(), log.ledger.status(x).state), (0, State::Decided));
    assert_eq!(log.ledger.transaction(x).unwrap().words, [(log.now, word()), (log.now, word())]);
    log.ok(forget(x, false));
    assert_eq!(log.ledger.status(x).state, State::Ended);
}

#[test]
fn forgetting_what_is_not_settled_takes_force() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, voted(&[(1, PREPARED)])));
    is_refused_without_force(&mut log, |force| forget(x, force));
    assert_eq!((log.ledger.in_doubt_count(), log.ledger.open_count()), (0, 0));
    assert_eq!(log.outcome(x), Some(Outcome::Committed), "the outcome is kept: the branch can still ask");
}

#[test]
fn what_nobody_knows_is_neither_resolved_nor_forgotten() {
    let mut log = Log::new();
    assert_eq!(log.apply(forget(xid(1), true)), Err(Refusal::UnknownTransaction));
    log.clock(60_000);
    let resolution = Resolution::Decide(Outcome::Aborted);
    assert_eq!(log.apply(resolve(xid(1), resolution, true)), Err(Refusal::Expired));
}
