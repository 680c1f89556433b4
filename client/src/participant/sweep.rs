//! One manager's branches in doubt, looked at and asked about once at a time.
//!
//! ```text
//!   Recover ──▶ doubts ── held for inquire_after ──▶ Inquirer ── order ──▶ settle
//!                 ▲                                     │
//!                 └──── not yet: asked again, later ────┘
//! ```
//!
//! When, and whom to ask, is its caller's: a process that serves participants, or a node with the agents of databases. This
//! never spawns.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use thiserror::Error;
use tokio::time::{Instant, timeout};
use verdict_protocol::{BranchId, Outcome, ResourceName, Settlement, Xid};

use super::{InquiryOptions, NotAnswered, ResourceManager, Settle, Settled, with_causes};
use crate::{CallError, Order};

/// A branch that the cluster refuses to answer about is asked about again after this many sweeps. One that can't take its
/// outcome has its next turn at the next sweep, and after each more that fails twice as late, up to as much.
const REFUSED_SWEEPS: u32 = 8;

/// Who is asked, and how what it says is carried out.
#[tonic::async_trait]
pub trait Inquirer: Send + Sync {
    /// What a branch has to do that has been held prepared for so long.
    ///
    /// # Errors
    /// [`NoOrder`], which is never an outcome.
    async fn inquire(&self, branch: BranchId, held: Duration) -> Result<Order, NoOrder>;

    /// Whether an outcome of the transaction is recorded.
    ///
    /// # Errors
    /// [`NoOrder`]
    async fn is_decided(&self, xid: Xid) -> Result<bool, NoOrder>;

    /// Has the branch settled. Once begun it comes to its end.
    ///
    /// # Errors
    /// A sentence, if it is not settled yet.
    async fn settle(
        &self,
        manager: &Arc<dyn ResourceManager>,
        request: Settle,
        outcome: Outcome,
    ) -> Result<Settled, String>;

    /// A pause of about this length.
    fn jitter(&self, pause: Duration) -> Duration;
}

/// Why a branch in doubt heard nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoOrder {
    /// Nor would any other branch.
    #[error("nobody to ask: {0}")]
    Unreachable(String),
    #[error("the cluster refuses to answer: {0}")]
    Refused(String),
}

impl From<CallError> for NoOrder {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unknown { .. } => Self::Unreachable(error.to_string()),
            CallError::Refused { .. } => Self::Refused(error.to_string()),
        }
    }
}

/// Tells a manager an outcome.
///
/// # Errors
/// [`NotAnswered`] if the branch is not settled yet.
pub async fn settle(manager: &dyn ResourceManager, request: Settle, outcome: Outcome) -> Result<Settled, NotAnswered> {
    match outcome {
        Outcome::Committed => manager.commit(request).await,
        Outcome::Aborted => manager.rollback(request).await,
    }
}

/// The branches that one manager holds in doubt.
#[derive(Debug)]
pub struct Sweep {
    resource: ResourceName,
    manager: Arc<dyn ResourceManager>,
    options: InquiryOptions,
    limit: usize,
    doubts: BTreeMap<BranchId, Doubt>,
    failing: bool,
}

/// A branch in doubt.
#[derive(Debug)]
struct Doubt {
    seen: Instant,
    ask_at: Instant,
    /// How often in a row it could not take its outcome.
    failed: u32,
}

/// What came of asking about one branch.
enum Asked {
    Settled,
    AgainAfter(Duration),
    NotSettled,
    Unreachable,
}

impl Sweep {
    /// At most `limit` branches are looked at at a time, the oldest first.
    #[must_use]
    pub fn new(
        resource: ResourceName,
        manager: Arc<dyn ResourceManager>,
        options: InquiryOptions,
        limit: usize,
    ) -> Self {
        Self { resource, manager, options, limit, doubts: BTreeMap::new(), failing: false }
    }

