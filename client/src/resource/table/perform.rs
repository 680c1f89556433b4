//! One call in one local transaction, from the branch's lock to the row that it leaves behind.

use std::{error::Error, future::Future, panic::AssertUnwindSafe};

use futures_util::FutureExt;
use tokio::time::Instant;
use verdict_protocol::{BranchId, LogTime, Reason};

use super::{Call, Finish, Plan, Row, TOO_LATE, Work};
use crate::{
    participant::{Fence, NotAnswered, rules},
    resource::Reservation,
};

/// One open transaction of a database's, with the service's code.
#[tonic::async_trait]
pub(in crate::resource) trait Rows: Send {
    /// Locks the branch until the transaction ends, whether there is a row of it or not, and reads the row and the durable
    /// fence. Until the end nobody can raise cluster or incarnation. The horizon that is read is no older than the one by
    /// which a row of this branch was dropped.
    async fn lock(&mut self, branch: BranchId) -> Result<(Fence, Option<Row>), Trouble>;

    async fn reserve(&mut self, branch: BranchId, payload: &[u8]) -> Result<Reservation, Trouble>;

    async fn finish(&mut self, finish: Finish, branch: BranchId, payload: &[u8]) -> Result<(), Trouble>;

    /// Writes the row of a branch that was locked. Fails if the service's code has ended the transaction in between.
    async fn save(&mut self, branch: BranchId, row: &Row, keep_until: LogTime) -> Result<(), Trouble>;
}

/// What came of a transaction.
#[derive(Debug)]
pub(in crate::resource) enum Step<A> {
    /// The row is written: to be committed, and then said.
    Commit(A),
    /// Nothing was changed: to be rolled back and said.
    Answer(A),
    /// To be rolled back, and done again with this as the service's word.
    Undo(Reservation),
    /// To be rolled back, and done again when the message's cluster and incarnation are durable.
    Raise,
}

/// Whether the transaction that this came of is to be committed. Any other is rolled back.
pub(in crate::resource) fn commits<A>(came: &Result<(Step<A>, Fence), Trouble>) -> bool {
    matches!(came, Ok((Step::Commit(_), _)))
}

/// Why a transaction came to nothing.
#[derive(Debug)]
pub(in crate::resource) enum Trouble {
    /// The database has chosen it to make way: done again at once, it may succeed.
    Again {
        reason: Reason,
        error: Box<dyn Error + Send + Sync>,
    },
    /// The database says no to the work itself.
    No {
        reason: Reason,
        error: Box<dyn Error + Send + Sync>,
    },
    NotAnswered(NotAnswered),
}

impl Trouble {
    pub(in crate::resource) fn unavailable(what: impl Into<String>) -> Self {
        Self::NotAnswered(NotAnswered::unavailable(what))
    }

    /// For what is not the service's work: no reason to refuse it.
    pub(in crate::resource) fn without_refusal(self) -> Self {
        match self {
            Self::No { reason, error } => {
                Self::NotAnswered(NotAnswered::Unavailable { what: reason.text, source: Some(error) })
            }
            Self::Again { .. } | Self::NotAnswered(_) => self,
        }
    }
}

impl From<Trouble> for NotAnswered {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Again { reason, error } | Trouble::No { reason, error } => {
                Self::Unavailable { what: reason.text, source: Some(error) }
            }
            Trouble::NotAnswered(error) => error,
        }
    }
}

impl From<NotAnswered> for Trouble {
    fn from(error: NotAnswered) -> Self {
        Self::NotAnswered(error)
    }
}

/// How a call is run.
#[derive(Clone, Debug)]
pub(in crate::resource) struct Run {
    /// The term and horizon that this process has seen.
    pub(in crate::resource) seen: Fence,
    /// The service's word, if it has been undone already.
    pub(in crate::resource) said: Option<Reservation>,
    /// When nothing needs to be reserved any more.
    pub(in crate::resource) useless_at: Option<Instant>,
}

/// The fence is what is known with the call's own stamp.
pub(in crate::resource) async fn perform<C: Call>(
    rows: &mut dyn Rows,
    call: &C,
    run: Run,
) -> Result<(Step<C::Answer>, Fence), Trouble> {
    let branch = call.branch();
    let (mut fence, known) = rows.lock(branch).await.map_err(Trouble::without_refusal)?;
    fence.recall(&run.seen);
    if fence.admit(call.stamp(), C::PURPOSE)? {
        return Ok((Step::Raise, fence));
    }
    let (row, answer) = match call.plan(known, fence.expired(branch.xid)) {
        Plan::Answer(answer) => return Ok((Step::Answer(answer), fence)),
        Plan::Finish { run, row, answer } => {
            if let Some((finish, payload)) = run {
                guarded(rows.finish(finish, branch, &payload)).await?;
            }
            (row, answer)
        }
        Plan::Reserve { .. } if run.useless_at.is_some_and(|at| at <= Instant::now()) => {
            return Err(Trouble::unavailable(TOO_LATE));
        }
        Plan::Reserve { payload, then } => {
            let was_undone = run.said.is_some();
            let said = match run.said {
                Some(said) => said,
                None => guarded(rows.reserve(branch, &payload)).await?,
            };
            let Work { undo, confirm, row, answer } = then(payload.clone(), said.clone());
            if undo && !was_undone {
                return Ok((Step::Undo(said), fence));
            }
            if confirm {
                guarded(rows.finish(Finish::Confirm, branch, &payload)).await?;
            }
            (row, answer)
        }
    };
    rows.save(branch, &row, rules::keep_until(branch.xid, fence.horizon)).await?;
    Ok((Step::Commit(answer), fence))
}

/// Runs a service's code.
async fn guarded<T>(code: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    let panicked = |_| Err(Trouble::unavailable("the service's code panicked: see its log"));
    AssertUnwindSafe(code).catch_unwind().await.unwrap_or_else(panicked)
}
