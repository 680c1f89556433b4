//! Idempotency keys: the right to work belongs to one attempt.

use verdict_protocol::{Command, Outcome, Refusal, Rules, State, Xid};

use crate::build::*;

fn begin(xid: Xid, text: &str) -> Command {
    Command::Begin { xid, timeout_ms: 5_000, key: Some(key(text)), session: None }
}

#[test]
fn a_second_attempt_learns_who_works_under_the_key() {
    let (mut log, first, second) = (Log::new(), xid(1), xid(2));
    log.ok(begin(first, "order 7"));
    log.ok(begin(first, "order 7"));
    assert_eq!(log.apply(begin(second, "order 7")), Err(Refusal::KeyTaken { holder: first }));
    assert_eq!(log.ledger.status(second).state, State::Unknown);
    log.ok(begin(second, "order 8"));
    log.ok(prepare(first, voted(&[(1, PREPARED)])));
    assert_eq!(log.apply(begin(xid(3), "order 7")), Err(Refusal::KeyTaken { holder: first }), "it has committed");
    log.ok(begin(first, "order 7"));
}

#[test]
fn an_aborted_attempt_leaves_the_key_free() {
    let (mut log, first, second) = (Log::new(), xid(1), xid(2));
    log.ok(begin(first, "order 7"));
    log.ok(abort(first));
    log.ok(begin(first, "order 7"));
    log.ok(begin(second, "order 7"));
    assert_eq!(log.apply(begin(xid(3), "order 7")), Err(Refusal::KeyTaken { holder: second }));
    assert_eq!(log.ledger.key_count(), 1);
}

#[test]
fn a_committed_key_outlives_its_outcome_and_is_forgotten_in_its_time() {
    let (mut log, first) = (Log::new(), xid(1));
    log.ok(begin(first, "order 7"));
    log.ok(prepare(first, voted(&[(1, PREPARED)])));
    log.ok(settled(first, 1));
    log.clock(60_000);
    assert_eq!(log.ledger.status(first).state, State::Expired);
    let again = begin(born(60_000, 2), "order 7");
    assert_eq!(log.apply(again.clone()), Err(Refusal::KeyTaken { holder: first }));
    let (holder, outcome) = log.ledger.key_holder(&key("order 7")).unwrap();
    assert_eq!((holder, outcome.unwrap().value()), (first, Outcome::Committed), "it is known to have committed");
    log.clock(400_000);
    log.ok(begin(born(400_000, 3), "order 7"));
}

#[test]
fn whoever_begins_without_the_key_does_not_get_it_later() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(enlist(x, &[1]));
    assert_eq!(log.apply(begin(x, "order 7")), Err(Refusal::Mismatch));
    log.ok(begin(xid(2), "order 7"));
}

#[test]
fn keys_are_limited() {
    let mut log = Log::with(Rules { max_keys: 1, ..RULES });
    log.ok(begin(xid(1), "a"));
    let full = log.apply(begin(xid(2), "b"));
    assert!(matches!(full, Err(Refusal::Limit { limit: 1, .. })), "{full:?}");
    log.ok(begin(xid(1), "a"));
}

#[test]
fn m16_keys_are_part_of_a_snapshot() {
    let mut log = Log::new();
    log.ok(begin(xid(1), "a"));
    log.ok(begin(xid(2), "b"));
    log.ok(prepare(xid(2), voted(&[(1, PREPARED)])));
    let mut thawed = Log::new();
    thawed.ledger.thaw(verdict_protocol::Thawed::decode(log.sections()).unwrap());
    thawed.index = log.index;
    for (text, holder) in [("a", xid(1)), ("b", xid(2))] {
        assert_eq!(thawed.apply(begin(xid(9), text)), Err(Refusal::KeyTaken { holder }));
    }
}
