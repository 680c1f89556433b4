//! The participant's end of a stream: whom it attaches to, its credit, its frames, its end.

#![cfg(not(madsim))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{Stream, stream};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinHandle,
    time::timeout,
};
use tonic::{
    Code, Request, Response, Status, Streaming,
    transport::server::{Server, TcpIncoming},
};
use verdict_client::{
    BranchId, ClusterId, Conclusion, LogTime, Verdict, Xid,
    participant::{
        NotAnswered, OnePhase, ParticipantOptions, Participants, Prepare, ResourceManager, Settle, Settled, Stamp,
        StreamStatus, Voted,
    },
    resource::memory::Memory,
    wire::{self, ToWire},
};
use verdict_proto::v1::{
    self, Ask, Down, Up, Welcome, ask,
    branches_server::{Branches, BranchesServer},
    error_detail::Code as Detail,
    reply,
};

use common::{Seats, cluster::options};

const STAMP: Stamp = Stamp { cluster: ClusterId([7; 16]), incarnation: 1, term: 1, horizon: LogTime::from_millis(1) };
const HEARTBEAT: Duration = Duration::from_millis(100);

/// An attempt to attach, which the test welcomes or refuses.
struct Attempt {
    up: Streaming<Up>,
    answer: mpsc::Sender<Result<Down, Status>>,
}

type Downs = std::pin::Pin<Box<dyn Stream<Item = Result<Down, Status>> + Send>>;

struct Service(mpsc::Sender<Attempt>);

#[tonic::async_trait]
impl Branches for Service {
    type AttachStream = Downs;

    async fn vote(&self, _: Request<v1::VoteRequest>) -> Result<Response<v1::BranchOrder>, Status> {
        Err(Status::unimplemented("only streams"))
    }

    async fn inquire(&self, _: Request<v1::InquireRequest>) -> Result<Response<v1::BranchOrder>, Status> {
        Err(Status::unimplemented("only streams"))
    }

    async fn report_settled(
        &self,
        _: Request<v1::ReportSettledRequest>,
    ) -> Result<Response<v1::ReportSettledResponse>, Status> {
        Err(Status::unimplemented("only streams"))
    }

    async fn attach(&self, request: Request<Streaming<Up>>) -> Result<Response<Downs>, Status> {
        let (answer, mut frames) = mpsc::channel(64);
        self.0.send(Attempt { up: request.into_inner(), answer }).await.unwrap();
        let first = frames.recv().await.expect("the test says something")?;
        let rest = stream::unfold(frames, |mut frames| async move { frames.recv().await.map(|frame| (frame, frames)) });
        let first = stream::iter([Ok(first)]);
        Ok(Response::new(Box::pin(futures_util::StreamExt::chain(first, rest))))
    }
}

/// A node that a test plays.
struct Node {
    address: SocketAddr,
    attempts: mpsc::Receiver<Attempt>,
    server: JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Node {
    fn start() -> Self {
        let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().with_nodelay(Some(true));
        let address = incoming.local_addr().unwrap();
        let (sender, attempts) = mpsc::channel(64);
        let router = Server::builder().add_service(BranchesServer::new(Service(sender)));
        let server = tokio::spawn(async move { router.serve_with_incoming(incoming).await.unwrap() });
        Self { address, attempts, server }
    }

    async fn attempt(&mut self) -> Attempt {
        timeout(Duration::from_secs(20), self.attempts.recv()).await.expect("an attempt within 20 s").unwrap()
    }

    /// Welcomes the next one; with so much credit for replies.
    async fn welcomes(&mut self, credit: u32) -> (Attempt, Up) {
        let mut attempt = self.attempt().await;
        let hello = attempt.up.message().await.unwrap().unwrap();
        let welcome = Some(Welcome { node: 7, heartbeat_ms: u64::try_from(HEARTBEAT.as_millis()).unwrap() });
        attempt.send(Down { welcome, credit, asks: Vec::new() }).await;
        (attempt, hello)
    }
}

impl Attempt {
    async fn send(&self, frame: Down) {
        self.answer.send(Ok(frame)).await.unwrap();
    }

    async fn asks(&self, numbers: std::ops::Range<u64>) {
        self.send(Down { asks: numbers.map(ask).collect(), ..Down::default() }).await;
    }

    async fn fails(&self, code: Code, detail: Detail, leader: Option<SocketAddr>) {
        let leader_address = leader.map(|address| address.to_string()).unwrap_or_default();
        let detail = v1::ErrorDetail { code: detail.into(), leader_address, ..v1::ErrorDetail::default() };
        self.answer.send(Err(wire::status(code, "the test says so", &detail))).await.unwrap();
    }

