//! The stream through which a participant is asked, kept open to whoever leads.
//!
//! ```text
//!   find the leader ─▶ hello ─▶ welcome ─▶ asks ▶ tasks ▶ replies … ─▶ it ends ─┐
//!        ▲                └─ NOT_LEADER, refused, cut off ──────────────────────┤
//!        └────────────────────── backoff, or at once where another is named ────┘
//! ```
//!
//! What was asked on a stream that has ended comes to its end and is answered to nobody: the cluster asks again, and a
//! repeat is answered as the first was. So nothing is lost and nothing is done twice, whatever becomes of a stream.

mod session;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tonic::{Code, Status};

use self::session::{Session, Way};
use super::server::Shared;
use crate::{Verdict, client::Next};

/// How long a stream must have stood for its end to count as the first failure.
const STOOD: Duration = Duration::from_secs(1);
/// The longest that the last replies may take to leave when the participant stops.
const LEAVES_WITHIN: Duration = Duration::from_secs(2);
/// The pause after the cluster has refused the stream: somebody has to change a configuration.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// How long the first attempt to open a stream may take: a message that got lost costs this much. Each that fails gives
/// the next twice the time.
const OPENS_WITHIN: Duration = Duration::from_millis(500);
const OPENS_WITHIN_AT_MOST: Duration = Duration::from_secs(4);
/// After so many failures in a row pauses grow no more: whoever leads next is to find its participants there.
const LONGEST_PAUSE_AFTER: u32 = 5;

/// Whether a participant's stream stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamStatus {
    /// Not now; why, in a sentence. It is opened again by itself.
    Detached { why: String },
    /// To this node, which leads.
    Attached { node: u64 },
}

/// A stream that is kept open.
#[derive(Debug)]
pub(super) struct Stream {
    status: Arc<Mutex<StreamStatus>>,
    /// Never has a permit; closed when the participant stops.
    leaving: Arc<Semaphore>,
    task: JoinHandle<()>,
}

impl Stream {
    pub(super) fn start(shared: Arc<Shared>, verdict: Verdict) -> Self {
        let status = Arc::new(Mutex::new(StreamStatus::Detached { why: "it is being opened".to_owned() }));
        let leaving = Arc::new(Semaphore::new(0));
        let keeper = Keeper { shared, verdict, status: Arc::clone(&status), leaving: Arc::clone(&leaving) };
        Self { status, leaving, task: tokio::spawn(keeper.keep()) }
    }

    pub(super) fn status(&self) -> StreamStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes no more requests.
    pub(super) fn leave(&self) {
        self.leaving.close();
    }

    /// Waits until the last replies have gone.
    pub(super) async fn ended(mut self) {
        // It ends by itself, or with this handle.
        drop(timeout(LEAVES_WITHIN, &mut self.task).await);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
struct Keeper {
    shared: Arc<Shared>,
    verdict: Verdict,
    status: Arc<Mutex<StreamStatus>>,
    leaving: Arc<Semaphore>,
}

impl Keeper {
    async fn keep(self) {
        let (mut failures, mut redirected) = (0, false);
        loop {
            let begun = Instant::now();
            let (node, channel) = self.verdict.caller().next_node();
            let attached = |number| {
                self.verdict.caller().opened_at(&node);
                tracing::info!(node = number, address = node, "attached to the cluster");
                self.set(StreamStatus::Attached { node: number });
            };
            let within = OPENS_WITHIN.saturating_mul(1 << failures.min(16)).min(OPENS_WITHIN_AT_MOST);
            let ended = match Session::open(&self.shared, channel, within).await {
                Ok((session, number)) => {
                    attached(number);
                    match session.run(&self.leaving).await {
                        Way::Left => return,
                        Way::Ended(status) => status,
                    }
                }
                Err(status) => status,
            };
            self.set(StreamStatus::Detached { why: format!("{node}: {}", ended.message()) });
            if self.leaving.is_closed() {
                return;
            }
            if begun.elapsed() >= STOOD {
                failures = 0;
            }
            let pause = match self.verdict.caller().ended_at(&node, begun, &ended) {
                Next::AtOnce if !std::mem::replace(&mut redirected, true) => continue,
                Next::AtOnce => Duration::ZERO,
                Next::NotBefore(pause) => pause,
                Next::Refused(code) => {
                    tracing::error!(node, %code, error = ended.message(), "the cluster refuses the stream");
                    self.verdict.jitter(REFUSED_PAUSE)
                }
            };
            redirected = false;
            failures += 1;
            let pause = self.verdict.caller().pause(failures.min(LONGEST_PAUSE_AFTER)).max(pause);
            tracing::debug!(node, failures, ?pause, error = ended.message(), "not attached, opening the stream again");
            tokio::select! {
                biased;
                _ = self.leaving.acquire() => return,
                () = sleep(pause) => {}
            }
        }
    }

    fn set(&self, status: StreamStatus) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

/// What became of a stream that is no good any more.
fn broken(what: &str) -> Status {
    Status::new(Code::Unavailable, what)
}
