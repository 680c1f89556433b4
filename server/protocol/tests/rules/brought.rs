//! Branches that their client prepares and settles itself, and who may speak for a branch.

use verdict_protocol::{
    BranchId, Brought, Credential, Event, Held, Ledger, ListedBranch, Outcome, Refusal, Reply, Request, Secret, State,
    Xid,
};

use crate::build::*;

fn unproven(numbers: &[u32]) -> Vec<ListedBranch> {
    let brought = || Some(Brought { proven: false, ..brought(PREPARED) });
    numbers.iter().map(|number| ListedBranch { branch: new(*number), vote: brought() }).collect()
}

#[test]
fn a_vote_for_a_branch_that_somebody_enlisted_takes_its_credential() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(enlist(x, &[1, 2]));
    let forbidden = Err(Refusal::Forbidden { number: 2 });
    assert_eq!(log.apply(prepare(x, [voted(&[(1, PREPARED)]), unproven(&[2])].concat())), forbidden);
    // Who tried it takes nothing from the one who may.
    assert_eq!(log.ledger.status(x).state, State::Active);
    assert!(!log.ledger.would_close(x, &unproven(&[2]), None, None));
    log.ok(prepare(x, voted(&[(1, PREPARED), (2, PREPARED)])));
    assert_eq!(log.outcome(x), Some(Outcome::Committed));
    // A repeat is one, whoever sends it: the recorded votes stand.
    log.ok(prepare(x, unproven(&[1, 2])));
}

#[test]
fn a_branch_that_nobody_enlisted_is_its_clients_own() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, unproven(&[1, 2])));
    assert_eq!(log.outcome(x), Some(Outcome::Committed));
}

#[test]
fn a_credential_is_of_one_branch_in_one_cluster() {
    let (log, x) = (Log::new(), xid(1));
    let own = log.ledger.credential(branch(x, 1)).unwrap();
    assert!(log.ledger.admits(branch(x, 1), &own));
    assert!(!log.ledger.admits(branch(x, 2), &own) && !log.ledger.admits(branch(xid(2), 1), &own));
    assert!(!Secret([8; 32]).admits(branch(x, 1), &own));
    let mut bytes = *own.as_bytes();
    bytes[15] ^= 1;
    assert!(!log.ledger.admits(branch(x, 1), &Credential::from_slice(&bytes).unwrap()));
    assert_eq!(Credential::from_slice(&bytes[..15]), None);
    let unfounded = Ledger::new();
    assert!(unfounded.credential(branch(x, 1)).is_none() && !unfounded.admits(branch(x, 1), &own));
}

/// HMAC-SHA256 over the xid's 16 bytes and the number's 4, big-endian, cut in half.
#[test]
fn credentials_are_the_same_in_every_version() {
    let branch = BranchId { xid: Xid::parse("018bcfe5-687b-7000-8000-000000000001").unwrap(), number: 7 };
    let credential = Secret([9; 32]).credential(branch);
    let hex: String = credential.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "271ac4a97f743e63899a91a8b24eddd3");
}

/// Two branches whose votes came along, decided at 0.
fn leader_with_brought() -> (Leader, Xid) {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, voted(&[(1, PREPARED), (2, PREPARED)]));
    let outcome = acts(leader.applies(&first));
    assert_eq!(outcome, [decided(7, x, leader.outcome(x))], "nobody is told yet");
    (leader, x)
}

fn report(xid: Xid, numbers: &[u32]) -> Request {
    let branches = numbers.iter().map(|number| (*number, verdict_protocol::Settlement::Done)).collect();
    Request::ReportSettled { xid, branches }
}

#[test]
fn what_the_client_has_settled_is_told_to_nobody() {
    let (mut leader, x) = leader_with_brought();
    leader.log.now = at(300);
    let reported = leader.asked(8, report(x, &[1, 2]));
    assert_eq!(acts(reported.clone()), [later(x, 1), later(x, 2), reply(8, Reply::Done { xid: x })]);
    assert_eq!(acts(leader.applies(&reported)), []);
    assert_eq!((leader.log.ledger.open_count(), leader.coordinator.held()), (0, Held::default()));
    assert_eq!(acts(leader.asked(9, report(x, &[1]))), [reply(9, Reply::Done { xid: x })], "a repeat");
}

#[test]
fn what_it_has_not_settled_within_the_grace_is_told() {
    let (mut leader, x) = leader_with_brought();
    let reported = leader.asked(8, report(x, &[2]));
    leader.applies(&reported);
    assert_eq!(acts(leader.wakes(799)), []);
    let outcome = leader.outcome(x);
    assert_eq!(acts(leader.wakes(800)), [tell(x, 1, outcome)]);
}

#[test]
fn a_report_that_the_log_lost_is_made_up_for_by_telling() {
    let (mut leader, x) = leader_with_brought();
    let lost = leader.asked(8, report(x, &[1, 2]));
    assert!(lost.contains(&later(x, 1)));
    let outcome = leader.outcome(x);
    assert_eq!(acts(leader.wakes(4_999)), []);
    assert_eq!(acts(leader.wakes(5_000)), [tell(x, 1, outcome), tell(x, 2, outcome)]);
}

#[test]
fn a_new_leader_gives_the_client_its_grace_anew() {
    let (old, x) = leader_with_brought();
    let mut log = old.log;
    log.now = at(600);
    let (mut leader, effects) = Leader::of(log);
    assert_eq!(acts(effects), []);
    let outcome = leader.outcome(x);
    assert_eq!(acts(leader.wakes(1_399)), []);
    assert_eq!(acts(leader.wakes(1_400)), [tell(x, 1, outcome), tell(x, 2, outcome)]);
}

#[test]
fn a_branch_that_votes_again_after_the_decision_does_not_wait_for_its_client() {
    let (mut leader, x) = leader_with_brought();
    let again = leader.asked(8, Request::Vote { branch: branch(x, 1), vote: PREPARED, reason: None });
    let outcome = leader.outcome(x);
    assert!(leader.applies(&again).contains(&tell(x, 1, outcome)));
}

#[test]
fn nothing_is_settled_that_is_not_decided() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let refused = |refusal| [reply(8, Reply::Refused(refusal))];
    assert_eq!(acts(leader.asked(8, report(x, &[1]))), refused(Refusal::UnknownTransaction));
    leader.log.ok(enlist(x, &[1]));
    assert_eq!(acts(leader.asked(8, report(x, &[1]))), refused(Refusal::Undecided));
    let first = leader.commit(7, x, listed(&[1]));
    leader.applies(&first);
    assert_eq!(acts(leader.asked(8, report(x, &[1]))), refused(Refusal::Undecided));
    leader.log.clock(60_000);
    assert_eq!(acts(leader.asked(8, report(xid(2), &[1]))), refused(Refusal::Expired));
}

#[test]
fn a_branch_that_the_cluster_asked_may_report_too() {
    let (mut leader, x) = (Leader::new(), xid(1));
    let first = leader.commit(7, x, listed(&[1]));
    leader.applies(&first);
    let votes = leader.voted(x, 1, PREPARED);
    leader.applies(&votes);
    // It is being told; its own call comes first, then the answer to the telling.
    let reported = leader.asked(8, report(x, &[1]));
    assert!(reported.contains(&later(x, 1)));
    leader.applies(&reported);
    assert_eq!(acts(leader.hears(Event::Acknowledged { branch: branch(x, 1), settlement: settlement() })), []);
    assert_eq!(leader.coordinator.held(), Held::default());
}

fn settlement() -> verdict_protocol::Settlement {
    verdict_protocol::Settlement::Done
}
