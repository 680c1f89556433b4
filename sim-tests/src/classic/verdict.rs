//! The same on Verdict: three nodes, three participants and a client, all of the production crates.
//!
//! The leader is the coordinator of the figures: what is seen is seen at its links and at the participants' rows.

mod watched;

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use madsim::runtime::{Handle, NodeHandle};
use tokio::{sync::Notify, time::sleep};
use tonic::transport::Server;
use verdict_client::{
    Clock, LogTime, Verdict,
    participant::{ParticipantOptions, Participants, ResourceManager},
    resource::{
        Reservation,
        memory::{Ledger, Memory},
    },
};
use verdict_proto::{
    peer::v1::peer_server::PeerServer,
    v1::{branches_server::BranchesServer, operator_server::OperatorServer, transactions_server::TransactionsServer},
};
use verdict_protocol::{BranchId, Outcome, Reason, ResourceName};
use verdict_raft_log::{
    NodeId,
    files::{Spawn, testing::SimDisk},
};
use verdict_server::{Databases, Node, Options, Reach, Seams, Services};

use self::watched::{WatchedDisk, WatchedLinks, WatchedRow};
use super::{
    DIES_AT, FSYNC, Figures, HOT_ROW_PAUSE, OUTAGE, PARTICIPANTS, Situation,
    row::Row,
    seen::{Seen, commits_in_a_second},
};
use crate::history::now;

const NODES: u64 = 3;
const CLUSTER: &str = "classic";
const NODE_PORT: u16 = 7100;
/// A branch with this payload is refused.
const NO: &str = "no";

fn node_ip(node: u64) -> IpAddr {
    Ipv4Addr::new(10, 2, 0, u8::try_from(node).expect("three")).into()
}

fn node_name(node: u64) -> String {
    format!("node-{node}")
}

fn row_ip(row: usize) -> IpAddr {
    Ipv4Addr::new(10, 2, 1, u8::try_from(row + 1).expect("three")).into()
}

fn resource(row: usize) -> ResourceName {
    PARTICIPANTS[row].try_into().expect("a short name")
}

/// What the machines share, and what outlives them.
struct World {
    seen: Seen,
    /// Where messages live that are on their way.
    wire: NodeHandle,
    /// The nodes that serve.
    services: Mutex<BTreeMap<u64, (NodeHandle, Services)>>,
    disks: BTreeMap<u64, SimDisk>,
    participants: Vec<(NodeHandle, Arc<WatchedRow>)>,
    /// The node that leads, 0 for none.
    leader: AtomicU64,
    /// Votes that have come back to the leader.
    votes: AtomicUsize,
    /// PREPARE goes out.
    asks: Notify,
    /// The leader's disk has what decides.
    decided: Notify,
}

impl World {
    fn services(&self) -> MutexGuard<'_, BTreeMap<u64, (NodeHandle, Services)>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("seen", &self.seen).finish_non_exhaustive()
    }
}

/// A service that keeps nothing but its row's lock.
#[derive(Clone, Debug)]
struct Nothing;

impl Ledger for Nothing {
    fn reserve(&mut self, _: BranchId, payload: &[u8]) -> Reservation {
        if payload == NO.as_bytes() {
            return Reservation::Refused(Reason::refused("the wallet is empty", "FUNDS", false));
        }
        Reservation::Reserved
    }

    fn confirm(&mut self, _: BranchId, _: &[u8]) {}

    fn cancel(&mut self, _: BranchId, _: &[u8]) {}
}

/// Simulated time, as every machine's clock shows it.
#[derive(Clone, Copy, Debug)]
struct TrueClock;

impl Clock for TrueClock {
    fn now(&self) -> LogTime {
        LogTime::from_millis(1_900_000_000_000 + u64::try_from(now().as_millis()).unwrap_or(0))
    }
}

fn options(node: u64) -> Options {
    let address = |node| (NodeId(node), format!("{}:{NODE_PORT}", node_ip(node)));
    let mut options = Options::new(CLUSTER, NodeId(node), (1..=NODES).map(address).collect());
    // The links take the name for the address.
    options.resources = (0..PARTICIPANTS.len()).map(|row| (resource(row), Reach::Endpoint(String::new()))).collect();
    options
}

pub(super) fn election_max() -> Duration {
    options(1).log.election_max
}

fn client(seed: u64) -> Verdict {
    let nodes = (1..=NODES).map(|node| format!("{}:{NODE_PORT}", node_ip(node)));
    let mut options = verdict_client::Options::new(nodes);
    options.clock = Arc::new(TrueClock);
    options.seed = Some(seed);
    Verdict::new(options).expect("the addresses are right")
}

