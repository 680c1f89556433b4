//! A cluster of one test's making: real sockets, and answers that the test decides.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{Stream, stream};
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use tonic::{
    Code, Request, Response, Status, Streaming,
    transport::server::{Server, TcpIncoming},
};
use verdict_client::{Options, Xid, wire};
use verdict_proto::v1::{
    self,
    branches_server::{Branches, BranchesServer},
    error_detail::Code as Detail,
    operator_server::{Operator, OperatorServer},
    transactions_server::{Transactions, TransactionsServer},
};

/// What a node does with a call.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Outcome(v1::Outcome),
    State(v1::State),
    /// COMMITTED, and the leader is elsewhere.
    Led(SocketAddr),
    Fails(Status),
    /// Never answers.
    Hangs,
    Order(v1::BranchOrder),
    /// To whoever watches; then the stream ends.
    Events(Vec<v1::WatchEvent>),
}

/// A gRPC error with a detail.
pub(crate) fn fails(code: Code, detail: Detail, leader: Option<SocketAddr>, retry_after_ms: u64) -> Answer {
    let leader_address = leader.map(|address| address.to_string()).unwrap_or_default();
    let detail = v1::ErrorDetail { code: detail.into(), leader: 0, leader_address, retry_after_ms };
    Answer::Fails(wire::status(code, "the test says so", &detail))
}

/// What a node is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Begin,
    Enlist,
    /// The votes that it brings.
    Commit(Vec<(u32, v1::Vote)>),
    Rollback,
    Get,
    List,
    /// Behind which index; the largest for none.
    Watch(u64),
    Vote,
    Inquire(u32),
    /// How which branch was settled.
    ReportSettled(Vec<(u32, v1::Settlement)>),
    Resolve,
    Forget,
}

type Decide = dyn Fn(usize, &Call) -> Answer + Send + Sync;

/// One node. Ends when it is dropped.
pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    calls: Calls,
    brought: Brought,
    server: JoinHandle<()>,
}

type Calls = Arc<watch::Sender<Vec<(Vec<u8>, Call)>>>;
type Brought = Arc<Mutex<Vec<v1::Branch>>>;

