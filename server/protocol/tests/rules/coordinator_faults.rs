//! What the leader does when things fail: deadlines, retries, lost answers, changes of the leader.

use verdict_protocol::{
    Command, Effect, Event, FIRST_RETRY_MS, Held, KEEP_EARLY_MS, KEEP_VOTES_MS, KEEP_VOTES_OF_ANOTHERS_MS,
    LONGEST_RETRY_MS, LogTime, Outcome, ProposalId, Reason, ReasonCode, Reply, Request,
};

use crate::build::*;

fn wake_at(effects: &[Effect]) -> Option<LogTime> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::WakeAt(at) => Some(*at),
        _ => None,
    })
}

fn cannot(number: u32) -> (Event, Event) {
    let (branch, error) = (branch(xid(1), number), "connection refused".to_owned());
    (Event::NotAsked { branch, error: error.clone() }, Event::NotTold { branch, error })
}

#[test]
fn the_deadline_proposes_an_abort_that_names_who_was_silent() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1, 2]));
    assert_eq!(wake_at(&leader.applies(&first)), Some(at(KEEP_VOTES_MS)));
    assert_eq!(leader.wakes(KEEP_VOTES_MS), [Effect::WakeAt(at(2_000))]);
    let vote = leader.voted(x, 1, PREPARED);
    leader.applies(&vote);
    assert_eq!(leader.wakes(1_999), [Effect::WakeAt(at(2_000))]);
    let abort = leader.wakes(2_000);
    let [Effect::Propose { commands, .. }, Effect::WakeAt(again)] = &abort[..] else { panic!("{abort:?}") };
    let Command::Abort { reason, .. } = &commands[0] else { panic!("{commands:?}") };
    assert_eq!(reason.code, ReasonCode::Deadline);
    assert!(reason.text.contains("2 (seats)") && !reason.text.contains("1 (seats)"), "{}", reason.text);
    assert_eq!(*again, at(3_000), "proposed again if nothing comes of it");
    let then = leader.applies(&abort);
    let outcome = leader.outcome(x);
    assert_eq!(acts(then), [decided(7, x, outcome), tell(x, 1, outcome), tell(x, 2, outcome)]);
}

#[test]
fn m8_a_deadline_does_not_go_before_votes_that_are_proposed() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1]));
    leader.applies(&first);
    let votes = leader.voted(x, 1, PREPARED);
    assert_eq!(acts(leader.wakes(5_000)), []);
    leader.applies(&votes);
    assert_eq!(leader.outcome(x).value(), Outcome::Committed);
}

#[test]
fn s28_a_retry_timer_that_comes_with_the_decision_asks_and_tells_nobody_twice() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1, 2]));
    leader.applies(&first);
    let due = wake_at(&leader.hears(cannot(1).0)).unwrap().since(at(0));
    leader.voted(x, 2, PREPARED);
    // Branch 1 votes by itself just before it would be asked again: its vote is the last.
    let push = leader.asked(8, Request::Vote { branch: branch(x, 1), vote: PREPARED, reason: None });
    let votes = leader.applies(&push);
    let then = leader.applies(&votes);
    let outcome = leader.outcome(x);
    assert_eq!(acts(then), [decided(7, x, outcome), tell(x, 1, outcome), tell(x, 2, outcome)]);
    assert_eq!(acts(leader.wakes(due)), [], "the timer finds nothing to ask");

    // The same when it is told: one attempt at a time, whatever wakes.
    let due = wake_at(&leader.hears(cannot(1).1)).unwrap().since(at(0));
    assert_eq!(acts(leader.wakes(due)), [tell(x, 1, outcome)]);
    assert_eq!(acts(leader.wakes(due + 3_000)), [], "it is being told");
    let late_vote = leader.asked(9, Request::Vote { branch: branch(x, 1), vote: PREPARED, reason: None });
    let answers = acts(leader.applies(&late_vote));
    assert!(!answers.iter().any(|effect| matches!(effect, Effect::Tell { .. })), "{answers:?}");
    let acknowledged: Vec<Effect> = [1, 2].map(|number| leader.acknowledged(x, number)).concat();
    leader.applies(&acknowledged);
    assert_eq!((leader.log.ledger.open_count(), leader.coordinator.held()), (0, Held::default()));
}

#[test]
fn what_was_begun_and_never_committed_expires() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let enlists = leader.asked(1, Request::Enlist { xid: x, branches: vec![new(1)], timeout_ms: 700 });
    assert_eq!(wake_at(&leader.applies(&enlists)), Some(at(700)));
    let abort = leader.wakes(700);
    let then = leader.applies(&abort);
    assert_eq!(leader.log.ledger.status(x).reason.unwrap().code, ReasonCode::Timeout);
    assert_eq!(acts(then), [tell(x, 1, leader.outcome(x))], "it may have prepared all the same");
}

