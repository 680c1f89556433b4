//! Where a call is answered: here, or at the leader.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tonic::{Response, Status, metadata::MetadataMap};
use verdict_client::wire::{LEADER, LEADER_ADDRESS};
use verdict_proto::peer::v1::{ForwardError, ForwardReply, forward_reply};
use verdict_protocol::{Refusal, Reply, Request};
use verdict_raft_log::{NodeId, Replica};

use super::failure::Failure;
use crate::{Options, engine::Engine, peers::TonicPeers, recent::Recent, streams::Streams, walls::Walls};

/// How long a call waits for another leader: about what two elections take. Without one by then the client tries
/// elsewhere.
const LEADER_WITHIN: Duration = Duration::from_secs(1);
/// How often it looks again, besides when it hears of another leader.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What all services of a node share.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) options: Options,
    pub(crate) engine: Arc<Engine>,
    pub(crate) replica: Replica,
    pub(crate) peers: Arc<TonicPeers>,
    pub(crate) walls: Arc<Walls>,
    pub(crate) streams: Streams,
    /// Calls that wait for another node, or for a read barrier.
    pub(crate) calls: Semaphore,
    pub(crate) recent: Arc<Recent>,
    /// Who watches.
    pub(crate) watchers: Arc<Semaphore>,
}

/// A call that only the leader answers.
pub(super) trait Call: Message + Clone + Default + 'static {
    /// Its number in a forwarded message; never used for another.
    const KIND: u32;
    type Reply: Message + Default + 'static;

    fn serve(self, front: &Front) -> impl Future<Output = Result<Self::Reply, Failure>> + Send;
}

impl Front {
    /// Answers a client's call, from here or from the leader.
    pub(super) async fn route<C: Call>(&self, call: C) -> Result<Response<C::Reply>, Status> {
        let answer = self.answer(call).await;
        self.respond(answer)
    }

    /// As it goes to a client: with the leader's id and address.
    pub(super) fn respond<T>(&self, answer: Result<T, Failure>) -> Result<Response<T>, Status> {
        match answer {
            Ok(reply) => {
                let mut response = Response::new(reply);
                self.name_leader(response.metadata_mut());
                Ok(response)
            }
            Err(failure) => {
                let mut status = failure.into_status(self.leader());
                self.name_leader(status.metadata_mut());
                Err(status)
            }
        }
    }

    /// Answers, and if the leader is lost meanwhile, asks the next one: every call may be sent again. So a client waits
    /// for the election and not for its own next attempt.
    async fn answer<C: Call>(&self, call: C) -> Result<C::Reply, Failure> {
        let by = Instant::now() + LEADER_WITHIN;
        loop {
            let changed = self.engine.leadership.notified();
            match self.answer_once(call.clone()).await {
                Err(failure) if failure.is_for_want_of_a_leader() && Instant::now() < by => {
                    // A leader that was lost on the way there may be the same again.
                    drop(timeout(LOOK_EVERY, changed).await);
                }
                answered => return answered,
            }
        }
    }

    /// Waits until this node leads, as others say that it does: it may be elected and not know all of the past yet.
    pub(super) async fn leads_soon(&self) -> bool {
        let by = Instant::now() + LEADER_WITHIN;
        loop {
            let changed = self.engine.leadership.notified();
            if self.engine.leads() {
                return true;
            }
            if timeout(by.saturating_duration_since(Instant::now()), changed).await.is_err() {
                return false;
            }
        }
    }

    async fn answer_once<C: Call>(&self, call: C) -> Result<C::Reply, Failure> {
        if self.engine.leads() {
            return self.serve(call).await;
        }
        match self.engine.leader() {
            Some(leader) if leader != self.options.node => self.forward(leader, call).await,
            // It may be elected and not yet know all that was decided before.
            Some(_) | None => Err(self.no_leader()),
        }
    }

