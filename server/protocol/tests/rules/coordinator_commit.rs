//! What the leader does when all goes well, as vectors of effects.

use verdict_protocol::{
    Command, Effect, Event, Held, Ledger, Order, Outcome, Refusal, Reply, Report, Request, Settlement,
};

use crate::build::*;

#[test]
fn a_commit_asks_before_the_list_is_logged_and_proposes_all_votes_in_one_entry() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1, 2]));
    let list = propose(1, vec![prepare(x, listed(&[1, 2]))]);
    assert_eq!(first, [ask(x, 1, 2_000), ask(x, 2, 2_000), list], "asked side by side with the append");
    assert_eq!(acts(leader.voted(x, 1, PREPARED)), [], "the list is not in the log");
    assert_eq!(acts(leader.applies(&first)), []);
    let votes = leader.voted(x, 2, PREPARED);
    assert_eq!(acts(votes.clone()), [propose(2, vec![vote(x, 1, PREPARED), vote(x, 2, PREPARED)])]);
    let then = leader.applies(&votes);
    let outcome = leader.outcome(x);
    assert_eq!(outcome.value(), Outcome::Committed);
    assert_eq!(acts(then), [decided(7, x, outcome), tell(x, 1, outcome), tell(x, 2, outcome)]);
    for number in [1, 2] {
        let acknowledged = leader.acknowledged(x, number);
        assert_eq!(acts(acknowledged.clone()), [later(x, number)]);
        assert_eq!(acts(leader.applies(&acknowledged)), []);
    }
    assert_eq!((leader.log.ledger.open_count(), leader.coordinator.held()), (0, Held::default()));
}

#[test]
fn nobody_is_asked_before_the_cluster_is_founded() {
    let mut log = Log { ledger: Ledger::new(), index: 0, now: at(0) };
    // It is refused, and moves log time all the same.
    assert_eq!(log.apply(enlist(xid(9), &[1])), Err(Refusal::NotFounded));
    let ((mut leader, _), x) = (Leader::of(log), xid(1));
    assert_eq!(leader.commit(7, x, listed(&[1])), [propose(1, vec![prepare(x, listed(&[1]))])]);
}

#[test]
fn votes_that_are_there_before_the_list_are_proposed_when_it_is_closed() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1]));
    assert_eq!(acts(leader.voted(x, 1, PREPARED)), []);
    assert_eq!(acts(leader.applies(&first)), [propose(2, vec![vote(x, 1, PREPARED)])]);
}

#[test]
fn votes_brought_along_take_one_append_and_nobody_is_asked() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let list = voted(&[(1, PREPARED), (2, READ_ONLY)]);
    let first = leader.commit(7, x, list.clone());
    assert_eq!(first, [propose(1, vec![prepare(x, list)])]);
    let then = leader.applies(&first);
    let outcome = leader.outcome(x);
    assert_eq!(acts(then), [decided(7, x, outcome)], "its client settles it");
    assert_eq!(acts(leader.wakes(800)), [tell(x, 1, outcome)], "a reader is out of phase two");
}

#[test]
fn an_enlisted_branch_whose_vote_is_brought_along_is_not_asked() {
    let (mut leader, x) = (Leader::new(), xid(1));
    leader.log.ok(enlist(x, &[1, 2]));
    let first = leader.commit(7, x, voted(&[(1, PREPARED)]));
    assert_eq!(first, [ask(x, 2, 2_000), propose(1, vec![prepare(x, voted(&[(1, PREPARED)]))])]);
}

#[test]
fn enlisted_and_listed_branches_are_asked_once() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let enlists = leader.asked(1, Request::Enlist { xid: x, branches: vec![new(1)], timeout_ms: 5_000 });
    assert_eq!(acts(leader.applies(&enlists)), [reply(1, Reply::Done { xid: x })]);
    let first = leader.commit(2, x, listed(&[2]));
    assert_eq!(acts(first.clone())[..2], [ask(x, 1, 2_000), ask(x, 2, 2_000)]);
    let again = leader.commit(3, x, listed(&[2]));
    assert_eq!(acts(again.clone()), [propose(3, vec![prepare(x, listed(&[2]))])], "a retry asks nobody again");
    assert_eq!(acts(leader.applies(&first)), []);
    assert_eq!(acts(leader.applies(&again)), []);
    leader.voted(x, 1, PREPARED);
    let votes = leader.voted(x, 2, PREPARED);
    let then = acts(leader.applies(&votes));
    let outcome = leader.outcome(x);
    assert_eq!(then[..2], [decided(2, x, outcome), decided(3, x, outcome)], "both calls are answered");
}

