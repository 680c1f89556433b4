//! What the nodes' wall clocks show, as far as this node has heard.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use verdict_client::Clock;
use verdict_raft_log::NodeId;

/// The wall clocks of this node and of the peers that it heard from.
#[derive(Debug)]
pub(crate) struct Walls {
    own: Arc<dyn Clock>,
    peers: Mutex<BTreeMap<NodeId, (u64, Instant)>>,
}

impl Walls {
    pub(crate) fn new(own: Arc<dyn Clock>) -> Self {
        Self { own, peers: Mutex::default() }
    }

    /// This node's wall clock, in milliseconds since the epoch.
    pub(crate) fn own_ms(&self) -> u64 {
        self.own.now().as_millis()
    }

    /// A peer's clock shows `wall_ms`; 0 says nothing.
    pub(crate) fn heard(&self, peer: NodeId, wall_ms: u64) {
        if wall_ms > 0 {
            self.peers.lock().unwrap_or_else(PoisonError::into_inner).insert(peer, (wall_ms, Instant::now()));
        }
    }

    /// How long ago this peer was heard.
    pub(crate) fn silent_for(&self, peer: NodeId) -> Option<Duration> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.get(&peer).map(|(_, at)| at.elapsed())
    }

    /// Peers that were heard within so long.
    pub(crate) fn heard_within(&self, span: Duration) -> usize {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.values().filter(|(_, at)| at.elapsed() <= span).count()
    }

    /// What each clock shows by now.
    pub(crate) fn readings(&self) -> Vec<u64> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let peers = peers
            .values()
            .map(|(wall, at)| wall.saturating_add(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX)));
        peers.chain([self.own_ms()]).collect()
    }
}
