//! A branch table in a MariaDB or MySQL database: makes a service with such a database a participant.
//!
//! ```text
//!   ResourceManager calls ─▶ a connection each: START TRANSACTION
//!                              the branch's row is locked: twins wait here
//!                              handler + record in verdict_branch
//!                            COMMIT ─▶ reply
//! ```
//!
//! The service's code is a [`Handler`]: reserve, confirm, cancel, each run inside the local transaction that records what
//! became of the branch, so that either both are durable or neither is. Nothing is answered before the commit. Several
//! processes may serve one database. No XA statement is used.
//!
//! - A deadlock (1213, also 1020) is done again after a pause, up to ten times; then the branch is REFUSED with the server's
//!   code, as retryable. A lock or statement that timed out (1205, 1317, 1969, 3024) is REFUSED so at once.
//! - What the server does not allow, also at the commit (SQLSTATE classes 22, 23 and 45, code 3819), is REFUSED with its code.
//! - Any other error is [`NotAnswered::Unavailable`], never a vote, and so is any error of confirm and cancel: the call comes
//!   again.
//! - A statement that commits by itself, DDL for one, is noticed, and the branch is not recorded; what it has committed stays.
//!   Nothing undoes changes of a table that keeps no transactions (MyISAM, Aria).
//!
//! ```no_run
//! use verdict_client::{BranchId, Reason, resource::{Reservation, mysql::{self, table::{BranchTable, Handler, TableOptions}}}};
//! use mysql::mysql_async::{Result, Transaction, prelude::Queryable};
//!
//! /// A payload is the number of a seat. `held_by` is set by reserve, `sold` by confirm.
//! struct Seats;
//!
//! #[tonic::async_trait]
//! impl Handler for Seats {
//!     async fn reserve(&self, database: &mut Transaction<'_>, branch: BranchId, seat: &[u8]) -> Result<Reservation> {
//!         let free = "UPDATE seats SET held_by = ? WHERE seat = ? AND held_by IS NULL";
//!         database.exec_drop(free, (branch.to_string(), seat)).await?;
//!         match database.affected_rows() {
//!             1 => Ok(Reservation::Reserved),
//!             _ => Ok(Reservation::Refused(Reason::refused("the seat is taken", "SOLD_OUT", false))),
//!         }
//!     }
//!
//!     async fn confirm(&self, database: &mut Transaction<'_>, branch: BranchId, _: &[u8]) -> Result<()> {
//!         database.exec_drop("UPDATE seats SET sold = TRUE WHERE held_by = ?", (branch.to_string(),)).await
//!     }
//!
//!     async fn cancel(&self, database: &mut Transaction<'_>, branch: BranchId, _: &[u8]) -> Result<()> {
//!         database.exec_drop("UPDATE seats SET held_by = NULL WHERE held_by = ?", (branch.to_string(),)).await
//!     }
//! }
//!
//! # async fn serve() -> std::result::Result<(), Box<dyn std::error::Error>> {
//! let pool = mysql::pool("mysql://seats:secret@127.0.0.1/seats", 16)?;
//! let seats = BranchTable::open(pool, Seats, TableOptions::default()).await?;
//! // Hand it to `Participants::start`.
//! # Ok(())
//! # }
//! ```

mod errors;
mod lease;
mod sql;
mod store;

use std::{sync::Arc, time::Duration};

use mysql_async::{IsolationLevel, Pool, Result as MysqlResult, Transaction};
use verdict_protocol::{BranchId, ClusterId, Conclusion, Outcome};

use self::store::MysqlStore;
use crate::{
    participant::{NotAnswered, OnePhase, Prepare, ResourceManager, Settle, Settled, Voted},
    resource::{Reservation, table::engine::Engine},
};

pub use crate::resource::table::OpenError;

/// The tables, which [`BranchTable::open`] creates if its user may.
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
    /// Of the database. A business "no" is [`Reservation::Refused`], or what the database itself does not allow.
    async fn reserve(
        &self,
        database: &mut Transaction<'_>,
        branch: BranchId,
        payload: &[u8],
    ) -> MysqlResult<Reservation>;

    /// Makes what was reserved effective. `payload` is the one that [`Handler::reserve`] was given.
    ///
    /// # Errors
    /// Of the database.
    async fn confirm(&self, database: &mut Transaction<'_>, branch: BranchId, payload: &[u8]) -> MysqlResult<()>;

    /// Gives back what was reserved. `payload` is the one that [`Handler::reserve`] was given.
    ///
    /// # Errors
    /// Of the database.
    async fn cancel(&self, database: &mut Transaction<'_>, branch: BranchId, payload: &[u8]) -> MysqlResult<()>;
}

/// How a branch table is opened.
#[derive(Clone, Copy, Debug)]
pub struct TableOptions {
    /// The cluster that the participant belongs to. None takes the one that speaks first, and keeps to it.
    pub cluster: Option<ClusterId>,
    /// Of the local transactions; None: of the pool's sessions. What the table promises holds at each. At SERIALIZABLE
    /// finished branches are dropped only at moments at which no call is at work.
    pub isolation: Option<IsolationLevel>,
    /// How long a call may take, its connection and all its repeats included. It must be longer than the longest wait for a
    /// lock, which `innodb_lock_wait_timeout` bounds.
    pub call_timeout: Duration,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self { cluster: None, isolation: None, call_timeout: Duration::from_secs(30) }
    }
}

/// The participant. Clones share its pool.
#[derive(Clone, Debug)]
pub struct BranchTable {
    engine: Arc<Engine<MysqlStore>>,
}

impl BranchTable {
    /// Looks at the settings under which a commit is not durable, and creates the tables of [`SCHEMA`] if they are missing.
    /// The pool bounds how many calls run at a time, and its URL names the database; the service may use it, too.
    ///
    /// # Errors
    /// [`OpenError`]
    pub async fn open(pool: Pool, handler: impl Handler, options: TableOptions) -> Result<Self, OpenError> {
        let store = MysqlStore::open(pool, Arc::new(handler), options).await?;
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
