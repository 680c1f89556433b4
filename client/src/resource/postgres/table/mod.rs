//! A branch table in a PostgreSQL database: makes a service with such a database a participant.
//!
//! ```text
//!   ResourceManager calls ─▶ a connection each: BEGIN
//!                              the branch's row is locked: twins wait here
//!                              handler + record in verdict_branch
//!                            COMMIT ─▶ reply
//! ```
//!
//! The service's code is a [`Handler`]: reserve, confirm, cancel, each run inside the local transaction that records what
//! became of the branch, so that either both are durable or neither is. Nothing is answered before the commit. Several
//! processes may serve one database. `PREPARE TRANSACTION` is not used: `max_prepared_transactions` may be 0.
//!
//! - A deadlock or serialization failure (40P01, 40001) is done again after a pause, up to ten times; then the branch is
//!   REFUSED with the SQLSTATE, as retryable. A lock or statement that timed out (55P03, 57014) is REFUSED so at once.
//! - What the database does not allow, also at the commit (classes 22 and 23, P0001), is REFUSED with the SQLSTATE.
//! - Any other error is [`NotAnswered::Unavailable`], never a vote, and so is any error of confirm and cancel: the call comes
//!   again.
//!
//! ```no_run
//! use verdict_client::{BranchId, Reason, resource::{Reservation, postgres::{self, table::{BranchTable, Handler, TableOptions}}}};
//! use postgres::{deadpool_postgres::Transaction, tokio_postgres::Error};
//!
//! /// A payload is the number of a seat. `held_by` is set by reserve, `sold` by confirm.
//! struct Seats;
//!
//! #[tonic::async_trait]
//! impl Handler for Seats {
//!     async fn reserve(&self, database: &Transaction<'_>, branch: BranchId, seat: &[u8]) -> Result<Reservation, Error> {
//!         let free = "UPDATE seats SET held_by = $1 WHERE seat = $2 AND held_by IS NULL";
//!         match database.execute(free, &[&branch.to_string(), &seat]).await? {
//!             1 => Ok(Reservation::Reserved),
//!             _ => Ok(Reservation::Refused(Reason::refused("the seat is taken", "SOLD_OUT", false))),
//!         }
//!     }
//!
//!     async fn confirm(&self, database: &Transaction<'_>, branch: BranchId, _: &[u8]) -> Result<(), Error> {
//!         database.execute("UPDATE seats SET sold = true WHERE held_by = $1", &[&branch.to_string()]).await.map(drop)
//!     }
//!
//!     async fn cancel(&self, database: &Transaction<'_>, branch: BranchId, _: &[u8]) -> Result<(), Error> {
//!         database.execute("UPDATE seats SET held_by = NULL WHERE held_by = $1", &[&branch.to_string()]).await.map(drop)
//!     }
//! }
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = postgres::pool("host=127.0.0.1 user=seats dbname=seats", 16)?;
//! let seats = BranchTable::open(pool, Seats, TableOptions::default()).await?;
//! // Hand it to `Participants::start`.
//! # Ok(())
//! # }
//! ```

mod errors;
mod store;

use std::{sync::Arc, time::Duration};

use deadpool_postgres::{Pool, Transaction};
use tokio_postgres::{Error, IsolationLevel};
use verdict_protocol::{BranchId, ClusterId, Conclusion, Outcome};

use self::store::PostgresStore;
use crate::{
    participant::{NotAnswered, OnePhase, Prepare, ResourceManager, Settle, Settled, Voted},
    resource::{Reservation, table::engine::Engine},
};

pub use crate::resource::table::OpenError;

/// The tables, which [`BranchTable::open`] creates if its role may.
pub const SCHEMA: &str = include_str!("verdict_branch.sql");

/// A service's own code. Each function runs inside a transaction that is not its own: it must neither begin nor end one,
/// and may run again if the transaction has to make way for another. Calls about different branches run side by side. A
/// panic or an error undoes what it did.
#[tonic::async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Does the work in such a way that it can be confirmed and cancelled: after [`Reservation::Reserved`] neither may
    /// fail for a reason of the business.
    ///
    /// # Errors
    /// Of PostgreSQL. A business "no" is [`Reservation::Refused`], or what the database itself does not allow.
    async fn reserve(&self, database: &Transaction<'_>, branch: BranchId, payload: &[u8])
    -> Result<Reservation, Error>;

    /// Makes what was reserved effective. `payload` is the one that [`Handler::reserve`] was given.
    ///
    /// # Errors
    /// Of PostgreSQL.
    async fn confirm(&self, database: &Transaction<'_>, branch: BranchId, payload: &[u8]) -> Result<(), Error>;

    /// Gives back what was reserved. `payload` is the one that [`Handler::reserve`] was given.
    ///
    /// # Errors
    /// Of PostgreSQL.
    async fn cancel(&self, database: &Transaction<'_>, branch: BranchId, payload: &[u8]) -> Result<(), Error>;
}

/// How a branch table is opened.
#[derive(Clone, Copy, Debug)]
pub struct TableOptions {
    /// The cluster that the participant belongs to. None takes the one that speaks first, and keeps to it.
    pub cluster: Option<ClusterId>,
    /// Of the local transactions. What the table promises holds at each; above READ COMMITTED more transactions have to
    /// make way.
    pub isolation: IsolationLevel,
    /// How long a call may take, its connection and all its repeats included. It must be longer than the longest wait for a
    /// lock, which the role's `lock_timeout` bounds.
    pub call_timeout: Duration,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self { cluster: None, isolation: IsolationLevel::ReadCommitted, call_timeout: Duration::from_secs(30) }
    }
}

/// The participant. Clones share its pool.
#[derive(Clone, Debug)]
pub struct BranchTable {
    engine: Arc<Engine<PostgresStore>>,
}

impl BranchTable {
    /// Looks at the settings under which a commit is not durable, and creates the tables of [`SCHEMA`] if they are missing.
    /// The pool bounds how many calls run at a time; the service may use it, too.
    ///
    /// # Errors
    /// [`OpenError`]
    pub async fn open(pool: Pool, handler: impl Handler, options: TableOptions) -> Result<Self, OpenError> {
        let store = PostgresStore::open(pool, Arc::new(handler), options).await?;
        Ok(Self { engine: Arc::new(Engine::new(store, options.call_timeout)) })
    }
}

#[tonic::async_trait]
impl ResourceManager for BranchTable {
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        self.engine.prepare(request).await
    }

    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.engine.settle(request, Outcome::Committed).await
    }

    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.engine.settle(request, Outcome::Aborted).await
    }

    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        self.engine.conclude(request).await
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        self.engine.recover(limit).await
    }
}
