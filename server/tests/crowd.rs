//! s67: many clients at once. A queue that is twice as long may take twice as long to get through, and no more.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{sync::Arc, time::Duration};

use support::{Cluster, name};
use tokio::{sync::Barrier, time::Instant};
use verdict_client::{Outcome, Verdict};

/// Each a doubling of the one before; the last are 500 clients.
const CROWDS: [usize; 4] = [62, 125, 250, 500];
/// Other programs on the machine only ever slow a round down: of all rounds the quickest counts, and when it is quick
/// enough no more are needed. Waits that grow with the square of the queue never are.
const MOST_ROUNDS: usize = 25;
const LEAST_ROUNDS: usize = 3;
/// How much longer than its share a longer queue may take: what a noisy machine needs. With it 4 times as many clients
/// may wait 7 times as long, and 8 times as many 14 times; the squares would be 16 and 64.
const SLACK: f64 = 1.75;
/// Below this a wait says nothing about queues.
const FLOOR: Duration = Duration::from_millis(20);

/// What half of the clients, and what all of them, wait at most.
#[derive(Clone, Copy, Debug)]
struct Waits {
    median: Duration,
    longest: Duration,
}

impl Waits {
    fn of(mut waits: Vec<Duration>) -> Self {
        waits.sort_unstable();
        Self { median: waits[waits.len() / 2], longest: waits[waits.len() - 1] }
    }

    fn best(self, other: Self) -> Self {
        Self { median: self.median.min(other.median), longest: self.longest.min(other.longest) }
    }
}

/// Every client begins at once, and once all have begun, every one commits at once. What begin and commit took.
async fn round(clients: &[Verdict]) -> [Waits; 2] {
    let start = Arc::new(Barrier::new(clients.len()));
    let tasks: Vec<_> = clients
        .iter()
        .map(|verdict| {
            let (verdict, start) = (verdict.clone(), Arc::clone(&start));
            tokio::spawn(async move {
                start.wait().await;
                let asked = Instant::now();
                let mut transaction = verdict.begin(Duration::from_secs(60)).await.unwrap();
                let began = asked.elapsed();
                transaction.add(name("seats"), "count".into()).unwrap();
                start.wait().await;
                let asked = Instant::now();
                assert_eq!(transaction.commit().await.unwrap().outcome, Outcome::Committed);
                (began, asked.elapsed())
            })
        })
        .collect();
    let (mut begins, mut commits) = (Vec::new(), Vec::new());
    for task in tasks {
        let (begin, commit) = task.await.unwrap();
        begins.push(begin);
        commits.push(commit);
    }
    [Waits::of(begins), Waits::of(commits)]
}

/// Where a longer queue takes more than its share.
fn too_long(best: &[[Waits; 2]]) -> Vec<String> {
    let mut found = Vec::new();
    for (shorter, longer) in [(0, 2), (1, 3), (0, 3)] {
        let times = [4.0, 8.0][usize::from(longer - shorter == 3)];
        for (place, call) in ["begin", "commit"].into_iter().enumerate() {
            let (few, many) = (best[shorter][place], best[longer][place]);
            for (what, few, many) in [("half", few.median, many.median), ("all", few.longest, many.longest)] {
                if many > few.max(FLOOR).mul_f64(times * SLACK) {
                    let (small, large) = (CROWDS[shorter], CROWDS[longer]);
                    found.push(format!("{call}: {what} of {large} clients wait {many:?}, of {small} {few:?}"));
                }
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s67_latency_grows_no_worse_than_linearly_with_the_queue() {
    let cluster = Cluster::start().await;
    let clients: Vec<Verdict> =
        (0..CROWDS[3]).map(|_| cluster.client().with_deadline(Duration::from_secs(60))).collect();
    // Everybody is connected.
    round(&clients).await;
    let mut best: Vec<[Waits; 2]> = Vec::new();
    for rounds in 1..=MOST_ROUNDS {
        let mut these = Vec::new();
        for crowd in CROWDS {
            these.push(round(&clients[..crowd]).await);
        }
        if best.is_empty() {
            best.clone_from(&these);
        }
        for (best, this) in best.iter_mut().zip(these) {
            *best = [best[0].best(this[0]), best[1].best(this[1])];
        }
        if rounds >= LEAST_ROUNDS && too_long(&best).is_empty() {
            println!("{rounds} rounds");
            break;
        }
    }
    for (crowd, [begin, commit]) in CROWDS.iter().zip(&best) {
        println!("{crowd} clients at once: begin {begin:?}, commit {commit:?}");
    }
    assert_eq!(too_long(&best), Vec::<String>::new());
}
