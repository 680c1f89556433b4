//! The handle.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::machine::Machine;
use super::options::Options;
use super::start;
use crate::files::{Disk, Spawn};
use crate::{
    AnswerError, MembersError, MessageKind, NodeId, PeerLink, Position, ProposeError, ReadError, StartError, Status,
    TransferError,
};

/// A replica of the log and of the machine on this node. Clones are handles to the same one.
#[derive(Clone)]
pub struct Replica {
    core: Arc<dyn Core>,
}

/// What became of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    pub position: Position,
    /// What [`crate::Machine::apply`] returned for it.
    pub answer: Bytes,
}

/// What a replica does, whatever machine it drives.
pub(crate) trait Core: Send + Sync {
    fn propose(&self, entry: Bytes) -> BoxFuture<'_, Result<Applied, ProposeError>>;
    fn read_barrier(&self) -> BoxFuture<'_, Result<Position, ReadError>>;
    fn status(&self) -> Status;
    fn status_changed(&self, seen: u64) -> BoxFuture<'_, Status>;
    fn transfer(&self, to: Option<NodeId>) -> BoxFuture<'_, Result<(), TransferError>>;
    fn answer(&self, from: NodeId, kind: MessageKind, body: Bytes) -> BoxFuture<'_, Result<Bytes, AnswerError>>;
    fn change_members(&self, members: BTreeMap<NodeId, String>) -> BoxFuture<'_, Result<(), MembersError>>;
    fn snapshot(&self) -> BoxFuture<'_, ()>;
    fn stop(&self) -> BoxFuture<'_, ()>;
}

impl Replica {
    /// Opens the log on `disk` and joins the cluster; makes the cluster if there is none yet.
    ///
    /// `machine` is in its initial state; the stored snapshot is thawed into it here, and the entries behind it are
    /// applied as soon as a leader says how far they are settled. `link` must already reach peers: a node whose log
    /// was damaged fetches from them what is missing before this returns. Messages from peers can be answered only
    /// afterwards.
    ///
    /// # Errors
    /// See [`StartError`]; a node that cannot repair itself within [`Options::repair_within`] does not start.
    pub async fn start<M: Machine>(
        options: Options,
        disk: Arc<dyn Disk>,
        spawn: Spawn,
        machine: M,
        link: Arc<dyn PeerLink>,
    ) -> Result<Self, StartError> {
        let core = start::start(options, disk, spawn, machine, link).await?;
        Ok(Self { core })
    }

    /// Appends an entry and waits until this node's machine has applied it. Many proposals may be in flight; of two
    /// that are in flight together either may be applied first. There is no time limit: with no majority it waits.
    /// Giving the future up does not take the entry back.
    ///
    /// # Errors
    /// Only [`ProposeError::NotLeader`] and [`ProposeError::TooLarge`] mean that the entry has no effect.
    pub async fn propose(&self, entry: Bytes) -> Result<Applied, ProposeError> {
        self.core.propose(entry).await
    }

    /// Returns once this node's machine has applied all that was acknowledged, anywhere, before the call. On a
    /// follower the leader is asked.
    ///
    /// # Errors
    /// [`ReadError::NotLeader`] when no leader could confirm that it leads.
    pub async fn read_barrier(&self) -> Result<Position, ReadError> {
        self.core.read_barrier().await
    }

    pub fn status(&self) -> Status {
        self.core.status()
    }

    /// Waits until the status differs from the one that was seen, and returns it. That of a replica that has stopped
    /// changes no more.
    pub async fn status_changed(&self, seen: &Status) -> Status {
        self.core.status_changed(seen.version).await
    }

    /// Hands the leadership to another node, to the one with the longest log if none is named, and waits until
    /// another node leads, at most four times [`Options::election_max`].
    ///
    /// # Errors
    /// See [`TransferError`]; after `TimedOut` this node may lead again.
    pub async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<(), TransferError> {
        self.core.transfer(to).await
    }

    /// Answers a message that a peer sent with [`crate::PeerLink::call`].
    ///
    /// Messages may come late, twice and out of order, and from a deposed leader: Raft's terms judge them.
    pub async fn answer(&self, from: NodeId, kind: MessageKind, body: Bytes) -> Result<Bytes, AnswerError> {
        self.core.answer(from, kind, body).await
    }

    /// Makes these nodes, with their addresses, the members. A new one must be running, started with
    /// [`Options::joins`]; one that is left out hears nothing more and should be stopped.
    ///
    /// # Errors
    /// See [`MembersError`]; asking again with the same members is safe and goes on where it ended.
    pub async fn change_members(&self, members: BTreeMap<NodeId, String>) -> Result<(), MembersError> {
        self.core.change_members(members).await
    }

    /// Asks for a snapshot now, whatever [`Options::snapshot_every`] says. It is taken beside everything else.
    pub async fn take_snapshot(&self) {
        self.core.snapshot().await;
    }

    /// Stops: everything that was queued is on disk, threads are joined. Other handles get `Stopped` afterwards.
    pub async fn stop(self) {
        self.core.stop().await;
    }
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").finish_non_exhaustive()
    }
}
