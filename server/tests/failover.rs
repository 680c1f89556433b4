//! How long nothing commits when the leader is killed: 20 kills under load, the distribution printed.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use support::{Cluster, RESOURCES, name};
use verdict_client::Outcome;

const KILLS: usize = 20;
const CLIENTS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_kill_the_cluster_commits_again_within_a_second() {
    let mut cluster = Cluster::start().await;
    let commits = Arc::new(Mutex::new(Vec::new()));
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let verdict = cluster.client().with_deadline(Duration::from_secs(20));
            let (commits, over) = (Arc::clone(&commits), Arc::clone(&over));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let mut transaction = verdict.transaction();
                    for resource in RESOURCES {
                        transaction.add(name(resource), "count".into()).unwrap();
                    }
                    let begun = Instant::now();
                    // Voting goes on over the loss of the leader: nothing aborts.
                    assert_eq!(transaction.commit().await.unwrap().outcome, Outcome::Committed);
                    commits.lock().unwrap().push(begun);
                }
            })
        })
        .collect();

    let mut gaps = Vec::new();
    let mut terms = BTreeSet::new();
    for _ in 0..KILLS {
        let leader = cluster.leader().await;
        terms.insert(cluster.client_of(leader).cluster_status().await.unwrap().term);
        cluster.kill(leader);
        let killed = Instant::now();
        // The first that was begun after the kill and has committed.
        let fresh = || commits.lock().unwrap().iter().any(|begun| *begun > killed);
        while !fresh() {
            assert!(killed.elapsed() < Duration::from_secs(20), "no commit for 20 s; {}", cluster.logs());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        gaps.push(killed.elapsed());
        cluster.start_node(leader);
        let caught_up = commits.lock().unwrap().len() + 50;
        cluster.wait_for("50 more commits", |_| commits.lock().unwrap().len() >= caught_up).await;
    }
    over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }

    gaps.sort_unstable();
    let milliseconds: Vec<u128> = gaps.iter().map(Duration::as_millis).collect();
    println!("from kill -9 of the leader to the next commit, {KILLS} times, ms: {milliseconds:?}");
    println!(
        "{} commits; elections besides those of the kills: {}",
        commits.lock().unwrap().len(),
        terms.len() - KILLS
    );
    let within = gaps.iter().filter(|gap| **gap <= Duration::from_secs(1)).count();
    assert!(within >= KILLS - 1, "only {within} of {KILLS} within a second: {milliseconds:?}");
}
