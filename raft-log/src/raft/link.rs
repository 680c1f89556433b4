//! How messages reach a peer.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::NodeId;

/// How messages reach a peer. The transport that implements it lives elsewhere.
///
/// Contract: a call reaches `to` at most once for each time it is made, where [`crate::Replica::answer`] is called
/// with the same kind and body; the answer's bytes come back unchanged. Calls may be lost, late, or overtake each
/// other: that costs time and nothing else. Appends from one node should be handed to `answer` in the order in
/// which they arrived, without waiting for the earlier answers.
pub trait PeerLink: Send + Sync + 'static {
    /// Sends `body` to the peer and waits for its answer, at most `within`.
    ///
    /// Dropping the future gives the call up; the peer may have received it.
    fn call(
        &self,
        to: NodeId,
        kind: MessageKind,
        body: Bytes,
        within: Duration,
    ) -> BoxFuture<'_, Result<Bytes, LinkError>>;
}

/// What a message between replicas is. The numbers are part of the wire format and never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum MessageKind {
    /// Entries to append, or none (a heartbeat). Frequent; everything else is rare.
    Append = 1,
    /// A candidate asks for a ballot.
    Ballot = 2,
    /// A node asks whether it would get ballots.
    PreBallot = 3,
    /// The leader asks the receiver to take over.
    TransferLeader = 4,
    /// The leader offers a snapshot; the answer names the sections that are missing.
    OfferSnapshot = 5,
    /// A chunk of a section.
    PutSections = 6,
    /// A node that lost part of its log asks for what is missing.
    Fetch = 7,
    /// A follower asks the leader up to which index a read must wait.
    ReadIndex = 8,
}

impl MessageKind {
    /// Whether a node sends many of these a second: the transport may give them a stream of their own.
    pub fn is_frequent(self) -> bool {
        matches!(self, Self::Append | Self::ReadIndex)
    }
}

impl From<MessageKind> for u32 {
    fn from(kind: MessageKind) -> u32 {
        kind as u32
    }
}

/// A number that names no kind of message: the sender is newer than this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("message kind {0} is unknown here; a newer node sent it: update this node")]
pub struct UnknownKind(pub u32);

impl TryFrom<u32> for MessageKind {
    type Error = UnknownKind;

    fn try_from(number: u32) -> Result<Self, UnknownKind> {
        Ok(match number {
            1 => Self::Append,
            2 => Self::Ballot,
            3 => Self::PreBallot,
            4 => Self::TransferLeader,
            5 => Self::OfferSnapshot,
            6 => Self::PutSections,
            7 => Self::Fetch,
            8 => Self::ReadIndex,
            other => return Err(UnknownKind(other)),
        })
    }
}

/// Why a peer gave no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LinkError {
    /// It was not reached: it did not get the message, as far as is known.
    #[error("peer not reached: {0}")]
    Unreachable(String),
    /// No answer in time; it may have got the message.
    #[error("peer did not answer in time")]
    TimedOut,
    /// It got the message and could not answer it.
    #[error("peer refused: {0}")]
    Refused(String),
}
