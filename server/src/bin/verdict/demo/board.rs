//! What has happened so far: written by the bookings, read by the faults, the progress bar and the report.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tokio::sync::watch;

/// Over which time commits per second are counted.
const RATE_OVER: Duration = Duration::from_secs(1);

/// Stalls shorter than this are not kept.
const SHORTEST_STALL: Duration = Duration::from_millis(5);

/// Latencies are measured up to an hour.
const LONGEST_US: u64 = 3_600_000_000;

#[derive(Debug)]
pub(super) struct Board {
    start: Instant,
    inner: Mutex<Inner>,
    counts: watch::Sender<Counts>,
}

/// Bookings so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Lines of the file that have their final answer.
    pub(super) done: usize,
    pub(super) committed: usize,
    pub(super) aborted: usize,
    /// Transactions that were aborted for a passing reason, and tried again as new ones.
    pub(super) retried: usize,
    /// Commit calls that ended without an answer and were made again.
    pub(super) unknown: usize,
}

/// From one commit to the next, while at least one booking waited.
#[derive(Clone, Copy, Debug)]
struct Stall {
    from: Instant,
    to: Instant,
}

#[derive(Debug)]
struct Inner {
    in_flight: usize,
    waiting_since: Option<Instant>,
    stalls: Vec<Stall>,
    recent: VecDeque<Instant>,
    /// In microseconds.
    latencies: Histogram<u64>,
    last_done: Instant,
}

impl Board {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let inner = Inner {
            in_flight: 0,
            waiting_since: None,
            stalls: Vec::new(),
            recent: VecDeque::new(),
            latencies: Histogram::new_with_max(LONGEST_US, 3).expect("the bounds are valid"),
            last_done: now,
        };
        Self { start: now, inner: Mutex::new(inner), counts: watch::Sender::new(Counts::default()) }
    }

    pub(super) fn start(&self) -> Instant {
        self.start
    }

    pub(super) fn counts(&self) -> Counts {
        *self.counts.borrow()
    }

    /// Waits until the counts are as wanted.
    pub(super) async fn reach(&self, wanted: impl FnMut(&Counts) -> bool) {
        // The sender is this board's, so it is there.
        let _ = self.counts.subscribe().wait_for(wanted).await;
    }

    /// A commit is asked for.
    pub(super) fn asked(&self) {
        let mut inner = self.inner();
        inner.in_flight += 1;
        inner.waiting_since.get_or_insert_with(Instant::now);
    }

    /// A commit call ended without an answer.
    pub(super) fn unknown(&self) {
        self.counts.send_modify(|counts| counts.unknown += 1);
    }

    /// A transaction was decided, `latency` after its commit was first asked for. `is_final`: its line is not tried
    /// again.
    pub(super) fn decided(&self, committed: bool, latency: Duration, is_final: bool) {
        let now = Instant::now();
        let mut inner = self.inner();
        inner.in_flight -= 1;
        if committed {
            if let Some(from) = inner.waiting_since.filter(|from| now - *from >= SHORTEST_STALL) {
                inner.stalls.push(Stall { from, to: now });
            }
            inner.waiting_since = Some(now);
            inner.recent.push_back(now);
            inner.latencies.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
        }
        if inner.in_flight == 0 {
            inner.waiting_since = None;
        }
        inner.last_done = now;
        drop(inner);
        self.counts.send_modify(|counts| match (committed, is_final) {
            (true, _) => {
                counts.committed += 1;
                counts.done += 1;
            }
            (false, true) => {
                counts.aborted += 1;
                counts.done += 1;
            }
            (false, false) => counts.retried += 1,
        });
    }

    /// Commits in the last second.
    pub(super) fn rate(&self) -> usize {
        let mut inner = self.inner();
        while inner.recent.front().is_some_and(|at| at.elapsed() > RATE_OVER) {
            inner.recent.pop_front();
        }
        inner.recent.len()
    }

    /// The longest time without a commit that ended within the span, wherever it began.
    pub(super) fn longest_stall(&self, from: Instant, to: Instant) -> Duration {
        let inner = self.inner();
        let ended = inner.stalls.iter().filter(|stall| stall.to > from && stall.to <= to);
        ended.map(|stall| stall.to - stall.from).max().unwrap_or_default()
    }

    /// How long ago the last transaction was decided.
    pub(super) fn idle(&self) -> Duration {
        self.inner().last_done.elapsed()
    }

    /// The latency below which this share of the commits stayed.
    pub(super) fn latency(&self, quantile: f64) -> Duration {
        Duration::from_micros(self.inner().latencies.value_at_quantile(quantile))
    }

    /// Nothing that holds it panics halfway through a change.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
