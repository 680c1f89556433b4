//! The main paths, over three nodes in one process: real sockets, real files.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use support::{Cluster, RESOURCES};
use verdict_client::{Outcome, ReasonCode};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_takes_effect_once_everywhere() {
    let cluster = Cluster::start().await;
    let verdict = cluster.client();
    let mut booking = verdict.transaction();
    let branches: Vec<_> =
        RESOURCES.iter().map(|name| booking.add((*name).try_into().unwrap(), "work".into()).unwrap()).collect();
    let decision = booking.commit().await.unwrap();
    assert_eq!(decision.outcome, Outcome::Committed, "{decision:?}");
    for (name, branch) in RESOURCES.iter().zip(&branches) {
        cluster.wait_for("confirmed", |cluster| cluster.effects(name).confirmed.get(branch) == Some(&1)).await;
        assert!(cluster.effects(name).cancelled.is_empty());
    }
    // A repeat gets the same answer and has no effect.
    assert_eq!(booking.commit().await.unwrap(), decision);
    assert_eq!(cluster.effects("seats").confirmed.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_no_aborts_everywhere_with_its_reason() {
    let cluster = Cluster::start().await;
    let verdict = cluster.client();
    let mut booking = verdict.transaction();
    let seats = booking.add("seats".try_into().unwrap(), "work".into()).unwrap();
    booking.add("wallet".try_into().unwrap(), "no".into()).unwrap();
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_go_on_when_the_leader_stops() {
    let mut cluster = Cluster::start().await;
    let verdict = cluster.client();
    for round in 0..3 {
        let mut booking = verdict.transaction();
        for name in RESOURCES {
            booking.add(name.try_into().unwrap(), "work".into()).unwrap();
        }
        assert_eq!(booking.commit().await.unwrap().outcome, Outcome::Committed, "round {round}");
        let leader = cluster.leader().await;
        cluster.stop_node(leader).await;
        let begun = std::time::Instant::now();
        let mut booking = verdict.transaction();
        for name in RESOURCES {
            booking.add(name.try_into().unwrap(), "work".into()).unwrap();
        }
        assert_eq!(booking.commit().await.unwrap().outcome, Outcome::Committed, "round {round}, one node down");
        eprintln!("round {round}: committed {:?} after the leader stopped", begun.elapsed());
        cluster.start_node(leader).await;
    }
}
