//! Deadlines, horizon and skew: design.md sections 3 and 7.

use verdict_protocol::{
    Change, Command, Event, LogClock, LogTime, Order, Outcome, Phase, ReasonCode, Refusal, SettledItem, Settlement,
    State, Xid,
};

use crate::build::*;

#[test]
fn m28_log_time_never_runs_backwards() {
    let mut log = Log::new();
    log.clock(5_000);
    log.clock(1_000);
    assert_eq!(log.ledger.at(), at(5_000));
}

/// Log time is slewed by a tenth at most, whatever the wall clocks of nodes show and whenever a client says that it
/// began.
#[test]
fn s61_clocks_that_step_and_time_zones_move_no_timer_and_no_outcome() {
    const HOUR: i64 = 3_600_000;
    const ZONES: [i64; 3] = [5 * HOUR + HOUR * 3 / 4, 0, -8 * HOUR];
    // By how much each node's wall clock steps after half a second.
    let steps = [[0; 3], [365 * 24 * HOUR, 0, 0], [-HOUR, -HOUR, 0], [HOUR; 3], [-HOUR, HOUR, HOUR], ZONES];
    for (off, client_off) in steps.into_iter().flat_map(|off| [-900_i64, 0, 900].map(|client_off| (off, client_off))) {
        let walls = |ms: u64| off.map(|off| at(ms).as_millis().saturating_add_signed(if ms < 500 { 0 } else { off }));
        let birth = LogTime::from_millis(START_MS.saturating_add_signed(client_off));
        let [silent, complete] = [1, 2].map(|n| Xid::new(birth, 1, n));
        let (mut leader, mut clock) = (Leader::new(), LogClock::start(at(0), 0, &mut walls(0)));
        for x in [silent, complete] {
            let commit = leader.commit(7, x, listed(&[1, 2]));
            leader.applies(&commit);
            leader.voted(x, 1, PREPARED);
        }
        let ended_after = (0..4_000_u64).find(|ms| {
            if ms % 100 == 0 {
                clock.steer(ms * 1_000, &mut walls(*ms));
            }
            leader.log.now = clock.now(ms * 1_000);
            let effects = if *ms == 1_500 { leader.voted(complete, 2, PREPARED) } else { leader.hears(Event::Wake) };
            leader.applies(&effects);
            leader.log.ledger.outcome(silent).is_some()
        });
        let says = format!("nodes off by {off:?}, client by {client_off}: {ended_after:?}");
        assert!(ended_after.is_some_and(|ms| (1_850..=2_180).contains(&ms)), "two seconds, by no clock: {says}");
        let reason = leader.log.ledger.status(silent).reason.map(|reason| reason.code);
        assert_eq!(
            (leader.log.outcome(silent), reason),
            (Some(Outcome::Aborted), Some(ReasonCode::Deadline)),
            "{says}"
        );
        assert_eq!(leader.log.outcome(complete), Some(Outcome::Committed), "{says}");
    }
}

#[test]
fn timeouts_are_bounded_by_the_longest_life() {
    let mut log = Log::new();
    let begin = Command::Begin { xid: xid(1), timeout_ms: u64::MAX, key: None, session: None };
    assert_eq!(log.changes(begin), [Change::Opened { xid: xid(1), expires_at: at(60_000) }]);
    let forever = Command::Prepare {
        xid: xid(2),
        branches: listed(&[1]),
        vote_timeout_ms: u64::MAX,
        delegate: None,
        session: None,
    };
    assert_eq!(log.changes(forever), [Change::Closed { xid: xid(2), deadline: at(10_000) }]);
}

#[test]
fn m45_behind_the_horizon_nothing_begins_by_whatever_command() {
    let (mut log, x) = (Log::new(), xid(1));
    log.clock(20_001);
    let begin = Command::Begin { xid: x, timeout_ms: 1, key: None, session: None };
    let presume = Command::PresumeAbort { xid: x };
    let commands =
        [begin, enlist(x, &[1]), prepare(x, voted(&[(1, PREPARED)])), vote(x, 1, PREPARED), abort(x), presume];
    for command in commands {
        assert_eq!(log.apply(command.clone()), Err(Refusal::Expired), "{command:?}");
    }
    assert_eq!(log.ledger.status(x).state, State::Expired);
    assert_eq!(log.ledger.status(x).outcome, None);
}

#[test]
fn m48_a_branch_behind_the_horizon_hears_rollback_a_client_hears_expired() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, voted(&[(1, PREPARED)])));
    log.ok(settled(x, 1));
    log.clock(30_000);
    assert_eq!(log.ledger.order(branch(x, 1)), Order::RollbackUnlisted);
    assert_eq!((log.ledger.status(x).state, log.ledger.status(x).outcome), (State::Expired, None));
    assert_eq!(log.ledger.outcome_count(), 0);
}

#[test]
fn participants_forget_nothing_that_will_be_told_again() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, voted(&[(1, PREPARED), (2, PREPARED)])));
    log.ok(settled(x, 1));
    log.clock(30_000);
    assert_eq!((log.ledger.horizon(), log.ledger.settled_horizon()), (at(10_000), at(0)));
    let item = SettledItem { branch: branch(x, 2), settlement: Settlement::HeuristicHazard };
    log.ok(Command::Settled { items: vec![item] });
    assert_eq!((log.ledger.open_count(), log.ledger.settled_horizon()), (1, at(10_000)), "it waits for people only");
}

