//! One node: opens its disk, joins its cluster, and serves.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use thiserror::Error;
use tokio::{sync::Semaphore, time::timeout};
use verdict_protocol::{ClusterId, Patience, Secret};
use verdict_raft_log::{Replica, Status, TransferError};

use crate::{
    Options, OptionsError, Reach, Services, databases::Agents, engine::Engine, leadership, machine::LedgerMachine,
    outbound::Outbound, peers::TonicPeers, proposer, recent::Recent, rpc::Front, seams::Seams, streams::Streams,
    tasks::Tasks, walls::Walls,
};

/// How long a graceful stop tries to hand the leadership over.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(5);

/// A running node.
#[derive(Debug)]
pub struct Node {
    replica: Replica,
    services: Services,
    tasks: Tasks,
}

/// Why a node does not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error("resources: {0}")]
    Participants(String),
    #[error("nodes: {address:?} is no address: write host:port")]
    Address { address: String },
    #[error("the replicated log does not start")]
    Log(#[from] verdict_raft_log::StartError),
}

impl Node {
    /// Starts a node. When this returns it takes part in elections; its services are to be served at its address.
    ///
    /// # Errors
    /// A [`StartError`] that names what is wrong and what to do.
    pub async fn start(options: Options, seams: Seams) -> Result<Self, StartError> {
        options.check()?;
        let Seams { disk, log_driver, clock, seed, links, databases } = seams;
        let mut random = StdRng::seed_from_u64(seed);
        let tasks = Tasks::new();
        let walls = Arc::new(Walls::new(clock));

        let (mut endpoints, mut by_stream) = (BTreeMap::new(), Vec::new());
        for (name, reach) in &options.resources {
            match reach {
                Reach::Endpoint(address) => drop(endpoints.insert(name.clone(), address.clone())),
                Reach::Stream => by_stream.push(name.clone()),
                Reach::Database(_) => {}
            }
        }
        let mut participants = links.participants(&endpoints).map_err(StartError::Participants)?;
        let streams = Streams::new(by_stream.iter().cloned(), tasks.clone());
        for name in by_stream {
            let participant = links.stream(&name, streams.manager(name.clone()));
            participants.insert(name, participant);
        }
        let agents = Agents::new(&options, databases).map_err(StartError::Participants)?;
        participants.extend(agents.participants());
        let outbound = Outbound::new(participants, tasks.clone());
        let patience = Patience {
            least_vote_ms: millis(options.least_vote_timeout),
            grace_ms: millis(options.grace),
            settle_grace_ms: millis(options.settle_grace),
        };
        let engine = Arc::new(Engine::new(patience, outbound, Arc::clone(&walls), options.max_calls));

        let mut endpoints = Vec::new();
        for (node, address) in &options.nodes {
            let endpoint = verdict_client::endpoint(address, CONNECT_WITHIN)
                .ok_or_else(|| StartError::Address { address: address.clone() })?;
            endpoints.push((*node, endpoint));
        }
        let peers =
            Arc::new(TonicPeers::new(&options.cluster, options.node, endpoints, Arc::clone(&walls), tasks.clone()));
        let link = links.peers(options.node, Arc::clone(&peers) as _);
        let log = verdict_raft_log::Options {
            heartbeat: options.log.heartbeat,
            election_min: options.log.election_min,
            election_max: options.log.election_max,
            snapshot_every: options.log.snapshot_every,
            keep_entries: options.log.keep_entries,
            segment_bytes: options.log.segment_bytes,
            ..verdict_raft_log::Options::new(options.node, options.nodes.clone())
        };
        let recent = Arc::new(Recent::new(options.watch.transitions));
        let machine = LedgerMachine { engine: Arc::clone(&engine), recent: Arc::clone(&recent) };
        let replica = Replica::start(log, disk, log_driver, machine, link).await?;

        let (cluster, secret) = (ClusterId(random.random()), Secret(random.random()));
        tasks.spawn(leadership::watch(Arc::clone(&engine), streams.clone(), replica.clone()));
        tasks.spawn(leadership::keep_time(Arc::clone(&engine)));
        tasks.spawn(leadership::steer(Arc::clone(&engine)));
        tasks.spawn(leadership::confirm(streams.clone(), replica.clone()));
        let nodes = options.nodes.len();
        let (engine_too, walls_too) = (Arc::clone(&engine), Arc::clone(&walls));
        let founding = leadership::found(engine_too, walls_too, nodes, cluster, secret, options.rules);
        tasks.spawn(founding);
        tasks.spawn(proposer::run(Arc::clone(&engine), replica.clone()));
        agents.start(&engine, &replica, &mut random, &tasks);
        let calls = Semaphore::new(options.max_calls);
        let watchers = Arc::new(Semaphore::new(options.watch.watchers));
        let front = Front { options, engine, replica: replica.clone(), peers, walls, streams, calls, recent, watchers };
        let services = Services::new(front);
        Ok(Self { replica, services, tasks })
    }

    /// The gRPC services to serve at this node's address.
    #[must_use]
    pub fn services(&self) -> &Services {
        &self.services
    }

    /// The replicated log as this node sees it.
    #[must_use]
    pub fn status(&self) -> Status {
        self.replica.status()
    }

    /// Waits until the status differs from the one that was seen, and returns it.
    pub async fn status_changed(&self, seen: &Status) -> Status {
        self.replica.status_changed(seen).await
    }

    /// Before a graceful stop: hands the leadership over if this node leads. Gives up after five seconds.
    ///
    /// # Errors
    /// [`TransferError`] if nobody took over: the others elect a leader once this node has stopped.
    pub async fn hand_over(&self) -> Result<(), TransferError> {
        if !self.status().leads() {
            return Ok(());
        }
        match timeout(HAND_OVER_WITHIN, self.replica.transfer_leadership(None)).await {
            Ok(Err(TransferError::NotLeader { .. })) | Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(TransferError::TimedOut),
        }
    }

    /// Stops: its tasks end, and everything that was queued for the disk is on it.
    pub async fn stop(self) {
        self.tasks.stop();
        self.replica.stop().await;
    }
}

/// How long a connection to another node may take to be made.
const CONNECT_WITHIN: Duration = Duration::from_millis(300);

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
