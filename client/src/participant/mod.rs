//! What a participant must do, and everything that helps it to.
//!
//! ```text
//!   Verdict ──Prepare, Commit, Rollback, Recover──▶ Handlers, or Stream ──▶ dyn ResourceManager ──▶ its own database
//!      ▲                                               │ Inquiry
//!      └────────────────── Inquire ────────────────────┘ for each branch held prepared for too long
//! ```
//!
//! [`ResourceManager`] is the contract, [`crate::conformance`] checks it, [`rules`] is its one transition table,
//! [`Participants`] serves it over gRPC, or attaches it to the cluster by a stream, and asks Verdict about branches in
//! doubt.

mod fence;
mod inquiry;
mod remote;
pub mod rules;
mod server;
mod stream;
mod sweep;

use std::{error::Error, fmt, time::Duration};

use bytes::Bytes;
use thiserror::Error;
use verdict_protocol::{BranchId, ClusterId, Conclusion, Credential, LogTime, Reason, ResourceName, Settlement, Vote};

pub use self::{
    fence::{Fence, Purpose},
    inquiry::InquiryOptions,
    remote::RemoteParticipant,
    server::{Handlers, ParticipantOptions, Participants, RunError},
    stream::StreamStatus,
    sweep::{Inquirer, NoOrder, Sweep, settle},
};

/// On every message to a participant: which cluster speaks, in which term, and how far it has forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub cluster: ClusterId,
    /// Raised by a restore. Compared before the term.
    pub incarnation: u64,
    pub term: u64,
    /// A transaction born before it and unknown can never commit.
    pub horizon: LogTime,
}

/// Asks a branch to promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepare {
    pub stamp: Stamp,
    pub branch: BranchId,
    pub resource: ResourceName,
    /// What the client enlisted the branch with: for a service, the work itself.
    pub payload: Bytes,
    /// What is left until the vote is of no use any more. Zero: not said.
    pub vote_timeout: Duration,
    /// With it a participant that wants to vote by a call of its own does so: [`crate::Verdict::vote`].
    pub credential: Option<Credential>,
}

/// Carries the outcome to a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    pub stamp: Stamp,
    pub branch: BranchId,
    pub resource: ResourceName,
    /// The branch's payload, or empty when the branch learnt its outcome by asking: keep at prepare what commit
    /// and rollback need.
    pub payload: Bytes,
}

/// Gives the decision to a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnePhase {
    pub stamp: Stamp,
    pub branch: BranchId,
    pub resource: ResourceName,
    /// What the client enlisted the branch with: for a service, the work itself.
    pub payload: Bytes,
    /// Commit nothing any more: say whether it was committed, and make sure that it never is if it was not.
    pub fence: bool,
}

/// The answer to [`Prepare`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voted {
    pub vote: Vote,
    /// Always there with [`Vote::Refused`].
    pub reason: Option<Reason>,
}

impl Voted {
    pub const PREPARED: Self = Self { vote: Vote::Prepared, reason: None };
    pub const READ_ONLY: Self = Self { vote: Vote::ReadOnly, reason: None };

    #[must_use]
    pub const fn refused(reason: Reason) -> Self {
        Self { vote: Vote::Refused, reason: Some(reason) }
    }
}

/// The answer to [`Settle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub settlement: Settlement,
    /// What to tell an operator. Always there unless the settlement is [`Settlement::Done`].
    pub reason: Option<Reason>,
}

impl Settled {
    pub const DONE: Self = Self { settlement: Settlement::Done, reason: None };
}

