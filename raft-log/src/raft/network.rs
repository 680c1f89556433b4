//! Raft's messages over the links.
//!
//! Appends to one peer go one after the other: while one is on its way and being flushed, the entries that come in
//! gather for the next, which is the group commit of replication. Heartbeats, ballots and snapshots have calls of
//! their own, so that none waits behind another.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::select_ok;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::v2::RaftNetworkV2;
use openraft::network::{RPCOption, RPCTypes};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use openraft::{BasicNode, RaftNetworkFactory};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::machine::Machine;
use super::snapshot::{SnapshotData, Snapshots};
use super::types::{Ballot, TypeConfig};
use super::wire::{self, Offer, OfferAnswer, Piece, PieceAnswer};
use crate::{LinkError, MessageKind, NodeId, PeerLink};

/// How long the first append to a peer may take, and any if its disk is fast. A lost one costs this much. One without an
/// answer gives the next twice the time; an answer gives it four times what it took, so a slow disk is soon waited for.
const APPEND_WITHIN: Duration = Duration::from_millis(150);
/// How often a message of an election is sent at most.
const TWINS: u32 = 3;
/// How long the first message of a snapshot's transfer may take: a lost one costs this much. Each one without an
/// answer gives all later ones twice the time, so a slow way costs some messages that are sent again, and no more.
const FIRST_WITHIN: Duration = Duration::from_millis(500);
/// How long one may take at most: before the receiver answers the last offer, it decodes and installs.
const INSTALL_WITHIN: Duration = Duration::from_secs(64);
/// How often the snapshot is offered before the transfer is begun anew: enough for the time to grow to its most.
const OFFERS: usize = 12;

/// What all links of a replica share.
pub(crate) struct Links<M> {
    pub(crate) node: NodeId,
    pub(crate) link: Arc<dyn PeerLink>,
    pub(crate) snapshots: Snapshots,
    /// How long a peer may take to flush an append at most, before it is sent again: that is harmless.
    pub(crate) append_within: Duration,
    pub(crate) chunk_bytes: usize,
    pub(crate) machine: std::marker::PhantomData<fn() -> M>,
}

impl<M> Clone for Links<M> {
    fn clone(&self) -> Self {
        Self {
            node: self.node,
            link: Arc::clone(&self.link),
            snapshots: self.snapshots.clone(),
            append_within: self.append_within,
            chunk_bytes: self.chunk_bytes,
            machine: std::marker::PhantomData,
        }
    }
}

impl<M: Machine> RaftNetworkFactory<TypeConfig> for Links<M> {
    type Network = Peer<M>;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Peer<M> {
        Peer { links: self.clone(), to: NodeId(target), append_within: APPEND_WITHIN.min(self.append_within) }
    }
}

/// The way to one peer.
pub(crate) struct Peer<M> {
    links: Links<M>,
    to: NodeId,
    /// How long the next append may take.
    append_within: Duration,
}

impl<M: Machine> Peer<M> {
    async fn call(&self, kind: MessageKind, body: Bytes, within: Duration) -> Result<Bytes, RPCError<TypeConfig>> {
        let what = match kind {
            MessageKind::Append => RPCTypes::AppendEntries,
            MessageKind::TransferLeader => RPCTypes::TransferLeader,
            MessageKind::OfferSnapshot | MessageKind::PutSections => RPCTypes::InstallSnapshot,
            _ => RPCTypes::Vote,
        };
        self.links.link.call(self.to, kind, body, within).await.map_err(|e| match e {
            LinkError::TimedOut => {
                RPCError::Timeout(Timeout { action: what, id: self.links.node.0, target: self.to.0, timeout: within })
            }
            LinkError::Unreachable(_) => RPCError::Unreachable(Unreachable::new(&e)),
            LinkError::Refused(_) => RPCError::Network(NetworkError::new(&e)),
        })
    }

