//! Databases that prepare by themselves, whatever their brand: who settles what an application left prepared, and how one
//! that is not prepared any more is judged.
//!
//! ```text
//!   Verdict ── Prepare, Commit, Rollback, Recover ──▶ Agent ── judge ──▶ dyn XaDatabase ──▶ one brand's statements
//! ```
//!
//! [`XaDatabase`] is what a brand has to say; [`Agent`] makes a
//! [`ResourceManager`](crate::participant::ResourceManager) of it. Nothing here knows a driver.

mod agent;
mod judge;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod known;

use std::fmt;

use bytes::Bytes;
use verdict_protocol::{BranchId, ClusterId, Outcome};

pub use self::agent::Agent;
pub(in crate::resource) use self::judge::{judge, judge_fate};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use self::known::ClusterError;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(in crate::resource) use self::known::cluster_of;
use crate::participant::NotAnswered;

/// What a branch is called at a database. The cluster's id is random, so that nobody else's are taken for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BranchName {
    pub cluster: ClusterId,
    pub branch: BranchId,
}

impl fmt::Display for BranchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cluster.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ":{}", self.branch)
    }
}

/// Whose data a database holds. Another system is another database; another timeline is one that was failed over or
/// restored, and may have lost what it has acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub system: String,
    pub timeline: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.system, self.timeline)
    }
}

/// A branch that stands prepared in a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub branch: BranchId,
    /// By what its fate can be told once it is not prepared any more, or empty.
    pub evidence: Bytes,
}

/// What came of ending a prepared branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// It was prepared, and has ended as it was told to.
    Done,
    /// None of that name is prepared: another has ended it, or it never was. It is not said how it ended.
    NotPrepared,
    /// It is prepared, and only the session that prepared it can end it as long as that is connected.
    InSession,
    /// The database has rolled it back by itself.
    RolledBack,
}

/// How a branch ended that is not prepared any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Committed,
    Aborted,
    /// Its transaction still runs.
    Open,
    /// There is no evidence, or it is too long ago.
    Unknown,
}

/// What a look at one setting of a database found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// As the database calls it.
    pub setting: &'static str,
    pub value: String,
    pub grade: Grade,
    /// What to do; empty if it is fine.
    pub advice: String,
}

/// What a setting is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    Fine,
    /// It works, and something may go wrong that need not.
    Warning,
    /// A vote is worth nothing, or nothing can be prepared or settled.
    Error,
}

/// A database that prepares by itself, without its driver: what its agent needs of it.
///
/// Each call stands for itself: it takes a connection that works, bounds its own time, and may be repeated. An error is
/// never an answer.
#[tonic::async_trait]
pub trait XaDatabase: fmt::Debug + Send + Sync + 'static {
    /// Whose data these are, now.
    ///
    /// # Errors
    /// [`NotAnswered`] if the database can't be asked, or is one that takes no writes.
    async fn probe(&self) -> Result<Identity, NotAnswered>;

    /// Whether it can keep a promise, setting by setting.
    ///
    /// # Errors
    /// [`NotAnswered`] if the database can't be asked.
    async fn check(&self) -> Result<Vec<Finding>, NotAnswered>;

    /// What stands prepared under names of this cluster, the oldest first, at most `limit`. Others' names, also those
    /// that only look alike, are none of it.
    ///
    /// # Errors
    /// [`NotAnswered`] if it can't be read.
    async fn list_prepared(&self, cluster: ClusterId, limit: usize) -> Result<Vec<Held>, NotAnswered>;

    /// Whether this one stands prepared, durably.
    ///
    /// # Errors
    /// [`NotAnswered`] if it can't be read.
    async fn holds(&self, name: BranchName) -> Result<bool, NotAnswered>;

    /// Ends a prepared branch as the outcome says; DONE is durable. `evidence` is what its application brought along, or
    /// what was listed with it, or empty: it is not trusted to be well-formed.
    ///
    /// # Errors
    /// [`NotAnswered`] if it may still be prepared.
    async fn finish(&self, name: BranchName, outcome: Outcome, evidence: &[u8]) -> Result<Finished, NotAnswered>;

    /// How a branch ended that is not prepared any more, by its evidence. [`Fate::Committed`] and [`Fate::Aborted`] are
    /// final, and never guessed.
    ///
    /// # Errors
    /// [`NotAnswered`] if it can't be read now.
    async fn fate(&self, name: BranchName, evidence: &[u8]) -> Result<Fate, NotAnswered>;
}
