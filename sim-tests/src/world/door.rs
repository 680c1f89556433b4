//! A node's door: what clients and banks ask of a node, and what nodes bring to each other on behalf of them, is lost,
//! late, doubled or cut off on its way in, or its answer on its way out.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{Stream, StreamExt as _, stream};
use tokio::time::sleep;
use tonic::{Request, Response, Status, Streaming};
use verdict_client::wire::LEADER;
use verdict_proto::{
    peer::v1::{ForwardReply, Frame, Message, forward_reply, peer_server::Peer},
    v1::{
        BeginRequest, BranchOrder, ClusterStatusRequest, ClusterStatusResponse, CommitRequest, Down, EnlistRequest,
        ForgetRequest, GetRequest, InquireRequest, ListRequest, ListResponse, OpenSessionRequest, OpenSessionResponse,
        ReportSettledRequest, ReportSettledResponse, ResolveRequest, RollbackRequest, TransactionStatus,
        TransferLeaderRequest, TransferLeaderResponse, Up, VoteRequest, WatchEvent, WatchRequest,
        branches_server::Branches, operator_server::Operator, sessions_server::Sessions,
        transactions_server::Transactions,
    },
};

use super::{links::Sky, place_of};
use crate::{history::What, plan::Place};

/// Whoever waits for an answer that was lost has given up long before.
const NEVER: Duration = Duration::from_secs(60);
/// How often a stalled connection tries again.
const STALLS: Duration = Duration::from_millis(50);
/// A connection that carries many messages may break at each of so many.
const BREAKS_AT: u64 = 40;

/// The way to a node in one of its lives.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub sky: Arc<Sky>,
    pub node: u64,
    /// Whether its disk has failed.
    pub failed: Arc<AtomicBool>,
}

/// A stream's frames.
type Frames<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// How often a stream on a link that is cut looks whether it is mended: as TCP tries again.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// Carries a stream's frames: in order, each now and then late with all behind it; over a link that is cut, none until
/// it is mended; and now and then the stream breaks.
fn carried<T: Send + 'static>(
    sky: Arc<Sky>,
    from: Place,
    to: Place,
    frames: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> Frames<T> {
    let next = move |frames: Option<Frames<T>>| {
        let sky = Arc::clone(&sky);
        async move {
            let mut frames = frames?;
            let frame = frames.next().await?;
            let fate = sky.frame_fate();
            if !fate.late.is_zero() {
                sleep(fate.late).await;
            }
            while sky.is_cut(from, to) {
                sleep(TRY_EVERY).await;
            }
            if fate.breaks {
                sky.history.note(from, format_args!("its stream to {to} breaks"));
                return Some((Err(Status::unavailable("the connection was reset")), None));
            }
            sky.history.note(from, format_args!("has a frame for {to}, {:?} late", fate.late));
            Some((frame, Some(frames)))
        }
    };
    Box::pin(stream::unfold(Some(Box::pin(frames) as Frames<T>), next))
}

/// A service behind its door.
#[derive(Debug)]
pub(super) struct Door<S> {
    inner: Arc<S>,
    way: Way,
}

/// Whether an answer acknowledges something on the word of this node's own disk.
trait Acknowledges {
    fn acknowledges(&self, node: u64) -> bool;
}

impl<S: Send + Sync + 'static> Door<S> {
    pub(super) fn new(inner: S, way: &Way) -> Self {
        Self { inner: Arc::new(inner), way: way.clone() }
    }

    async fn carry<Q, A, F>(
        &self,
        request: Request<Q>,
        serve: impl Fn(Arc<S>, Request<Q>) -> F + Send + 'static,
    ) -> Result<Response<A>, Status>
    where
        Q: Clone + fmt::Debug + Send + 'static,
        A: Send + 'static,
        Response<A>: Acknowledges,
        F: Future<Output = Result<Response<A>, Status>> + Send + 'static,
    {
        let from = request.remote_addr().and_then(|address| place_of(address.ip())).unwrap_or(Place::Admin);
        let Way { sky, node, failed } = &self.way;
        let (node, message) = (Place::Node(*node), request.into_inner());
        let fate = sky.fate(from, node);
        sky.history.note(from, format_args!("calls {node}: {}{fate}", name_of::<Q>()));
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
        if failed.load(Ordering::Relaxed) && answer.as_ref().is_ok_and(|answer| answer.acknowledges(self.way.node)) {
            let what = format!("answers {}", name_of::<Q>());
            sky.history.record(node, What::AfterDiskFailed(what));
        }
        if fate.answer_lost || sky.is_cut(node, from) {
            sleep(NEVER).await;
            return Err(lost());
        }
        answer
    }
}

