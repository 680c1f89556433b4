//! What the replicated log carries: entries of commands, and what applying each answers.
//!
//! ```text
//!   entry  = format version (1 byte) · postcard(at, commands)
//!   answer = postcard(one Result per command)
//! ```

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    BranchId, BranchNumber, ClusterId, Instance, Key, LogTime, Outcome, Reason, ResourceName, Rules, Secret,
    SessionName, SessionRef, Settlement, Vote, Xid,
};

/// Changes the ledger when it is applied, and only then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Fixes the cluster's id, secret and rules, once: the first entry of a cluster. A repeat changes nothing.
    Found { cluster: ClusterId, secret: Secret, rules: Rules },
    /// Registers a transaction early, to be aborted unless it is asked to commit within `timeout_ms`. With a key, only if
    /// nobody else works under it or has committed.
    Begin { xid: Xid, timeout_ms: u64, key: Option<Key>, session: Option<SessionRef> },
    /// Registers branches. Names a transaction for the first time, or adds to an open list.
    Enlist { xid: Xid, branches: Vec<NewBranch>, timeout_ms: u64 },
    /// Closes the list: registered ∪ listed. Votes brought along are never split from it. With a `delegate`, that branch
    /// decides once all others have promised.
    Prepare {
        xid: Xid,
        branches: Vec<ListedBranch>,
        vote_timeout_ms: u64,
        delegate: Option<BranchNumber>,
        session: Option<SessionRef>,
    },
    /// A branch's vote. Never creates a transaction.
    Vote { branch: BranchId, vote: Vote, reason: Option<Reason> },
    /// ABORTED if it is not decided.
    Abort { xid: Xid, reason: Reason },
    /// ABORTED only if the xid is unknown.
    PresumeAbort { xid: Xid },
    /// Branches that took their outcome.
    Settled { items: Vec<SettledItem> },
    /// An instance takes a session over: its epoch is raised, and what its predecessor has not asked to commit is aborted.
    OpenSession { name: SessionName, instance: Instance },
    /// What the branch that decides has come to.
    Conclude { branch: BranchId, conclusion: Conclusion },
    /// An operator's word on what the protocol cannot settle by itself. What can break atomicity needs `force`.
    Resolve { xid: Xid, resolution: Resolution, word: Word, force: bool },
    /// An operator has seen how a transaction ended, and it need not be shown any more.
    Forget { xid: Xid, word: Word, force: bool },
}

/// What a branch came to that was given the decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Conclusion {
    /// It has committed, and its decision record says so.
    Committed,
    /// It can never commit any more.
    Fenced(Option<Reason>),
}

/// What an operator decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resolution {
    /// Of a transaction that is not decided. COMMITTED only where the decision was delegated.
    Decide(Outcome),
    /// How a branch ended, that will not say so itself any more.
    Settle { number: BranchNumber, settlement: Settlement },
}

/// Who said it and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    pub who: String,
    pub why: String,
}

impl Word {
    /// The most bytes of a name or a reason.
    pub const MAX_TEXT: usize = 256;
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.who, self.why)
    }
}

impl Command {
    /// About how many bytes it takes in an entry, never less than it does.
    #[must_use]
    pub fn size(&self) -> usize {
        /// Ids, numbers and lengths of anything in a command.
        const FIXED: usize = 64;
        let of_reason = |reason: &Reason| FIXED + reason.text.len() + reason.source_code.len();
        let of_branch = |branch: &NewBranch| FIXED + branch.resource.as_str().len() + branch.payload.len();
        FIXED
            + match self {
                Self::Found { .. } => FIXED,
                Self::Begin { .. } => Key::MAX_LEN + SessionName::MAX_LEN,
                Self::OpenSession { .. } => SessionName::MAX_LEN,
                Self::PresumeAbort { .. } => 0,
                Self::Enlist { branches, .. } => branches.iter().map(of_branch).sum::<usize>(),
                Self::Prepare { branches, .. } => {
                    SessionName::MAX_LEN
                        + branches
                            .iter()
                            .map(|listed| {
                                let reason = listed.vote.as_ref().and_then(|brought| brought.reason.as_ref());
                                of_branch(&listed.branch) + reason.map_or(0, of_reason)
                            })
                            .sum::<usize>()
                }
                Self::Vote { reason, .. } => reason.as_ref().map_or(0, of_reason),
                Self::Abort { reason, .. } => of_reason(reason),
                Self::Settled { items } => items.len() * FIXED,
                Self::Conclude { conclusion: Conclusion::Fenced(Some(reason)), .. } => of_reason(reason),
                Self::Conclude { .. } => 0,
                Self::Resolve { word, .. } | Self::Forget { word, .. } => word.who.len() + word.why.len(),
            }
    }
}

