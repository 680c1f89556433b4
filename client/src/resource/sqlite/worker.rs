//! The thread that owns the connection: takes what waits, runs it in one transaction, commits, answers.

use std::{
    error::Error,
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::Instant,
};

use rusqlite::{Connection, DropBehavior, ErrorCode, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};
use verdict_protocol::{BranchId, Conclusion, LogTime, Outcome};

use super::{Handler, TableOptions, store, store::Store};
use crate::{
    participant::{Fence, NotAnswered, OnePhase, Prepare, Settle, Settled, Voted},
    resource::table::{Call, ENDED_EARLY, Finish, PURGE, PURGE_EVERY_MS, Plan, Settling, TOO_LATE, Work},
};

type Reply<T> = oneshot::Sender<Result<T, NotAnswered>>;

enum Asked {
    /// The instant is when the vote becomes useless.
    Prepare(Prepare, Option<Instant>, Reply<Voted>),
    OnePhase(OnePhase, Reply<Conclusion>),
    Settle(Settling, Reply<Settled>),
    Recover(usize, Reply<Vec<BranchId>>),
}

/// An answer that must not be spoken before the commit.
enum Answer {
    Voted(Result<Voted, NotAnswered>, Reply<Voted>),
    Concluded(Result<Conclusion, NotAnswered>, Reply<Conclusion>),
    Settled(Result<Settled, NotAnswered>, Reply<Settled>),
    Recovered(Result<Vec<BranchId>, NotAnswered>, Reply<Vec<BranchId>>),
}

pub(super) struct Worker {
    calls: mpsc::Sender<Asked>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

impl Worker {
    pub(super) fn start(store: Store, handler: Box<dyn Handler>, options: TableOptions) -> io::Result<Self> {
        let (calls, queue) = mpsc::channel(options.queue.max(1));
        let mut table = Table { store, handler, seen: Fence::default(), purge_at: LogTime::default(), broken: None };
        thread::Builder::new()
            .name("verdict-branches".to_owned())
            .spawn(move || table.run(queue, options.batch.max(1)))?;
        Ok(Self { calls })
    }

    pub(super) async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        let useless_at = Some(request.vote_timeout).filter(|left| !left.is_zero()).map(|left| Instant::now() + left);
        self.send(|reply| Asked::Prepare(request, useless_at, reply)).await
    }

    pub(super) async fn settle(&self, request: Settle, outcome: Outcome) -> Result<Settled, NotAnswered> {
        self.send(|reply| Asked::Settle(Settling { request, outcome }, reply)).await
    }