#[test]
fn s60_m37_asking_and_telling_are_repeated_with_backoff() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.asked(
        7,
        Request::Commit { xid: x, branches: listed(&[1]), vote_timeout_ms: 9_000, delegate: None, session: None },
    );
    leader.applies(&first);
    let mut last = KEEP_VOTES_MS;
    assert_eq!(acts(leader.wakes(last)), []);
    for attempt in 0..8 {
        let now = leader.log.now;
        let due = wake_at(&leader.hears(cannot(1).0)).unwrap().since(now);
        let full = (FIRST_RETRY_MS << attempt).min(LONGEST_RETRY_MS);
        assert!((full / 2..=full).contains(&due), "attempt {attempt} waits {due} ms");
        last += due;
        let again = acts(leader.wakes(last));
        if last < 9_000 {
            assert_eq!(again, [ask(x, 1, 9_000 - last)]);
        }
    }
    let blocker = leader.coordinator.blocker(branch(x, 1)).unwrap();
    assert_eq!(blocker.error, "connection refused");
    assert!(blocker.failed > 3, "{blocker:?}");
    let votes = leader.voted(x, 1, PREPARED);
    leader.applies(&votes);
    let outcome = leader.outcome(x);
    let due = wake_at(&leader.hears(cannot(1).1)).unwrap();
    assert_eq!(acts(leader.wakes(due.since(at(0)))), [tell(x, 1, outcome)]);
}

#[test]
fn a_branch_whose_turn_came_before_the_list_was_closed_is_asked_then() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1]));
    leader.hears(cannot(1).0);
    assert_eq!(acts(leader.wakes(100)), [], "the list is not in the log");
    assert_eq!(acts(leader.applies(&first)), [ask(x, 1, 2_000)]);
}

#[test]
fn a_participant_that_comes_by_itself_is_asked_and_told_at_once() {
    let seats = || Event::Reached { resource: "seats".try_into().unwrap() };
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1, 2]));
    leader.applies(&first);
    assert_eq!(acts(leader.hears(seats())), [], "it is being asked");
    leader.hears(cannot(1).0);
    assert_eq!(acts(leader.hears(Event::Reached { resource: "wallet".try_into().unwrap() })), [], "not its branch");
    assert_eq!(acts(leader.hears(seats())), [ask(x, 1, 2_000)]);
    assert_eq!(acts(leader.hears(seats())), [], "once");
    assert_eq!(acts(leader.wakes(100)), [], "its turn is not set twice");
    leader.voted(x, 1, PREPARED);
    let votes = leader.voted(x, 2, PREPARED);
    leader.applies(&votes);
    let outcome = leader.outcome(x);
    leader.hears(cannot(1).1);
    let acknowledged = leader.acknowledged(x, 2);
    assert_eq!(acts(leader.hears(seats())), [tell(x, 1, outcome)], "not who has acknowledged");
    leader.applies(&acknowledged);
    let acknowledged = leader.acknowledged(x, 1);
    leader.applies(&acknowledged);
    assert_eq!(acts(leader.hears(seats())), []);
    assert_eq!(leader.coordinator.held(), Held::default());
}

#[test]
fn a_settlement_that_is_acknowledged_and_lost_is_told_again() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, voted(&[(1, PREPARED)]));
    leader.applies(&first);
    let lost = leader.acknowledged(x, 1);
    assert_eq!(lost, [later(x, 1), Effect::WakeAt(at(5_000))]);
    assert_eq!(acts(leader.wakes(4_999)), []);
    assert_eq!(acts(leader.wakes(5_000)), [tell(x, 1, leader.outcome(x))]);
    let again = leader.acknowledged(x, 1);
    leader.applies(&again);
    assert_eq!(leader.coordinator.held(), Held::default());
}

#[test]
fn a_late_or_repeated_acknowledgement_does_nothing() {
    let (mut leader, x) = (Leader::new(), xid(1));
    assert_eq!(leader.acknowledged(x, 1), []);
    let first = leader.commit(7, x, voted(&[(1, PREPARED), (2, PREPARED)]));
    leader.applies(&first);
    let acknowledged = leader.acknowledged(x, 1);
    leader.applies(&acknowledged);
    assert_eq!(acts(leader.acknowledged(x, 1)), []);
    let acknowledged = leader.acknowledged(x, 2);
    leader.applies(&acknowledged);
    assert_eq!(leader.acknowledged(x, 2), []);
    assert_eq!(leader.coordinator.held(), Held::default());
}

