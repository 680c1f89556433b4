//! The conformance suite, on a participant that is reached through its stream to a real node.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use support::{Effects as Ledger, name};
use tempfile::TempDir;
use tokio::time::Instant;
use tonic::transport::{Server, server::TcpIncoming};
use verdict_client::{
    Options as ClientOptions, ResourceName, Verdict, Vote,
    conformance::{self, Effects, Subject},
    participant::{ParticipantOptions, Participants, ResourceManager, StreamStatus},
    resource::memory::Memory,
};
use verdict_proto::v1::branches_server::BranchesServer;
use verdict_raft_log::{NodeId, PeerLink};
use verdict_server::{GrpcLinks, Links, Node, Options, Reach, Seams};

/// Keeps what the node asks its participant by.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Option<Arc<dyn ResourceManager>>>>);

impl Links for Kept {
    fn participants(&self, resources: &BTreeMap<ResourceName, String>) -> Result<verdict_server::Participants, String> {
        GrpcLinks.participants(resources)
    }

    fn stream(&self, _: &ResourceName, plain: Arc<dyn ResourceManager>) -> Arc<dyn ResourceManager> {
        *self.0.lock().unwrap() = Some(Arc::clone(&plain));
        plain
    }

    fn peers(&self, _: NodeId, plain: Arc<dyn PeerLink>) -> Arc<dyn PeerLink> {
        plain
    }
}

/// A cluster of one node.
struct Cluster {
    _data: TempDir,
    _node: Node,
    address: SocketAddr,
    asks: Arc<dyn ResourceManager>,
    attached: tokio::sync::Mutex<Option<Participants>>,
}

impl Cluster {
    async fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().with_nodelay(Some(true));
        let address = incoming.local_addr().unwrap();
        let mut options = Options::new("test", NodeId(1), [(NodeId(1), address.to_string())].into());
        options.resources = [(name("seats"), Reach::Stream)].into();
        let kept = Kept::default();
        let mut seams = Seams::production(data.path()).unwrap();
        seams.links = Arc::new(kept.clone());
        let node = Node::start(options, seams).await.unwrap();
        let router = Server::builder().add_service(BranchesServer::new(node.services().branches()));
        drop(tokio::spawn(async move { router.serve_with_incoming(incoming).await.unwrap() }));
        let asks = kept.0.lock().unwrap().clone().unwrap();
        Self { _data: data, _node: node, address, asks, attached: tokio::sync::Mutex::default() }
    }

    /// In the place of whoever is attached: that one leaves in good order, so that this one is alone.
    async fn attach(&self, memory: &Memory<Ledger>) {
        let mut attached = self.attached.lock().await;
        if let Some(before) = attached.take() {
            before.stop().await;
        }
        let verdict = Verdict::new(ClientOptions::new([self.address.to_string()])).unwrap();
        let managers = [(name("seats"), Arc::new(memory.open()) as _)];
        let mut participants = Participants::start(managers, verdict, ParticipantOptions::default());
        participants.attach();
        let by = Instant::now() + Duration::from_secs(20);
        while participants.stream() != Some(StreamStatus::Attached { node: 1 }) {
            assert!(Instant::now() < by, "{:?}", participants.stream());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        *attached = Some(participants);
    }
}

struct OverStream {
    cluster: Arc<Cluster>,
    memory: Memory<Ledger>,
}

impl OverStream {
    async fn new(cluster: Arc<Cluster>) -> Self {
        let memory = Memory::new(Ledger::default());
        cluster.attach(&memory).await;
        Self { cluster, memory }
    }
}

#[tonic::async_trait]
impl Subject for OverStream {
    fn manager(&self) -> Arc<dyn ResourceManager> {
        Arc::clone(&self.cluster.asks)
    }

    async fn restart(&mut self) {
        self.cluster.attach(&self.memory).await;
    }

    fn resource(&self) -> ResourceName {
        name("seats")
    }

    fn payload(&self, vote: Vote) -> Option<Bytes> {
        Some(Bytes::from_static(match vote {
            Vote::Prepared => b"work",
            Vote::ReadOnly => b"read",
            Vote::Refused => b"no",
        }))
    }

    async fn effects(&mut self) -> Effects {
        let Ledger { reserved, confirmed, cancelled } = self.memory.ledger();
        let sum = |of: &BTreeMap<_, u32>| u64::from(of.values().sum::<u32>());
        let (reserved, confirmed, cancelled) = (sum(&reserved), sum(&confirmed), sum(&cancelled));
        Effects { reserved: reserved - confirmed - cancelled, confirmed }
    }

    async fn records(&mut self) -> u64 {
        self.memory.len() as u64
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_participant_behind_its_stream_conforms() {
    let cluster = Arc::new(Cluster::start().await);
    let result = conformance::run(async || OverStream::new(Arc::clone(&cluster)).await).await;
    assert_eq!(result, Ok(()));
}
