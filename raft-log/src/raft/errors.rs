//! One error enum an operation.

use crate::NodeId;

/// Why [`crate::Replica::start`] failed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The options contradict each other; says which and what to do.
    #[error("{0}")]
    Options(String),
    /// The files could not be opened.
    #[error("opening the log of node {node}")]
    Storage {
        node: NodeId,
        #[source]
        source: std::io::Error,
    },
    /// Acknowledged entries may be gone from this node, and no peer could give them back.
    #[error("{0}")]
    Damaged(String),
    /// A file was written by a newer version.
    #[error("{0}")]
    Newer(String),
    /// The stored snapshot could not be taken in.
    #[error("taking in the stored snapshot")]
    Snapshot(#[source] crate::DecodeError),
    /// Raft did not start.
    #[error("starting Raft: {0}")]
    Raft(String),
}

/// Why a proposal has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Not logged here and never will be: another node leads.
    #[error("this node does not lead{}", match .leader { Some(id) => format!("; node {id} does"), None => String::new() })]
    NotLeader { leader: Option<NodeId> },
    /// It may have been logged, and may yet be applied, or not: ask the machine.
    #[error("leadership was lost while the entry was being appended; it may or may not take effect")]
    Interrupted,
    /// Not logged: larger than an entry may be.
    #[error("an entry of {size} bytes is larger than the limit of {limit}; split it")]
    TooLarge { size: usize, limit: usize },
    /// This replica acknowledges nothing more; whether the entry takes effect is not known.
    #[error("this replica has stopped: {reason}")]
    Stopped { reason: String },
}

/// Why a read barrier was not passed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No leader is known, or it could not confirm that it still leads. Ask again, perhaps elsewhere.
    #[error("leadership could not be confirmed{}", match .leader { Some(id) => format!("; node {id} leads as far as is known"), None => String::new() })]
    NotLeader { leader: Option<NodeId> },
    #[error("this replica did not catch up in time")]
    TimedOut,
    #[error("this replica has stopped: {reason}")]
    Stopped { reason: String },
}

/// Why the leadership was not handed over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    #[error("this node does not lead")]
    NotLeader { leader: Option<NodeId> },
    /// There is no other node with a ballot, or not this one.
    #[error("{0}")]
    NoSuchNode(String),
    /// Nobody took over in time; this node may still lead.
    #[error("no other node took over in time")]
    TimedOut,
    #[error("this replica has stopped: {reason}")]
    Stopped { reason: String },
}

/// Why a peer's message was not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The body is not a message of this kind and version.
    #[error("a {kind:?} message from node {from} cannot be read: {why}")]
    Malformed { from: NodeId, kind: crate::MessageKind, why: String },
    /// This node cannot do what is asked now; the sender tries again later.
    #[error("{0}")]
    NotNow(String),
    #[error("this replica has stopped: {reason}")]
    Stopped { reason: String },
}

/// Why the members were not changed, or not yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MembersError {
    /// Or the leadership was lost in the middle: ask the leader with the same members.
    #[error("this node does not lead")]
    NotLeader { leader: Option<NodeId> },
    #[error("{0}")]
    Refused(String),
    #[error("{what} took too long; ask again with the same members once all of them run")]
    TimedOut { what: String },
    #[error("this replica has stopped: {reason}")]
    Stopped { reason: String },
}