#[test]
fn a_refusal_is_proposed_at_once_and_the_others_are_told() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1, 2, 3]));
    leader.applies(&first);
    leader.voted(x, 1, PREPARED);
    let votes = leader.voted(x, 2, REFUSED);
    assert_eq!(acts(votes.clone()), [propose(2, vec![vote(x, 2, REFUSED)])]);
    let then = leader.applies(&votes);
    let outcome = leader.outcome(x);
    assert_eq!(outcome.value(), Outcome::Aborted);
    assert_eq!(acts(then), [decided(7, x, outcome), tell(x, 1, outcome), tell(x, 3, outcome)]);
    assert_eq!(acts(leader.voted(x, 3, PREPARED)), [], "a late answer");
    for number in [1, 3] {
        let acknowledged = leader.acknowledged(x, number);
        leader.applies(&acknowledged);
    }
    assert_eq!(leader.coordinator.held(), Held::default());
}

#[test]
fn repeated_and_contradicting_answers_to_prepare() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1, 2]));
    leader.applies(&first);
    leader.voted(x, 1, PREPARED);
    leader.voted(x, 1, READ_ONLY);
    assert_eq!(acts(leader.voted(x, 1, PREPARED)), []);
    assert_eq!(acts(leader.voted(x, 9, REFUSED)), [], "nobody asked it");
    let votes = leader.voted(x, 2, PREPARED);
    assert_eq!(acts(votes.clone()), [propose(2, vec![vote(x, 1, PREPARED), vote(x, 2, PREPARED)])]);
    assert_eq!(acts(leader.voted(x, 2, PREPARED)), [], "they are proposed");
    leader.applies(&votes);
    assert_eq!(acts(leader.voted(x, 2, PREPARED)), []);
}

#[test]
fn s20_a_commit_that_is_repeated_after_the_decision_gets_the_decision() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let list = voted(&[(1, PREPARED)]);
    let first = leader.commit(7, x, list.clone());
    leader.applies(&first);
    let again = leader.commit(8, x, list.clone());
    let outcome = leader.outcome(x);
    assert_eq!(acts(leader.applies(&again)), [decided(8, x, outcome)]);
    let acknowledged = leader.acknowledged(x, 1);
    leader.applies(&acknowledged);
    let again = leader.commit(9, x, list);
    assert_eq!(acts(leader.applies(&again)), [decided(9, x, outcome)]);
    assert_eq!(leader.coordinator.held(), Held::default());
}

#[test]
fn s21_a_rollback_meets_votes_that_are_complete() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1]));
    leader.applies(&first);
    let votes = leader.voted(x, 1, PREPARED);
    let Command::Abort { reason, .. } = abort(x) else { unreachable!() };
    let rollback = leader.asked(8, Request::Rollback { xid: x, reason });
    assert_eq!(rollback, [propose(3, vec![abort(x)])]);
    leader.applies(&votes);
    assert_eq!(acts(leader.applies(&rollback)), [reply(8, Reply::Done { xid: x })]);
    assert_eq!(leader.outcome(x).value(), Outcome::Committed, "the client reads it, and obeys");
}

#[test]
fn a_rollback_that_comes_first_answers_the_commit_and_late_votes_change_nothing() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1]));
    leader.applies(&first);
    let votes = leader.voted(x, 1, PREPARED);
    let Command::Abort { reason, .. } = abort(x) else { unreachable!() };
    let rollback = leader.asked(8, Request::Rollback { xid: x, reason });
    let then = leader.applies(&rollback);
    let outcome = leader.outcome(x);
    assert_eq!(acts(then), [decided(7, x, outcome), tell(x, 1, outcome), reply(8, Reply::Done { xid: x })]);
    assert_eq!(acts(leader.applies(&votes)), [], "it is being told");
    let acknowledged = leader.acknowledged(x, 1);
    leader.applies(&acknowledged);
    assert_eq!(leader.coordinator.held(), Held::default());
}

#[test]
fn a_commit_that_is_refused_leaves_nothing_behind() {
    let (mut leader, x) = (Leader::new(), born(5_000, 1));
    let first = leader.commit(7, x, listed(&[1]));
    assert_eq!(first.len(), 1, "nobody is asked for a list that is refused");
    let then = acts(leader.applies(&first));
    assert!(matches!(then[..], [Effect::Reply { reply: Reply::Refused(_), .. }]), "{then:?}");
    assert_eq!(leader.coordinator.held(), Held::default());
}

