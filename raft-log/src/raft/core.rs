//! What a running replica does with Raft: proposals, reads, status, hand-over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use openraft::ReadPolicy;
use openraft::errors::{ClientWriteError, Fatal, LinearizableReadError, RaftError};
use openraft::raft::linearizable_read::LinearizerOption;
use openraft_rt::watch::{WatchReceiver, WatchSender};

use super::answer;
use super::applier::{Applier, Progress};
use super::machine::Machine;
use super::members;
use super::options::Options;
use super::receiver::Receiver;
use super::replica::{Applied, Core};
use super::snapshot::Snapshots;
use super::store::Store;
use super::types::{Body, LogId, TypeConfig, position};
use super::wire::{self, ReadIndexAnswer};
use crate::runtime::watch::{OrderedReceiver, OrderedSender};
use crate::{
    AnswerError, LinkError, MembersError, MessageKind, NodeId, PeerLink, Position, ProposeError, ReadError, Role,
    Status, TransferError,
};

pub(crate) type Raft<M> = openraft::Raft<TypeConfig, Applier<M>>;

/// A running replica.
pub(crate) struct Running<M: Machine> {
    pub(crate) options: Options,
    pub(crate) raft: Raft<M>,
    pub(crate) link: Arc<dyn PeerLink>,
    pub(crate) store: Store,
    pub(crate) snapshots: Snapshots,
    pub(crate) receiver: Receiver<M>,
    pub(crate) progress: OrderedReceiver<Progress>,
    pub(crate) status: OrderedReceiver<Status>,
}

impl<M: Machine> Running<M> {
    fn reason(&self, fatal: &Fatal<TypeConfig>) -> String {
        match self.status.borrow_watched().stopped.clone() {
            Some(reason) => reason,
            None => fatal.to_string(),
        }
    }

    /// The index up to which a read must wait, confirmed by a majority; an error says who may know.
    pub(crate) async fn confirm_leadership(&self) -> Result<LogId, ReadError> {
        // A follower confirms when it has flushed: a slow disk takes longer than the lease that is waited by default.
        let confirmed = LinearizerOption::from(ReadPolicy::ReadIndex).with_wait_timeout(self.read_within());
        match self.raft.get_read_linearizer(confirmed).await {
            Ok(linearizer) => Ok(*linearizer.read_log_id().log_id()),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(to))) => {
                Err(ReadError::NotLeader { leader: to.leader_id.map(NodeId) })
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => {
                Err(ReadError::NotLeader { leader: None })
            }
            Err(RaftError::Fatal(fatal)) => Err(ReadError::Stopped { reason: self.reason(&fatal) }),
        }
    }

    /// How long a read waits for the leader and for this node to catch up.
    fn read_within(&self) -> Duration {
        self.options.election_max * 4
    }

    async fn ask_leader(&self, leader: NodeId) -> Result<LogId, ReadError> {
        let nobody = ReadError::NotLeader { leader: Some(leader) };
        let answer = match self.link.call(leader, MessageKind::ReadIndex, Bytes::new(), self.read_within()).await {
            Ok(answer) => answer,
            Err(LinkError::Unreachable(_) | LinkError::TimedOut | LinkError::Refused(_)) => return Err(nobody),
        };
        match wire::decode::<ReadIndexAnswer>(&answer) {
            Ok(ReadIndexAnswer { at: Some(at) }) => Ok(at),
            Ok(ReadIndexAnswer { at: None }) | Err(_) => Err(nobody),
        }
    }

    async fn read(&self) -> Result<Position, ReadError> {
        let at = match self.confirm_leadership().await {
            Err(ReadError::NotLeader { leader: Some(leader) }) if leader != self.options.node => {
                self.ask_leader(leader).await?
            }
            confirmed => confirmed?,
        };
        let mut progress = self.progress.clone();
        let reached = progress.wait_until(|progress| progress.applied.is_some_and(|applied| applied.index >= at.index));
        match tokio::time::timeout(self.read_within(), reached).await {
            Ok(Ok(_)) => Ok(position(&at)),
            Ok(Err(_)) => Err(ReadError::Stopped { reason: self.reason(&Fatal::Stopped) }),
            Err(_) => Err(ReadError::TimedOut),
        }
    }

    async fn write(&self, entry: Bytes) -> Result<Applied, ProposeError> {
        if entry.len() > self.options.entry_limit {
            return Err(ProposeError::TooLarge { size: entry.len(), limit: self.options.entry_limit });
        }
        match self.raft.client_write(Body(entry)).await {
            Ok(written) => Ok(Applied { position: position(&written.log_id), answer: written.data.0 }),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => {
                Err(ProposeError::NotLeader { leader: to.leader_id.map(NodeId) })
            }
            Err(RaftError::APIError(_)) => Err(ProposeError::Interrupted),
            Err(RaftError::Fatal(fatal)) => Err(ProposeError::Stopped { reason: self.reason(&fatal) }),
        }
    }

    /// Who can take over: with a ballot, heard of lately, and of those the one with the longest log.
    fn successor(&self, wanted: Option<NodeId>) -> Result<NodeId, TransferError> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let heard = metrics.heartbeat.unwrap_or_default();
        let matched = metrics.replication.unwrap_or_default();
        let me = self.options.node.0;
        let able = |id: &u64| {
            *id != me
                && heard
                    .get(id)
                    .and_then(Option::as_ref)
                    .is_some_and(|at| openraft::Instant::elapsed(&**at) <= self.options.election_max)
        };
        let voters = metrics.membership_config.voter_ids();
        let best = voters
            .filter(|id| wanted.is_none_or(|wanted| wanted.0 == *id) && able(id))
            .max_by_key(|id| matched.get(id).copied().flatten().map(|at| at.index));
        best.map(NodeId).ok_or_else(|| {
            TransferError::NoSuchNode(match wanted {
                Some(id) => format!("node {id} has no ballot or was not heard of lately; name another"),
                None => "no other node with a ballot was heard of lately; try again once one is back".to_owned(),
            })
        })
    }

    async fn hand_over(&self, to: Option<NodeId>) -> Result<(), TransferError> {
        let before = self.status();
        if let Some(reason) = before.stopped {
            return Err(TransferError::Stopped { reason });
        }
        if before.role != Role::Leader {
            return Err(TransferError::NotLeader { leader: before.leader });
        }
        let to = self.successor(to)?;
        if let Err(fatal) = self.raft.trigger().transfer_leader(to.0).await {
            return Err(TransferError::Stopped { reason: self.reason(&fatal) });
        }
        let me = self.options.node;
        let mut status = self.status.clone();
        let led = status.wait_until(|now| now.leader.is_some_and(|leader| leader != me) || now.stopped.is_some());
        match tokio::time::timeout(self.options.election_max * 4, led).await {
            Ok(Ok(Status { stopped: Some(reason), .. })) => Err(TransferError::Stopped { reason }),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(TransferError::Stopped { reason: "it was stopped".to_owned() }),
            Err(_) => Err(TransferError::TimedOut),
        }
    }
}