/// Who can prepare, commit and roll back branches: a service with a database, or a database itself.
///
/// Verdict sends each message until it is answered, from whichever node leads. So every call may come late, twice,
/// at the same time as its twin, and out of order, and every one of them is answered as the first was:
///
/// - **Prepared is a promise.** What `prepare` answers is durable before it is answered. After [`Vote::Prepared`]
///   only `commit` or `rollback` ends the branch: no timeout of the participant's own, no restart.
/// - **Prepare once.** A repeat is answered with the recorded vote and reserves nothing again, also after the branch
///   was committed.
/// - **Rollback may be first.** Rollback of a branch that was never prepared is done, and leaves a tombstone: the
///   `prepare` that comes later is REFUSED.
/// - **Commit needs a promise.** Commit of a branch that is not known is judged by evidence (a record, a row that
///   the branch wrote); without any it is [`Settlement::HeuristicHazard`], never done. Commit of a branch that
///   refused or rolled back is [`Settlement::HeuristicRollback`], rollback of one that committed is
///   [`Settlement::HeuristicCommit`].
/// - **One phase.** A branch that is given the decision commits at once or never, and keeps its word in its decision
///   record, which is its row in the branch table. A rollback, a fence or a refusal leaves a row there under the same
///   key, so that a late attempt finds it.
/// - **Read-only is remembered.** A participant that lost its memory of a READ_ONLY vote says REFUSED.
/// - **The horizon.** Finished branches and tombstones are kept until the horizon in [`Stamp`] has passed their
///   transaction's birth; then they may be dropped, and `prepare` of an unknown branch born before the horizon is
///   REFUSED for ever. Branches held prepared are kept however old they are.
/// - **Whom to believe.** Only one cluster. Its incarnation is persisted; a message of a lower one changes nothing,
///   be it an outcome. Of one incarnation, an outcome is taken at any term, since it never changes.
///
/// [`crate::conformance`] checks all of this. A call that is dropped halfway leaves no work half done:
/// [`Participants`] sees to it by running each in a task of its own.
#[tonic::async_trait]
pub trait ResourceManager: Send + Sync + fmt::Debug + 'static {
    /// Reserves what the branch needs and promises to commit or roll back as told.
    ///
    /// # Errors
    /// [`NotAnswered`] if there is no vote. It may all the same have been recorded: Verdict asks again.
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered>;

    /// Makes the reservation effective.
    ///
    /// # Errors
    /// [`NotAnswered`] if the branch is not settled yet. Verdict sends it again.
    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered>;

    /// Gives the reservation back.
    ///
    /// # Errors
    /// [`NotAnswered`] if the branch is not settled yet. Verdict sends it again.
    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered>;

    /// Decides: does the work and makes it effective in one local transaction that also records that it did, or records
    /// that it never will. Whatever it answers first stays its answer.
    ///
    /// # Errors
    /// [`NotAnswered`] if there is no answer. It may all the same have committed: Verdict asks again.
    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered>;

    /// The branches held prepared, oldest transaction first, at most `limit`.
    ///
    /// # Errors
    /// [`NotAnswered`] if they can't be read now.
    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered>;

    /// Whether a branch that is held prepared, and of whose transaction nothing is known any more, may be rolled back. Not
    /// in a database that may have lost what it acknowledged: there only a recorded outcome ends a branch.
    fn presumes(&self) -> bool {
        true
    }
}

/// Why a participant gave no answer. It is never a vote and never an acknowledgement: the caller asks again.
#[derive(Debug, Error)]
pub enum NotAnswered {
    #[error("{what}")]
    Unavailable {
        /// What failed and what to do about it, in a sentence.
        what: String,
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    #[error(
        "this participant belongs to cluster {}, the message came from {}: check its address",
        hex(own),
        hex(other)
    )]
    WrongCluster { own: ClusterId, other: ClusterId },
    #[error("the message is of incarnation {message}, before the restore that made incarnation {seen}")]
    StaleIncarnation { message: u64, seen: u64 },
    #[error("a deposed leader of term {message} asked to prepare; the term is {seen}")]
    StaleTerm { message: u64, seen: u64 },
}

impl NotAnswered {
    #[must_use]
    pub fn unavailable(what: impl Into<String>) -> Self {
        Self::Unavailable { what: what.into(), source: None }
    }
}

/// An error with its causes, in one line, without those whose text is there already.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

fn hex(cluster: &ClusterId) -> String {
    cluster.0.iter().map(|byte| format!("{byte:02x}")).collect()
}