#[test]
fn m10_a_deposed_leader_answers_that_it_does_not_know_and_acts_no_more() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1]));
    leader.applies(&first);
    let second = leader.commit(8, x, listed(&[1]));
    let not_known = |token| reply(token, Reply::Interrupted);
    assert_eq!(leader.hears(Event::Deposed), [not_known(7), not_known(8)]);
    assert_eq!(leader.coordinator.held(), Held::default());
    assert_eq!(leader.voted(x, 1, PREPARED), []);
    assert_eq!(leader.wakes(9_000), []);
    assert_eq!(leader.applies(&second), []);
    assert_eq!(leader.commit(9, x, listed(&[1])), [reply(9, Reply::NotLeader)]);
    assert_eq!(leader.coordinator.held(), Held::default());
}

#[test]
fn s31_a_new_leader_asks_again_with_what_is_left_and_at_least_a_minimum() {
    let mut log = Log::new();
    log.ok(prepare(xid(1), listed(&[1, 2])));
    log.ok(vote(xid(1), 2, PREPARED));
    log.ok(enlist(xid(2), &[1]));
    log.ok(prepare(xid(3), listed(&[1])));
    log.ok(vote(xid(3), 1, PREPARED));
    let mut late = log.clone();
    log.clock(800);
    let (leader, effects) = Leader::of(log);
    assert_eq!(acts(effects.clone()), [ask(xid(1), 1, 1_200), tell(xid(3), 1, leader.outcome(xid(3)))]);
    assert_eq!(wake_at(&effects), Some(at(800 + KEEP_VOTES_OF_ANOTHERS_MS)));
    late.clock(1_900);
    let (mut leader, effects) = Leader::of(late);
    assert_eq!(acts(effects)[0], ask(xid(1), 1, 500));
    let votes = leader.voted(xid(1), 1, PREPARED);
    leader.applies(&votes);
    assert_eq!(leader.outcome(xid(1)).value(), Outcome::Committed, "it goes on, and is not rolled back");
}

#[test]
fn where_voting_is_slow_votes_in_hand_go_to_the_log_and_outlast_their_leader() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1, 2, 3, 4]));
    leader.applies(&first);
    assert_eq!(acts(leader.voted(x, 1, PREPARED)), [], "the others may come any moment");
    let slow = leader.wakes(KEEP_VOTES_MS);
    assert_eq!(acts(slow.clone()), [propose(2, vec![vote(x, 1, PREPARED)])]);
    assert_eq!(acts(leader.voted(x, 2, PREPARED)), [], "one proposal at a time");
    let next = leader.applies(&slow);
    assert_eq!(acts(next.clone()), [propose(3, vec![vote(x, 2, PREPARED)])]);
    leader.applies(&next);

    let (mut leader, effects) = Leader::of(leader.log);
    let left = 2_000 - KEEP_VOTES_MS;
    assert_eq!(acts(effects), [ask(x, 3, left), ask(x, 4, left)], "two votes are known");
    assert_eq!(acts(leader.voted(x, 3, PREPARED)), []);
    let third = leader.wakes(KEEP_VOTES_MS + KEEP_VOTES_OF_ANOTHERS_MS);
    assert_eq!(acts(third.clone()), [propose(1, vec![vote(x, 3, PREPARED)])], "one leader was lost already");
    leader.applies(&third);
    let fourth = leader.voted(x, 4, PREPARED);
    leader.applies(&fourth);
    assert_eq!(leader.outcome(x).value(), Outcome::Committed);
}

#[test]
fn s29_branches_that_were_asked_for_a_list_that_came_too_late_hear_that_it_is_aborted() {
    let tells = |effects: &[Effect]| -> Vec<Effect> {
        effects.iter().filter(|effect| matches!(effect, Effect::Tell { .. })).cloned().collect()
    };
    for by_this_leader in [true, false] {
        let (mut leader, x) = (Leader::new(), xid(1));
        let reason = Reason::new(ReasonCode::Rollback, "");
        let rollback = leader.asked(7, Request::Rollback { xid: x, reason });
        let mut after = Vec::new();
        // The client's own Commit races with it: the branches are asked, and registered by nobody.
        let commit = leader.commit(8, x, listed(&[1, 2]));
        assert_eq!(acts(commit.clone()).iter().filter(|effect| matches!(effect, Effect::Ask { .. })).count(), 2);
        if by_this_leader {
            after.extend(leader.applies(&rollback));
        } else {
            let changes = leader.log.changes(abort(x));
            after.extend(leader.hears(Event::Applied { changes }));
        }
        after.extend(leader.applies(&commit));
        let outcome = leader.outcome(x);
        assert_eq!(tells(&after), [tell(x, 1, outcome), tell(x, 2, outcome)]);
        assert_eq!((leader.log.ledger.open_count(), leader.coordinator.held().works), (0, 0));
    }
}