    /// Looks once, and asks about what is due. False if there was nobody to ask.
    ///
    /// A look that takes long keeps no branch waiting that is known already.
    pub async fn once(&mut self, inquirer: &dyn Inquirer) -> bool {
        let manager = Arc::clone(&self.manager);
        let mut look = manager.recover(self.limit);
        loop {
            if let Ok(held) = timeout(self.options.sweep_every, &mut look).await {
                self.saw(held);
                return self.ask(inquirer).await;
            }
            self.ask(inquirer).await;
        }
    }

    /// Whether the manager could not say, when it was last asked, what it holds.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.failing
    }

    /// Brings the doubts up to what the manager holds. If it can't say, they stay as they are.
    fn saw(&mut self, held: Result<Vec<BranchId>, NotAnswered>) {
        let resource = &self.resource;
        let held: BTreeSet<BranchId> = match held {
            Ok(held) => held.into_iter().collect(),
            Err(error) => {
                let error = with_causes(&error);
                if std::mem::replace(&mut self.failing, true) {
                    tracing::debug!(%resource, error, "still can't read which branches are in doubt");
                } else {
                    tracing::warn!(%resource, error, "can't read which branches are in doubt: tried again");
                }
                return;
            }
        };
        if std::mem::replace(&mut self.failing, false) {
            tracing::info!(%resource, in_doubt = held.len(), "says again which branches are in doubt");
        }
        self.doubts.retain(|branch, _| held.contains(branch));
        let now = Instant::now();
        for branch in held {
            let doubt = || Doubt { seen: now, ask_at: now + self.options.inquire_after, failed: 0 };
            self.doubts.entry(branch).or_insert_with(doubt);
        }
    }

    async fn ask(&mut self, inquirer: &dyn Inquirer) -> bool {
        let now = Instant::now();
        let due = self.doubts.iter().filter(|(_, doubt)| doubt.ask_at <= now);
        let due: Vec<_> = due.map(|(branch, doubt)| (*branch, now - doubt.seen)).collect();
        let sweep = &*self;
        let ask = async |(branch, held)| (branch, sweep.ask_one(inquirer, branch, held).await);
        let mut answers = stream::iter(due).map(ask).buffer_unordered(self.options.at_once.max(1));
        let (mut answered, mut reached) = (Vec::new(), true);
        while let Some((branch, asked)) = answers.next().await {
            // The others would not reach it either: leave them for the next sweep.
            if matches!(asked, Asked::Unreachable) {
                reached = false;
                break;
            }
            answered.push((branch, asked));
        }
        drop(answers);
        for (branch, asked) in answered {
            match asked {
                Asked::Settled => drop(self.doubts.remove(&branch)),
                Asked::AgainAfter(pause) => {
                    if let Some(doubt) = self.doubts.get_mut(&branch) {
                        doubt.ask_at = Instant::now() + inquirer.jitter(pause);
                    }
                }
                Asked::NotSettled => {
                    if let Some(doubt) = self.doubts.get_mut(&branch) {
                        let sweeps = (1 << doubt.failed.min(3)).min(REFUSED_SWEEPS);
                        doubt.failed += 1;
                        doubt.ask_at = Instant::now() + inquirer.jitter(self.options.sweep_every * sweeps);
                    }
                }
                Asked::Unreachable => {}
            }
        }
        reached
    }

    async fn ask_one(&self, inquirer: &dyn Inquirer, branch: BranchId, held: Duration) -> Asked {
        let resource = &self.resource;
        let later = Asked::AgainAfter(self.options.sweep_every * REFUSED_SWEEPS);
        let order = async {
            if !self.manager.presumes() && !inquirer.is_decided(branch.xid).await? {
                tracing::warn!(%resource, %branch, ?held, "in doubt, and nothing is presumed here: an operator has to look");
                return Ok(None);
            }
            inquirer.inquire(branch, held).await.map(Some)
        };
        let (stamp, outcome) = match order.await {
            Ok(None) => return later,
            Ok(Some(Order::Wait { retry_after })) => return Asked::AgainAfter(retry_after),
            Ok(Some(Order::Commit(stamp))) => (stamp, Outcome::Committed),
            Ok(Some(Order::Rollback(stamp))) => (stamp, Outcome::Aborted),
            Err(error @ NoOrder::Unreachable(_)) => {
                tracing::warn!(%resource, %branch, ?held, %error, "in doubt");
                return Asked::Unreachable;
            }
            Err(error @ NoOrder::Refused(_)) => {
                tracing::warn!(%resource, %branch, ?held, %error, "in doubt");
                return later;
            }
        };
        let request = Settle { stamp, branch, resource: resource.clone(), payload: Bytes::new() };
        match inquirer.settle(&self.manager, request, outcome).await {
            Ok(Settled { settlement: Settlement::Done, .. }) => {
                tracing::info!(%resource, %branch, ?held, %outcome, "in doubt, asked, settled");
                Asked::Settled
            }
            Ok(Settled { settlement, reason }) => {
                tracing::error!(%resource, %branch, %outcome, ?settlement, ?reason, "the branch was finished otherwise");
                Asked::Settled
            }
            Err(error) => {
                tracing::warn!(%resource, %branch, %outcome, error, "told the outcome, can't take it yet");
                Asked::NotSettled
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::sync::Notify;
    use verdict_protocol::{ClusterId, Conclusion, LogTime};

    use super::*;
    use crate::participant::{OnePhase, Prepare, Stamp, Voted};

    /// Its first look finds a branch; the second ends when that is committed, and not before.
    #[derive(Debug, Default)]
    struct Slow {
        looked: Mutex<u32>,
        committed: Notify,
    }

    #[tonic::async_trait]
    impl ResourceManager for Slow {
        async fn prepare(&self, _: Prepare) -> Result<Voted, NotAnswered> {
            unreachable!("nobody asks it to")
        }

        async fn commit(&self, _: Settle) -> Result<Settled, NotAnswered> {
            self.committed.notify_one();
            Ok(Settled::DONE)
        }

        async fn rollback(&self, _: Settle) -> Result<Settled, NotAnswered> {
            unreachable!("it was committed")
        }

        async fn commit_one_phase(&self, _: OnePhase) -> Result<Conclusion, NotAnswered> {
            unreachable!("nobody asks it to")
        }

        async fn recover(&self, _: usize) -> Result<Vec<BranchId>, NotAnswered> {
            let first = {
                let mut looked = self.looked.lock().expect("nobody panics with it");
                *looked += 1;
                *looked == 1
            };
            if first {
                return Ok(vec![BranchId { xid: Xid::new(LogTime::from_millis(1_700_000_000_000), 7, 9), number: 1 }]);
            }
            self.committed.notified().await;
            Ok(Vec::new())
        }
    }

    /// Everything was committed.
    struct Committed;

    #[tonic::async_trait]
    impl Inquirer for Committed {
        async fn inquire(&self, _: BranchId, _: Duration) -> Result<Order, NoOrder> {
            let cluster = ClusterId([7; 16]);
            Ok(Order::Commit(Stamp { cluster, incarnation: 1, term: 1, horizon: LogTime::from_millis(0) }))
        }

        async fn is_decided(&self, _: Xid) -> Result<bool, NoOrder> {
            Ok(true)
        }

        async fn settle(
            &self,
            to: &Arc<dyn ResourceManager>,
            what: Settle,
            outcome: Outcome,
        ) -> Result<Settled, String> {
            settle(&**to, what, outcome).await.map_err(|error| error.to_string())
        }

        fn jitter(&self, pause: Duration) -> Duration {
            pause
        }
    }

    #[tokio::test]
    async fn a_slow_look_keeps_no_branch_waiting_that_is_known() {
        let manager = Arc::new(Slow::default());
        let (inquire_after, sweep_every) = (Duration::from_millis(200), Duration::from_millis(1));
        let options = InquiryOptions { inquire_after, sweep_every, ..InquiryOptions::default() };
        let resource = ResourceName::try_from("slow").expect("a name");
        let mut sweep = Sweep::new(resource, Arc::clone(&manager) as _, options, 10);
        assert!(sweep.once(&Committed).await);
        assert_eq!(sweep.doubts.len(), 1, "it is not due yet");
        assert!(sweep.once(&Committed).await);
        assert_eq!((sweep.doubts.len(), *manager.looked.lock().expect("nobody panics with it")), (0, 2));
    }
}
