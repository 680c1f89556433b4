//! A resource that is reached by stream, as a resource manager.

use std::time::Duration;

use tokio::{sync::oneshot, time::timeout};
use verdict_client::{
    participant::{NotAnswered, OnePhase, Prepare, ResourceManager, Settle, Settled, Voted},
    wire::{FromWire, ToWire as _, WireError},
};
use verdict_proto::v1::{self, ask, reply};
use verdict_protocol::{BranchId, Conclusion, ResourceName};

use super::{Streams, registry::Answer};

/// How long any call may take: above what the engine gives one.
const CALL_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct StreamParticipant {
    resource: ResourceName,
    streams: Streams,
}

impl StreamParticipant {
    pub(super) fn new(resource: ResourceName, streams: Streams) -> Self {
        Self { resource, streams }
    }

    async fn call(&self, body: ask::Body) -> Answer {
        let (sender, answer) = oneshot::channel();
        let id = self.streams.lock().call(&self.resource, body, sender)?;
        let given_up = GivenUp { streams: &self.streams, id };
        let answer = timeout(CALL_WITHIN, answer).await;
        drop(given_up);
        match answer {
            Ok(Ok(Ok(reply::Body::NotAnswered(v1::NotAnswered { code, text })))) => {
                let code = tonic::Code::from(i32::try_from(code).unwrap_or_default());
                Err(self.unanswered(format!("did not answer ({code:?}): {text}")))
            }
            Ok(Ok(answer)) => answer,
            // The sender is gone only when the node stops.
            Ok(Err(_)) => Err(self.unanswered("was not asked: this node stops".to_owned())),
            Err(late) => Err(self.unanswered(format!("did not answer in time: {late}"))),
        }
    }

    fn unanswered(&self, what: String) -> NotAnswered {
        NotAnswered::unavailable(format!("{} {what}", self.resource))
    }

    fn parse<W, T: FromWire<W>>(&self, wire: W) -> Result<T, NotAnswered> {
        T::from_wire(wire).map_err(|error: WireError| self.senseless(&error.to_string()))
    }

    fn senseless(&self, why: &str) -> NotAnswered {
        self.unanswered(format!("gave an answer that makes no sense: {why}"))
    }

    async fn settle(&self, body: ask::Body) -> Result<Settled, NotAnswered> {
        match self.call(body).await? {
            reply::Body::Settle(settled) => self.parse(settled),
            other => Err(self.senseless(kind(&other))),
        }
    }
}

#[tonic::async_trait]
impl ResourceManager for StreamParticipant {
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        match self.call(ask::Body::Prepare(request.to_wire())).await? {
            reply::Body::Prepare(voted) => self.parse(voted),
            other => Err(self.senseless(kind(&other))),
        }
    }

    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.settle(ask::Body::Commit(request.to_wire())).await
    }

    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.settle(ask::Body::Rollback(request.to_wire())).await
    }

    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        match self.call(ask::Body::CommitOnePhase(request.to_wire())).await? {
            reply::Body::CommitOnePhase(concluded) => self.parse(concluded),
            other => Err(self.senseless(kind(&other))),
        }
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        let request = v1::RecoverRequest { stamp: None, resource: self.resource.clone().into() };
        match self.call(ask::Body::Recover(request)).await? {
            reply::Body::Recover(recovered) => {
                let mut prepared: Vec<BranchId> = self.parse(recovered)?;
                prepared.truncate(limit);
                Ok(prepared)
            }
            other => Err(self.senseless(kind(&other))),
        }
    }
}

/// What an answer is to.
fn kind(body: &reply::Body) -> &'static str {
    match body {
        reply::Body::Prepare(_) => "it answers a prepare",
        reply::Body::Settle(_) => "it answers a commit or a rollback",
        reply::Body::CommitOnePhase(_) => "it answers a commit in one phase",
        reply::Body::Recover(_) => "it answers a recover",
        reply::Body::NotAnswered(_) => "it is none",
    }
}

/// Takes a call that is given up out of those that wait.
struct GivenUp<'a> {
    streams: &'a Streams,
    id: u64,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.streams.lock().forget(self.id);
    }
}
