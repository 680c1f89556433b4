//! What runs on the machines: the production crates, put together as a process would.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Duration,
};

use rand::{SeedableRng as _, rngs::StdRng};
use tonic::transport::Server;
use verdict_client::{
    Clock,
    participant::{InquiryOptions, ParticipantOptions, Participants, ResourceManager},
};
use verdict_proto::{
    peer::v1::peer_server::PeerServer,
    v1::{
        branches_server::BranchesServer, operator_server::OperatorServer, participant_server::ParticipantServer,
        sessions_server::SessionsServer, transactions_server::TransactionsServer,
    },
};
use verdict_raft_log::{NodeId, files::Spawn};
use verdict_server::{DatabaseOptions, Node, Options, Reach, Seams, Services};

use super::{
    Shared, address_of, bank_name, databases,
    disk::WatchedDisk,
    door::{Door, Way},
    links::SimLinks,
    lock,
    teller::Teller,
};
use crate::{history::What, plan::Place, watching, workload};

pub(super) const NODE_PORT: u16 = 7100;
const BANK_PORT: u16 = 7200;

/// The longest that branches may take to vote, in milliseconds.
const MAX_VOTE_MS: u64 = 4_000;
/// How long an unknown branch is held before its transaction is presumed aborted.
pub const GRACE: Duration = Duration::from_millis(MAX_VOTE_MS + 500);
/// The longest of [`verdict_raft_log::Options::election_max`]'s timeouts: that much, and as much again by chance.
pub const ELECTION_MOST: Duration = Duration::from_millis(2 * ELECTION_MAX_MS);
const ELECTION_MAX_MS: u64 = 300;

fn options(shared: &Shared, node: u64) -> Options {
    let nodes: BTreeMap<NodeId, String> = (1..=shared.plan.nodes)
        .map(|node| (NodeId(node), format!("{}:{NODE_PORT}", address_of(Place::Node(node)))))
        .collect();
    let mut options = Options::new("simulated", NodeId(node), nodes);
    let agent = DatabaseOptions {
        sweep_every: Duration::from_millis(500),
        settle_after: Duration::from_millis(1_500),
        ..DatabaseOptions::default()
    };
    let resource = |bank| {
        if shared.vaults.contains_key(&bank) {
            return (bank_name(bank), Reach::Database(agent.clone()));
        }
        let reach = if shared.plan.streams.contains(&bank) {
            Reach::Stream
        } else {
            Reach::Endpoint(format!("http://{}:{BANK_PORT}", address_of(Place::Bank(bank))))
        };
        (bank_name(bank), reach)
    };
    options.resources = (0..shared.plan.banks + shared.plan.databases).map(resource).collect();
    options.vote_timeout = Duration::from_millis(2_500);
    options.max_vote_timeout = Duration::from_millis(MAX_VOTE_MS);
    options.timeout = Duration::from_secs(5);
    options.grace = GRACE;
    options.settle_grace = shared.plan.settle_grace;
    options.rules = shared.plan.rules;
    options.log.election_max = Duration::from_millis(ELECTION_MAX_MS);
    options.log.snapshot_every = shared.plan.snapshot_every;
    options.log.keep_entries = shared.plan.keep_entries;
    options.log.segment_bytes = shared.plan.segment_bytes;
    options.watch.transitions = shared.plan.watch_keeps;
    options
}

/// A node's process.
pub(super) async fn node(shared: Arc<Shared>, node: u64) {
    let place = Place::Node(node);
    let Shared { plan, history, sky, disks, paces, journal, .. } = &*shared;
    let failed = Arc::new(AtomicBool::new(false));
    let disk = WatchedDisk {
        failed: Arc::clone(&failed),
        mount: disks[&node].mount(),
        node,
        history: history.clone(),
        flaw: plan.flaw,
        journal: journal.clone(),
    };
    let seams = Seams {
        disk: Arc::new(disk),
        log_driver: Spawn::PacedTask(paces[&node].clone()),
        clock: shared.clock(place) as Arc<dyn Clock>,
        seed: shared.draw(),
        links: Arc::new(SimLinks { node, shared: Arc::clone(&shared), sky: Arc::clone(sky), flaw: plan.flaw }),
        databases: databases::reached_by(node, &shared),
    };
    let started = match Node::start(options(&shared, node), seams).await {
        Ok(started) => started,
        Err(error) => return history.record(place, What::NotStarted(chain(&error))),
    };
    history.record(place, What::Started);
    shared.timeline.serves(place, true);
    lock(&shared.sick).take_if(|sick| *sick == node);
    let services = started.services().clone();
    let way = Way { sky: Arc::clone(&shared.sky), node, failed };
    drop(tokio::spawn(serve(services, way)));
    watch(&shared, node, &started).await;
}