fn name_of<Q>() -> &'static str {
    std::any::type_name::<Q>().rsplit("::").next().unwrap_or_default()
}

/// By whom it was answered, says the metadata.
fn led_by<A>(answer: &Response<A>, node: u64) -> bool {
    let leader = answer.metadata().get(LEADER).and_then(|leader| leader.to_str().ok()).map(str::parse);
    leader == Some(Ok(node))
}

impl Acknowledges for Response<TransactionStatus> {
    fn acknowledges(&self, node: u64) -> bool {
        led_by(self, node)
    }
}

impl Acknowledges for Response<BranchOrder> {
    fn acknowledges(&self, node: u64) -> bool {
        led_by(self, node)
    }
}

impl Acknowledges for Response<OpenSessionResponse> {
    fn acknowledges(&self, node: u64) -> bool {
        led_by(self, node)
    }
}

impl Acknowledges for Response<ForwardReply> {
    fn acknowledges(&self, _: u64) -> bool {
        matches!(self.get_ref().result, Some(forward_reply::Result::Reply(_)))
    }
}

/// Nothing is kept of it for its sake.
impl Acknowledges for Response<ReportSettledResponse> {
    fn acknowledges(&self, _: u64) -> bool {
        false
    }
}

impl Acknowledges for Response<ListResponse> {
    fn acknowledges(&self, _: u64) -> bool {
        false
    }
}

impl Acknowledges for Response<ClusterStatusResponse> {
    fn acknowledges(&self, _: u64) -> bool {
        false
    }
}

impl Acknowledges for Response<TransferLeaderResponse> {
    fn acknowledges(&self, _: u64) -> bool {
        false
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

    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchEvent, Status>> + Send>>;

    /// A connection stalls while its link is cut, and breaks now and then.
    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let from = request.remote_addr().and_then(|address| place_of(address.ip())).unwrap_or(Place::Admin);
        let (way, to) = (self.way.clone(), Place::Node(self.way.node));
        let fate = way.sky.fate(from, to);
        way.sky.history.note(from, format_args!("watches {to}: {:?}{fate}", request.get_ref()));
        if fate.lost {
            sleep(NEVER).await;
            return Err(Status::unavailable("the message was lost"));
        }
        sleep(fate.late).await;
        let told = Box::pin(self.inner.watch(request).await?.into_inner());
        let events = stream::unfold((told, way, 0_u64), move |(mut told, way, count)| async move {
            let event = told.next().await?;
            while way.sky.is_cut(to, from) {
                sleep(STALLS).await;
            }
            let breaks = count % BREAKS_AT == BREAKS_AT - 1 && way.sky.fate(to, from).lost;
            let event = if breaks { Err(Status::unavailable("the connection broke")) } else { event };
            Some((event, (told, way, count + 1)))
        });
        Ok(Response::new(Box::pin(events)))
    }
}

#[tonic::async_trait]
impl<S: Sessions> Sessions for Door<S> {
    async fn open(&self, request: Request<OpenSessionRequest>) -> Result<Response<OpenSessionResponse>, Status> {
        self.carry(request, |inner, request| async move { inner.open(request).await }).await
    }
}

#[tonic::async_trait]
impl<S: Branches> Branches for Door<S> {
    type AttachStream = Frames<Down>;

    async fn attach(&self, request: Request<Streaming<Up>>) -> Result<Response<Frames<Down>>, Status> {
        let from = request.remote_addr().and_then(|address| place_of(address.ip())).unwrap_or(Place::Admin);
        let (sky, node) = (&self.way.sky, Place::Node(self.way.node));
        sky.history.note(from, format_args!("opens a stream to {node}"));
        let ups = |frames| Streaming::from_stream(carried(Arc::clone(sky), from, node, frames));
        let answer = self.inner.attach(request.map(ups)).await?;
        sky.history.record(from, What::Attached { node: self.way.node });
        Ok(answer.map(|frames| carried(Arc::clone(sky), node, from, frames)))
    }

    async fn vote(&self, request: Request<VoteRequest>) -> Result<Response<BranchOrder>, Status> {
        self.carry(request, |inner, request| async move { inner.vote(request).await }).await
    }

    async fn report_settled(
        &self,
        request: Request<ReportSettledRequest>,
    ) -> Result<Response<ReportSettledResponse>, Status> {
        self.carry(request, |inner, request| async move { inner.report_settled(request).await }).await
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
