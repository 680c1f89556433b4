//! Sessions: one instance of a client at a time, and a fence against the one before.

use verdict_protocol::{
    Command, Effect, Event, Held, Instance, Outcome, ReasonCode, Refusal, Reply, Request, Rules, SessionName,
    SessionRef, State, Token, Xid,
};

use crate::build::*;

fn name() -> SessionName {
    "till 3".to_owned().try_into().unwrap()
}

fn open(n: u8) -> Command {
    Command::OpenSession { name: name(), instance: Instance([n; 16]) }
}

fn epoch(n: u64) -> Option<SessionRef> {
    Some(SessionRef { name: name(), epoch: n })
}

fn begin(xid: Xid, session: Option<SessionRef>) -> Command {
    Command::Begin { xid, timeout_ms: 5_000, key: None, session }
}

fn commit(xid: Xid, branches: Vec<verdict_protocol::ListedBranch>, session: Option<SessionRef>) -> Command {
    Command::Prepare { xid, branches, vote_timeout_ms: 2_000, delegate: None, session }
}

#[test]
fn the_same_instance_gets_the_same_epoch_and_an_old_one_none() {
    let mut log = Log::new();
    let known = |log: &Log, n: u8| log.ledger.session(&name(), Instance([n; 16]));
    log.ok(open(1));
    log.ok(open(1));
    assert_eq!(known(&log, 1), Some((1, false)));
    log.ok(open(2));
    assert_eq!((known(&log, 1), known(&log, 2)), (None, Some((2, false))));
    assert_eq!(log.apply(open(1)), Err(Refusal::Fenced), "a message that comes late");
    assert_eq!(known(&log, 2), Some((2, false)));
}

#[test]
fn m22_whoever_works_under_an_older_epoch_is_fenced() {
    let mut log = Log::new();
    assert_eq!(log.apply(begin(xid(1), epoch(1))), Err(Refusal::Fenced), "nobody has opened it");
    log.ok(open(1));
    log.ok(begin(xid(1), epoch(1)));
    log.ok(open(2));
    assert_eq!(log.apply(begin(xid(2), epoch(1))), Err(Refusal::Fenced));
    assert_eq!(log.ledger.status(xid(2)).state, State::Unknown);
    // A commit that brings votes finds its abort recorded.
    assert_eq!(log.apply(commit(xid(3), voted(&[(1, PREPARED)]), epoch(1))), Err(Refusal::Fenced));
    let status = log.ledger.status(xid(3));
    assert_eq!((status.outcome.unwrap().value(), status.reason.unwrap().code), (Outcome::Aborted, ReasonCode::Fenced));
    log.ok(commit(xid(4), voted(&[(1, PREPARED)]), epoch(2)));
    assert_eq!(log.outcome(xid(4)), Some(Outcome::Committed));
}

#[test]
fn opening_aborts_what_the_predecessor_had_not_asked_to_commit_and_nothing_else() {
    let mut log = Log::new();
    log.ok(open(1));
    log.ok(begin(xid(1), epoch(1)));
    log.ok(begin(xid(2), epoch(1)));
    log.ok(commit(xid(2), listed(&[1]), epoch(1)));
    log.ok(begin(xid(3), None));
    log.ok(open(2));
    assert_eq!(log.outcome(xid(1)), Some(Outcome::Aborted));
    assert_eq!(log.ledger.status(xid(1)).reason.unwrap().code, ReasonCode::Fenced);
    assert_eq!(log.ledger.status(xid(2)).state, State::Voting, "it goes on");
    assert_eq!(log.ledger.status(xid(3)).state, State::Active, "it has nothing to do with the session");
    log.ok(commit(xid(2), listed(&[1]), epoch(1)));
}

#[test]
fn s27_a_late_end_of_an_earlier_transaction_does_not_end_the_next() {
    let mut log = Log::new();
    log.ok(open(1));
    log.ok(commit(xid(1), voted(&[(1, PREPARED)]), epoch(1)));
    log.ok(begin(xid(2), epoch(1)));
    log.ok(abort(xid(1)));
    log.ok(commit(xid(1), voted(&[(1, PREPARED)]), epoch(1)));
    assert_eq!((log.outcome(xid(1)), log.ledger.status(xid(2)).state), (Some(Outcome::Committed), State::Active));
}

