//! Three replicas in one process on real disks: proposals a second, their latency, and how long no leader serves
//! after the leader went silent, idle and with all processors busy.
//!
//! `cargo bench -p verdict-raft-log --bench replica`

#[cfg(not(madsim))]
#[path = "../tests/support/mod.rs"]
mod support;

#[cfg(madsim)]
fn main() {}

#[cfg(not(madsim))]
fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(real::run());
}

#[cfg(not(madsim))]
mod real {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use bytes::Bytes;
    use futures_util::future::join_all;
    use verdict_raft_log::ProposeError;

    use super::support::cluster::Cluster;
    use super::support::leader;

    const ENTRY: usize = 1000;

    pub(super) async fn run() {
        for in_flight in [1, 4, 16, 64] {
            throughput(in_flight).await;
        }
        failovers("idle", 0).await;
        failovers("4 busy threads", 4).await;
        calm().await;
    }

    fn quantile(sorted: &[Duration], q: f64) -> Duration {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "an index into a short list"
        )]
        let at = ((sorted.len() - 1) as f64 * q).round() as usize;
        sorted[at]
    }

    async fn throughput(in_flight: usize) {
        let cluster = Cluster::on_real_disks(|_| {}).await;
        let leads = leader(&cluster.replicas).await;
        let start = Instant::now();
        let proposer = || async {
            let mut took = Vec::new();
            while start.elapsed() < Duration::from_secs(3) {
                let before = Instant::now();
                if leads.propose(Bytes::from(vec![1; ENTRY])).await.is_ok() {
                    took.push(before.elapsed());
                }
            }
            took
        };
        let mut took = join_all((0..in_flight).map(|_| proposer())).await.concat();
        let elapsed = start.elapsed();
        took.sort();
        println!(
            "{in_flight:>3} in flight: {:>6.0} entries/s   p50 {:>8.0?}   p99 {:>8.0?}",
            took.len() as f64 / elapsed.as_secs_f64(),
            quantile(&took, 0.5),
            quantile(&took, 0.99)
        );
        cluster.end().await;
    }

    /// Spins until it is told to end.
    struct Load(Arc<AtomicBool>, Vec<std::thread::JoinHandle<()>>);

    impl Load {
        fn start(threads: usize) -> Self {
            let over = Arc::new(AtomicBool::new(false));
            let spin = |over: Arc<AtomicBool>| {
                std::thread::spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                })
            };
            let threads = (0..threads).map(|_| spin(Arc::clone(&over))).collect();
            Self(over, threads)
        }

        fn end(self) {
            self.0.store(true, Ordering::Relaxed);
            self.1.into_iter().for_each(|thread| thread.join().expect("it only spins"));
        }
    }

    async fn failovers(what: &str, threads: usize) {
        let load = Load::start(threads);
        let mut cluster = Cluster::on_real_disks(|_| {}).await;
        let mut gaps = Vec::new();
        for i in 0..40 {
            cluster.write(&cluster.replicas, &format!("before {i}")).await;
            let old = leader(&cluster.replicas).await.status().node;
            cluster.net.isolate(old, &super::support::cluster::NODES);
            let silent = Instant::now();
            cluster.write(&cluster.others(old), &format!("after {i}")).await;
            gaps.push(silent.elapsed());
            cluster.stop(old).await;
            cluster.net.heal();
            cluster.restart(old).await;
        }
        gaps.sort();
        println!(
            "without a leader, {what}: p50 {:.0?}   p95 {:.0?}   max {:.0?}   ({} kills)",
            quantile(&gaps, 0.5),
            quantile(&gaps, 0.95),
            gaps[gaps.len() - 1],
            gaps.len()
        );
        cluster.end().await;
        load.end();
    }

    /// Counts elections that nobody wanted, with all processors busy and proposals flowing.
    async fn calm() {
        let load = Load::start(4);
        let cluster = Cluster::on_real_disks(|_| {}).await;
        let leads = leader(&cluster.replicas).await;
        let term = leads.status().term;
        let start = Instant::now();
        let (mut done, mut lost) = (0, 0);
        while start.elapsed() < Duration::from_secs(20) {
            let proposals = (0..32).map(|_| leads.propose(Bytes::from(vec![1; ENTRY])));
            for answer in join_all(proposals).await {
                match answer {
                    Ok(_) => done += 1,
                    Err(ProposeError::NotLeader { .. } | ProposeError::Interrupted) => lost += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let terms = cluster.replicas.iter().map(|replica| replica.status().term).max().unwrap_or(term) - term;
        println!("20 s with 4 busy threads: {done} entries, {lost} refused, {terms} unwanted elections");
        cluster.end().await;
        load.end();
    }
}