/// A branch as it is registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewBranch {
    pub number: BranchNumber,
    pub resource: ResourceName,
    pub payload: Bytes,
}

/// A branch as Prepare lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedBranch {
    pub branch: NewBranch,
    /// Brought along by a client that prepared the branch itself.
    pub vote: Option<Brought>,
}

/// A vote that comes with the list. Its client settles the branch too, or, if it dies, the cluster does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brought {
    pub vote: Vote,
    pub reason: Option<Reason>,
    /// The client showed the branch's credential. It needs none for a branch that nobody has registered.
    pub proven: bool,
}

/// One branch's acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledItem {
    pub branch: BranchId,
    pub settlement: Settlement,
}

/// Several commands that share one append. All apply, in order, at one log time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The leader's log time when it made the entry. Applied as at least what was applied before.
    pub at: LogTime,
    pub commands: Vec<Command>,
}

/// What applying one command came to.
///
/// It carries no outcome: that is read from the ledger, where it is a [`Recorded`](crate::Recorded).
pub type Answer = Result<(), Refusal>;

/// Why a command changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
pub enum Refusal {
    #[error("the list of branches is closed: the transaction is voting or decided; nothing can be enlisted any more")]
    Closed,
    #[error("the transaction has other branches than these: a number was reused, or the list was closed differently")]
    Mismatch,
    #[error(
        "the xid was born {ahead_ms} ms ahead of the cluster's time, more than the {allowed_ms} ms allowed: \
         correct the client's clock"
    )]
    Skewed { ahead_ms: u64, allowed_ms: u64 },
    #[error(
        "the transaction is older than what is kept: it will not commit from now on; whether it did is no longer known"
    )]
    Expired,
    #[error("{what} are limited to {limit}: try again when others have ended")]
    Limit { what: String, limit: u64 },
    #[error("no such transaction: it was never begun here, or its first command has not arrived")]
    UnknownTransaction,
    #[error("the transaction has no such branch")]
    UnknownBranch,
    #[error("the cluster is not founded yet: its first leader is still starting")]
    NotFounded,
    #[error("another attempt works under this key, or has committed: {holder}")]
    KeyTaken { holder: Xid },
    #[error("another instance has opened the session since, or it was never opened: this one must not work any more")]
    Fenced,
    #[error("the decision was not given to this branch")]
    NotDelegated,
    #[error("the transaction is not decided: there is nothing to settle or to forget yet")]
    Undecided,
    #[error("{what}: add --force if that is what you want")]
    NeedsForce { what: String },
    #[error("not every branch has promised: nobody can commit the transaction")]
    NotPromised,
    #[error(
        "branch {number} was registered by somebody, and this is not its credential: \
         only who enlisted it or was asked to prepare it can speak for it"
    )]
    Forbidden { number: BranchNumber },
}

/// An entry that this version cannot read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("the entry has format version {found}, this program knows up to {known}: run a newer one")]
    Newer { found: u8, known: u8 },
    #[error("the entry is empty")]
    Empty,
    #[error("the entry is malformed: {0}")]
    Malformed(#[from] postcard::Error),
}

impl Entry {
    /// The format version that [`Entry::encode`] writes.
    pub const VERSION: u8 = 1;

    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut bytes = vec![Self::VERSION];
        bytes.extend(postcard::to_allocvec(self).expect("an entry has no unserializable value"));
        bytes.into()
    }

    /// # Errors
    /// A [`DecodeError`] for an entry of a newer version or a malformed one.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        match bytes.split_first() {
            None => Err(DecodeError::Empty),
            Some((&Self::VERSION, body)) => Ok(postcard::from_bytes(body)?),
            Some((&found, _)) => Err(DecodeError::Newer { found, known: Self::VERSION }),
        }
    }
}

/// What `apply` hands back to whoever proposed the entry: the answers to its commands, in order.
#[must_use]
pub fn encode_answers(answers: &[Answer]) -> Bytes {
    postcard::to_allocvec(answers).expect("answers have no unserializable value").into()
}

/// # Errors
/// A [`DecodeError`] for bytes that [`encode_answers`] did not make.
pub fn decode_answers(bytes: &[u8]) -> Result<Vec<Answer>, DecodeError> {
    Ok(postcard::from_bytes(bytes)?)
}