#[test]
fn a_deadline_that_comes_while_a_vote_is_on_its_way_to_the_log_is_kept() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1, 2]));
    leader.applies(&first);
    leader.wakes(KEEP_VOTES_MS);
    let vote = leader.voted(x, 1, PREPARED);
    assert_eq!(acts(leader.wakes(2_000)), [], "it could be the last vote");
    assert_eq!(wake_at(&leader.applies(&vote)), Some(at(2_000)));
    let abort = leader.wakes(2_001);
    leader.applies(&abort);
    assert_eq!(leader.outcome(x).value(), Outcome::Aborted);
}

#[test]
fn votes_whose_entry_got_lost_are_proposed_again() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1]));
    leader.applies(&first);
    leader.voted(x, 1, PREPARED);
    let then = leader.hears(Event::Interrupted { proposal: ProposalId(2) });
    assert_eq!(then, [Effect::WakeAt(at(FIRST_RETRY_MS))]);
    assert_eq!(acts(leader.wakes(FIRST_RETRY_MS)), [propose(3, vec![vote(x, 1, PREPARED)])]);
}

#[test]
fn an_interrupted_commit_is_not_answered_and_its_entry_may_still_come() {
    let (mut leader, x) = (Leader::new(), xid(1));
    leader.commit(7, x, listed(&[1]));
    let then = leader.hears(Event::Interrupted { proposal: ProposalId(1) });
    assert_eq!(acts(then), [reply(7, Reply::Interrupted)]);
    assert_eq!(acts(leader.voted(x, 1, PREPARED)), []);
    let changes = leader.log.changes(prepare(x, listed(&[1])));
    let votes = leader.hears(Event::Applied { changes });
    assert_eq!(acts(votes.clone()), [propose(2, vec![vote(x, 1, PREPARED)])]);
    leader.applies(&votes);
    assert_eq!(leader.outcome(x).value(), Outcome::Committed);
}

#[test]
fn a_client_that_asks_again_and_again_in_vain_has_nobody_asked_twice() {
    let (mut leader, x) = (Leader::new(), xid(1));
    leader.commit(7, x, listed(&[1, 2]));
    leader.hears(cannot(2).0);
    leader.hears(Event::Interrupted { proposal: ProposalId(1) });
    leader.voted(x, 1, PREPARED);
    // Branch 2 could not be asked, and waits for its turn.
    for again in 2..=5 {
        assert_eq!(
            acts(leader.commit(7, x, listed(&[1, 2])))[..1],
            [propose(again, vec![prepare(x, listed(&[1, 2]))])]
        );
        leader.hears(Event::Interrupted { proposal: ProposalId(again) });
    }
    assert_eq!(acts(leader.wakes(KEEP_EARLY_MS)), []);
    assert_eq!(leader.coordinator.held(), Held::default(), "nobody asks any more");
}

#[test]
fn an_interrupted_abort_of_what_has_ended_leaves_nothing_behind() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1]));
    leader.applies(&first);
    let lost = leader.wakes(2_000);
    assert!(matches!(lost[0], Effect::Propose { .. }));
    let votes = leader.voted(x, 1, READ_ONLY);
    leader.applies(&votes);
    assert_eq!(leader.hears(Event::Interrupted { proposal: ProposalId(2) }), []);
    assert_eq!(leader.coordinator.held(), Held::default());
}

#[test]
fn i18_a_thousand_transactions_leave_nothing_behind() {
    let mut leader = Leader::new();
    for n in 0..1_000 {
        let x = xid(n);
        let first = leader.commit(n, x, listed(&[1, 2]));
        leader.applies(&first);
        leader.hears(Event::NotAsked { branch: branch(x, 1), error: "no".to_owned() });
        let mut votes = leader.voted(x, 1, PREPARED);
        votes.extend(leader.voted(x, 2, if n % 3 == 0 { REFUSED } else { PREPARED }));
        leader.applies(&votes);
        leader.hears(Event::NotTold { branch: branch(x, 1), error: "no".to_owned() });
        for number in [1, 2] {
            let acknowledged = leader.acknowledged(x, number);
            leader.applies(&acknowledged);
        }
    }
    assert_eq!((leader.log.ledger.open_count(), leader.coordinator.held()), (0, Held::default()));
}
