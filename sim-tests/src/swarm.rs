//! Many seeds: each on a thread of its own, with a watchdog in wall time.

use std::{
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use crate::{
    flaws::Flaw,
    overrides::Overrides,
    plan::Plan,
    report::{Report, Totals, Violation},
    run,
};

/// A seed that takes longer than this, in wall time, hangs.
pub const HANGS: Duration = Duration::from_secs(120);

/// Which seeds to run.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    pub first: u64,
    pub seeds: u64,
    /// How many at a time.
    pub jobs: usize,
    pub flaw: Option<Flaw>,
}

/// Runs a seed on a fresh thread.
#[must_use]
pub fn one(seed: u64, flaw: Option<Flaw>, wordy: bool) -> Report {
    planned(Plan::draw(seed, flaw), wordy, HANGS)
}

/// Runs a plan on a fresh thread, and waits for its end so long, in wall time.
#[must_use]
pub fn planned(plan: Plan, wordy: bool, patience: Duration) -> Report {
    let seed = plan.seed;
    let failed = |what: &str| {
        let violations = vec![Violation { invariant: "run", what: what.to_owned() }];
        Report { seed, violations, ..Report::default() }
    };
    let (send, receive) = mpsc::channel();
    let work = move || drop(send.send(run::run(plan, wordy)));
    // Nobody waits for a thread that hangs.
    let Ok(_thread) = thread::Builder::new().name(format!("seed-{seed}")).spawn(work) else {
        return failed("no thread can be started");
    };
    match receive.recv_timeout(patience) {
        Ok(report) => report,
        Err(mpsc::RecvTimeoutError::Timeout) => failed(&format!("no end after {patience:?} of wall time")),
        Err(mpsc::RecvTimeoutError::Disconnected) => failed("the checks panicked"),
    }
}

/// Runs a batch and tells of each report as it comes; stops early when told to.
pub fn many(batch: &Batch, mut tell: impl FnMut(&Report) -> Flow) -> Totals {
    let next = Mutex::new(batch.first);
    let end = batch.first.saturating_add(batch.seeds);
    let (send, receive) = mpsc::sync_channel(batch.jobs);
    let mut totals = Totals::default();
    thread::scope(|scope| {
        for _ in 0..batch.jobs.max(1) {
            let (next, send) = (&next, send.clone());
            scope.spawn(move || {
                loop {
                    let seed = {
                        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
                        let seed = *next;
                        *next = next.saturating_add(1);
                        seed
                    };
                    // The other end is gone when it was told to stop.
                    if seed >= end || send.send(one(seed, batch.flaw, false)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for report in receive {
            totals.add(&report);
            if tell(&report) == Flow::Stop {
                break;
            }
        }
    });
    totals
}

/// Whether a batch goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Go,
    Stop,
}

/// The one line that shows a seed again.
#[must_use]
pub fn reproduce(seed: u64, flaw: Option<Flaw>, overrides: &Overrides) -> String {
    let flaw = flaw.map_or_else(String::new, |flaw| format!(" --flaw {flaw}"));
    format!(
        "RUSTFLAGS=\"--cfg madsim\" cargo run -p verdict-sim-tests --bin sim --profile sim --target-dir target/sim -- \
         replay {seed}{flaw}{overrides} --trace"
    )
}
