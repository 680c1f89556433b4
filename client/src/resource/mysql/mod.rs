//! A MariaDB or MySQL database as a resource: its application works in sessions of its own, with its own SQL; commit
//! prepares them (`XA PREPARE`), brings their votes along and settles them. What an application that dies leaves behind,
//! the resource's agent settles.
//!
//! ```text
//!   application ── Session ── XA START, its SQL, XA PREPARE, XA COMMIT ──▶ MariaDB ◀── XA COMMIT ── Agent ◀── Verdict
//!        └─────────────── Commit, with the vote ──▶ Verdict
//! ```
//!
//! ```no_run
//! use mysql_async::prelude::Queryable;
//! use verdict_client::{Verdict, resource::mysql::{self, Mysql}};
//!
//! # async fn pay(verdict: &Verdict) -> Result<(), Box<dyn std::error::Error>> {
//! let pool = mysql::pool("mysql://shop:secret@127.0.0.1/shop", 16)?;
//! let accounts = Mysql::open(verdict, "accounts".try_into()?, pool).await?;
//!
//! let mut payment = verdict.transaction();
//! let session = accounts.enlist(&mut payment).await?;
//! let pay = "UPDATE accounts SET balance = balance - 5 WHERE id = ?";
//! session.connection().await?.exec_drop(pay, (17,)).await?;
//! // Other branches, here and elsewhere.
//! let decision = payment.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! - Each branch writes a row of its own, in `verdict_branches`, before it is prepared. "No such branch" is never taken
//!   for an acknowledgement: the row, or the lack of it, says how the branch ended. [`SCHEMA`] is the table.
//! - So a branch that wrote nothing else votes PREPARED too. One that only reads is [enlisted as
//!   such](Mysql::enlist_read_only), and votes READ_ONLY.
//! - On MariaDB the session that prepared a branch ends it. If it breaks, the branch can be ended by any other; if it
//!   hangs, the agent ends the session first.
//! - A session that breaks before it is prepared has lost its work: REFUSED, as is one that met a deadlock. A statement
//!   that fails otherwise, a lock wait that timed out for instance, leaves the branch as it was before that statement.
//! - A branch takes no DDL, no `COMMIT`, no `BEGIN`; and no table that does not keep transactions should be changed in it.

mod check;
mod database;
mod errors;
mod evidence;
mod name;
mod session;
mod settings;
pub mod table;

use std::{sync::Arc, time::Duration};

/// The driver, in the version whose types are used here.
pub use mysql_async;

use mysql_async::{Conn, Error, Pool};
use thiserror::Error;
use verdict_protocol::{ClusterId, Outcome, ResourceName};

pub use self::{
    database::{Database, DsnError, hosts, pool},
    name::MAX_RESOURCE,
    session::{Session, Working},
};
use self::{evidence::Table, session::Purpose, settings::Settings};
use super::xa::{Agent, BranchName, ClusterError, Finding, Grade, XaDatabase, cluster_of, judge, judge_fate};
use crate::{
    CallError, Transaction, Verdict,
    participant::{NotAnswered, Settled},
};

/// The table of evidence, which [`Mysql::open`] creates if its user may: one in each database that is a resource.
pub const SCHEMA: &str = evidence::SCHEMA;

/// A database that applications work on in transactions of Verdict's. Clones share the pool.
#[derive(Clone, Debug)]
pub struct Mysql {
    cluster: ClusterId,
    database: Database,
    table: Table,
}

/// Why a database can't be used now.
#[derive(Debug, Error)]
pub enum MysqlError {
    #[error("{resource}: its name has more than {MAX_RESOURCE} bytes, which are all that an XA name has room for")]
    NameTooLong { resource: ResourceName },
    #[error("{resource}: can't be used with this cluster")]
    Cluster {
        resource: ResourceName,
        #[source]
        source: ClusterError,
    },
    #[error("{resource}: no connection to the server")]
    Connect {
        resource: ResourceName,
        #[source]
        source: Error,
    },
    #[error("{resource}: the server refused")]
    Database {
        resource: ResourceName,
        #[source]
        source: Error,
    },
    #[error("{resource}: the pool's URL names no database: add it as its path")]
    NoDatabase { resource: ResourceName },
    /// A vote would be worth nothing there, or nothing could be prepared.
    #[error("{resource}: {setting} is {value}: {advice}")]
    Unfit { resource: ResourceName, setting: &'static str, value: String, advice: String },
    #[error(
        "{resource}: verdict_branches is missing and can't be created: have an administrator create it, or grant CREATE"
    )]
    Evidence {
        resource: ResourceName,
        #[source]
        source: Error,
    },
    #[error("the branch can't be added")]
    Enlist(#[source] CallError),
    #[error("{resource}: the transaction was asked to commit or roll back: its session takes no more work")]
    WorkIsOver { resource: ResourceName },
}

