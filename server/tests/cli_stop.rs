//! s66: a graceful stop hands the leadership over first and loses nothing, under load.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use support::{Cluster, RESOURCES, name};
use verdict_client::Outcome;

const STOPS: usize = 5;
const CLIENTS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s66_a_leader_that_is_asked_to_stop_hands_over_and_loses_nothing() {
    let mut cluster = Cluster::start().await;
    let (commits, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let verdict = cluster.client().with_deadline(Duration::from_secs(20));
            let (commits, over) = (Arc::clone(&commits), Arc::clone(&over));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let mut transaction = verdict.transaction();
                    for resource in RESOURCES {
                        transaction.add(name(resource), "work".into()).unwrap();
                    }
                    assert_eq!(transaction.commit().await.unwrap().outcome, Outcome::Committed);
                    commits.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();

    for _ in 0..STOPS {
        let leader = cluster.leader().await;
        let before = cluster.client_of(leader).cluster_status().await.unwrap();
        let status = cluster.stop(leader).await;
        assert!(status.success(), "{status}; {}", cluster.logs());
        let after = cluster.client_of(cluster.leader().await).cluster_status().await.unwrap();
        assert!(after.term > before.term && after.leader != Some(leader), "{before:?}, {after:?}");

        let more = commits.load(Ordering::Relaxed) + 20;
        cluster.wait_for("20 more commits", |_| commits.load(Ordering::Relaxed) >= more).await;
        cluster.start_node(leader);
        let by = Instant::now() + Duration::from_secs(20);
        let back = cluster.client_of(leader).with_deadline(Duration::from_millis(300));
        while !back.cluster_status().await.is_ok_and(|status| status.leader.is_some_and(|other| other != leader)) {
            assert!(Instant::now() < by, "it does not come back; {}", cluster.logs());
        }
    }
    over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    let logs = cluster.logs();
    assert!(!logs.contains("nobody took the leadership over"), "{logs}");

    // Each commit that was answered took effect at every participant, once.
    let answered = commits.load(Ordering::Relaxed);
    cluster
        .wait_for("all commits are settled", |cluster| {
            RESOURCES.iter().all(|resource| cluster.effects(resource).confirmed.len() == answered)
        })
        .await;
    for resource in RESOURCES {
        let effects = cluster.effects(resource);
        assert!(effects.confirmed.values().all(|times| *times == 1), "{resource}");
        assert!(effects.cancelled.is_empty(), "{resource}");
    }
}
