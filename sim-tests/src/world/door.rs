//! A node's door: what clients and banks ask of a node, and what nodes bring to each other on behalf of them, is lost,
//! late, doubled or cut off on its way in, or its answer on its way out.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::sleep;
use tonic::{Request, Response, Status, Streaming};
use verdict_proto::{
    peer::v1::{ForwardReply, Frame, Message, peer_server::Peer},
    v1::{
        BeginRequest, BranchOrder, ClusterStatusRequest, ClusterStatusResponse, CommitRequest, EnlistRequest,
        ForgetRequest, GetRequest, InquireRequest, ListRequest, ListResponse, ResolveRequest, RollbackRequest,
        TransactionStatus, TransferLeaderRequest, TransferLeaderResponse, VoteRequest, branches_server::Branches,
        operator_server::Operator, transactions_server::Transactions,
    },
};

use super::{links::Sky, place_of};
use crate::plan::Place;

/// Whoever waits for an answer that was lost has given up long before.
const NEVER: Duration = Duration::from_secs(60);

/// A service behind its door.
#[derive(Debug)]
pub(super) struct Door<S> {
    inner: Arc<S>,
    sky: Arc<Sky>,
    node: Place,
}

impl<S: Send + Sync + 'static> Door<S> {
    pub(super) fn new(inner: S, sky: &Arc<Sky>, node: u64) -> Self {
        Self { inner: Arc::new(inner), sky: Arc::clone(sky), node: Place::Node(node) }
    }

    async fn carry<Q, A, F>(
        &self,
        request: Request<Q>,
        serve: impl Fn(Arc<S>, Request<Q>) -> F + Send + 'static,
    ) -> Result<Response<A>, Status>
    where
        Q: Clone + fmt::Debug + Send + 'static,
        A: Send + 'static,
        F: Future<Output = Result<Response<A>, Status>> + Send + 'static,
    {
        let from = request.remote_addr().and_then(|address| place_of(address.ip())).unwrap_or(Place::Admin);
        let (sky, node, message) = (&self.sky, self.node, request.into_inner());
        let fate = sky.fate(from, node);
        sky.history.note(
            from,
            format_args!("calls {node}: {}{fate}", std::any::type_name::<Q>().rsplit("::").next().unwrap_or_default()),
        );
        let lost = || Status::unavailable("the message or its answer was lost");
        if fate.lost {
            sleep(NEVER).await;
            return Err(lost());
        }
        if !fate.late.is_zero() {
            sleep(fate.late).await;
        }
        if let Some(after) = fate.again_after {
            let copy = serve(Arc::clone(&self.inner), Request::new(message.clone()));
            drop(tokio::spawn(async move {
                sleep(after).await;
                drop(copy.await);
            }));
        }
        let answer = serve(Arc::clone(&self.inner), Request::new(message)).await;
        if fate.answer_lost || sky.is_cut(node, from) {
            sleep(NEVER).await;
            return Err(lost());
        }
        answer
    }
}

#[tonic::async_trait]
impl<S: Transactions> Transactions for Door<S> {
    async fn begin(&self, request: Request<BeginRequest>) -> Result<Response<TransactionStatus>, Status> {
        self.carry(request, |inner, request| async move { inner.begin(request).await }).await
    }

    async fn enlist(&self, request: Request<EnlistRequest>) -> Result<Response<TransactionStatus>, Status> {
        self.carry(request, |inner, request| async move { inner.enlist(request).await }).await
    }

    async fn commit(&self, request: Request<CommitRequest>) -> Result<Response<TransactionStatus>, Status> {
        self.carry(request, |inner, request| async move { inner.commit(request).await }).await
    }

    async fn rollback(&self, request: Request<RollbackRequest>) -> Result<Response<TransactionStatus>, Status> {
        self.carry(request, |inner, request| async move { inner.rollback(request).await }).await
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<TransactionStatus>, Status> {
        self.carry(request, |inner, request| async move { inner.get(request).await }).await
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        self.carry(request, |inner, request| async move { inner.list(request).await }).await
    }
}

#[tonic::async_trait]
impl<S: Branches> Branches for Door<S> {
    async fn vote(&self, request: Request<VoteRequest>) -> Result<Response<BranchOrder>, Status> {
        self.carry(request, |inner, request| async move { inner.vote(request).await }).await
    }

    async fn inquire(&self, request: Request<InquireRequest>) -> Result<Response<BranchOrder>, Status> {
        self.carry(request, |inner, request| async move { inner.inquire(request).await }).await
    }
}

#[tonic::async_trait]
impl<S: Operator> Operator for Door<S> {
    async fn cluster_status(
        &self,
        request: Request<ClusterStatusRequest>,
    ) -> Result<Response<ClusterStatusResponse>, Status> {
        self.carry(request, |inner, request| async move { inner.cluster_status(request).await }).await
    }

    async fn transfer_leader(
        &self,
        request: Request<TransferLeaderRequest>,
    ) -> Result<Response<TransferLeaderResponse>, Status> {
        self.carry(request, |inner, request| async move { inner.transfer_leader(request).await }).await
    }

    async fn resolve(&self, request: Request<ResolveRequest>) -> Result<Response<TransactionStatus>, Status> {
        self.carry(request, |inner, request| async move { inner.resolve(request).await }).await
    }

    async fn forget(&self, request: Request<ForgetRequest>) -> Result<Response<TransactionStatus>, Status> {
        self.carry(request, |inner, request| async move { inner.forget(request).await }).await
    }
}

/// What the log's nodes say to each other passes the faulty links where it is sent.
#[tonic::async_trait]
impl<S: Peer> Peer for Door<S> {
    type LinkStream = S::LinkStream;

    async fn link(&self, request: Request<Streaming<Frame>>) -> Result<Response<Self::LinkStream>, Status> {
        self.inner.link(request).await
    }

    async fn call(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        self.inner.call(request).await
    }

    async fn forward(&self, request: Request<Message>) -> Result<Response<ForwardReply>, Status> {
        self.carry(request, |inner, request| async move { inner.forward(request).await }).await
    }
}