    async fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        kind: MessageKind,
        question: &Q,
        within: Duration,
    ) -> Result<A, RPCError<TypeConfig>> {
        let body = wire::encode(question).map_err(|e| RPCError::Network(NetworkError::new(&e)))?;
        let answer = self.call(kind, body, within).await?;
        wire::decode(&answer).map_err(|e| RPCError::Network(NetworkError::new(&e)))
    }

    /// The same for a message that may be repeated, and must not cost an election's time if it gets lost: while there
    /// is no answer it is sent again, beside the first. The first answer counts.
    async fn ask_with_twins<Q: Serialize + Sync, A: DeserializeOwned>(
        &self,
        kind: MessageKind,
        question: &Q,
        within: Duration,
    ) -> Result<A, RPCError<TypeConfig>> {
        let pause = within / TWINS;
        let twins = (0..TWINS).map(|before| {
            Box::pin(async move {
                tokio::time::sleep(pause * before).await;
                self.ask(kind, question, pause * (TWINS - before)).await
            })
        });
        select_ok(twins).await.map(|(answer, _)| answer)
    }

    /// Offers the snapshot, sends what is missing, and offers it again until it is installed.
    async fn send_snapshot(&self, offer: &Offer) -> Result<Ballot, StreamingError<TypeConfig>> {
        let mut within = FIRST_WITHIN;
        for _ in 0..OFFERS {
            match self.ask(MessageKind::OfferSnapshot, offer, within).await {
                Ok(OfferAnswer::Done(ballot)) => return Ok(ballot),
                // It was lost, or the receiver is at it: an offer that is repeated meets what the first one has done.
                Err(RPCError::Timeout(_)) => within = (within * 2).min(INSTALL_WITHIN),
                Err(error) => return Err(error.into()),
                Ok(OfferAnswer::Missing(ids)) => {
                    for section in offer.sections.iter().filter(|section| ids.contains(&section.id)) {
                        self.send_section(offer.ballot, section, &mut within).await?;
                    }
                }
            }
        }
        Err(StreamingError::Network(NetworkError::from_string("sections that were sent were missing again")))
    }

    async fn send_section(
        &self,
        ballot: Ballot,
        section: &wire::OfferedSection,
        within: &mut Duration,
    ) -> Result<(), StreamingError<TypeConfig>> {
        let body =
            self.links.snapshots.section(section).await.map_err(|e| {
                StreamingError::Network(NetworkError::from_string(format!("section {}: {e}", section.id)))
            })?;
        let mut offset = 0;
        // Each round either moves on by a piece or ends the transfer.
        loop {
            let end = (offset + self.links.chunk_bytes).min(body.len());
            let piece =
                Piece { ballot, section: section.clone(), offset: offset as u64, bytes: body[offset..end].to_vec() };
            let answer: PieceAnswer = match self.ask(MessageKind::PutSections, &piece, *within).await {
                Ok(answer) => answer,
                Err(RPCError::Timeout(_)) => {
                    // Offered anew, the receiver says what it lacks.
                    *within = (*within * 2).min(INSTALL_WITHIN);
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            };
            if answer.next == section.length {
                return Ok(());
            }
            let next = usize::try_from(answer.next).unwrap_or(usize::MAX);
            if next != end || next <= offset {
                // The receiver forgot what it had (it was started again, or another leader sends): offer anew.
                return Ok(());
            }
            offset = next;
        }
    }
}

impl<M: Machine> RaftNetworkV2<TypeConfig> for Peer<M> {
    type SnapshotData = SnapshotData<M>;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let body = wire::encode_append(&request).map_err(|e| RPCError::Network(NetworkError::new(&e)))?;
        let sent = Instant::now();
        let answer = self.call(MessageKind::Append, body, self.append_within).await;
        let next = match &answer {
            Err(RPCError::Timeout(_)) => self.append_within * 2,
            Ok(_) => APPEND_WITHIN.max(sent.elapsed() * 4),
            Err(_) => self.append_within,
        };
        self.append_within = next.min(self.links.append_within);
        wire::decode(&answer?).map_err(|e| RPCError::Network(NetworkError::new(&e)))
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask_with_twins(MessageKind::Ballot, &request, option.hard_ttl()).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask(MessageKind::PreBallot, &request, option.hard_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        ballot: Ballot,
        snapshot: openraft::type_config::alias::SnapshotOf<TypeConfig, SnapshotData<M>>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let offer = Offer { ballot, meta: snapshot.meta, sections: snapshot.snapshot.sections };
        let mut cancel = std::pin::pin!(cancel);
        tokio::select! {
            biased;
            closed = &mut cancel => Err(StreamingError::Closed(closed)),
            sent = self.send_snapshot(&offer) => sent.map(SnapshotResponse::new),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask_with_twins(MessageKind::TransferLeader, &request, option.hard_ttl()).await
    }
}