async fn serve(services: Services, way: Way) {
    let served = Server::builder()
        .add_service(TransactionsServer::new(Door::new(services.transactions(), &way)))
        .add_service(SessionsServer::new(Door::new(services.sessions(), &way)))
        .add_service(BranchesServer::new(Door::new(services.branches(), &way)))
        .add_service(OperatorServer::new(Door::new(services.operator(), &way)))
        .add_service(PeerServer::new(Door::new(services.peer(), &way)))
        .serve(SocketAddr::new(address_of(Place::Node(way.node)), NODE_PORT))
        .await;
    served.expect("a simulated server ends with its machine");
}

/// Tells the history who leads, until the replica stops; then the process ends, as a supervised one does.
async fn watch(shared: &Shared, node: u64, started: &Node) {
    let place = Place::Node(node);
    let mut status = started.status();
    let mut led = None;
    let mut purged = status.purged.map(|purged| purged.index);
    loop {
        if let Some(why) = status.stopped {
            shared.history.record(place, What::Stopped(why));
            lock(&shared.statuses).remove(&node);
            shared.timeline.serves(place, false);
            return;
        }
        let leads = status.leads().then_some(status.term);
        if let Some(term) = leads.filter(|_| leads != led) {
            shared.history.record(place, What::Leads { term });
            shared.journal.leads(node, term, status.last_index.unwrap_or_default());
        }
        led = leads;
        if let Some(snapshot) = status.snapshot {
            shared.journal.covered(node, snapshot.index);
        }
        if let Some(up_to) = status.purged.map(|purged| purged.index).filter(|up_to| Some(*up_to) != purged) {
            purged = Some(up_to);
            shared.history.record(place, What::Purged { up_to });
        }
        for up_to in [status.snapshot, status.applied].into_iter().flatten() {
            shared.journal.applied(node, up_to);
        }
        lock(&shared.statuses).insert(node, status.clone());
        status = started.status_changed(&status).await;
    }
}

/// A bank's process.
pub(super) async fn bank(shared: Arc<Shared>, bank: usize) {
    let place = Place::Bank(bank);
    let memory = shared.memories[bank].clone();
    let teller = Teller {
        shared: Arc::clone(&shared),
        random: Arc::new(Mutex::new(StdRng::seed_from_u64(shared.draw()))),
        place,
        history: shared.history.clone(),
        flaw: shared.plan.flaw,
        manager: Arc::new(memory.open()),
        memory,
        heard: Arc::clone(&shared.heard),
    };
    lock(&shared.tellers).insert(bank, teller.clone());
    let inquiry = InquiryOptions {
        inquire_after: Duration::from_millis(1_500),
        sweep_every: Duration::from_millis(500),
        ..InquiryOptions::default()
    };
    let options = ParticipantOptions { inquiry, ..ParticipantOptions::default() };
    let managers = [(bank_name(bank), Arc::new(teller) as Arc<dyn ResourceManager>)];
    let mut participants = Participants::start(managers, shared.verdict(place), options);
    shared.history.record(place, What::Started);
    shared.timeline.serves(place, true);
    if shared.plan.streams.contains(&bank) {
        participants.attach();
        return std::future::pending().await;
    }
    let served = Server::builder()
        .add_service(ParticipantServer::new(participants.handlers()))
        .serve(SocketAddr::new(address_of(place), BANK_PORT))
        .await;
    served.expect("a simulated server ends with its machine");
}

/// A database's server. What it holds is held by the world, as a disk is.
pub(super) async fn database(shared: Arc<Shared>, bank: usize) {
    let place = Place::Bank(bank);
    shared.vaults[&bank].starts();
    shared.history.record(place, What::Started);
    shared.timeline.serves(place, true);
    std::future::pending().await
}

/// A client's process.
pub(super) async fn client(shared: Arc<Shared>, client: usize) {
    shared.history.record(Place::Client(client), What::Started);
    if shared.plan.watches && client == 0 {
        drop(tokio::spawn(watching::watch(Arc::clone(&shared), Place::Client(client))));
    }
    workload::work(shared, client).await;
}

/// Where people sit.
pub(super) async fn admin(shared: Arc<Shared>) {
    if shared.plan.operated {
        workload::look_after(shared).await;
    }
    std::future::pending().await
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