#[test]
fn m17_an_outcome_is_kept_until_its_xid_can_never_begin_again() {
    let mut log = Log::new();
    for ms in (0..60_000).step_by(250) {
        log.now = at(ms);
        log.ok(prepare(born(ms, ms), voted(&[(1, READ_ONLY)])));
        for back in (0..=ms).step_by(250) {
            let state = log.ledger.status(born(back, back)).state;
            assert_ne!(state, State::Unknown, "born at {back}, forgotten and not expired at {ms}");
            assert!(ms - back > 20_000 || state == State::Ended, "born at {back}, forgotten early at {ms}");
        }
    }
    assert!(log.ledger.outcome_count() < 100, "{} outcomes are kept", log.ledger.outcome_count());
}

#[test]
fn a_decision_that_comes_late_is_kept_from_then_on() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(enlist(x, &[1]));
    log.clock(25_000);
    log.ok(prepare(x, voted(&[(1, READ_ONLY)])));
    log.clock(44_000);
    assert_eq!(log.outcome(x), Some(Outcome::Committed));
    log.clock(46_000);
    assert_eq!(log.ledger.status(x).state, State::Expired);
}

#[test]
fn who_begins_may_ask_for_a_longer_life() {
    let begin = |xid, timeout_ms| Command::Begin { xid, timeout_ms, key: None, session: None };
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(begin(x, 45_000));
    log.ok(begin(xid(2), 90_000));
    assert!(
        matches!(log.ledger.transaction(x).unwrap().phase, Phase::Active { expires_at } if expires_at == at(45_000))
    );
    let longest = at(RULES.longest_lifetime_ms);
    assert!(
        matches!(log.ledger.transaction(xid(2)).unwrap().phase, Phase::Active { expires_at } if expires_at == longest)
    );
    // It is known, so the horizon that has passed it does not matter; participants keep what is theirs of it.
    log.clock(40_000);
    assert_eq!(log.ledger.settled_horizon(), x.birth());
    log.ok(enlist(x, &[1]));
    log.ok(prepare(x, voted(&[(1, PREPARED)])));
    assert_eq!(log.outcome(x), Some(Outcome::Committed));
    // Nobody else lives that long.
    let y = born(40_000, 3);
    log.ok(Command::Enlist { xid: y, branches: vec![new(1)], timeout_ms: 90_000 });
    assert!(
        matches!(log.ledger.transaction(y).unwrap().phase, Phase::Active { expires_at } if expires_at == at(50_000))
    );
}

#[test]
fn a_branch_that_waits_longer_than_outcomes_are_kept_still_hears_its_own() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, voted(&[(1, PREPARED), (2, PREPARED)])));
    log.ok(abort(xid(2)));
    log.clock(1_000_000);
    assert_eq!(log.ledger.outcome_count(), 0);
    assert_eq!((log.ledger.status(x).state, log.outcome(x)), (State::Decided, Some(Outcome::Committed)));
    assert!(matches!(log.ledger.order(branch(x, 1)), Order::Commit(_)));
    assert!(matches!(log.ledger.order(branch(x, 3)), Order::Rollback(_)));
    log.ok(prepare(x, voted(&[(1, PREPARED), (2, PREPARED)])));
    log.ok(settled(x, 1));
    log.ok(settled(x, 2));
    assert_eq!(log.ledger.status(x).state, State::Expired);
}

#[test]
fn an_undecided_transaction_stays_open_however_old_it_is() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, listed(&[1])));
    log.clock(1_000_000);
    log.ok(vote(x, 1, PREPARED));
    assert_eq!(log.outcome(x), Some(Outcome::Committed));
}

#[test]
fn an_xid_from_the_future_is_skewed_and_with_a_prepare_recorded_as_aborted() {
    let (mut log, x) = (Log::new(), born(1_001, 1));
    let skewed = Err(Refusal::Skewed { ahead_ms: 1_001, allowed_ms: 1_000 });
    log.ok(enlist(born(1_000, 1), &[1]));
    assert_eq!(log.apply(enlist(x, &[1])), skewed);
    assert_eq!(log.outcome(x), None);
    assert_eq!(log.apply(prepare(x, voted(&[(1, PREPARED)]))), skewed);
    assert_eq!(log.outcome(x), Some(Outcome::Aborted));
    assert_eq!(log.ledger.status(x).reason.unwrap().code, ReasonCode::Skewed);
    assert!(matches!(log.ledger.order(branch(x, 1)), Order::Rollback(_)));
}

#[test]
fn the_outcome_of_an_xid_from_the_future_outlives_its_birth() {
    let (mut log, x) = (Log::new(), born(100_000, 1));
    log.ok(Command::PresumeAbort { xid: x });
    for ms in (0..=120_000).step_by(500) {
        log.clock(ms);
        assert_eq!(log.outcome(x), Some(Outcome::Aborted), "forgotten at {ms}, and it could begin now");
        log.ok(prepare(x, voted(&[(1, PREPARED)])));
    }
    log.clock(121_001);
    assert_eq!(log.ledger.status(x).state, State::Expired);
    assert_eq!(log.apply(prepare(x, voted(&[(1, PREPARED)]))), Err(Refusal::Expired));
}
