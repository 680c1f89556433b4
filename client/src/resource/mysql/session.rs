//! One branch in its application's hands: a connection with an XA branch of the database's own.
//!
//! ```text
//!   Working ── prepare: its row, XA END, XA PREPARE ──▶ Prepared ── XA COMMIT or XA ROLLBACK ──▶ Free ──▶ to the pool
//!      └──────────────── anything that is not answered: Unclear ──▶ closed, and the branch ended by another connection
//! ```
//!
//! A branch that its application calls read-only is a transaction that the server lets write nothing, and no XA branch:
//! it has nothing to prepare.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use bytes::Bytes;
use mysql_async::{Conn, DriverError, Error, Row, prelude::Queryable};
use tokio::{
    sync::{Mutex, MutexGuard},
    time::Instant,
};
use verdict_protocol::{BranchId, Outcome};

use super::{
    super::xa::{BranchName, Finished},
    Mysql, MysqlError,
    database::DEAD_CONNECTIONS,
    errors::{code, failed, is_over, refused},
    name::XaName,
};
use crate::{
    LocalBranch, Transaction,
    participant::{NotAnswered, Settled, Voted},
};

/// Where the application works on its branch. Its connection goes back to the pool once the session and its transaction
/// are both dropped, or is closed if it can't be clean.
#[derive(Clone, Debug)]
pub struct Session(Arc<Work>);

/// A session's connection, in its branch. Commit waits until it is dropped.
pub struct Working<'a>(MutexGuard<'a, State>);

/// What the application means to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Write,
    Read,
}

struct Work {
    database: Mysql,
    name: BranchName,
    xa_name: XaName,
    purpose: Purpose,
    /// The number of the connection at the server, as its handshake said.
    connection: u32,
    begun: Instant,
    state: Mutex<State>,
}

struct State {
    /// None once it had to be closed.
    connection: Option<Conn>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// In the branch.
    Working,
    /// Prepared: the connection can do nothing but end the branch.
    Prepared,
    /// What the connection does is not known.
    Unclear,
    /// The connection has nothing to do with the branch any more.
    Free,
}

impl Session {
    pub(super) async fn begin(
        database: &Mysql,
        transaction: &mut Transaction,
        purpose: Purpose,
    ) -> Result<Self, MysqlError> {
        let branch = BranchId { xid: transaction.xid(), number: transaction.next_number() };
        let name = BranchName { cluster: database.cluster, branch };
        let xa_name = XaName::new(database.resource(), name);
        let begin = match purpose {
            Purpose::Write => format!("XA START {xa_name}"),
            Purpose::Read => "START TRANSACTION READ ONLY".to_owned(),
        };
        let state = State::begin(database, &begin).await?;
        // Nothing is added if that failed: the transaction can do without, or try again.
        transaction.add(database.resource().clone(), Bytes::new()).map_err(MysqlError::Enlist)?;
        let (connection, begun) = (state.connection.as_ref().map_or(0, Conn::id), Instant::now());
        let work = Arc::new(Work {
            database: database.clone(),
            name,
            xa_name,
            purpose,
            connection,
            begun,
            state: Mutex::new(state),
        });
        transaction.drive(branch.number, Arc::clone(&work) as Arc<dyn LocalBranch>).map_err(MysqlError::Enlist)?;
        Ok(Self(work))
    }

    /// The connection, in its branch, for one user at a time. It must be left in the branch: commit ends it.
    ///
    /// # Errors
    /// [`MysqlError::WorkIsOver`] once commit or rollback was asked for.
    pub async fn connection(&self) -> Result<Working<'_>, MysqlError> {
        let state = self.0.state.lock().await;
        if state.stage == Stage::Working && state.connection.is_some() {
            return Ok(Working(state));
        }
        Err(MysqlError::WorkIsOver { resource: self.0.database.resource().clone() })
    }
}

impl State {
    /// A connection on which the statement has run.
    async fn begin(database: &Mysql, statement: &str) -> Result<Self, MysqlError> {
        let mut dead = 0;
        loop {
            let mut state = Self { connection: Some(database.connect().await?), stage: Stage::Unclear };
            match state.run(statement).await {
                Ok(()) => {
                    state.stage = Stage::Working;
                    return Ok(state);
                }
                // It has died in the pool.
                Err(error) if error.is_fatal() && dead < DEAD_CONNECTIONS => dead += 1,
                Err(source) => {
                    return Err(MysqlError::Database { resource: database.resource().clone(), source });
                }
            }
        }
    }

    async fn run(&mut self, statement: &str) -> Result<(), Error> {
        self.connection()?.query_drop(statement).await
    }

    fn connection(&mut self) -> Result<&mut Conn, Error> {
        self.connection.as_mut().ok_or_else(|| DriverError::ConnectionClosed.into())
    }

    /// Runs these in one packet, up to the first that fails. False if the answer to the last is not there: an application
    /// that gave up on a statement has left the driver one answer behind, and what was read is another statement's.
    async fn run_all(&mut self, statements: &str) -> Result<bool, Error> {
        const DONE: &str = "verdict: done";
        let mut results = self.connection()?.query_iter(format!("{statements}; SELECT '{DONE}'")).await?;
        let mut last = None;
        while !results.is_empty() {
            last = results.collect::<Row>().await?.pop();
        }
        Ok(last.and_then(|mut row| row.take::<String, _>(0)).is_some_and(|said| said == DONE))
    }

    /// Closes the connection, by which the server rolls back a branch that is not prepared.
    async fn close(&mut self) {
        self.stage = Stage::Unclear;
        if let Some(connection) = self.connection.take() {
            close(connection).await;
        }
    }
}