async fn node(world: Arc<World>, node: u64) {
    let seams = Seams {
        disk: Arc::new(WatchedDisk { mount: world.disks[&node].mount(), node, world: Arc::clone(&world) }),
        log_driver: Spawn::Task { write: Duration::ZERO, sync: FSYNC },
        clock: Arc::new(TrueClock),
        seed: node,
        links: Arc::new(WatchedLinks { node, world: Arc::clone(&world) }),
        databases: Databases::new(),
    };
    let started = Node::start(options(node), seams).await.expect("nothing is wrong with its disk");
    let services = started.services().clone();
    let machine = Handle::current().get_node(node_name(node)).expect("it runs on it");
    world.services().insert(node, (machine, services.clone()));
    drop(tokio::spawn(async move {
        let served = Server::builder()
            .add_service(TransactionsServer::new(services.transactions()))
            .add_service(BranchesServer::new(services.branches()))
            .add_service(OperatorServer::new(services.operator()))
            .add_service(PeerServer::new(services.peer()))
            .serve(SocketAddr::new(node_ip(node), NODE_PORT))
            .await;
        served.expect("a simulated server ends with its machine");
    }));
    let mut status = started.status();
    loop {
        if status.leads() {
            world.leader.store(node, Ordering::Relaxed);
        }
        status = started.status_changed(&status).await;
    }
}

/// A participant's process: it inquires after branches that it has held for long.
async fn participant(manager: Arc<WatchedRow>, row: usize) {
    let managers = [(resource(row), manager as Arc<dyn ResourceManager>)];
    let _inquiring = Participants::start(managers, client(100 + row as u64), ParticipantOptions::default());
    std::future::pending().await
}

struct Machines {
    world: Arc<World>,
    nodes: BTreeMap<u64, NodeHandle>,
    client: NodeHandle,
}

impl Machines {
    /// Starts everything, and waits until there is a leader that has connections to everybody.
    async fn start() -> Self {
        let handle = Handle::current();
        let seen = Seen::default();
        let participants = (0..).zip(PARTICIPANTS).map(|(row, name)| {
            let manager = Memory::new(Nothing).open();
            let manager = Arc::new(WatchedRow { row: Row::new(row, seen.clone()), manager });
            let machine = handle.create_node().name(name).ip(row_ip(row)).build();
            drop(machine.spawn(participant(Arc::clone(&manager), row)));
            (machine, manager)
        });
        let participants = participants.collect();
        let world = Arc::new(World {
            disks: (1..=NODES).map(|node| (node, SimDisk::new())).collect(),
            wire: handle.create_node().name("wire").ip(Ipv4Addr::new(10, 2, 3, 1).into()).build(),
            services: Mutex::default(),
            participants,
            seen,
            leader: AtomicU64::new(0),
            votes: AtomicUsize::new(0),
            asks: Notify::new(),
            decided: Notify::new(),
        });
        let mut nodes = BTreeMap::new();
        for number in 1..=NODES {
            let own = Arc::clone(&world);
            let init = move || node(Arc::clone(&own), number);
            nodes.insert(number, handle.create_node().name(node_name(number)).ip(node_ip(number)).init(init).build());
        }
        let ip = Ipv4Addr::new(10, 2, 2, 1).into();
        let client = handle.create_node().name("client").ip(ip).build();
        let machines = Self { world, nodes, client };
        // One that is not measured.
        machines.commit(1, [true; 3]);
        while Figures::of(&machines.world.seen).is_none_or(|figures| figures.outcome != Outcome::Committed) {
            sleep(Duration::from_millis(10)).await;
        }
        sleep(Duration::from_secs(1)).await;
        machines.world.seen.clear();
        machines.world.votes.store(0, Ordering::Relaxed);
        machines
    }

    /// A client commits until it is told an outcome.
    fn commit(&self, seed: u64, votes: [bool; 3]) {
        drop(self.client.spawn(async move {
            let verdict = client(seed);
            let mut transaction = verdict.transaction();
            for (row, yes) in votes.into_iter().enumerate() {
                let payload = if yes { "yes" } else { NO };
                transaction.add(resource(row), payload.into()).expect("three branches are not too many");
            }
            while transaction.commit().await.is_err() {}
        }));
    }

    /// The leader is down for the outage; the others go on.
    async fn outage(&self) {
        let node = self.world.leader.load(Ordering::Relaxed);
        let leader = &self.nodes[&node];
        self.world.services().remove(&node);
        Handle::current().kill(leader.id());
        sleep(OUTAGE).await;
        Handle::current().restart(leader.id());
    }
}

/// One transaction in this situation.
pub(super) async fn transaction(situation: Situation) -> Figures {
    let machines = Machines::start().await;
    let world = &machines.world;
    // What was told of the one before is not of interest.
    let asks = world.asks.notified();
    let decided = world.decided.notified();
    machines.commit(2, situation.votes());
    match situation {
        Situation::AllYes | Situation::OneNo => sleep(Duration::from_secs(1)).await,
        Situation::DiesWaiting => {
            asks.await;
            sleep(DIES_AT).await;
            machines.outage().await;
        }
        Situation::DiesDecided => {
            decided.await;
            machines.outage().await;
        }
    }
    // The node that was down changes nothing.
    sleep(Duration::from_secs(2)).await;
    Figures::of(&world.seen).expect("the transaction has ended")
}

/// More transactions than the row takes, all after the same row.
pub(super) async fn hot_row() -> usize {
    let machines = Machines::start().await;
    for number in 0..500 {
        machines.commit(1_000 + number, [true; 3]);
        sleep(HOT_ROW_PAUSE).await;
    }
    sleep(Duration::from_secs(2)).await;
    commits_in_a_second(&machines.world.seen, 0)
}