    /// Sends heartbeats until a frame with something in it comes; none if the participant ends the stream.
    async fn frame(&mut self) -> Option<Up> {
        loop {
            match timeout(HEARTBEAT, self.up.message()).await {
                Ok(frame) => match frame.unwrap() {
                    Some(frame) if frame == Up::default() => {}
                    frame => return frame,
                },
                Err(_) => drop(self.answer.send(Ok(Down::default())).await),
            }
        }
    }
}

fn ask(number: u64) -> Ask {
    let branch = BranchId { xid: Xid::new(LogTime::from_millis(1_700_000_000_000), 0, number), number: 1 };
    let (resource, payload) = ("seats".try_into().unwrap(), "one seat".into());
    let (vote_timeout, credential) = (Duration::from_secs(9), None);
    let request = Prepare { stamp: STAMP, branch, resource, payload, credential, vote_timeout };
    Ask { id: number, body: Some(ask::Body::Prepare(request.to_wire())) }
}

/// Prepares when it is let; commits never.
#[derive(Debug)]
struct Slow {
    inner: Arc<dyn ResourceManager>,
    started: Arc<Semaphore>,
    gate: Arc<Semaphore>,
}

#[tonic::async_trait]
impl ResourceManager for Slow {
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        self.started.add_permits(1);
        self.gate.acquire().await.unwrap().forget();
        self.inner.prepare(request).await
    }
    async fn commit(&self, _: Settle) -> Result<Settled, NotAnswered> {
        panic!("a bug in the service")
    }
    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.inner.rollback(request).await
    }
    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        self.inner.commit_one_phase(request).await
    }
    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        self.inner.recover(limit).await
    }
}

struct Scene {
    memory: Memory<Seats>,
    started: Arc<Semaphore>,
    gate: Arc<Semaphore>,
    participants: Participants,
}

fn attach(nodes: &[SocketAddr], in_flight: u32) -> Scene {
    let memory = Memory::new(Seats::default());
    let (started, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let slow = Slow { inner: Arc::new(memory.open()), started: started.clone(), gate: gate.clone() };
    let verdict = Verdict::new(options(nodes)).unwrap();
    let limited = ParticipantOptions { in_flight, ..ParticipantOptions::default() };
    let managers = [("seats".try_into().unwrap(), Arc::new(slow) as _)];
    let mut participants = Participants::start(managers, verdict, limited);
    assert_eq!(participants.stream(), None);
    participants.attach();
    Scene { memory, started, gate, participants }
}

impl Scene {
    async fn started(&self, calls: u32) {
        let started = timeout(Duration::from_secs(20), self.started.acquire_many(calls)).await;
        started.expect("they start within 20 s").unwrap().forget();
    }
}

#[tokio::test]
async fn credit_bounds_both_sides_and_many_replies_share_a_frame() {
    let mut node = Node::start();
    let scene = attach(&[node.address], 50);
    let (mut attempt, hello) = node.welcomes(1).await;
    assert_eq!((hello.hello.unwrap().resources, hello.credit), (vec!["seats".to_owned()], 50));
    assert!(hello.replies.is_empty());
    attempt.asks(0..50).await;
    scene.started(50).await;
    assert_eq!(scene.participants.stream(), Some(StreamStatus::Attached { node: 7 }));

    // There is credit for one reply; its own goes back with it.
    scene.gate.add_permits(50);
    let first = attempt.frame().await.unwrap();
    assert_eq!((first.replies.len(), first.credit), (1, 1));
    while scene.memory.len() < 50 {
        tokio::task::yield_now().await;
    }
    assert!(timeout(HEARTBEAT * 2, attempt.frame()).await.is_err(), "no reply without credit");
    attempt.send(Down { credit: 49, ..Down::default() }).await;
    let rest = attempt.frame().await.unwrap();
    assert_eq!((rest.replies.len(), rest.credit), (49, 49), "in one frame");
    let mut ids: Vec<u64> = first.replies.iter().chain(&rest.replies).map(|reply| reply.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..50).collect::<Vec<_>>());

    // Who asks for more than it may is left.
    attempt.asks(100..151).await;
    assert_eq!(attempt.frame().await, None);
    let (_again, hello) = node.welcomes(1).await;
    assert_eq!(hello.credit, 50);
}

#[tokio::test]
async fn it_attaches_to_the_leader_that_is_named_and_to_the_next() {
    let (mut first, mut second) = (Node::start(), Node::start());
    let scene = attach(&[first.address, second.address], 8);
    let begun = Instant::now();
    first.attempt().await.fails(Code::Unavailable, Detail::NotLeader, Some(second.address)).await;
    let (attempt, _) = second.welcomes(8).await;
    assert!(begun.elapsed() < Duration::from_millis(500), "at once: {:?}", begun.elapsed());
    attempt.asks(0..1).await;
    scene.started(1).await;
    // It is deposed; what it asked is answered to nobody, and asked again elsewhere.
    attempt.fails(Code::Unavailable, Detail::NotLeader, Some(first.address)).await;
    let (mut attempt, _) = first.welcomes(8).await;
    attempt.asks(0..1).await;
    scene.started(1).await;
    scene.gate.add_permits(2);
    let frame = attempt.frame().await.unwrap();
    assert!(matches!(frame.replies[0].body, Some(reply::Body::Prepare(_))), "{frame:?}");
    while scene.gate.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(scene.memory.ledger().reserved, 1, "once");
}

