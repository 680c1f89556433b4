//! One branch that decides: design.md section 5.

use verdict_protocol::{Change, Command, Conclusion, Effect, Event, Order, Outcome, ReasonCode, Refusal, State, Xid};

use crate::build::*;

fn delegating(xid: Xid, listed: Vec<verdict_protocol::ListedBranch>, to: u32) -> Command {
    Command::Prepare { xid, branches: listed, vote_timeout_ms: 2_000, delegate: Some(to), session: None }
}

fn conclude(xid: Xid, number: u32, conclusion: Conclusion) -> Command {
    Command::Conclude { branch: branch(xid, number), conclusion }
}

#[test]
fn a_single_branch_decides_by_one_append() {
    let (mut log, x) = (Log::new(), xid(1));
    assert_eq!(log.changes(delegating(x, listed(&[1]), 1)), [Change::Delegated { xid: x }]);
    assert_eq!(log.ledger.status(x).state, State::Delegated);
    assert_eq!(log.ledger.order(branch(x, 1)), Order::Wait);
    log.ok(conclude(x, 1, Conclusion::Committed));
    assert_eq!((log.outcome(x), log.ledger.open_count()), (Some(Outcome::Committed), 0), "it need not be told");
    assert!(matches!(log.ledger.order(branch(x, 1)), Order::Commit(_)), "whatever it asks later");
}

#[test]
fn m52_a_last_resource_decides_once_all_others_have_promised() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(delegating(x, listed(&[1, 2, 3]), 3));
    assert_eq!(log.apply(conclude(x, 3, Conclusion::Committed)), Err(Refusal::NotDelegated));
    log.ok(vote(x, 1, PREPARED));
    assert_eq!(log.ledger.status(x).state, State::Voting);
    log.ok(vote(x, 2, READ_ONLY));
    assert_eq!(log.ledger.status(x).state, State::Delegated);
    assert_eq!(log.apply(conclude(x, 1, Conclusion::Committed)), Err(Refusal::NotDelegated), "another branch");
    log.ok(conclude(x, 3, Conclusion::Committed));
    assert_eq!(log.outcome(x), Some(Outcome::Committed));
    let left: Vec<u32> = log.ledger.transaction(x).unwrap().unsettled().map(|(number, _)| number).collect();
    assert_eq!(left, [1]);
}

#[test]
fn m50_nothing_but_the_delegate_decides_what_was_delegated() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(delegating(x, voted(&[(1, PREPARED)]).into_iter().chain(listed(&[2])).collect(), 2));
    assert_eq!(log.ledger.status(x).state, State::Delegated);
    log.ok(abort(x));
    log.ok(Command::PresumeAbort { xid: x });
    assert_eq!(log.changes(vote(x, 1, REFUSED)), [Change::PromiseBroken { branch: branch(x, 1) }]);
    log.ok(vote(x, 2, REFUSED));
    log.clock(60_000);
    assert_eq!(log.ledger.status(x).state, State::Delegated);
    log.ok(conclude(x, 2, Conclusion::Fenced(None)));
    let status = log.ledger.status(x);
    assert_eq!(status.outcome.unwrap().value(), Outcome::Aborted);
    assert_eq!(status.reason.unwrap().code, ReasonCode::Refused);
    log.ok(conclude(x, 2, Conclusion::Fenced(None)));
    let late = log.changes(conclude(x, 2, Conclusion::Committed));
    assert_eq!(late, [Change::PromiseBroken { branch: branch(x, 2) }], "people must know");
}

#[test]
fn who_decides_is_part_of_the_list() {
    let (mut log, x) = (Log::new(), xid(1));
    assert_eq!(log.apply(delegating(x, listed(&[1]), 2)), Err(Refusal::Mismatch), "it is not in the list");
    log.ok(delegating(x, listed(&[1, 2]), 2));
    log.ok(delegating(x, listed(&[1, 2]), 2));
    assert_eq!(log.apply(prepare(x, listed(&[1, 2]))), Err(Refusal::Mismatch));
    assert_eq!(log.apply(delegating(x, listed(&[1, 2]), 1)), Err(Refusal::Mismatch));
}

#[test]
fn the_delegate_is_asked_when_the_log_says_so_again_by_the_next_leader_and_fenced_past_the_deadline() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let request = verdict_protocol::Request::Commit {
        xid: x,
        branches: listed(&[1, 2]),
        vote_timeout_ms: 2_000,
        delegate: Some(2),
        session: None,
    };
    let first = leader.asked(7, request);
    assert_eq!(first, [ask(x, 1, 2_000), propose(1, vec![delegating(x, listed(&[1, 2]), 2)])]);
    assert_eq!(acts(leader.applies(&first)), []);
    let votes = leader.voted(x, 1, PREPARED);
    let then = acts(leader.applies(&votes));
    let give = |fence| {
        let verdict_protocol::NewBranch { resource, payload, .. } = new(2);
        Effect::Delegate { branch: branch(x, 2), resource, payload, fence }
    };
    assert_eq!(then, [give(false)]);

    let (mut next, at_once) = Leader::of(leader.log.clone());
    assert_eq!(acts(at_once), [give(false)], "a new leader goes on");
    next.log.now = at(2_000);
    next.hears(Event::NotAsked { branch: branch(x, 2), error: "down".to_owned() });
    let due = next.log.now.plus(100);
    next.log.now = due;
    assert_eq!(acts(next.hears(Event::Wake)), [give(true)], "it must not commit any more when nobody waits for it");
    let concluded = next.hears(Event::Concluded { branch: branch(x, 2), conclusion: Conclusion::Fenced(None) });
    let told = acts(next.applies(&concluded));
    assert_eq!(told, [tell(x, 1, next.outcome(x))]);
    assert_eq!(next.outcome(x).value(), Outcome::Aborted);

    let concluded = leader.hears(Event::Concluded { branch: branch(x, 2), conclusion: Conclusion::Committed });
    let told = acts(leader.applies(&concluded));
    assert_eq!(told, [decided(7, x, leader.outcome(x)), tell(x, 1, leader.outcome(x))]);
}
