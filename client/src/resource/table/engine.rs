//! A branch table whose calls run side by side, each in a transaction of its own.
//!
//! ```text
//!   call ─▶ Store::once: BEGIN, lock the branch, the service's code, write the row, COMMIT ─▶ answer
//!             ▲  ├─ deadlock, serialization failure: a pause, at most ten times; then it is a refusal
//!             │  ├─ the service or the database says no: rolled back, and that recorded
//!             └──┴─ another cluster's or incarnation's first message: made durable
//! ```
//!
//! Nothing is answered before the commit. A commit of which nothing was heard is no answer: what was recorded says it when
//! the call comes again.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};
use verdict_protocol::{BranchId, Conclusion, LogTime, Outcome};

pub(in crate::resource) use super::perform::{Rows, Run, Step, Trouble, commits, perform};
use super::{Call, PURGE, PURGE_EVERY_MS, Settling};
use crate::{
    participant::{Fence, NotAnswered, OnePhase, Prepare, Settle, Settled, Stamp, Voted, with_causes},
    resource::Reservation,
};

/// How often a transaction is done again that the database has chosen to make way.
const AGAIN: u32 = 10;
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A database with a branch table.
#[tonic::async_trait]
pub(in crate::resource) trait Store: Send + Sync + 'static {
    /// Runs the call once, in one transaction, and commits it or rolls it back as the [`Step`] says.
    async fn once<C: Call>(&self, call: &C, run: Run) -> Result<(Step<C::Answer>, Fence), Trouble>;

    /// Makes a stamp's cluster and incarnation durable, once no transaction is under way that has read older ones.
    async fn raise(&self, stamp: &Stamp) -> Result<(), Trouble>;

    /// Makes the horizon durable, then drops up to [`PURGE`] finished branches that it has passed; how many.
    async fn purge(&self, horizon: LogTime) -> Result<usize, Trouble>;

    /// The branches held prepared, oldest transaction first.
    async fn in_doubt(&self, limit: usize) -> Result<Vec<BranchId>, Trouble>;
}

pub(in crate::resource) struct Engine<S> {
    store: S,
    call_timeout: Duration,
    memory: Mutex<Memory>,
}

/// On which a call is carried out.
#[derive(Clone, Copy, Debug)]
struct Terms {
    /// Whether it may be answered with a refusal, if nothing is known of the branch.
    refuses: bool,
    /// When nothing needs to be reserved any more.
    useless_at: Option<Instant>,
}

/// What may be forgotten at a restart.
#[derive(Debug, Default)]
struct Memory {
    seen: Fence,
    purge_at: LogTime,
}

impl<S: Store> Engine<S> {
    pub(in crate::resource) fn new(store: S, call_timeout: Duration) -> Self {
        Self { store, call_timeout, memory: Mutex::default() }
    }

    pub(in crate::resource) async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        let left = Some(request.vote_timeout).filter(|left| !left.is_zero());
        let useless_at = left.map(|left| Instant::now() + left);
        self.answer(&request, Terms { refuses: true, useless_at }).await
    }

    pub(in crate::resource) async fn settle(&self, request: Settle, outcome: Outcome) -> Result<Settled, NotAnswered> {
        self.answer(&Settling { request, outcome }, Terms { refuses: false, useless_at: None }).await
    }

    pub(in crate::resource) async fn conclude(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        self.answer(&request, Terms { refuses: true, useless_at: None }).await
    }

    pub(in crate::resource) async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        self.bounded(async { Ok(self.store.in_doubt(limit).await?) }).await
    }

    async fn answer<C: Call>(&self, call: &C, terms: Terms) -> Result<C::Answer, NotAnswered> {
        let (answer, fence) = self.bounded(self.transact(call, terms)).await?;
        self.learn(&fence).await;
        Ok(answer)
    }

    async fn bounded<T>(&self, call: impl Future<Output = Result<T, NotAnswered>>) -> Result<T, NotAnswered> {
        let late = || format!("the database and the service's code took longer than {:?}", self.call_timeout);
        timeout(self.call_timeout, call).await.unwrap_or_else(|_| Err(NotAnswered::unavailable(late())))
    }

    async fn transact<C: Call>(
        &self,
        call: &C,
        Terms { refuses, useless_at }: Terms,
    ) -> Result<(C::Answer, Fence), NotAnswered> {
        let (mut said, mut tries) = (None, 0);
        loop {
            let seen = self.memory().seen;
            // What is known to be stale does not get as far as the database.
            let mut judged = seen;
            judged.admit(call.stamp(), C::PURPOSE)?;
            let run = Run { seen, said: said.clone(), useless_at };
            let trouble = match self.store.once(call, run).await {
                Ok((Step::Commit(answer) | Step::Answer(answer), fence)) => return Ok((answer, fence)),
                Ok((Step::Undo(reservation), _)) => {
                    said = Some(reservation);
                    continue;
                }
                Ok((Step::Raise, _)) => match self.store.raise(call.stamp()).await {
                    Ok(()) => continue,
                    Err(trouble) => trouble.without_refusal(),
                },
                Err(trouble) => trouble,
            };
            let in_time = useless_at.is_none_or(|at| Instant::now() < at);
            match trouble {
                Trouble::Again { .. } if tries < AGAIN && in_time => {
                    tries += 1;
                    sleep(pause(tries, call.branch())).await;
                }
                // It is recorded only if nothing is known of the branch.
                Trouble::Again { reason, .. } | Trouble::No { reason, .. } if refuses && said.is_none() && in_time => {
                    (said, tries) = (Some(Reservation::Refused(reason)), 0);
                }
                trouble => return Err(trouble.into()),
            }
        }
    }

    /// Of an answer that can be given: what it taught, and whether it is time to drop what is old.
    async fn learn(&self, fence: &Fence) {
        let horizon = {
            let mut memory = self.memory();
            memory.seen.learn(fence);
            let horizon = memory.seen.horizon;
            if horizon < memory.purge_at {
                return;
            }
            memory.purge_at = horizon.plus(PURGE_EVERY_MS);
            horizon
        };
        match self.bounded(async { Ok(self.store.purge(horizon).await?) }).await {
            Ok(PURGE..) => self.memory().purge_at = horizon,
            Ok(_) => {}
            // It harms nobody: it comes again.
            Err(error) => {
                tracing::warn!(error = with_causes(&error), "finished branches stay in the table");
            }
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Twice as long each time, and not the same for all.
fn pause(tries: u32, branch: BranchId) -> Duration {
    let longest = (Duration::from_millis(2) * 2_u32.pow(tries)).min(LONGEST_PAUSE);
    let spread = u32::from(branch.xid.as_bytes()[15]) * 37 + tries * 101;
    longest * (50 + spread % 50) / 100
}

impl<S> fmt::Debug for Engine<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("memory", &self.memory).finish_non_exhaustive()
    }
}
