//! A branch table in a local SQLite database: makes a service with such a database a participant.
//!
//! ```text
//!   ResourceManager calls ─▶ bounded queue ─▶ one thread: BEGIN IMMEDIATE
//!                                               each call in a savepoint: handler + record in verdict_branch
//!                                             COMMIT (one fsync for all calls that waited) ─▶ replies
//! ```
//!
//! The service's code is a [`Handler`]: reserve, confirm, cancel, each run inside the local transaction that records
//! what became of the branch, so that either both are durable or neither is. Nothing is answered before the commit.
//! Calls that arrive while a commit is under way share the next one.
//!
//! An error of SQLite's (the disk is full, the database is locked or damaged) is [`NotAnswered::Unavailable`], never a
//! vote. After an I/O error or damage nothing more is answered until the table is opened again: what a failed fsync
//! left behind can't be known.
//!
//! ```no_run
//! use rusqlite::{Connection, Result};
//! use verdict_client::{BranchId, Reason, resource::{Reservation, sqlite::{BranchTable, Handler, TableOptions}}};
//!
//! /// A payload is the number of a seat. `held_by` is set by reserve, `sold` by confirm.
//! struct Seats;
//!
//! impl Handler for Seats {
//!     fn reserve(&mut self, database: &Connection, branch: BranchId, seat: &[u8]) -> Result<Reservation> {
//!         let free = "UPDATE seats SET held_by = ?1 WHERE seat = ?2 AND held_by IS NULL";
//!         match database.execute(free, (branch.to_string(), seat))? {
//!             1 => Ok(Reservation::Reserved),
//!             _ => Ok(Reservation::Refused(Reason::refused("the seat is taken", "SOLD_OUT", false))),
//!         }
//!     }
//!
//!     fn confirm(&mut self, database: &Connection, branch: BranchId, _: &[u8]) -> Result<()> {
//!         database.execute("UPDATE seats SET sold = 1 WHERE held_by = ?1", [branch.to_string()]).map(drop)
//!     }
//!
//!     fn cancel(&mut self, database: &Connection, branch: BranchId, _: &[u8]) -> Result<()> {
//!         database.execute("UPDATE seats SET held_by = NULL WHERE held_by = ?1", [branch.to_string()]).map(drop)
//!     }
//! }
//!
//! let seats = BranchTable::open("seats.db", Seats, TableOptions::default())?;
//! // Hand it to `Participants::start`.
//! # Ok::<(), verdict_client::resource::sqlite::OpenError>(())
//! ```

mod store;
mod worker;

use std::{path::PathBuf, sync::Arc, time::Duration};

use rusqlite::Connection;
use thiserror::Error;
use verdict_protocol::{BranchId, ClusterId, Conclusion, Outcome};

pub use self::store::check_settings;
use self::worker::Worker;
use super::Reservation;
use crate::participant::{NotAnswered, OnePhase, Prepare, ResourceManager, Settle, Settled, Voted};

/// A service's own code. Each function runs on the table's thread, inside a transaction that is not its own: it must
/// neither begin nor end one. A panic or an error undoes what it did and is reported as unavailable; the call comes
/// again.
pub trait Handler: Send + 'static {
    /// Does the work in such a way that it can be confirmed and cancelled: after [`Reservation::Reserved`] neither may
    /// fail for a reason of the business.
    ///
    /// # Errors
    /// Of SQLite. A business "no" is [`Reservation::Refused`].
    fn reserve(&mut self, database: &Connection, branch: BranchId, payload: &[u8]) -> rusqlite::Result<Reservation>;

    /// Makes what was reserved effective. `payload` is the one that [`Handler::reserve`] was given.
    ///
    /// # Errors
    /// Of SQLite.
    fn confirm(&mut self, database: &Connection, branch: BranchId, payload: &[u8]) -> rusqlite::Result<()>;

    /// Gives back what was reserved. `payload` is the one that [`Handler::reserve`] was given.
    ///
    /// # Errors
    /// Of SQLite.
    fn cancel(&mut self, database: &Connection, branch: BranchId, payload: &[u8]) -> rusqlite::Result<()>;
}

/// How a branch table is opened.
#[derive(Clone, Copy, Debug)]
pub struct TableOptions {
    /// The cluster that the participant belongs to. None takes the one that speaks first, and keeps to it.
    pub cluster: Option<ClusterId>,
    /// How many calls wait for the thread; more wait to be queued. It bounds memory: each holds at most a payload.
    pub queue: usize,
    /// How many calls share a commit. More make the first one wait longer than a commit takes.
    pub batch: usize,
    /// How long another connection's write lock is waited for.
    pub busy_timeout: Duration,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self { cluster: None, queue: 1024, batch: 256, busy_timeout: Duration::from_secs(5) }
    }
}

/// Why a branch table can't be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("can't open {}", path.display())]
    Open { path: PathBuf, source: rusqlite::Error },
    #[error("can't prepare the branch table in {}", path.display())]
    Schema { path: PathBuf, source: rusqlite::Error },
    #[error(
        "{setting} is {found}, must be {wanted}: with it a vote is not durable; open the table on a plain file, with \
         no other program that changes the setting"
    )]
    Setting { setting: &'static str, found: String, wanted: &'static str },
    #[error("the branch table has format {found}, this program knows up to {known}: run a newer one")]
    Newer { found: i64, known: i64 },
    #[error("the branch table belongs to cluster {found:?}, the options name {wanted:?}")]
    Cluster { found: ClusterId, wanted: ClusterId },
    #[error("can't start the table's thread")]
    Thread(#[source] std::io::Error),
}

/// The participant. Clones share its thread, which ends with the last of them.
#[derive(Clone, Debug)]
pub struct BranchTable {
    worker: Arc<Worker>,
}

impl BranchTable {
    /// Opens the database at `path`, creates the tables `verdict_branch` and `verdict_stamp` if they are missing,
    /// and sets journal_mode=WAL and synchronous=FULL. Blocks; call it before serving. The service may use
    /// connections of its own beside it.
    ///
    /// # Errors
    /// [`OpenError`], also if the settings don't read back as they were set.
    pub fn open(path: impl Into<PathBuf>, handler: impl Handler, options: TableOptions) -> Result<Self, OpenError> {
        let store = store::Store::open(&path.into(), options)?;
        let worker = Worker::start(store, Box::new(handler), options).map_err(OpenError::Thread)?;
        Ok(Self { worker: Arc::new(worker) })
    }
}

#[tonic::async_trait]
impl ResourceManager for BranchTable {
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        self.worker.prepare(request).await
    }

    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.worker.settle(request, Outcome::Committed).await
    }

    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.worker.settle(request, Outcome::Aborted).await
    }

    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        self.worker.commit_one_phase(request).await
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        self.worker.recover(limit).await
    }
}
