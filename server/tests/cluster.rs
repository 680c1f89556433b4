//! The main paths over three processes: commit, refusal, read-only, rollback, enlisting, deadline, any node.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::time::Duration;

use support::{Cluster, Gates, RESOURCES, name};
use verdict_client::{CallError, Outcome, ReasonCode, State};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_takes_effect_once_everywhere() {
    let cluster = Cluster::start().await;
    for node in cluster.nodes.keys() {
        let verdict = cluster.client_of(*node);
        let mut booking = verdict.transaction();
        let branches: Vec<_> =
            RESOURCES.iter().map(|resource| booking.add(name(resource), "work".into()).unwrap()).collect();
        let decision = booking.commit().await.unwrap();
        assert_eq!(decision.outcome, Outcome::Committed, "{decision:?}");
        for (resource, branch) in RESOURCES.iter().zip(&branches) {
            cluster.wait_for("confirmed", |cluster| cluster.effects(resource).confirmed.contains_key(branch)).await;
        }
        // A repeat gets the same answer and has no effect.
        assert_eq!(booking.commit().await.unwrap(), decision);
        let effects = cluster.effects("seats");
        assert_eq!((effects.confirmed[&branches[0]], effects.reserved[&branches[0]]), (1, 1));
        assert!(effects.cancelled.is_empty());
        let leader = cluster.leader().await;
        assert_eq!(verdict.cluster_status().await.unwrap().leader, Some(leader), "any node says who leads");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outcome_follows_the_votes() {
    let cluster = Cluster::start().await;
    let verdict = cluster.client();

    // One no aborts everywhere, with its reason.
    let mut booking = verdict.transaction();
    let seats = booking.add(name("seats"), "work".into()).unwrap();
    booking.add(name("wallet"), "no".into()).unwrap();
    let decision = booking.commit().await.unwrap();
    assert_eq!(decision.outcome, Outcome::Aborted);
    let reason = decision.reason.unwrap();
    assert_eq!((reason.code, reason.text.as_str()), (ReasonCode::Refused, "told to say no"));
    cluster
        .wait_for("cancelled", |cluster| {
            let effects = cluster.effects("seats");
            effects.reserved.get(&seats) == effects.cancelled.get(&seats)
        })
        .await;
    assert!(cluster.effects("seats").confirmed.is_empty());

    // Read-only branches are out of phase two; enlisted and listed branches are one list.
    let mut booking = verdict.begin(Duration::from_secs(30)).await.unwrap();
    booking.enlist(name("seats"), "read".into()).await.unwrap();
    let tickets = booking.add(name("tickets"), "work".into()).unwrap();
    assert_eq!(verdict.get(booking.xid()).await.unwrap().state, State::Active);
    assert_eq!(booking.commit().await.unwrap().outcome, Outcome::Committed);
    cluster.wait_for("confirmed", |cluster| cluster.effects("tickets").confirmed.contains_key(&tickets)).await;
    assert!(cluster.effects("seats").confirmed.is_empty());

    // A rollback holds against a later commit.
    let mut booking = verdict.begin(Duration::from_secs(30)).await.unwrap();
    booking.enlist(name("wallet"), "work".into()).await.unwrap();
    assert_eq!(booking.rollback("changed my mind").await.unwrap().outcome, Outcome::Aborted);
    let decision = booking.commit().await.unwrap();
    assert_eq!(decision.outcome, Outcome::Aborted);
    assert_eq!(decision.reason.unwrap().text, "changed my mind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_participant_aborts_at_the_deadline_and_is_told_when_it_is_back() {
    let gates = Gates::new();
    let cluster = Cluster::start_with(&gates.wrap()).await;
    let verdict = cluster.client();
    gates.prepare("wallet").close();
    let mut booking = verdict.transaction();
    booking.set_vote_timeout(Duration::from_secs(1));
    let seats = booking.add(name("seats"), "work".into()).unwrap();
    let wallet = booking.add(name("wallet"), "work".into()).unwrap();
    let decision = booking.commit().await.unwrap();
    assert_eq!(decision.outcome, Outcome::Aborted);
    let reason = decision.reason.unwrap();
    assert_eq!(reason.code, ReasonCode::Deadline);
    assert!(reason.text.contains("wallet"), "{}", reason.text);
    cluster.wait_for("seats are given back", |cluster| cluster.effects("seats").cancelled.contains_key(&seats)).await;
    // The late prepare finds a tombstone, or is undone.
    gates.prepare("wallet").open();
    cluster
        .wait_for("the wallet holds nothing", |cluster| {
            let effects = cluster.effects("wallet");
            effects.reserved.get(&wallet) == effects.cancelled.get(&wallet)
        })
        .await;
    assert!(cluster.effects("wallet").confirmed.is_empty());

    // One that was begun and forgotten ends by its timeout.
    let mut left = verdict.begin(Duration::from_millis(500)).await.unwrap();
    left.enlist(name("seats"), "work".into()).await.unwrap();
    let by = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(decision) = verdict.get(left.xid()).await.unwrap().decision {
            assert_eq!(decision.reason.unwrap().code, ReasonCode::Timeout);
            break;
        }
        assert!(tokio::time::Instant::now() < by, "still open after 20 s");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_answered_and_nothing_is_lost() {
    let mut cluster = Cluster::start().await;
    let leader = cluster.leader().await;
    let followers: Vec<u64> = cluster.nodes.keys().copied().filter(|node| *node != leader).collect();
    for node in &followers {
        cluster.kill(*node);
    }
    let verdict = cluster.client().with_deadline(Duration::from_secs(6));
    let mut booking = verdict.transaction();
    booking.set_vote_timeout(Duration::from_secs(2));
    let seats = booking.add(name("seats"), "work".into()).unwrap();
    let unknown = booking.commit().await.unwrap_err();
    assert!(matches!(unknown, CallError::Unknown { .. }), "{unknown}");
    for node in followers {
        cluster.start_node(node);
    }
    let decision = booking.commit().await.unwrap();
    match decision.outcome {
        Outcome::Committed => {
            cluster.wait_for("sold", |cluster| cluster.effects("seats").confirmed.contains_key(&seats)).await;
        }
        // It was logged while nobody answered, and its time was over when the others came back.
        Outcome::Aborted => {
            assert_eq!(decision.reason.unwrap().code, ReasonCode::Deadline);
            cluster.wait_for("free", |cluster| cluster.effects("seats").cancelled.contains_key(&seats)).await;
        }
    }
}