/// It is broken already if that fails.
async fn close(connection: Conn) {
    drop(connection.disconnect().await);
}

impl Work {
    /// The vote of a branch that writes. Its row, the end of its work and its promise go in one packet, which the server
    /// runs up to the first statement that fails.
    async fn promise(&self, state: &mut State) -> Result<Voted, NotAnswered> {
        let Self { xa_name: name, .. } = self;
        let insert = self.database.table.insert(name);
        match state.run_all(&format!("{insert}; XA END {name}; XA PREPARE {name}")).await {
            Ok(true) => {
                state.stage = Stage::Prepared;
                Ok(Voted::PREPARED)
            }
            Ok(false) => {
                state.close().await;
                let what = format!("{}: the session answers something else than it is asked", self.database.resource());
                Err(NotAnswered::unavailable(what))
            }
            Err(Error::Server(said)) if self.undo(state).await => Ok(refused(self.database.resource(), said)),
            Err(error) => {
                state.close().await;
                let what = format!("{}: whether {} is prepared is not known", self.database.resource(), self.name);
                Err(failed(what, error))
            }
        }
    }

    /// Nothing was written: there is nothing to be told later.
    async fn end_reading(&self, state: &mut State) -> Result<Voted, NotAnswered> {
        match state.run_all("COMMIT").await {
            Ok(true) => state.stage = Stage::Free,
            Ok(false) => state.close().await,
            Err(error) => {
                state.close().await;
                return Err(failed(format!("{}: the connection broke", self.database.resource()), error));
            }
        }
        Ok(Voted::READ_ONLY)
    }

    /// Rolls back. If that fails, the connection is closed, which does the same with work that is not prepared: false then.
    async fn undo(&self, state: &mut State) -> bool {
        let name = &self.xa_name;
        let undone = match self.purpose {
            Purpose::Read => state.run_all("ROLLBACK").await,
            Purpose::Write => {
                // Fails in a branch that a deadlock has ended.
                drop(state.run(&format!("XA END {name}")).await);
                state.run_all(&format!("XA ROLLBACK {name}")).await
            }
        };
        let undone = undone.is_ok_and(|undone| undone);
        if undone {
            state.stage = Stage::Free;
        } else {
            state.close().await;
        }
        undone
    }

    /// The outcome of a branch that was prepared in this very session.
    async fn tell(&self, state: &mut State, outcome: Outcome) -> Result<Option<Finished>, NotAnswered> {
        let verb = match outcome {
            Outcome::Committed => "XA COMMIT",
            Outcome::Aborted => "XA ROLLBACK",
        };
        state.stage = Stage::Unclear;
        match state.run(&format!("{verb} {}", self.xa_name)).await {
            Ok(()) => {
                state.stage = Stage::Free;
                Ok(Some(Finished::Done))
            }
            // An agent was quicker, or the connection is another one by now: both are clear from outside.
            Err(error) if code(&error).is_none_or(is_over) => {
                state.close().await;
                Ok(None)
            }
            Err(error) => {
                state.stage = Stage::Prepared;
                Err(failed(format!("{verb} {} failed", self.xa_name), error))
            }
        }
    }
}

#[tonic::async_trait]
impl LocalBranch for Work {
    async fn prepare(&self, _: BranchId) -> Result<Voted, NotAnswered> {
        let mut state = self.state.lock().await;
        state.stage = Stage::Unclear;
        match self.purpose {
            Purpose::Write => self.promise(&mut state).await,
            Purpose::Read => self.end_reading(&mut state).await,
        }
    }

    /// The connection's number, for people: an agent finds it in the branch's row.
    fn payload(&self) -> Option<Bytes> {
        (self.purpose == Purpose::Write).then(|| self.connection.to_string().into())
    }

    async fn settle(&self, _: BranchId, outcome: Outcome) -> Result<Settled, NotAnswered> {
        let mut state = self.state.lock().await;
        match (state.stage, outcome) {
            (Stage::Working, Outcome::Aborted) => {
                state.stage = Stage::Unclear;
                self.undo(&mut state).await;
                return Ok(Settled::DONE);
            }
            (Stage::Prepared, outcome) => {
                if self.tell(&mut state, outcome).await? == Some(Finished::Done) {
                    return Ok(Settled::DONE);
                }
            }
            (Stage::Unclear, _) | (Stage::Working, Outcome::Committed) => {
                state.close().await;
                self.database.server().outlive(self.connection, self.begun).await?;
            }
            // It was told before, and the answer got lost.
            (Stage::Free, _) => {}
        }
        drop(state);
        self.database.settle(self.name, outcome).await
    }
}

/// A connection that is not known to be clean does not go back to the pool.
impl Drop for State {
    fn drop(&mut self) {
        if self.stage != Stage::Free
            && let Some(connection) = self.connection.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // The server rolls back what is not prepared in it.
            drop(runtime.spawn(close(connection)));
        }
    }
}

impl Deref for Working<'_> {
    type Target = Conn;

    fn deref(&self) -> &Conn {
        self.0.connection.as_ref().expect("there is a connection as long as the session works")
    }
}

impl DerefMut for Working<'_> {
    fn deref_mut(&mut self) -> &mut Conn {
        self.0.connection.as_mut().expect("there is a connection as long as the session works")
    }
}

/// A connection would write its password.
impl fmt::Debug for Working<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Working").finish_non_exhaustive()
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, purpose, connection, .. } = self;
        f.debug_struct("Work")
            .field("name", name)
            .field("purpose", purpose)
            .field("connection", connection)
            .finish_non_exhaustive()
    }
}
