//! One branch in its application's hands: a connection with a transaction of PostgreSQL's own.
//!
//! ```text
//!   Working ── prepare ──▶ Unclear ── said so, and stands in pg_prepared_xacts ──▶ Free ── settle on this connection
//!      │                      └── no answer ── settle on another connection
//!      └── rollback ── ROLLBACK, or the connection is closed
//! ```

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use deadpool::managed::Manager as _;
use futures_util::future::join;
use tokio::time::timeout;
use tokio_postgres::{Client, error::SqlState};
use verdict_protocol::{BranchId, Outcome, Reason};

use super::{
    Postgres, PostgresError,
    database::{DEAD_CONNECTIONS, TIMELINE, WITHIN, failed, fate, finish, rows, unfinished},
    evidence::Evidence,
    gid::Gid,
    lease::{Lease, is_lost},
};
use crate::{
    LocalBranch, Transaction,
    participant::{NotAnswered, Settled, Voted},
    resource::xa::{BranchName, Fate, judge, judge_fate},
};

/// Where the application works on its branch. Its connection goes back to the pool once the session and its transaction
/// are both dropped, or is closed if it can't be clean.
#[derive(Clone, Debug)]
pub struct Session(Arc<Work>);

struct Work {
    database: Postgres,
    gid: Gid,
    connection: Lease,
    progress: Mutex<Progress>,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    stage: Stage,
    /// Once it has written something and is being prepared.
    evidence: Option<Evidence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// In a transaction block.
    Working,
    /// What the connection does, or whether there is one, is not known.
    Unclear,
    /// Prepared or ended: the connection has nothing to do with the branch any more.
    Free,
}

/// A setting that is gone if the application ends the transaction block itself.
const BEGIN: &str = "BEGIN; SET LOCAL verdict.branch = 'open'";

impl Session {
    pub(super) async fn begin(database: &Postgres, transaction: &mut Transaction) -> Result<Self, PostgresError> {
        let connection = Self::begun(database).await?;
        let branch = transaction.add(database.resource.clone(), Bytes::new()).map_err(PostgresError::Enlist)?;
        let gid = Gid(BranchName { cluster: database.cluster, branch });
        let progress = Mutex::new(Progress { stage: Stage::Working, evidence: None });
        let work = Arc::new(Work { database: database.clone(), gid, connection, progress });
        transaction.drive(branch.number, Arc::clone(&work) as Arc<dyn LocalBranch>).map_err(PostgresError::Enlist)?;
        Ok(Self(work))
    }

    /// A connection in a transaction block.
    async fn begun(database: &Postgres) -> Result<Lease, PostgresError> {
        let mut dead = 0;
        loop {
            let connection = database.connect().await?;
            match timeout(WITHIN / 5, connection.batch_execute(BEGIN)).await {
                Ok(Ok(())) => return Ok(connection),
                // It has died in the pool.
                Ok(Err(error)) if is_lost(&error) && dead < DEAD_CONNECTIONS => dead += 1,
                Ok(Err(source)) => return Err(database.refused(source)),
                Err(_) if dead < DEAD_CONNECTIONS => dead += 1,
                Err(_) => return Err(PostgresError::Silent { resource: database.resource.clone() }),
            }
        }
    }

    /// The connection, in its transaction. It must be left in it: commit ends it.
    ///
    /// # Errors
    /// [`PostgresError::WorkIsOver`] once commit or rollback was asked for.
    pub fn client(&self) -> Result<&Client, PostgresError> {
        match self.0.progress().stage {
            Stage::Working => Ok(&self.0.connection),
            Stage::Unclear | Stage::Free => {
                Err(PostgresError::WorkIsOver { resource: self.0.database.resource.clone() })
            }
        }
    }
}

impl Work {
    fn progress(&self) -> Progress {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn goes_to(&self, stage: Stage) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).stage = stage;
        self.connection.set_clean(stage == Stage::Free);
    }

    fn refused(&self, text: &str, code: impl Into<String>, retryable: bool) -> Voted {
        Voted::refused(Reason::refused(format!("{}: {text}", self.database.resource), code, retryable))
    }

    /// The database said no to something that came before PREPARE TRANSACTION, or to that itself.
    async fn refuses(&self, error: tokio_postgres::Error) -> Voted {
        if self.connection.batch_execute("ROLLBACK").await.is_ok() {
            self.goes_to(Stage::Free);
        }
        let code = error.code().map(|code| code.code().to_owned()).unwrap_or_default();
        // A deadlock, no room for more, a server that goes down: the same work may succeed in another transaction.
        let retryable = ["", "08", "40", "53", "57"].iter().any(|class| code.get(..2).unwrap_or("") == *class);
        let text = error.as_db_error().map_or_else(
            || error.to_string(),
            |said| {
                [Some(said.message()), said.detail(), said.hint()].into_iter().flatten().collect::<Vec<_>>().join("; ")
            },
        );
        self.refused(&text, code, retryable)
    }

    /// Nothing was written: there is nothing to be told later.
    async fn ends_read_only(&self) -> Voted {
        match self.connection.batch_execute("COMMIT").await {
            Ok(()) => {
                self.goes_to(Stage::Free);
                Voted::READ_ONLY
            }
            Err(error) => self.refuses(error).await,
        }
    }

    /// On a connection that has nothing to do with the transaction any more.
    async fn settle_on(&self, connection: &Client, outcome: Outcome) -> Result<Settled, NotAnswered> {
        // If it is the session's own, which is none any more once it is lost.
        let lost = |error: &tokio_postgres::Error| {
            if is_lost(error) {
                self.connection.set_clean(false);
            }
        };
        let failed = |what, error| failed(format!("{}: {what}", self.database.resource), error);
        let finished = finish(connection, self.gid, outcome).await.inspect_err(lost);
        let finished = finished.map_err(|error| failed(unfinished(self.gid, outcome), error))?;
        if let Some(judged) = judge(self.gid.0, outcome, finished) {
            return judged;
        }
        let ended = match self.progress().evidence {
            Some(evidence) => {
                let ended = fate(connection, evidence).await.inspect_err(lost);
                ended.map_err(|error| failed(format!("how {} ended can't be read", self.gid), error))?
            }
            None => Fate::Unknown,
        };
        judge_fate(self.gid.0, outcome, ended)
    }
}