    pub(super) async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        self.send(|reply| Asked::OnePhase(request, reply)).await
    }

    pub(super) async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        self.send(|reply| Asked::Recover(limit, reply)).await
    }

    async fn send<T>(&self, call: impl FnOnce(Reply<T>) -> Asked) -> Result<T, NotAnswered> {
        let (reply, answer) = oneshot::channel();
        let gone = || NotAnswered::unavailable("the branch table's thread has ended: restart the service");
        self.calls.send(call(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

struct Table {
    store: Store,
    handler: Box<dyn Handler>,
    /// The term and horizon seen; cluster and incarnation are the database's.
    seen: Fence,
    purge_at: LogTime,
    /// Why nothing is answered any more.
    broken: Option<String>,
}

impl Table {
    fn run(&mut self, mut queue: mpsc::Receiver<Asked>, batch: usize) {
        while let Some(first) = queue.blocking_recv() {
            let mut calls = vec![first];
            while calls.len() < batch
                && let Ok(call) = queue.try_recv()
            {
                calls.push(call);
            }
            self.transact(calls).into_iter().for_each(Answer::speak);
        }
    }

    /// Runs calls in one transaction. Nothing that it did stands unless it is committed; then the answers say so.
    fn transact(&mut self, calls: Vec<Asked>) -> Vec<Answer> {
        if let Some(broken) = &self.broken {
            let what = format!("stopped after an earlier error, restart the service: {broken}");
            return calls.into_iter().map(|call| call.refused(&what)).collect();
        }
        let mut answers = Vec::with_capacity(calls.len());
        let mut calls = calls.into_iter();
        match self.try_transact(&mut calls, &mut answers) {
            Ok(()) => answers,
            Err(Failure { what, fatal }) => {
                tracing::error!("{what}");
                let answers = answers.into_iter().map(|answer| answer.refused(&what));
                let answers = answers.chain(calls.map(|call| call.refused(&what))).collect();
                if fatal {
                    self.broken = Some(what);
                }
                answers
            }
        }
    }

    fn try_transact(
        &mut self,
        calls: &mut impl Iterator<Item = Asked>,
        answers: &mut Vec<Answer>,
    ) -> Result<(), Failure> {
        let mut transaction = self.store.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut fence = store::load_fence(&transaction)?;
        fence.recall(&self.seen);
        let durable = fence;
        for call in calls {
            let answer = call.run(&mut transaction, &mut fence, &mut *self.handler);
            let failure = answer.error().map(Failure::of);
            answers.push(answer);
            if transaction.is_autocommit() {
                // SQLite, or a handler that must not, has ended it.
                transaction.set_drop_behavior(DropBehavior::Ignore);
                return Err(failure.unwrap_or(Failure { what: ENDED_EARLY.to_owned(), fatal: false }));
            }
            if let Some(failure) = failure.filter(|failure| failure.fatal) {
                return Err(failure);
            }
        }
        let mut purge_at = self.purge_at;
        let mut purged = 0;
        if fence.horizon >= purge_at {
            purged = store::purge(&transaction, fence.horizon)?;
            purge_at = if purged < PURGE { fence.horizon.plus(PURGE_EVERY_MS) } else { fence.horizon };
        }
        if purged > 0 || (fence.cluster, fence.incarnation) != (durable.cluster, durable.incarnation) {
            store::save_fence(&transaction, &fence)?;
        }
        transaction.commit()?;
        (self.seen, self.purge_at) = (fence, purge_at);
        Ok(())
    }
}

/// Why a whole transaction came to nothing.
struct Failure {
    what: String,
    /// Whether what is on the disk can't be trusted any more.
    fatal: bool,
}

impl Failure {
    fn of(error: &rusqlite::Error) -> Self {
        let fatal = matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
        );
        Self { what: format!("{}: {error}", describe(error)), fatal }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::of(&error)
    }
}

impl Asked {
    fn run(self, transaction: &mut Transaction<'_>, fence: &mut Fence, handler: &mut dyn Handler) -> Answer {
        match self {
            Self::Prepare(request, useless_at, reply) => {
                Answer::Voted(carry(transaction, fence, handler, &request, useless_at), reply)
            }
            Self::OnePhase(request, reply) => {
                Answer::Concluded(carry(transaction, fence, handler, &request, None), reply)
            }
            Self::Settle(request, reply) => Answer::Settled(carry(transaction, fence, handler, &request, None), reply),
            Self::Recover(limit, reply) => {
                Answer::Recovered(store::in_doubt(transaction, limit).map_err(unavailable), reply)
            }
        }
    }

    fn refused(self, what: &str) -> Answer {
        match self {
            Self::Prepare(_, _, reply) => Answer::Voted(Err(NotAnswered::unavailable(what)), reply),
            Self::OnePhase(_, reply) => Answer::Concluded(Err(NotAnswered::unavailable(what)), reply),
            Self::Settle(_, reply) => Answer::Settled(Err(NotAnswered::unavailable(what)), reply),
            Self::Recover(_, reply) => Answer::Recovered(Err(NotAnswered::unavailable(what)), reply),
        }
    }
}

impl Answer {
    /// Whoever asked may be gone: then nobody hears it.
    fn speak(self) {
        match self {
            Self::Voted(voted, reply) => drop(reply.send(voted)),
            Self::Concluded(concluded, reply) => drop(reply.send(concluded)),
            Self::Settled(settled, reply) => drop(reply.send(settled)),
            Self::Recovered(branches, reply) => drop(reply.send(branches)),
        }
    }

    /// The transaction failed: whatever the answer was, it is none.
    fn refused(self, what: &str) -> Self {
        match self {
            Self::Voted(_, reply) => Self::Voted(Err(NotAnswered::unavailable(what)), reply),
            Self::Concluded(_, reply) => Self::Concluded(Err(NotAnswered::unavailable(what)), reply),
            Self::Settled(_, reply) => Self::Settled(Err(NotAnswered::unavailable(what)), reply),
            Self::Recovered(_, reply) => Self::Recovered(Err(NotAnswered::unavailable(what)), reply),
        }
    }

    /// The error of SQLite's that this call met.
    fn error(&self) -> Option<&rusqlite::Error> {
        let error = match self {
            Self::Voted(voted, _) => voted.as_ref().err(),
            Self::Concluded(concluded, _) => concluded.as_ref().err(),
            Self::Settled(settled, _) => settled.as_ref().err(),
            Self::Recovered(branches, _) => branches.as_ref().err(),
        };
        match error? {
            NotAnswered::Unavailable { source: Some(source), .. } => source.downcast_ref(),
            _ => None,
        }
    }
}

/// Carries one call through.
fn carry<C: Call>(
    transaction: &mut Transaction<'_>,
    fence: &mut Fence,
    handler: &mut dyn Handler,
    call: &C,
    useless_at: Option<Instant>,
) -> Result<C::Answer, NotAnswered> {
    fence.admit(call.stamp(), C::PURPOSE)?;
    let branch = call.branch();
    let known = store::load(transaction, branch).map_err(unavailable)?;
    let (savepoint, row, answer) = match call.plan(known, fence.expired(branch.xid)) {
        Plan::Answer(answer) => return Ok(answer),
        Plan::Finish { run, row, answer } => {
            let savepoint = transaction.savepoint().map_err(unavailable)?;
            if let Some((finish, payload)) = run {
                guarded(&savepoint, || match finish {
                    Finish::Confirm => handler.confirm(&savepoint, branch, &payload),
                    Finish::Cancel => handler.cancel(&savepoint, branch, &payload),
                })?;
            }
            (savepoint, row, answer)
        }
        Plan::Reserve { .. } if useless_at.is_some_and(|at| at <= Instant::now()) => {
            return Err(NotAnswered::unavailable(TOO_LATE));
        }
        Plan::Reserve { payload, then } => {
            let mut savepoint = transaction.savepoint().map_err(unavailable)?;
            let said = guarded(&savepoint, || handler.reserve(&savepoint, branch, &payload))?;
            let Work { undo, confirm, row, answer } = then(payload.clone(), said);
            if undo {
                savepoint.rollback().map_err(unavailable)?;
            }
            if confirm {
                guarded(&savepoint, || handler.confirm(&savepoint, branch, &payload))?;
            }
            (savepoint, row, answer)
        }
    };
    store::save(&savepoint, branch, &row, fence.horizon).map_err(unavailable)?;
    savepoint.commit().map_err(unavailable)?;
    Ok(answer)
}

/// Runs a service's code: what goes wrong in it is no reason for the others in the batch to fail.
fn guarded<T>(database: &Connection, code: impl FnOnce() -> rusqlite::Result<T>) -> Result<T, NotAnswered> {
    let result = catch_unwind(AssertUnwindSafe(code));
    match result {
        Ok(Ok(_)) if database.is_autocommit() => Err(NotAnswered::unavailable(ENDED_EARLY)),
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(unavailable(error)),
        Err(_) => Err(NotAnswered::unavailable("the service's code panicked: see its log")),
    }
}

fn unavailable(error: rusqlite::Error) -> NotAnswered {
    NotAnswered::Unavailable {
        what: describe(&error).to_owned(),
        source: Some(Box::<dyn Error + Send + Sync>::from(error)),
    }
}

/// What went wrong and what to do about it.
fn describe(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk with the participant's database is full: make room",
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "the participant's database is locked by another connection: keep its write transactions short"
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            "the participant's database is damaged: restore it"
        }
        Some(ErrorCode::SystemIoFailure) => {
            "the participant's database can't be read or written: check its disk, then restart the service"
        }
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            "the participant's database can't be written: check its owner and mode"
        }
        _ => "the participant's database reported an error",
    }
}
