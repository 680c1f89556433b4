//! Three nodes and three participants in this process, over real sockets and real files.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle, time::Instant};
use tonic::transport::Server;
use verdict_client::{
    BranchId, ResourceName, Verdict,
    participant::{ParticipantOptions, Participants, ResourceManager},
    resource::{
        Reservation,
        memory::{Ledger, Memory},
    },
};
use verdict_proto::{
    peer::v1::peer_server::PeerServer,
    v1::{
        branches_server::BranchesServer, operator_server::OperatorServer, participant_server::ParticipantServer,
        transactions_server::TransactionsServer,
    },
};
use verdict_protocol::Reason;
use verdict_raft_log::NodeId;
use verdict_server::{MAX_MESSAGE, Node, Options, Seams};

/// A participant's own state: how often each branch took effect, or was undone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effects {
    pub(crate) reserved: BTreeMap<BranchId, u32>,
    pub(crate) confirmed: BTreeMap<BranchId, u32>,
    pub(crate) cancelled: BTreeMap<BranchId, u32>,
}

impl Ledger for Effects {
    /// A payload of "no" is refused, "read" changes nothing.
    fn reserve(&mut self, branch: BranchId, payload: &[u8]) -> Reservation {
        match payload {
            b"no" => Reservation::Refused(Reason::refused("told to say no", "E42", false)),
            b"read" => Reservation::ReadOnly,
            _ => {
                *self.reserved.entry(branch).or_default() += 1;
                Reservation::Reserved
            }
        }
    }

    fn confirm(&mut self, branch: BranchId, _: &[u8]) {
        *self.confirmed.entry(branch).or_default() += 1;
    }

    fn cancel(&mut self, branch: BranchId, _: &[u8]) {
        *self.cancelled.entry(branch).or_default() += 1;
    }
}

pub(crate) const RESOURCES: [&str; 3] = ["seats", "wallet", "tickets"];

pub(crate) struct Cluster {
    options: BTreeMap<NodeId, Options>,
    running: BTreeMap<NodeId, Running>,
    data: TempDir,
    pub(crate) participants: BTreeMap<ResourceName, Memory<Effects>>,
    _serving: Vec<JoinHandle<()>>,
}

struct Running {
    node: Node,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl Fn(&mut Options)) -> Self {
        let nodes: BTreeMap<NodeId, String> = (1..=3).map(|n| (NodeId(n), free_address())).collect();
        let mut participants = BTreeMap::new();
        let mut resources = BTreeMap::new();
        let mut serving = Vec::new();
        for name in RESOURCES {
            let name = ResourceName::try_from(name).unwrap();
            let memory = Memory::new(Effects::default());
            let address = free_address();
            let manager: Arc<dyn ResourceManager> = Arc::new(memory.open());
            let verdict = Verdict::new(verdict_client::Options::new(nodes.values().cloned())).unwrap();
            let served = Participants::start([(name.clone(), manager)], verdict, ParticipantOptions::default());
            let listen = address.parse().unwrap();
            serving.push(tokio::spawn(async move {
                let service = ParticipantServer::new(served.handlers());
                Server::builder().add_service(service).serve(listen).await.unwrap();
                served.stop().await;
            }));
            resources.insert(name.clone(), format!("http://{address}"));
            participants.insert(name, memory);
        }
        let options = nodes
            .keys()
            .map(|node| {
                let mut options = Options::new("test", *node, nodes.clone());
                options.resources = resources.clone();
                change(&mut options);
                (*node, options)
            })
            .collect();
        let data = tempfile::tempdir().unwrap();
        let mut cluster = Self { options, running: BTreeMap::new(), data, participants, _serving: serving };
        for node in nodes.into_keys() {
            cluster.start_node(node).await;
        }
        cluster
    }

    pub(crate) async fn start_node(&mut self, node: NodeId) {
        let options = self.options[&node].clone();
        let address = options.nodes[&node].parse().unwrap();
        let seams = Seams::production(&self.data.path().join(node.to_string())).unwrap();
        let started = Node::start(options, seams).await.unwrap();
        let services = started.services().clone();
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(async move {
            Server::builder()
                .add_service(TransactionsServer::new(services.transactions()))
                .add_service(BranchesServer::new(services.branches()))
                .add_service(OperatorServer::new(services.operator()))
                .add_service(PeerServer::new(services.peer()).max_decoding_message_size(MAX_MESSAGE))
                .serve_with_shutdown(address, async move { drop(stopped.await) })
                .await
                .unwrap();
        });
        self.running.insert(node, Running { node: started, stop, served });
    }

    /// Stops a node without handing over, as abruptly as one in this process can be.
    pub(crate) async fn stop_node(&mut self, node: NodeId) {
        let running = self.running.remove(&node).unwrap();
        running.served.abort();
        drop(running.stop);
        running.node.stop().await;
    }

    pub(crate) fn node(&self, node: NodeId) -> &Node {
        &self.running[&node].node
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.options.values().next().unwrap().nodes.values().cloned().collect()
    }

    pub(crate) fn address(&self, node: NodeId) -> String {
        self.options[&node].nodes[&node].clone()
    }

    pub(crate) fn client(&self) -> Verdict {
        Verdict::new(verdict_client::Options::new(self.addresses())).unwrap()
    }

    /// Waits until one node leads.
    pub(crate) async fn leader(&self) -> NodeId {
        let by = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some((node, _)) = self.running.iter().find(|(_, running)| running.node.status().leads()) {
                return *node;
            }
            assert!(Instant::now() < by, "no leader after 20 s");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn effects(&self, resource: &str) -> Effects {
        self.participants[&ResourceName::try_from(resource).unwrap()].ledger()
    }

    /// Waits until `condition` holds of the participants.
    pub(crate) async fn wait_for(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let by = Instant::now() + Duration::from_secs(20);
        while !condition(self) {
            assert!(Instant::now() < by, "not within 20 s: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A port that nobody else in this process is given.
pub(crate) fn free_address() -> String {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    TAKEN.fetch_add(1, Ordering::Relaxed);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}