#[tonic::async_trait]
impl LocalBranch for Work {
    async fn prepare(&self, _: BranchId) -> Result<Voted, NotAnswered> {
        self.goes_to(Stage::Unclear);
        let ask = format!(
            "SELECT pg_current_xact_id_if_assigned(), {TIMELINE}, current_setting('verdict.branch', true) = 'open'"
        );
        // Fails in a block in which a statement has failed.
        let asked = match rows(&self.connection, &ask).await {
            Ok(asked) => asked,
            Err(error) => return Ok(self.refuses(error).await),
        };
        let column = |at| asked.first().and_then(|row| row.get(at));
        if column(2) != Some("t") {
            if self.connection.batch_execute("ROLLBACK").await.is_ok() {
                self.goes_to(Stage::Free);
            }
            return Ok(self.refused(
                "the application ended the transaction itself: what it did stands",
                "25000",
                false,
            ));
        }
        let number = |at| column(at).and_then(|text| text.parse::<u64>().ok());
        let (Some(xid8), Some(timeline)) = (number(0), number(1).and_then(|number| u32::try_from(number).ok())) else {
            return Ok(self.ends_read_only().await);
        };
        let evidence = Evidence { xid8, timeline };
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).evidence = Some(evidence);

        let prepare = format!("PREPARE TRANSACTION '{}'", self.gid);
        match join(self.connection.batch_execute(&prepare), fate(&self.connection, evidence)).await {
            (Ok(()), Ok(fate)) => {
                self.goes_to(Stage::Free);
                match fate {
                    // Prepared; or somebody was so quick as to commit it.
                    Fate::Open | Fate::Committed => Ok(Voted::PREPARED),
                    Fate::Aborted => {
                        let code = SqlState::IN_FAILED_SQL_TRANSACTION.code();
                        Ok(self.refused("a statement had failed, so PostgreSQL rolled back", code, false))
                    }
                    Fate::Unknown => {
                        let (resource, gid) = (&self.database.resource, self.gid);
                        let what = format!("{resource}: failed over meanwhile: whether {gid} is prepared is not known");
                        Err(NotAnswered::unavailable(what))
                    }
                }
            }
            (Err(error), _) if error.as_db_error().is_some() && !is_lost(&error) => Ok(self.refuses(error).await),
            (Err(error), _) | (Ok(()), Err(error)) => {
                Err(failed(format!("{}: whether {} is prepared is not known", self.database.resource, self.gid), error))
            }
        }
    }

    fn payload(&self) -> Option<Bytes> {
        self.progress().evidence.map(Evidence::to_bytes)
    }

    /// The outcome of a branch that is not prepared any more is judged as the resource's agent judges it.
    async fn settle(&self, _: BranchId, outcome: Outcome) -> Result<Settled, NotAnswered> {
        if self.progress().stage == Stage::Working && outcome == Outcome::Aborted {
            self.goes_to(Stage::Unclear);
            // If that fails, the connection is closed, which does the same.
            if self.connection.batch_execute("ROLLBACK").await.is_ok() {
                self.goes_to(Stage::Free);
            }
            return Ok(Settled::DONE);
        }
        if self.connection.is_clean() {
            match self.settle_on(&self.connection, outcome).await {
                // It broke: at once on another one.
                Err(_) if !self.connection.is_clean() => {}
                settled => return settled,
            }
        }
        // Beside the pool, which counts the broken one as long as the session is held, and may have no other if all of
        // them broke at once.
        let away = |source: Option<tokio_postgres::Error>| NotAnswered::Unavailable {
            what: format!("{}: no connection to settle {}", self.database.resource, self.gid),
            source: source.map(Into::into),
        };
        let another = timeout(WITHIN, self.database.pool.manager().create()).await.map_err(|_| away(None))?;
        let another = another.map_err(|error| away(Some(error)))?;
        self.settle_on(&another, outcome).await
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("gid", &self.gid).field("progress", &self.progress()).finish_non_exhaustive()
    }
}