#[test]
fn m57_an_instance_waits_until_its_predecessors_votes_are_counted() {
    let (mut leader, x) = (Leader::new(), xid(1));
    leader.log.ok(open(1));
    leader.log.ok(begin(x, epoch(1)));
    leader.log.ok(commit(x, listed(&[1]), epoch(1)));
    let opening = |n| Request::OpenSession { name: name(), instance: Instance([n; 16]) };
    let first = leader.asked(7, opening(2));
    assert_eq!(acts(leader.applies(&first)), [], "its predecessor is still voting");
    assert_eq!(leader.coordinator.held().openings, 1);
    let second = leader.asked(8, opening(3));
    let fenced = reply(7, Reply::Refused(Refusal::Fenced));
    assert_eq!(acts(leader.applies(&second)), [fenced], "it was followed meanwhile");
    let changes = leader.log.changes(vote(x, 1, READ_ONLY));
    let then = acts(leader.hears(Event::Applied { changes }));
    assert!(then.contains(&reply(8, Reply::Session { epoch: 3 })), "{then:?}");
    assert_eq!(leader.coordinator.held(), Held::default());
}

#[test]
fn two_instances_in_one_entry_do_not_get_one_epoch() {
    let mut leader = Leader::new();
    let opening = |n| Request::OpenSession { name: name(), instance: Instance([n; 16]) };
    let proposed: Vec<Effect> = [leader.asked(7, opening(1)), leader.asked(8, opening(2))].concat();
    let commands = proposed.iter().filter_map(|effect| match effect {
        Effect::Propose { commands, .. } => Some(commands.clone()),
        _ => None,
    });
    let (answers, changes) = leader.log.apply_all(commands.flatten().collect());
    leader.hears(Event::Applied { changes });
    let mut replies = Vec::new();
    for (answer, effect) in answers.into_iter().zip(&proposed) {
        let Effect::Propose { proposal, .. } = effect else { panic!("{effect:?}") };
        replies.extend(leader.hears(Event::Answered { proposal: *proposal, answers: vec![answer] }));
    }
    assert_eq!(replies, [reply(7, Reply::Refused(Refusal::Fenced)), reply(8, Reply::Session { epoch: 2 })]);
}

#[test]
fn a_leader_that_is_deposed_lets_nobody_wait() {
    let (mut leader, x) = (Leader::new(), xid(1));
    leader.log.ok(open(1));
    leader.log.ok(commit(x, listed(&[1]), epoch(1)));
    let first = leader.asked(7, Request::OpenSession { name: name(), instance: Instance([2; 16]) });
    leader.applies(&first);
    assert!(leader.hears(Event::Deposed).contains(&Effect::Reply { token: Token(7), reply: Reply::Interrupted }));
}

#[test]
fn sessions_are_limited_and_those_that_nobody_uses_make_room() {
    let mut log = Log::with(Rules { max_sessions: 1, ..RULES });
    let other =
        |n: u8| Command::OpenSession { name: format!("other {n}").try_into().unwrap(), instance: Instance([n; 16]) };
    log.ok(open(1));
    assert!(matches!(log.apply(other(1)), Err(Refusal::Limit { limit: 1, .. })));
    log.clock(60_000);
    log.ok(other(1));
    assert_eq!(log.apply(begin(born(60_000, 1), epoch(1))), Err(Refusal::Fenced), "it opens its session again");
}

#[test]
fn one_resource_that_is_away_leaves_room_for_the_others() {
    let mut log = Log::with(Rules { max_open_per_resource: 2, ..RULES });
    let at =
        |number, resource: &str| verdict_protocol::NewBranch { resource: resource.try_into().unwrap(), ..new(number) };
    let enlist =
        |n, resource: &str| Command::Enlist { xid: xid(n), branches: vec![at(1, resource)], timeout_ms: 5_000 };
    log.ok(enlist(1, "seats"));
    log.ok(enlist(2, "seats"));
    let full = log.apply(enlist(3, "seats"));
    assert!(matches!(&full, Err(Refusal::Limit { what, limit: 2 }) if what.contains("one resource")), "{full:?}");
    log.ok(enlist(2, "seats"));
    log.ok(enlist(4, "wallet"));
    log.ok(abort(xid(1)));
    assert!(log.apply(enlist(3, "seats")).is_err(), "it is not settled");
    log.ok(settled(xid(1), 1));
    log.ok(enlist(3, "seats"));
}