impl<M: Machine> Core for Running<M> {
    fn propose(&self, entry: Bytes) -> BoxFuture<'_, Result<Applied, ProposeError>> {
        Box::pin(self.write(entry))
    }

    fn read_barrier(&self) -> BoxFuture<'_, Result<Position, ReadError>> {
        Box::pin(self.read())
    }

    fn status(&self) -> Status {
        self.status.borrow_watched().clone()
    }

    fn status_changed(&self, seen: u64) -> BoxFuture<'_, Status> {
        let mut status = self.status.clone();
        Box::pin(async move {
            match status.wait_until(|now| now.version != seen).await {
                Ok(now) => now,
                // Stopped for good, and seen: nothing will change any more.
                Err(_) => std::future::pending().await,
            }
        })
    }

    fn transfer(&self, to: Option<NodeId>) -> BoxFuture<'_, Result<(), TransferError>> {
        Box::pin(self.hand_over(to))
    }

    fn answer(&self, from: NodeId, kind: MessageKind, body: Bytes) -> BoxFuture<'_, Result<Bytes, AnswerError>> {
        Box::pin(answer::answer(self, from, kind, body))
    }

    fn change_members(&self, members: BTreeMap<NodeId, String>) -> BoxFuture<'_, Result<(), MembersError>> {
        Box::pin(members::change(self, members))
    }

    fn snapshot(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // Refused only by a replica that has stopped, which its status tells.
            self.raft.trigger().snapshot().await.ok();
        })
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.raft.shutdown().await.ok();
            self.store.close().await;
            self.snapshots.close().await;
        })
    }
}

/// Keeps the status up to date until Raft ends.
pub(crate) async fn tell_status<M: Machine>(
    raft: Raft<M>,
    mut progress: OrderedReceiver<Progress>,
    status: OrderedSender<Status>,
) {
    let mut metrics = raft.metrics();
    drop(raft);
    loop {
        let now = super::status::status_of(&metrics.borrow_and_update(), progress.borrow_and_update().applied);
        let over = now.stopped.is_some();
        status.send_if_modified(|known| known.replace(now));
        if over {
            return;
        }
        tokio::select! {
            biased;
            changed = metrics.changed() => if changed.is_err() {
                // Raft's task panicked: it says nothing more, and must not look as if it still ran.
                status.send_if_modified(Status::ended);
                return;
            },
            // The apply worker ends with Raft, which the metrics tell.
            Ok(()) = progress.changed() => {},
        }
    }
}