#[test]
fn a_pushed_vote_is_acknowledged_when_it_is_recorded_and_may_be_the_last() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1, 2]));
    leader.applies(&first);
    leader.voted(x, 1, PREPARED);
    let pushed = leader.asked(8, Request::Vote { branch: branch(x, 2), vote: PREPARED, reason: None });
    assert_eq!(pushed, [propose(2, vec![vote(x, 2, PREPARED)])]);
    let order = reply(8, Reply::Order { branch: branch(x, 2), order: Order::Wait });
    assert_eq!(acts(leader.applies(&pushed)), [order, propose(3, vec![vote(x, 1, PREPARED)])]);
}

#[test]
fn a_pushed_vote_that_is_not_recorded_is_refused() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let pushed = leader.asked(8, Request::Vote { branch: branch(x, 2), vote: PREPARED, reason: None });
    let then = acts(leader.applies(&pushed));
    assert!(matches!(then[..], [Effect::Reply { reply: Reply::Refused(_), .. }]), "{then:?}");
}

#[test]
fn an_inquiry_in_each_state() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let ask = |leader: &mut Leader, number, held_ms| {
        acts(leader.asked(1, Request::Inquire { branch: branch(x, number), held_ms }))
    };
    let order = |number, order| reply(1, Reply::Order { branch: branch(x, number), order });
    assert_eq!(ask(&mut leader, 1, 29_999), [order(1, Order::Wait)], "unknown, and the grace is not over");
    leader.log.ok(enlist(x, &[1, 2]));
    assert_eq!(ask(&mut leader, 1, 30_000), [order(1, Order::Wait)], "active");
    leader.log.ok(prepare(x, listed(&[1, 2])));
    assert_eq!(ask(&mut leader, 1, 30_000), [order(1, Order::Wait)], "voting");
    let unlisted = Effect::Report(Report::Unlisted { xid: x, number: 9 });
    assert_eq!(ask(&mut leader, 9, 0), [unlisted.clone(), order(9, Order::RollbackUnlisted)]);
    leader.log.ok(vote(x, 1, PREPARED));
    leader.log.ok(vote(x, 2, READ_ONLY));
    let outcome = leader.outcome(x);
    assert_eq!(ask(&mut leader, 1, 0), [order(1, Order::Commit(outcome))]);
    assert_eq!(ask(&mut leader, 2, 0), [order(2, Order::Rollback(outcome))]);
    assert_eq!(ask(&mut leader, 9, 0), [unlisted, order(9, Order::Rollback(outcome))]);
    leader.log.ok(settled(x, 1));
    assert_eq!(ask(&mut leader, 1, 0), [order(1, Order::Commit(outcome))], "ended");
    leader.log.clock(60_000);
    assert_eq!(ask(&mut leader, 1, 0), [order(1, Order::RollbackUnlisted)], "expired");
}

#[test]
fn m44_a_presumption_is_answered_with_what_was_applied() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let presume = leader.asked(1, Request::Inquire { branch: branch(x, 1), held_ms: 30_000 });
    assert_eq!(presume, [propose(1, vec![Command::PresumeAbort { xid: x }])]);
    let commit = leader.commit(2, x, voted(&[(1, PREPARED)]));
    leader.applies(&commit);
    let order = Order::Commit(leader.outcome(x));
    assert_eq!(acts(leader.applies(&presume)), [reply(1, Reply::Order { branch: branch(x, 1), order })]);
    let presume = leader.asked(1, Request::Inquire { branch: branch(xid(2), 1), held_ms: 30_000 });
    let then = acts(leader.applies(&presume));
    let order = Order::Rollback(leader.outcome(xid(2)));
    assert_eq!(then, [reply(1, Reply::Order { branch: branch(xid(2), 1), order })]);
}

#[test]
fn a_heuristic_settlement_is_reported_and_told_no_more() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, voted(&[(1, PREPARED)]));
    leader.applies(&first);
    let settlement = Settlement::HeuristicRollback;
    let then = leader.hears(Event::Acknowledged { branch: branch(x, 1), settlement });
    assert_eq!(then[0], Effect::Report(Report::Heuristic { branch: branch(x, 1), settlement }));
    leader.applies(&then);
    assert_eq!(leader.coordinator.held().timers, 0);
}
