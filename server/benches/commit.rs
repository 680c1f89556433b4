//! Commits per second and latency of a three-node cluster: three `verdict serve` processes on loopback with real files,
//! three participants in this process whose databases are values in memory, so that only Verdict's own cost shows.
//!
//! `cargo bench -p verdict-server --bench commit -- [SECONDS]` prints, for 1, 16 and 64 clients, commits per second,
//! p50 and p99, and what each transaction cost the nodes: log entries, fdatasyncs of all three, processor time.

#![allow(clippy::unwrap_used, reason = "a benchmark")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use support::{Cluster, RESOURCES};
use verdict_client::{Outcome, Verdict};

const CLIENTS: [usize; 3] = [1, 16, 64];

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let seconds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(5);
    let cluster = Cluster::start().await;
    let verdict = cluster.client();
    run(&verdict, 16, Duration::from_secs(1)).await;
    println!("clients  commits/s  p50 ms  p99 ms  entries/tx  cpu ms/tx");
    for clients in CLIENTS {
        let before = (cluster.last_index().await, cluster.cpu());
        let begun = Instant::now();
        let histogram = run(&verdict, clients, Duration::from_secs(seconds)).await;
        let elapsed = begun.elapsed().as_secs_f64();
        let after = (cluster.last_index().await, cluster.cpu());
        let commits = histogram.len() as f64;
        println!(
            "{clients:>7}  {:>9.0}  {:>6.2}  {:>6.2}  {:>10.2}  {:>9.2}",
            commits / elapsed,
            histogram.value_at_quantile(0.5) as f64 / 1000.0,
            histogram.value_at_quantile(0.99) as f64 / 1000.0,
            (after.0 - before.0) as f64 / commits,
            (after.1 - before.1).as_secs_f64() * 1000.0 / commits,
        );
    }
}

/// Commits as fast as so many clients can; the latencies in microseconds.
async fn run(verdict: &Verdict, clients: usize, how_long: Duration) -> Histogram<u64> {
    let over = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..clients)
        .map(|_| {
            let (verdict, over) = (verdict.clone(), Arc::clone(&over));
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let mut transaction = verdict.transaction();
                    for resource in RESOURCES {
                        transaction.add(resource.try_into().unwrap(), "count".into()).unwrap();
                    }
                    let begun = Instant::now();
                    let decision = transaction.commit().await.unwrap();
                    assert_eq!(decision.outcome, Outcome::Committed, "{decision:?}");
                    latencies.push(u64::try_from(begun.elapsed().as_micros()).unwrap());
                }
                latencies
            })
        })
        .collect();
    tokio::time::sleep(how_long).await;
    over.store(true, Ordering::Relaxed);
    let mut histogram = Histogram::new(3).unwrap();
    for worker in workers {
        for latency in worker.await.unwrap() {
            histogram.record(latency).unwrap();
        }
    }
    histogram
}
