//! The handle.

use bytes::Bytes;

use crate::{AnswerError, MessageKind, NodeId, Position, ProposeError, ReadError, Status, TransferError};

/// A replica of the log and of the machine on this node. Clones are handles to the same one.
#[derive(Debug, Clone)]
pub struct Replica {
    inner: Inner,
}

/// Nothing constructs one until `start` is there, which needs the disk seam.
#[derive(Debug, Clone)]
enum Inner {}

/// What became of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    pub position: Position,
    /// What [`crate::Machine::apply`] returned for it.
    pub answer: Bytes,
}

#[allow(clippy::unused_async, reason = "the signatures come before the bodies")]
impl Replica {
    /// Appends an entry and waits until this node's machine has applied it. Many proposals may be in flight; they are
    /// applied in the order in which `propose` was first polled.
    ///
    /// # Errors
    /// Only [`ProposeError::NotLeader`] and [`ProposeError::TooLarge`] mean that the entry has no effect.
    pub async fn propose(&self, _entry: Bytes) -> Result<Applied, ProposeError> {
        match self.inner {}
    }

    /// Returns once this node's machine has applied all that was acknowledged, anywhere, before the call. On a
    /// follower the leader is asked.
    ///
    /// # Errors
    /// [`ReadError::NotLeader`] when no leader could confirm that it leads.
    pub async fn read_barrier(&self) -> Result<Position, ReadError> {
        match self.inner {}
    }

    pub fn status(&self) -> Status {
        match self.inner {}
    }

    /// Waits until the status differs from the one that was seen, and returns it.
    pub async fn status_changed(&self, _seen: &Status) -> Status {
        match self.inner {}
    }

    /// Hands the leadership to another node, to the one with the longest log if none is named, and waits until
    /// another node leads.
    pub async fn transfer_leadership(&self, _to: Option<NodeId>) -> Result<(), TransferError> {
        match self.inner {}
    }

    /// Answers a message that a peer sent with [`crate::PeerLink::call`].
    ///
    /// Messages may come late, twice and out of order, and from a deposed leader: Raft's terms judge them.
    pub async fn answer(&self, _from: NodeId, _kind: MessageKind, _body: Bytes) -> Result<Bytes, AnswerError> {
        match self.inner {}
    }

    /// Stops: everything that was queued is on disk, threads are joined. Other handles get `Stopped` afterwards.
    pub async fn stop(self) {
        match self.inner {}
    }
}
