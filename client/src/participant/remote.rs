//! A participant behind gRPC, as a resource manager: what Verdict sees of a service.

use std::{future::Future, time::Duration};

use tokio::time::timeout;
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint},
};
use verdict_proto::v1::{self, participant_client::ParticipantClient};
use verdict_protocol::{BranchId, Conclusion, ResourceName};

use super::{NotAnswered, OnePhase, Prepare, ResourceManager, Settle, Settled, Voted};
use crate::wire::{FromWire, ToWire};

/// A participant behind gRPC. One shared connection, made when first needed.
#[derive(Clone, Debug)]
pub struct RemoteParticipant {
    resource: ResourceName,
    channel: Channel,
    timeout: Duration,
}

impl RemoteParticipant {
    /// A call that takes longer than `timeout` has no answer.
    #[must_use]
    pub fn new(resource: ResourceName, endpoint: &Endpoint, timeout: Duration) -> Self {
        Self { resource, channel: endpoint.connect_lazy(), timeout }
    }

    async fn call<M, R, T: FromWire<R>, F>(
        &self,
        message: M,
        send: impl FnOnce(ParticipantClient<Channel>, Request<M>) -> F,
    ) -> Result<T, NotAnswered>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let unavailable = |what: &str, source| NotAnswered::Unavailable {
            what: format!("{} {what}", self.resource),
            source: Some(source),
        };
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        let reply = timeout(self.timeout, send(ParticipantClient::new(self.channel.clone()), request)).await;
        let reply = reply.map_err(|late| unavailable("did not answer in time", late.into()))?;
        let reply = reply.map_err(|status| unavailable("did not answer", status.into()))?;
        T::from_wire(reply.into_inner())
            .map_err(|error| unavailable("gave an answer that makes no sense", error.into()))
    }
}

#[tonic::async_trait]
impl ResourceManager for RemoteParticipant {
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        self.call(request.to_wire(), |mut client, request| async move { client.prepare(request).await }).await
    }

    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.call(request.to_wire(), |mut client, request| async move { client.commit(request).await }).await
    }

    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.call(request.to_wire(), |mut client, request| async move { client.rollback(request).await }).await
    }

    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        self.call(request.to_wire(), |mut client, request| async move { client.commit_one_phase(request).await }).await
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        let request = v1::RecoverRequest { stamp: None, resource: self.resource.clone().into() };
        let mut prepared: Vec<BranchId> =
            self.call(request, |mut client, request| async move { client.recover(request).await }).await?;
        prepared.truncate(limit);
        Ok(prepared)
    }
}