impl Mysql {
    /// Looks at the cluster, whose name all branches bear and which must have an agent of the resource, and at the server:
    /// its version, whether it takes writes, and the settings under which a vote is worth nothing. What could be better is
    /// warned of in the log. The table of evidence is created if it is missing.
    ///
    /// The pool keeps its bounds: a session holds a connection until its transaction has ended. Its URL names the
    /// database. Isolation and other settings of sessions are the pool's too (`setup`): a branch can't change them.
    ///
    /// # Errors
    /// [`MysqlError`], which says what to do.
    pub async fn open(verdict: &Verdict, resource: ResourceName, pool: Pool) -> Result<Self, MysqlError> {
        if resource.as_str().len() > MAX_RESOURCE {
            return Err(MysqlError::NameTooLong { resource });
        }
        let cluster = cluster_of(verdict, &resource).await;
        let cluster = cluster.map_err(|source| MysqlError::Cluster { resource: resource.clone(), source })?;
        let database = Database::new(resource.clone(), pool);
        let connection = database.connect().await;
        let mut connection = connection.map_err(|source| MysqlError::Connect { resource: resource.clone(), source })?;
        let Some(table) = Table::of(&connection) else { return Err(MysqlError::NoDatabase { resource }) };
        let settings = Settings::read(&mut connection).await;
        let settings = settings.map_err(|source| MysqlError::Database { resource: resource.clone(), source })?;
        for Finding { setting, value, grade, advice } in settings.findings() {
            match grade {
                Grade::Error => return Err(MysqlError::Unfit { resource, setting, value, advice }),
                Grade::Warning => tracing::warn!(%resource, setting, value, advice, "the server could be set better"),
                Grade::Fine => {}
            }
        }
        let created = table.create(&mut connection).await;
        created.map_err(|source| MysqlError::Evidence { resource, source })?;
        Ok(Self { cluster, database, table })
    }

    /// Begins a branch: a session in which the application works.
    ///
    /// The branch is known to the cluster from commit on. If the application dies before, the server rolls back.
    ///
    /// # Errors
    /// [`MysqlError`]
    pub async fn enlist(&self, transaction: &mut Transaction) -> Result<Session, MysqlError> {
        Session::begin(self, transaction, Purpose::Write).await
    }

    /// Begins a branch that only reads, at the isolation of the pool's sessions: the server refuses it to write. It votes
    /// READ_ONLY, costs no append of its own and has nothing to be told.
    ///
    /// # Errors
    /// [`MysqlError`]
    pub async fn enlist_read_only(&self, transaction: &mut Transaction) -> Result<Session, MysqlError> {
        Session::begin(self, transaction, Purpose::Read).await
    }

    /// Who settles what applications have left prepared. Hand it to
    /// [`Participants`](crate::participant::Participants), which asks the cluster about every branch of this cluster and
    /// resource that the server holds prepared for too long.
    #[must_use]
    pub fn agent(&self) -> Agent<Database> {
        Agent::new(Arc::new(self.database.clone()), Some(self.cluster))
    }

    fn resource(&self) -> &ResourceName {
        self.database.resource()
    }

    fn server(&self) -> &Database {
        &self.database
    }

    async fn connect(&self) -> Result<Conn, MysqlError> {
        let connected = self.database.connect().await;
        connected.map_err(|source| MysqlError::Connect { resource: self.resource().clone(), source })
    }

    /// Ends a branch that its session can't end any more.
    async fn settle(&self, name: BranchName, outcome: Outcome) -> Result<Settled, NotAnswered> {
        // Nobody but this application's own session can hold it, and that one is of no use any more.
        let finished = self.database.end(name, outcome, Duration::ZERO).await?;
        match judge(name, outcome, finished) {
            Some(judged) => judged,
            None => judge_fate(name, outcome, self.database.fate(name, &[]).await?),
        }
    }
}
