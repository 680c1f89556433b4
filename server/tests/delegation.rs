//! One branch that decides: in one phase, as a last resource, and over the death of the leader that asked it.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::time::Duration;

use support::{Cluster, Gates, name};
use verdict_client::{CallError, Outcome, State};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_branch_commits_in_one_phase() {
    let cluster = Cluster::start().await;
    let verdict = cluster.client();
    let before = cluster.last_index().await;
    let mut booking = verdict.transaction();
    let seats = booking.add(name("seats"), "work".into()).unwrap();
    booking.decided_by(seats.number);
    let decision = booking.commit().await.unwrap();
    assert_eq!(decision.outcome, Outcome::Committed, "{decision:?}");
    let effects = cluster.effects("seats");
    assert_eq!((effects.reserved[&seats], effects.confirmed[&seats]), (1, 1), "before anybody was told");
    assert_eq!(booking.commit().await.unwrap(), decision);
    assert_eq!(verdict.get(booking.xid()).await.unwrap().state, State::Ended, "there is nobody to settle");
    // The list, its conclusion, and the repeated commit.
    assert!(cluster.last_index().await <= before + 3);

    let mut booking = verdict.transaction();
    let seats = booking.add(name("seats"), "no".into()).unwrap();
    booking.decided_by(seats.number);
    let decision = booking.commit().await.unwrap();
    assert_eq!((decision.outcome, decision.reason.unwrap().source_code.as_str()), (Outcome::Aborted, "E42"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_last_resource_is_asked_when_all_others_have_promised() {
    let gates = Gates::new();
    let cluster = Cluster::start_with(&gates.wrap()).await;
    let verdict = cluster.client();
    gates.prepare("seats").close();
    let mut booking = verdict.transaction();
    let seats = booking.add(name("seats"), "work".into()).unwrap();
    let wallet = booking.add(name("wallet"), "work".into()).unwrap();
    booking.decided_by(wallet.number);
    let xid = booking.xid();
    let commit = tokio::spawn(async move { booking.commit().await });
    gates.prepare("seats").arrived(1).await;
    while verdict.get(xid).await.unwrap().state != State::Voting {}
    assert!(cluster.effects("wallet").reserved.is_empty(), "it is not asked before");
    gates.prepare("seats").open();
    assert_eq!(commit.await.unwrap().unwrap().outcome, Outcome::Committed);
    assert_eq!(cluster.effects("wallet").confirmed[&wallet], 1);
    cluster.wait_for("confirmed", |cluster| cluster.effects("seats").confirmed.contains_key(&seats)).await;

    // One no of the others, and it is never asked.
    let mut booking = verdict.transaction();
    booking.add(name("seats"), "no".into()).unwrap();
    let wallet = booking.add(name("wallet"), "work".into()).unwrap();
    booking.decided_by(wallet.number);
    assert_eq!(booking.commit().await.unwrap().outcome, Outcome::Aborted);
    assert!(!cluster.effects("wallet").reserved.contains_key(&wallet));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m50_nothing_but_the_delegate_decides_and_the_next_leader_asks_it_again() {
    let gates = Gates::new();
    let mut cluster = Cluster::start_with(&gates.wrap()).await;
    let verdict = cluster.client();
    gates.commit("wallet").close();
    let mut booking = verdict.with_deadline(Duration::from_secs(30)).transaction();
    booking.set_vote_timeout(Duration::from_millis(500));
    let seats = booking.add(name("seats"), "work".into()).unwrap();
    let wallet = booking.add(name("wallet"), "work".into()).unwrap();
    booking.decided_by(wallet.number);
    let xid = booking.xid();
    let commit = tokio::spawn(async move { booking.commit().await });
    gates.commit("wallet").arrived(1).await;

    let impatient = verdict.with_deadline(Duration::from_secs(1)).resume(xid);
    let given_up = impatient.rollback("it takes too long").await;
    assert!(matches!(given_up, Err(CallError::Unknown { .. })), "no rollback, and no deadline: {given_up:?}");
    assert_eq!(verdict.get(xid).await.unwrap().state, State::Delegated);

    let leader = cluster.leader().await;
    cluster.kill(leader);
    let next = cluster.leader().await;
    assert_ne!(next, leader);
    assert_eq!(verdict.get(xid).await.unwrap().state, State::Delegated, "the log says so");
    gates.commit("wallet").open();
    // The first question may get there before the fence that came after the deadline, or not: either way one outcome.
    let decision = commit.await.unwrap().unwrap();
    let committed = decision.outcome == Outcome::Committed;
    cluster
        .wait_for("settled", |cluster| {
            let effects = cluster.effects("seats");
            effects.confirmed.contains_key(&seats) == committed && effects.cancelled.contains_key(&seats) != committed
        })
        .await;
    assert_eq!(cluster.effects("wallet").confirmed.get(&wallet), committed.then_some(&1), "{decision:?}");
}