#[tokio::test]
async fn a_refusal_is_shown_and_tried_again_without_haste() {
    let mut node = Node::start();
    let scene = attach(&[node.address], 8);
    for _ in 0..2 {
        node.attempt().await.fails(Code::NotFound, Detail::UnknownResource, None).await;
    }
    let detached = |status: Option<StreamStatus>| matches!(status, Some(StreamStatus::Detached { why }) if why.contains("the test says so"));
    assert!(detached(scene.participants.stream()), "{:?}", scene.participants.stream());
    // Nodes that lead nobody knows where are asked again, slower each time.
    let begun = Instant::now();
    for _ in 0..8 {
        node.attempt().await.fails(Code::Unavailable, Detail::NotLeader, None).await;
    }
    node.attempt().await;
    assert!(begun.elapsed() > Duration::from_millis(1_000), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_silent_cluster_is_left_and_heartbeats_keep_a_stream() {
    let mut node = Node::start();
    let _scene = attach(&[node.address], 8);
    let (mut attempt, _) = node.welcomes(8).await;
    for _ in 0..5 {
        let beat = timeout(Duration::from_secs(20), attempt.up.message()).await.unwrap().unwrap().unwrap();
        assert_eq!(beat, Up::default());
        attempt.send(Down::default()).await;
    }
    // Now it is silent.
    let begun = Instant::now();
    node.attempt().await;
    assert!(begun.elapsed() >= HEARTBEAT * 3, "not before four heartbeats: {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_stop_takes_the_last_reply_along_and_nothing_new() {
    let mut node = Node::start();
    let scene = attach(&[node.address], 8);
    let (mut attempt, _) = node.welcomes(8).await;
    attempt.asks(0..1).await;
    scene.started(1).await;
    let stopping = tokio::spawn(scene.participants.stop());
    let leaving = attempt.frame().await.unwrap();
    assert!(leaving.leaving && leaving.credit == 0);
    attempt.asks(1..2).await;
    let refused = attempt.frame().await.unwrap();
    let Some(reply::Body::NotAnswered(why)) = &refused.replies[0].body else { panic!("{refused:?}") };
    assert!(refused.replies[0].id == 1 && why.text.contains("stopping"), "{why:?}");
    assert!(!stopping.is_finished());
    scene.gate.add_permits(1);
    loop {
        let frame = attempt.frame().await.expect("the reply comes before the end");
        if let Some(reply) = frame.replies.first() {
            assert!(reply.id == 0 && matches!(reply.body, Some(reply::Body::Prepare(_))), "{reply:?}");
            break;
        }
    }
    while attempt.frame().await.is_some() {}
    drop(attempt);
    timeout(Duration::from_secs(20), stopping).await.unwrap().unwrap();
    assert!(timeout(HEARTBEAT, node.attempts.recv()).await.is_err(), "it does not come back");
}

#[tokio::test]
async fn a_panic_and_a_request_of_tomorrow_are_no_answers() {
    let mut node = Node::start();
    let scene = attach(&[node.address], 8);
    let (mut attempt, _) = node.welcomes(8).await;
    let Some(ask::Body::Prepare(prepare)) = ask(0).body else { panic!("it prepares") };
    let v1::PrepareRequest { stamp, branch, resource, payload, .. } = prepare.clone();
    let commit = v1::SettleRequest { stamp, branch, resource, payload };
    let elsewhere = v1::PrepareRequest { resource: "wallet".to_owned(), ..prepare };
    for (body, code) in [
        (Some(ask::Body::Commit(commit)), Code::Internal),
        (Some(ask::Body::Prepare(elsewhere)), Code::NotFound),
        (Some(ask::Body::Prepare(v1::PrepareRequest::default())), Code::InvalidArgument),
        (None, Code::Unimplemented),
    ] {
        attempt.send(Down { asks: vec![Ask { id: 3, body }], credit: 0, welcome: None }).await;
        let frame = attempt.frame().await.unwrap();
        let Some(reply::Body::NotAnswered(why)) = &frame.replies[0].body else { panic!("{frame:?}") };
        assert_eq!((frame.replies[0].id, why.code), (3, code as u32), "{why:?}");
    }
    drop(attempt);
    scene.participants.stop().await;
}