    /// Nothing is asked of a cluster that has neither its limits nor its time yet: it would know no xid as too old.
    async fn serve<C: Call>(&self, call: C) -> Result<C::Reply, Failure> {
        if self.engine.is_founded() { call.serve(self).await } else { Err(Refusal::NotFounded.into()) }
    }

    async fn forward<C: Call>(&self, leader: NodeId, call: C) -> Result<C::Reply, Failure> {
        let _permit = self.calls.try_acquire().map_err(|_| self.too_many())?;
        let reply = self.peers.forward(leader, C::KIND, call.encode_to_vec().into()).await;
        // Whether it got there is not known.
        let reply = reply.map_err(|_| Failure::Interrupted)?;
        match reply.result {
            Some(forward_reply::Result::Reply(body)) => C::Reply::decode(body).map_err(|_| Failure::Interrupted),
            Some(forward_reply::Result::Error(ForwardError { code, message, details })) => {
                let code = i32::try_from(code).unwrap_or_default();
                Err(Failure::Forwarded(Status::with_details(code.into(), message, details)))
            }
            None => Err(Failure::Interrupted),
        }
    }

    /// Answers a call that another node forwarded, if this node leads.
    pub(super) async fn forwarded<C: Call>(&self, body: Bytes) -> ForwardReply {
        let reply = match C::decode(body) {
            Ok(call) if self.leads_soon().await => self.serve(call).await,
            Ok(_) => Err(self.no_leader()),
            Err(error) => Err(Failure::Invalid(format!("the forwarded call cannot be read: {error}"))),
        };
        let result = match reply {
            Ok(reply) => forward_reply::Result::Reply(reply.encode_to_vec().into()),
            Err(failure) => {
                let status = failure.into_status(self.leader());
                forward_reply::Result::Error(ForwardError {
                    code: i32::from(status.code()).unsigned_abs(),
                    message: status.message().to_owned(),
                    details: Bytes::copy_from_slice(status.details()),
                })
            }
        };
        ForwardReply { leader: self.options.node.0, result: Some(result), wall_ms: self.walls.own_ms() }
    }

    /// Asks the engine.
    pub(super) async fn request(&self, request: Request) -> Result<Reply, Failure> {
        match self.engine.request(request).await.ok_or_else(|| self.too_many())? {
            Reply::Refused(refusal) => Err(Failure::Refused(refusal)),
            Reply::Interrupted => Err(self.stopped().unwrap_or(Failure::Interrupted)),
            Reply::NotLeader => Err(self.no_leader()),
            reply @ (Reply::Decided { .. } | Reply::Done { .. } | Reply::Order { .. } | Reply::Session { .. }) => {
                Ok(reply)
            }
        }
    }

    /// Waits until this node has applied all that was acknowledged before.
    pub(super) async fn read_barrier(&self) -> Result<(), Failure> {
        let _permit = self.calls.try_acquire().map_err(|_| self.too_many())?;
        self.replica.read_barrier().await?;
        Ok(())
    }

    fn too_many(&self) -> Failure {
        Failure::TooManyCalls { limit: self.options.max_calls }
    }

    pub(super) fn no_leader(&self) -> Failure {
        self.stopped().unwrap_or(Failure::NoLeader)
    }

    pub(super) fn stopped(&self) -> Option<Failure> {
        self.replica.status().stopped.map(|reason| Failure::Stopped { reason })
    }

    pub(super) fn leader(&self) -> Option<(NodeId, &str)> {
        let leader = self.engine.leader()?;
        Some((leader, self.options.nodes.get(&leader).map_or("", String::as_str)))
    }

    /// Whom to try instead of this node.
    pub(super) fn leader_elsewhere(&self) -> Option<(NodeId, &str)> {
        self.leader().filter(|(leader, _)| *leader != self.options.node)
    }

    fn name_leader(&self, metadata: &mut MetadataMap) {
        let Some((leader, address)) = self.leader() else { return };
        metadata.insert(LEADER, leader.0.into());
        if let Ok(address) = address.parse() {
            metadata.insert(LEADER_ADDRESS, address);
        }
    }
}
