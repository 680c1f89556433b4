//! Branches in their client's own hands: it prepares them in the sessions that did the work, brings their votes along
//! with Commit, and settles them.
//!
//! ```text
//!   prepare, all at once ─▶ Commit with the votes ─┬─ outcome ─▶ settle, all at once ─▶ ReportSettled, not waited for
//!                                                  ├─ refused ─▶ Rollback, then what each branch is told ─▶ settle
//!                                                  └─ unknown ─▶ nothing: ask again
//! ```
//!
//! After PREPARED nothing but a recorded outcome ends a branch. If the client dies, the cluster tells its branches.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use verdict_protocol::{BranchId, BranchNumber, Outcome, Reason, Settlement, Vote};

use super::{CallError, Decision, Enlisted, Order, Transaction};
use crate::participant::{NotAnswered, Settled, Voted, with_causes};

/// A branch that its client drives itself: the session with a database in which its work was done.
///
/// Its resource's agent or service must be able to settle it as well, in case the client dies.
#[tonic::async_trait]
pub trait LocalBranch: fmt::Debug + Send + Sync + 'static {
    /// Ends the work, and promises to commit or roll back as told. PREPARED is durable before it is answered.
    ///
    /// # Errors
    /// [`NotAnswered`] if it is not known whether it promised. It counts as REFUSED, and it will be told to roll back.
    async fn prepare(&self, branch: BranchId) -> Result<Voted, NotAnswered>;

    /// What the cluster is to give the resource's agent with the outcome, instead of the payload that the branch was added
    /// with: evidence of what becomes of the branch. Asked after `prepare`. For a branch that was enlisted before its
    /// commit it may only be what it was enlisted with.
    fn payload(&self) -> Option<Bytes> {
        None
    }

    /// Takes the outcome. May come twice, and without a `prepare` before it if the client gave up.
    ///
    /// # Errors
    /// [`NotAnswered`] if it is not settled yet: it is told again, by this client or by the cluster.
    async fn settle(&self, branch: BranchId, outcome: Outcome) -> Result<Settled, NotAnswered>;
}

/// How far the client is with it.
#[derive(Debug)]
pub(super) struct Driven {
    branch: Arc<dyn LocalBranch>,
    stage: Mutex<Stage>,
}

#[derive(Clone, Debug, Default)]
struct Stage {
    voted: Option<Voted>,
    /// It says that it has nothing to be told any more.
    done: bool,
}

/// The pause before a branch is told again doubles from this.
const TELL_AGAIN: Duration = Duration::from_millis(50);
const TELL_AGAIN_AT_MOST: Duration = Duration::from_secs(1);

impl Driven {
    pub(super) fn new(branch: Arc<dyn LocalBranch>) -> Self {
        Self { branch, stage: Mutex::default() }
    }

