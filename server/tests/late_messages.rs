//! What other systems got wrong with late, repeated and overtaking messages, over three real nodes. The numbers are those
//! of the faults as they were reported.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::time::Duration;

use support::{Cluster, Effects, Gates, Troubles, name};
use tokio::time::Instant;
use verdict_client::{
    BranchId, LogTime, Order, Outcome, ReasonCode, RefusalCode, Settlement, State, Verdict, Vote, Xid,
    participant::{Prepare, ResourceManager, Stamp, rules::Record},
    resource::memory::MemoryManager,
};

const PATIENCE: Duration = Duration::from_secs(30);

async fn until(verdict: &Verdict, xid: Xid, what: &str, holds: impl Fn(&verdict_client::TransactionStatus) -> bool) {
    let by = Instant::now() + PATIENCE;
    loop {
        let status = verdict.get(xid).await.unwrap();
        if holds(&status) {
            return;
        }
        assert!(Instant::now() < by, "not within 30 s: {what}: {status:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A prepare that was long under way arrives at a participant.
async fn late_prepare(cluster: &Cluster, resource: &str, branch: BranchId) -> Vote {
    let status = cluster.client().cluster_status().await.unwrap();
    let stamp = Stamp {
        cluster: status.cluster.unwrap(),
        incarnation: status.incarnation,
        term: status.term,
        horizon: LogTime::default(),
    };
    let manager: MemoryManager<Effects> = cluster.participants[resource].open();
    let (resource, payload, vote_timeout) = (name(resource), "work".into(), Duration::from_secs(1));
    let voted = manager.prepare(Prepare { stamp, branch, resource, payload, vote_timeout, credential: None }).await;
    voted.unwrap().vote
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s22_a_prepare_and_a_commit_that_are_retried_after_the_commit() {
    let troubles = Troubles::default();
    let cluster = Cluster::start_with(&troubles.at("seats")).await;
    let verdict = cluster.client();
    let mut booking = verdict.transaction();
    let seats = booking.add(name("seats"), "work".into()).unwrap();
    let decision = booking.commit().await.unwrap();
    until(&verdict, booking.xid(), "ended", |status| status.state == State::Ended).await;
    for _ in 0..3 {
        assert_eq!(booking.commit().await.unwrap(), decision, "no false error, and no second decision");
    }
    assert_eq!(late_prepare(&cluster, "seats", seats).await, Vote::Prepared, "the promise was given, and kept");
    assert_eq!((troubles.prepares(), troubles.commits()), (1, 1), "the leader asks nobody again");
    let effects = cluster.effects("seats");
    assert_eq!((effects.reserved[&seats], effects.confirmed[&seats]), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s24_an_error_of_a_participant_that_fails_over_is_no_acknowledgement() {
    let troubles = Troubles::default();
    let cluster = Cluster::start_with(&troubles.at("wallet")).await;
    let verdict = cluster.client();
    troubles.fail_commits(true);
    let mut booking = verdict.transaction();
    let seats = booking.add(name("seats"), "work".into()).unwrap();
    let wallet = booking.add(name("wallet"), "work".into()).unwrap();
    assert_eq!(booking.commit().await.unwrap().outcome, Outcome::Committed, "its promise was enough");
    cluster.wait_for("told again and again", |_| troubles.commits() >= 4).await;
    let status = verdict.get(booking.xid()).await.unwrap();
    assert_eq!(status.state, State::Decided, "it is not over: {status:?}");
    assert_eq!(status.branches[1].settlement, None);
    assert!(status.branches[1].last_error.contains("failing over"), "{:?}", status.branches[1]);
    assert!(!cluster.effects("wallet").confirmed.contains_key(&wallet));

    troubles.fail_commits(false);
    until(&verdict, booking.xid(), "ended", |status| status.state == State::Ended).await;
    assert_eq!(cluster.effects("wallet").confirmed[&wallet], 1);
    assert_eq!(cluster.effects("seats").confirmed[&seats], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s25_a_promise_that_its_database_has_dropped_is_damage_and_no_success() {
    let troubles = Troubles::default();
    let cluster = Cluster::start_with(&troubles.at("wallet")).await;
    let verdict = cluster.client();
    troubles.reap();
    let mut booking = verdict.transaction();
    booking.add(name("seats"), "work".into()).unwrap();
    let wallet = booking.add(name("wallet"), "work".into()).unwrap();
    assert_eq!(booking.commit().await.unwrap().outcome, Outcome::Committed);
    let hazard = |status: &verdict_client::TransactionStatus| {
        status.branches.get(1).is_some_and(|branch| branch.settlement == Some(Settlement::HeuristicHazard))
    };
    until(&verdict, booking.xid(), "reported", hazard).await;
    let told = troubles.commits();
    let mut other = verdict.transaction();
    other.add(name("seats"), "work".into()).unwrap();
    other.commit().await.unwrap();
    until(&verdict, other.xid(), "ended", |status| status.state == State::Ended).await;
    let status = verdict.get(booking.xid()).await.unwrap();
    assert_eq!(status.state, State::Decided, "it stays until an operator has seen it: {status:?}");
    assert_eq!((told, troubles.commits()), (1, 1), "nobody hopes that it will do better next time");
    assert!(!cluster.effects("wallet").confirmed.contains_key(&wallet));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s26_a_rollback_that_overtakes_the_first_request_leaves_no_orphan() {
    let troubles = Troubles::default();
    let cluster = Cluster::start_with(&troubles.at("seats")).await;
    let verdict = cluster.client();
    let mut booking = verdict.transaction();
    let given_up = verdict.resume(booking.xid()).rollback("the customer left").await.unwrap();
    assert_eq!(given_up.outcome, Outcome::Aborted);
    let late = booking.enlist(name("seats"), "work".into()).await;
    assert!(matches!(&late, Err(error) if error.code() == Some(RefusalCode::Closed)), "{late:?}");
    let decision = booking.commit().await.unwrap();
    assert_eq!((decision.outcome, decision.log_index), (Outcome::Aborted, given_up.log_index), "{decision:?}");
    let status = verdict.get(booking.xid()).await.unwrap();
    assert_eq!((status.state, status.branches.len()), (State::Ended, 0), "nothing is left of it: {status:?}");
    assert_eq!(troubles.prepares(), 0);
    assert!(cluster.effects("seats").reserved.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s28_two_leaders_that_drive_one_transaction_have_one_effect() {
    let gates = Gates::new();
    let mut cluster = Cluster::start_with(&gates.wrap()).await;
    gates.commit("wallet").close();
    let mut booking = cluster.client().with_deadline(PATIENCE).transaction();
    let wallet = booking.add(name("wallet"), "work".into()).unwrap();
    assert_eq!(booking.commit().await.unwrap().outcome, Outcome::Committed);
    gates.commit("wallet").arrived(1).await;
    // It still waits for its answer when the next leader tells the branch too.
    let leader = cluster.leader().await;
    cluster.pause(leader, true);
    gates.commit("wallet").arrived(2).await;
    cluster.pause(leader, false);
    gates.commit("wallet").open();
    let verdict = cluster.client().with_deadline(PATIENCE);
    until(&verdict, booking.xid(), "ended", |status| status.state == State::Ended).await;
    cluster.kill(leader);
    cluster.start_node(leader);
    assert_eq!(booking.commit().await.unwrap().outcome, Outcome::Committed);
    let effects = cluster.effects("wallet");
    assert_eq!((effects.reserved[&wallet], effects.confirmed[&wallet]), (1, 1));
    assert!(effects.cancelled.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s29_a_prepare_that_lands_after_the_rollback_locks_nothing() {
    let gates = Gates::new();
    let cluster = Cluster::start_with(&gates.wrap()).await;
    let verdict = cluster.client();
    gates.prepare("seats").close();
    let mut booking = verdict.transaction();
    booking.set_vote_timeout(Duration::from_millis(500));
    let seats = booking.add(name("seats"), "work".into()).unwrap();
    let wallet = booking.add(name("wallet"), "work".into()).unwrap();
    let decision = booking.commit().await.unwrap();
    assert_eq!(decision.reason.map(|reason| reason.code), Some(ReasonCode::Deadline));
    gates.prepare("seats").arrived(1).await;
    let rolled_back = |cluster: &Cluster| cluster.participants["seats"].record(seats) == Some(Record::RolledBack);
    cluster.wait_for("a tombstone", rolled_back).await;
    until(&verdict, booking.xid(), "ended", |status| status.state == State::Ended).await;

    gates.prepare("seats").open();
    // Whether the one that was held up is through by now or not: all that come are refused.
    assert_eq!(late_prepare(&cluster, "seats", seats).await, Vote::Refused);
    let mut next = verdict.transaction();
    let after = next.add(name("seats"), "work".into()).unwrap();
    assert_eq!(next.commit().await.unwrap().outcome, Outcome::Committed, "nothing is locked");
    let effects = cluster.effects("seats");
    assert_eq!((effects.reserved.get(&seats), effects.reserved.get(&after)), (None, Some(&1)));
    assert_eq!(cluster.effects("wallet").cancelled.get(&wallet), Some(&1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s30_a_branch_that_registers_after_the_rollback_is_refused_and_its_locks_go() {
    let cluster = Cluster::start().await;
    let verdict = cluster.client();
    let mut booking = verdict.begin(Duration::from_secs(60)).await.unwrap();
    booking.enlist(name("seats"), "work".into()).await.unwrap();
    let mut service = verdict.resume(booking.xid());
    assert_eq!(booking.rollback("the customer left").await.unwrap().outcome, Outcome::Aborted);
    let late = service.enlist_as(7, name("wallet"), "work".into()).await;
    assert!(matches!(&late, Err(error) if error.code() == Some(RefusalCode::Closed)), "{late:?}");

    // It has promised all the same: it asks, hears that it is aborted, and lets go.
    let wallet = BranchId { xid: booking.xid(), number: 7 };
    assert_eq!(late_prepare(&cluster, "wallet", wallet).await, Vote::Prepared);
    let order = verdict.inquire(wallet, Duration::ZERO).await.unwrap();
    assert!(matches!(order, Order::Rollback(_)), "{order:?}");
    cluster.wait_for("its locks are gone", |cluster| cluster.effects("wallet").cancelled.contains_key(&wallet)).await;
    assert_eq!(cluster.participants["wallet"].record(wallet), Some(Record::RolledBack));
    assert!(cluster.effects("wallet").confirmed.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s32_a_transaction_that_times_out_before_its_prepare_leaves_no_orphan_and_is_not_done() {
    let cluster = Cluster::start().await;
    let verdict = cluster.client();
    let mut booking = verdict.begin(Duration::from_millis(700)).await.unwrap();
    let seats = booking.enlist(name("seats"), "work".into()).await.unwrap().branch;
    until(&verdict, booking.xid(), "timed out and released", |status| status.state == State::Ended).await;
    assert_eq!(cluster.participants["seats"].record(seats), Some(Record::RolledBack), "its branch was told");

    let decision = booking.commit().await.unwrap();
    assert_eq!(decision.outcome, Outcome::Aborted, "not a false done");
    assert_eq!(decision.reason.map(|reason| reason.code), Some(ReasonCode::Timeout));
    assert_eq!(late_prepare(&cluster, "seats", seats).await, Vote::Refused, "no orphan");
    let effects = cluster.effects("seats");
    assert!(effects.reserved.is_empty() && effects.confirmed.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s60_a_no_is_not_asked_again_and_an_error_is() {
    let troubles = Troubles::default();
    let cluster = Cluster::start_with(&troubles.at("wallet")).await;
    let verdict = cluster.client();
    let mut booking = verdict.transaction();
    booking.add(name("seats"), "work".into()).unwrap();
    booking.add(name("wallet"), "no".into()).unwrap();
    let decision = booking.commit().await.unwrap();
    assert_eq!(decision.reason.map(|reason| reason.code), Some(ReasonCode::Refused));
    until(&verdict, booking.xid(), "ended", |status| status.state == State::Ended).await;
    assert_eq!((troubles.prepares(), troubles.commits()), (1, 0));

    troubles.fail_prepares(4);
    let mut booking = verdict.with_deadline(PATIENCE).transaction();
    let wallet = booking.add(name("wallet"), "work".into()).unwrap();
    let begun = Instant::now();
    assert_eq!(booking.commit().await.unwrap().outcome, Outcome::Committed);
    assert_eq!(troubles.prepares(), 1 + 5, "four errors and an answer; the no was asked once");
    // At least half of 50 + 100 + 200 + 400 ms.
    assert!(begun.elapsed() >= Duration::from_millis(375), "with backoff: {:?}", begun.elapsed());
    cluster.wait_for("confirmed", |cluster| cluster.effects("wallet").confirmed.contains_key(&wallet)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s21_a_rollback_that_comes_after_the_votes_hears_committed() {
    let gates = Gates::new();
    let cluster = Cluster::start_with(&gates.wrap()).await;
    gates.commit("seats").close();
    let verdict = cluster.client();
    let mut booking = verdict.transaction();
    let seats = booking.add(name("seats"), "work".into()).unwrap();
    let decision = booking.commit().await.unwrap();
    assert_eq!(booking.rollback("too slow").await.unwrap(), decision, "COMMITTED stands");
    gates.commit("seats").open();
    cluster.wait_for("confirmed", |cluster| cluster.effects("seats").confirmed.contains_key(&seats)).await;
    assert!(cluster.effects("seats").cancelled.is_empty());
}
