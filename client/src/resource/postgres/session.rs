//! One branch in its application's hands: a connection with a transaction of PostgreSQL's own.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use deadpool_postgres::Object;
use futures_util::future::join;
use tokio_postgres::{Client, SimpleQueryMessage};
use verdict_protocol::{BranchId, Outcome, Reason};

use super::{
    Postgres, PostgresError,
    gid::Gid,
    outcome::{failed, finish},
};
use crate::{
    LocalBranch, Transaction,
    participant::{NotAnswered, Settled, Voted},
};

/// Where the application works on its branch. Its connection goes back to the pool once the session and its transaction
/// are both dropped, or is closed if it can't be clean.
#[derive(Clone, Debug)]
pub struct Session(Arc<Work>);

struct Work {
    database: Postgres,
    gid: Gid,
    /// Always there until it is dropped.
    connection: Option<Object>,
    progress: Mutex<Progress>,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    stage: Stage,
    /// The number of the transaction at the database, once it has written something and is being prepared.
    xid8: Option<u64>,
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

impl Session {
    pub(super) async fn begin(database: &Postgres, transaction: &mut Transaction) -> Result<Self, PostgresError> {
        let connection = Some(database.connect().await?);
        let branch = transaction.add(database.resource.clone(), Bytes::new()).map_err(PostgresError::Enlist)?;
        let gid = Gid { cluster: database.cluster, branch };
        let progress = Mutex::new(Progress { stage: Stage::Unclear, xid8: None });
        let work = Work { database: database.clone(), gid, connection, progress };
        work.client().batch_execute("BEGIN").await.map_err(|source| database.refused(source))?;
        work.goes_to(Stage::Working);
        let session = Self(Arc::new(work));
        transaction
            .drive(branch.number, Arc::clone(&session.0) as Arc<dyn LocalBranch>)
            .map_err(PostgresError::Enlist)?;
        Ok(session)
    }

    /// The connection, in its transaction. It must be left in it: commit ends it.
    ///
    /// # Errors
    /// [`PostgresError::WorkIsOver`] once commit or rollback was asked for.
    pub fn client(&self) -> Result<&Client, PostgresError> {
        match self.0.progress().stage {
            Stage::Working => Ok(self.0.client()),
            Stage::Unclear | Stage::Free => {
                Err(PostgresError::WorkIsOver { resource: self.0.database.resource.clone() })
            }
        }
    }
}

impl Work {
    fn client(&self) -> &Client {
        self.connection.as_ref().expect("the connection is there until the branch is dropped")
    }

    fn progress(&self) -> Progress {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn goes_to(&self, stage: Stage) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).stage = stage;
    }

    /// The database said no to something that came before PREPARE TRANSACTION, or to that itself.
    async fn refuses(&self, error: tokio_postgres::Error) -> Voted {
        if self.client().batch_execute("ROLLBACK").await.is_ok() {
            self.goes_to(Stage::Free);
        }
        let code = error.code().map(|code| code.code().to_owned()).unwrap_or_default();
        // 40001 and its kin: the same work may succeed in another transaction.
        let retryable = error.is_closed() || code.starts_with("40") || code.starts_with("57");
        let text = error.as_db_error().map_or_else(|| error.to_string(), |said| said.message().to_owned());
        Voted::refused(Reason::refused(format!("{}: {text}", self.database.resource), code, retryable))
    }

    /// Nothing was written: there is nothing to be told later.
    async fn ends_read_only(&self) -> Voted {
        match self.client().batch_execute("COMMIT").await {
            Ok(()) => {
                self.goes_to(Stage::Free);
                Voted::READ_ONLY
            }
            Err(error) => self.refuses(error).await,
        }
    }
}

#[tonic::async_trait]
impl LocalBranch for Work {
    async fn prepare(&self, _: BranchId) -> Result<Voted, NotAnswered> {
        self.goes_to(Stage::Unclear);
        // Fails in a block in which a statement has failed.
        let asked = self.client().query_one("SELECT pg_current_xact_id_if_assigned()::text", &[]).await;
        let written = match asked {
            Ok(row) => row.get::<_, Option<String>>(0),
            Err(error) => return Ok(self.refuses(error).await),
        };
        let Some(xid8) = written else { return Ok(self.ends_read_only().await) };
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).xid8 = xid8.parse().ok();

        let (prepare, look) = (
            format!("PREPARE TRANSACTION '{}'", self.gid),
            format!("SELECT gid FROM pg_prepared_xacts WHERE gid = '{}'", self.gid),
        );
        match join(self.client().batch_execute(&prepare), self.client().simple_query(&look)).await {
            (Ok(()), Ok(found)) => {
                self.goes_to(Stage::Free);
                if found.iter().any(|message| matches!(message, SimpleQueryMessage::Row(_))) {
                    return Ok(Voted::PREPARED);
                }
                let text = format!("{}: a statement had failed, so PostgreSQL rolled back", self.database.resource);
                Ok(Voted::refused(Reason::refused(text, "25P02", false)))
            }
            (Err(error), _) if error.as_db_error().is_some() => Ok(self.refuses(error).await),
            (Err(error), _) | (Ok(()), Err(error)) => {
                Err(failed(format!("{}: whether {} is prepared is not known", self.database.resource, self.gid), error))
            }
        }
    }

    fn payload(&self) -> Option<Bytes> {
        self.progress().xid8.map(|xid8| xid8.to_string().into())
    }

    async fn settle(&self, _: BranchId, outcome: Outcome) -> Result<Settled, NotAnswered> {
        let Progress { stage, xid8 } = self.progress();
        if stage == Stage::Working && outcome == Outcome::Aborted {
            self.goes_to(Stage::Unclear);
            // If that fails, the connection is closed, which does the same.
            if self.client().batch_execute("ROLLBACK").await.is_ok() {
                self.goes_to(Stage::Free);
            }
            return Ok(Settled::DONE);
        }
        if stage == Stage::Free && !self.client().is_closed() {
            return finish(self.client(), self.gid, outcome, xid8).await;
        }
        let another = self.database.pool.get().await.map_err(|error| NotAnswered::Unavailable {
            what: format!("{}: no connection to settle {}", self.database.resource, self.gid),
            source: Some(Box::new(error)),
        })?;
        finish(&another, self.gid, outcome, xid8).await
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let clean = self.progress().stage == Stage::Free;
        if let Some(connection) = self.connection.take().filter(|_| !clean) {
            // Closed: PostgreSQL rolls back what is open in it.
            drop(Object::take(connection));
        }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("gid", &self.gid).field("progress", &self.progress()).finish_non_exhaustive()
    }
}