    fn stage<T>(&self, read: impl FnOnce(&mut Stage) -> T) -> T {
        read(&mut self.stage.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn payload(&self) -> Option<Bytes> {
        self.branch.payload()
    }

    pub(super) fn voted(&self) -> Option<Voted> {
        self.stage(|stage| stage.voted.clone())
    }

    /// Asks for the promise, once.
    async fn prepare(&self, branch: BranchId, within: Duration) {
        if self.voted().is_some() {
            return;
        }
        let voted = match timeout(within, self.branch.prepare(branch)).await {
            Ok(Ok(voted)) => {
                // Who refused has rolled back.
                self.stage(|stage| stage.done = voted.vote != Vote::Prepared);
                voted
            }
            Ok(Err(error)) => not_prepared(with_causes(&error)),
            Err(_) => not_prepared(format!("no promise within {within:?}")),
        };
        self.stage(|stage| stage.voted = Some(voted));
    }

    /// Tells it the outcome until it has taken it, for so long; how it took it.
    async fn settle(&self, branch: BranchId, outcome: Outcome, within: Duration) -> Option<Settlement> {
        if self.stage(|stage| stage.done) {
            return None;
        }
        let by = Instant::now() + within;
        let mut pause = TELL_AGAIN;
        loop {
            let left = by.saturating_duration_since(Instant::now());
            let error = match timeout(left, self.branch.settle(branch, outcome)).await {
                Ok(Ok(Settled { settlement, reason })) => {
                    if settlement != Settlement::Done {
                        tracing::error!(%branch, %outcome, ?settlement, ?reason, "the branch was finished otherwise");
                    }
                    self.stage(|stage| stage.done = true);
                    return Some(settlement);
                }
                Ok(Err(error)) => with_causes(&error),
                Err(_) => "it did not answer in time".to_owned(),
            };
            if Instant::now() + pause >= by {
                tracing::warn!(%branch, %outcome, error, "can't be settled now: left to the cluster");
                return None;
            }
            sleep(pause).await;
            pause = (pause * 2).min(TELL_AGAIN_AT_MOST);
        }
    }
}

/// Only a promise that is known counts.
fn not_prepared(error: String) -> Voted {
    Voted::refused(Reason::refused(format!("could not be prepared: {error}"), "", true))
}

impl Transaction {
    pub(super) async fn commit_driven(&self) -> Result<Decision, CallError> {
        let within = self.patience();
        join_all(self.driven.iter().map(|(number, driven)| driven.prepare(self.branch(*number), within))).await;
        match self.close().await {
            Ok(decision) => {
                self.settle_driven(|branch| self.told(decision.outcome, branch)).await;
                Ok(decision)
            }
            Err(unknown @ CallError::Unknown { .. }) => Err(unknown),
            Err(refused @ CallError::Refused { .. }) => {
                // Refused is not aborted: that has to stand in the log before anybody rolls back.
                drop(self.rollback_driven(format!("its commit was refused: {refused}")).await);
                Err(refused)
            }
        }
    }

    /// Gives up. What a branch has to do is asked for each: another list may have been committed than this one.
    pub(super) async fn rollback_driven(&self, reason: String) -> Result<Decision, CallError> {
        let gave_up = self.verdict.rollback(self.xid, reason).await;
        match &gave_up {
            Err(CallError::Unknown { .. }) => {}
            Ok(decision) if decision.outcome == Outcome::Aborted => {
                self.settle_driven(|_| async { Some(Outcome::Aborted) }).await;
            }
            Ok(_) | Err(CallError::Refused { .. }) => self.settle_driven(|branch| self.order(branch)).await,
        }
        gave_up
    }

    /// COMMIT is for a branch that promised. Of one whose answer got lost the log may know: another client may have
    /// committed the same list, for which the branch was asked anew.
    async fn told(&self, outcome: Outcome, branch: BranchId) -> Option<Outcome> {
        let promised = self.driven.get(&branch.number).and_then(Driven::voted) == Some(Voted::PREPARED);
        if outcome == Outcome::Aborted || promised { Some(outcome) } else { self.order(branch).await }
    }

    async fn order(&self, branch: BranchId) -> Option<Outcome> {
        match self.verdict.inquire(branch, Duration::ZERO).await {
            Ok(Order::Commit(_)) => Some(Outcome::Committed),
            Ok(Order::Rollback(_)) => Some(Outcome::Aborted),
            Ok(Order::Wait { .. }) => None,
            Err(error) => {
                tracing::warn!(%branch, %error, "in doubt: left to the cluster");
                None
            }
        }
    }

    /// Tells each branch what it has to do, and the cluster which of them took it.
    async fn settle_driven<F: Future<Output = Option<Outcome>>>(&self, order: impl Fn(BranchId) -> F) {
        let within = self.patience();
        let settled = join_all(self.driven.iter().map(|(number, driven)| {
            let branch = self.branch(*number);
            let order = order(branch);
            async move { Some((branch, driven.settle(branch, order.await?, within).await?)) }
        }));
        let credential = |(branch, settlement): (BranchId, Settlement)| {
            Some((Enlisted { branch, credential: self.credential(branch.number)? }, settlement))
        };
        let settled: Vec<_> = settled.await.into_iter().flatten().filter_map(credential).collect();
        if !settled.is_empty() {
            let (verdict, xid) = (self.verdict.clone(), self.xid);
            // Whoever committed does not wait for it.
            drop(tokio::spawn(async move {
                if let Err(error) = verdict.report_settled(xid, settled).await {
                    tracing::debug!(%xid, %error, "settled, not reported: the cluster asks the branches itself");
                }
            }));
        }
    }

    fn branch(&self, number: BranchNumber) -> BranchId {
        BranchId { xid: self.xid, number }
    }
}
