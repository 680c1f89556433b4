//! A PostgreSQL database as a resource: its application works in sessions of its own, with its own SQL; commit prepares
//! them (`PREPARE TRANSACTION`), brings their votes along and settles them. What an application that dies leaves behind,
//! the resource's [`Agent`] settles.
//!
//! ```text
//!   application ── Session ── BEGIN, its SQL, PREPARE TRANSACTION ──▶ PostgreSQL ◀── COMMIT PREPARED ── Agent ◀── Verdict
//!        └──────── Commit, with the vote and the transaction's number ──▶ Verdict
//! ```
//!
//! ```no_run
//! use verdict_client::{Verdict, resource::postgres::{self, Postgres}};
//!
//! # async fn pay(verdict: &Verdict) -> Result<(), Box<dyn std::error::Error>> {
//! let pool = postgres::pool("host=127.0.0.1 user=shop dbname=shop", 16)?;
//! let accounts = Postgres::open(verdict, "accounts".try_into()?, pool).await?;
//!
//! let mut payment = verdict.transaction();
//! let session = accounts.enlist(&mut payment).await?;
//! session.client()?.execute("UPDATE accounts SET balance = balance - 5 WHERE id = $1", &[&17]).await?;
//! // Other branches, here and elsewhere.
//! let decision = payment.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! - A session in which nothing was written votes READ_ONLY and is committed at once. PREPARE TRANSACTION that fails, a
//!   deferred constraint for instance, is REFUSED with the database's own SQLSTATE.
//! - In a block in which a statement has failed, PREPARE TRANSACTION rolls back without an error: nothing counts as
//!   PREPARED of which PostgreSQL says afterwards that it was rolled back.
//! - "No such prepared transaction" is never taken for an acknowledgement of a commit: `pg_xact_status` of the number that
//!   was brought with the vote says how the transaction ended.
//! - PostgreSQL refuses to prepare after LISTEN, NOTIFY, or work on temporary tables, and while a cursor WITH HOLD is open.
//! - Only its owner or a superuser may finish a prepared transaction, and only in its own database.

mod check;
mod database;
mod evidence;
mod gid;
mod lease;
mod session;
pub mod table;

use std::sync::Arc;

/// The drivers, in the versions whose types are used here.
pub use {deadpool_postgres, tokio_postgres};

use deadpool_postgres::{Pool, PoolError};
use thiserror::Error;
use verdict_protocol::{ClusterId, ResourceName};

use self::{check::check, lease::Lease};
pub use self::{
    database::{Database, DsnError, hosts, pool},
    session::Session,
};
use super::xa::{Agent, ClusterError, Finding, Grade, cluster_of};
use crate::{CallError, Transaction, Verdict};

/// A database that applications work on in transactions of Verdict's. Clones share the pool.
#[derive(Clone, Debug)]
pub struct Postgres {
    resource: ResourceName,
    cluster: ClusterId,
    pool: Pool,
}

/// Why a database can't be used now.
#[derive(Debug, Error)]
pub enum PostgresError {
    #[error("{resource}: can't be used with this cluster")]
    Cluster {
        resource: ResourceName,
        #[source]
        source: ClusterError,
    },
    #[error("{resource}: no connection to PostgreSQL")]
    Connect {
        resource: ResourceName,
        #[source]
        source: PoolError,
    },
    #[error("{resource}: PostgreSQL refused")]
    Database {
        resource: ResourceName,
        #[source]
        source: tokio_postgres::Error,
    },
    #[error("{resource}: PostgreSQL does not answer: look whether it runs and can be reached")]
    Silent { resource: ResourceName },
    /// A vote would be worth nothing there, or nothing could be prepared.
    #[error("{resource}: {setting} is {value}: {advice}")]
    Unfit { resource: ResourceName, setting: &'static str, value: String, advice: String },
    #[error("the branch can't be added")]
    Enlist(#[source] CallError),
    #[error("{resource}: the transaction was asked to commit or roll back: its session takes no more work")]
    WorkIsOver { resource: ResourceName },
}

impl Postgres {
    /// Looks at the cluster, whose name all prepared transactions bear, and at the database: its version, whether anything
    /// can be prepared there, and the settings under which a vote is worth nothing. What could be better is warned of in the
    /// log.
    ///
    /// The pool keeps its bounds: a session holds a connection until its transaction has ended. One that breaks while its
    /// branch is prepared is settled over a new connection beside the pool, closed at once.
    ///
    /// # Errors
    /// [`PostgresError`], which says what to do.
    pub async fn open(verdict: &Verdict, resource: ResourceName, pool: Pool) -> Result<Self, PostgresError> {
        let cluster = cluster_of(verdict, &resource).await;
        let cluster = cluster.map_err(|source| PostgresError::Cluster { resource: resource.clone(), source })?;
        let postgres = Self { resource, cluster, pool };
        let client = postgres.connect().await?;
        let found = client.came_to(check(&client).await).map_err(|source| postgres.refused(source))?;
        for Finding { setting, value, grade, advice } in found {
            if grade == Grade::Error {
                return Err(PostgresError::Unfit { resource: postgres.resource, setting, value, advice });
            }
            if grade == Grade::Warning {
                tracing::warn!(resource = %postgres.resource, setting, value, advice, "PostgreSQL could be set better");
            }
        }
        drop(client);
        Ok(postgres)
    }

    /// Begins a branch: a session with a transaction of its own, in which the application works.
    ///
    /// The branch is known to the cluster from commit on. If the application dies before, PostgreSQL rolls back.
    ///
    /// # Errors
    /// [`PostgresError`]
    pub async fn enlist(&self, transaction: &mut Transaction) -> Result<Session, PostgresError> {
        Session::begin(self, transaction).await
    }

    /// Who settles what applications have left prepared. Hand it to
    /// [`Participants`](crate::participant::Participants), which asks the cluster about every transaction of this
    /// cluster that the database holds prepared for too long. Its role must own what applications prepare, or be a
    /// superuser.
    #[must_use]
    pub fn agent(&self) -> Agent<Database> {
        Agent::new(Arc::new(Database::new(self.resource.clone(), self.pool.clone())), Some(self.cluster))
    }

    async fn connect(&self) -> Result<Lease, PostgresError> {
        let taken = Lease::take(&self.pool).await;
        taken.map_err(|source| PostgresError::Connect { resource: self.resource.clone(), source })
    }

    fn refused(&self, source: tokio_postgres::Error) -> PostgresError {
        PostgresError::Database { resource: self.resource.clone(), source }
    }
}