impl Node {
    /// `decide` is given how many calls came before.
    pub(crate) fn start(decide: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Self {
        Self::answering(move |before, _| decide(before))
    }

    /// `decide` is given how many calls came before, and the call.
    pub(crate) fn answering(decide: impl Fn(usize, &Call) -> Answer + Send + Sync + 'static) -> Self {
        let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().with_nodelay(Some(true));
        let address = incoming.local_addr().unwrap();
        let (calls, brought) = (Arc::default(), Arc::default());
        let service = Service { decide: Arc::new(decide), calls: Arc::clone(&calls), brought: Arc::clone(&brought) };
        let router = Server::builder()
            .add_service(TransactionsServer::new(service.clone()))
            .add_service(BranchesServer::new(service.clone()))
            .add_service(OperatorServer::new(service));
        let server = tokio::spawn(async move { router.serve_with_incoming(incoming).await.unwrap() });
        Self { address, calls, brought, server }
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.borrow().len()
    }

    /// The xids that it was called with.
    pub(crate) fn xids(&self) -> Vec<Xid> {
        self.calls.borrow().iter().map(|(xid, _)| Xid::from_slice(xid).unwrap()).collect()
    }

    /// What it was asked.
    pub(crate) fn asked(&self) -> Vec<Call> {
        self.calls.borrow().iter().map(|(_, call)| call.clone()).collect()
    }

    /// The branches that the last Commit listed.
    pub(crate) fn brought(&self) -> Vec<v1::Branch> {
        self.brought.lock().unwrap().clone()
    }

    /// Waits for the first call of which there is something to say.
    pub(crate) async fn called<T>(&self, mut says: impl FnMut(&Call) -> Option<T>) -> T {
        let mut calls = self.calls.subscribe();
        let seen = async {
            loop {
                if let Some(said) = calls.borrow_and_update().iter().find_map(|(_, call)| says(call)) {
                    return said;
                }
                calls.changed().await.unwrap();
            }
        };
        timeout(Duration::from_secs(20), seen).await.unwrap_or_else(|_| panic!("not called: {:?}", self.asked()))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// An address where nobody listens.
pub(crate) fn dead() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The seed makes the first node of two or three the first choice.
pub(crate) fn options(nodes: &[SocketAddr]) -> Options {
    let first = (0..).find(|seed| {
        use rand::{Rng, SeedableRng, rngs::StdRng};
        StdRng::seed_from_u64(*seed).next_u64() % nodes.len() as u64 == 0
    });
    Options {
        deadline: Duration::from_secs(5),
        attempt_timeout: Duration::from_millis(200),
        seed: first,
        ..Options::new(nodes.iter().map(SocketAddr::to_string))
    }
}

/// Its name.
pub(crate) const CLUSTER: [u8; 16] = [7; 16];
/// What Enlist hands out.
const CREDENTIAL: [u8; 16] = [5; 16];

#[derive(Clone)]
struct Service {
    decide: Arc<Decide>,
    calls: Calls,
    brought: Brought,
}

/// A credential for each branch.
fn credentials(numbers: impl Iterator<Item = u32>) -> Vec<v1::BranchCredential> {
    numbers.map(|number| v1::BranchCredential { number, credential: CREDENTIAL.as_slice().into() }).collect()
}

impl Service {
    fn next(&self, xid: &[u8], call: Call) -> Answer {
        let mut before = 0;
        self.calls.send_modify(|calls| {
            before = calls.len();
            calls.push((xid.to_vec(), call.clone()));
        });
        (self.decide)(before, &call)
    }

    async fn status(&self, xid: bytes::Bytes, call: Call) -> Result<Response<v1::TransactionStatus>, Status> {
        let status = |state: v1::State, outcome: v1::Outcome| v1::TransactionStatus {
            xid: xid.clone(),
            state: state.into(),
            outcome: outcome.into(),
            ..v1::TransactionStatus::default()
        };
        match self.next(&xid, call) {
            Answer::Outcome(outcome) => Ok(Response::new(status(v1::State::Decided, outcome))),
            Answer::State(state) => Ok(Response::new(status(state, v1::Outcome::Unspecified))),
            Answer::Led(leader) => {
                let mut reply = Response::new(status(v1::State::Ended, v1::Outcome::Committed));
                reply.metadata_mut().insert(wire::LEADER_ADDRESS, leader.to_string().parse().unwrap());
                Ok(reply)
            }
            Answer::Fails(status) => Err(status),
            Answer::Hangs => std::future::pending().await,
            Answer::Order(_) | Answer::Events(_) => Err(Status::internal("an order is no answer to a client")),
        }
    }

    async fn order(&self, xid: bytes::Bytes, call: Call) -> Result<Response<v1::BranchOrder>, Status> {
        match self.next(&xid, call) {
            Answer::Order(order) => Ok(Response::new(order)),
            Answer::Fails(status) => Err(status),
            Answer::Hangs => std::future::pending().await,
            other => Err(Status::internal(format!("{other:?} is no answer to a branch"))),
        }
    }
}

#[tonic::async_trait]
impl Transactions for Service {
    async fn begin(&self, request: Request<v1::BeginRequest>) -> Result<Response<v1::TransactionStatus>, Status> {
        self.status(request.into_inner().xid, Call::Begin).await
    }

    async fn enlist(&self, request: Request<v1::EnlistRequest>) -> Result<Response<v1::TransactionStatus>, Status> {
        let v1::EnlistRequest { xid, branches } = request.into_inner();
        let mut reply = self.status(xid, Call::Enlist).await?;
        reply.get_mut().credentials = credentials(branches.iter().map(|branch| branch.number));
        Ok(reply)
    }

    async fn commit(&self, request: Request<v1::CommitRequest>) -> Result<Response<v1::TransactionStatus>, Status> {
        let v1::CommitRequest { xid, branches, .. } = request.into_inner();
        self.brought.lock().unwrap().clone_from(&branches);
        let brought = branches.iter().map(|branch| (branch.number, branch.vote()));
        let brought: Vec<_> = brought.filter(|(_, vote)| *vote != v1::Vote::Unspecified).collect();
        let mut reply = self.status(xid, Call::Commit(brought.clone())).await?;
        reply.get_mut().credentials = credentials(brought.iter().map(|(number, _)| *number));
        Ok(reply)
    }

    async fn rollback(&self, request: Request<v1::RollbackRequest>) -> Result<Response<v1::TransactionStatus>, Status> {
        self.status(request.into_inner().xid, Call::Rollback).await
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::TransactionStatus>, Status> {
        self.status(request.into_inner().xid, Call::Get).await
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        let status = self.status(request.into_inner().after_xid, Call::List).await?.into_inner();
        Ok(Response::new(v1::ListResponse { transactions: vec![status], more: true }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::WatchEvent, Status>> + Send>>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let after = request.into_inner().after_index.unwrap_or(u64::MAX);
        match self.next(&[], Call::Watch(after)) {
            Answer::Events(events) => Ok(Response::new(Box::pin(stream::iter(events.into_iter().map(Ok))))),
            Answer::Fails(status) => Err(status),
            other => Err(Status::internal(format!("{other:?} is no answer to a watcher"))),
        }
    }
}

#[tonic::async_trait]
impl Branches for Service {
    type AttachStream = futures_util::stream::Empty<Result<v1::Down, Status>>;

    async fn vote(&self, request: Request<v1::VoteRequest>) -> Result<Response<v1::BranchOrder>, Status> {
        self.order(request.into_inner().branch.unwrap_or_default().xid, Call::Vote).await
    }

    async fn report_settled(
        &self,
        request: Request<v1::ReportSettledRequest>,
    ) -> Result<Response<v1::ReportSettledResponse>, Status> {
        let v1::ReportSettledRequest { xid, branches } = request.into_inner();
        assert!(branches.iter().all(|branch| branch.credential == CREDENTIAL.as_slice()), "what it was given");
        let settled = branches.iter().map(|branch| (branch.number, branch.settlement())).collect();
        self.status(xid, Call::ReportSettled(settled)).await?;
        Ok(Response::new(v1::ReportSettledResponse {}))
    }

    async fn inquire(&self, request: Request<v1::InquireRequest>) -> Result<Response<v1::BranchOrder>, Status> {
        let v1::BranchId { xid, number } = request.into_inner().branch.unwrap_or_default();
        self.order(xid, Call::Inquire(number)).await
    }

    async fn attach(&self, _: Request<Streaming<v1::Up>>) -> Result<Response<Self::AttachStream>, Status> {
        Err(Status::unimplemented("nobody attaches here"))
    }
}

#[tonic::async_trait]
impl Operator for Service {
    async fn cluster_status(
        &self,
        _: Request<v1::ClusterStatusRequest>,
    ) -> Result<Response<v1::ClusterStatusResponse>, Status> {
        let cluster = CLUSTER.as_slice().into();
        Ok(Response::new(v1::ClusterStatusResponse { node: 3, term: 9, cluster, ..Default::default() }))
    }

    async fn transfer_leader(
        &self,
        request: Request<v1::TransferLeaderRequest>,
    ) -> Result<Response<v1::TransferLeaderResponse>, Status> {
        Ok(Response::new(v1::TransferLeaderResponse { leader: request.into_inner().to }))
    }

    async fn resolve(&self, request: Request<v1::ResolveRequest>) -> Result<Response<v1::TransactionStatus>, Status> {
        self.status(request.into_inner().xid, Call::Resolve).await
    }

    async fn forget(&self, request: Request<v1::ForgetRequest>) -> Result<Response<v1::TransactionStatus>, Status> {
        self.status(request.into_inner().xid, Call::Forget).await
    }
}
