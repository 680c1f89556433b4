//! What can be set for a replica, with defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{NodeId, StartError};

/// What can be set for a replica. [`Options::new`] gives defaults that fit three nodes in one data centre.
#[derive(Debug, Clone)]
pub struct Options {
    pub node: NodeId,
    /// The members with their addresses, the same on each of them. They make the cluster at its first start; later
    /// the log says who is a member, and these are whom a node asks that lost its files: keep them up to date.
    pub members: BTreeMap<NodeId, String>,
    /// This node is new in a cluster that exists: it waits until that lets it in. Only for its first start; one that
    /// was a member before and lost its files must not say this, or join under a new id.
    pub joins: bool,
    /// How often the leader is heard of when nothing else is sent.
    pub heartbeat: Duration,
    /// After silence from the leader a node waits `election_max` plus a random time between `election_min` and
    /// `election_max` before it stands for election.
    pub election_min: Duration,
    pub election_max: Duration,
    /// A snapshot is taken each time that this many entries have been applied since the last.
    pub snapshot_every: u64,
    /// How many entries before the last snapshot stay in the log for followers that lag.
    pub keep_entries: u64,
    /// How long a peer may take at most to make an append durable before it is sent again. A lost one costs as little as
    /// 150 ms where the peer is quick.
    pub append_within: Duration,
    /// Names this node's log for ever, so that the files of another node or cluster are refused. For example a hash
    /// of the cluster's name and the node's id.
    pub log_id: u64,
    /// How large one file of the log is, in bytes.
    pub segment_bytes: u64,
    /// How many bytes of a section travel in one message.
    pub chunk_bytes: usize,
    /// The largest entry in bytes.
    pub entry_limit: usize,
    /// How long a node with a damaged log asks its peers for what is missing before it gives up.
    pub repair_within: Duration,
}

impl Options {
    pub fn new(node: NodeId, members: BTreeMap<NodeId, String>) -> Self {
        Self {
            node,
            members,
            joins: false,
            heartbeat: Duration::from_millis(50),
            election_min: Duration::from_millis(150),
            election_max: Duration::from_millis(300),
            snapshot_every: 20_000,
            keep_entries: 5_000,
            append_within: Duration::from_secs(1),
            log_id: node.0,
            segment_bytes: 16 << 20,
            chunk_bytes: 256 * 1024,
            entry_limit: 4 * 1024 * 1024,
            repair_within: Duration::from_secs(60),
        }
    }

    /// Checks what contradicts itself.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let wrong = |what: String| Err(StartError::Options(what));
        if !self.joins && !self.members.contains_key(&self.node) {
            return wrong(format!("node {} is not among the members; list it, or let it join", self.node));
        }
        if self.heartbeat.is_zero() || self.heartbeat * 2 > self.election_min {
            return wrong(format!(
                "heartbeat {:?} must be above zero and at most half of election_min {:?}",
                self.heartbeat, self.election_min
            ));
        }
        if self.election_min >= self.election_max {
            return wrong(format!(
                "election_min {:?} must be below election_max {:?}",
                self.election_min, self.election_max
            ));
        }
        if self.snapshot_every == 0 || self.chunk_bytes == 0 || self.entry_limit == 0 {
            return wrong("snapshot_every, chunk_bytes and entry_limit must be above zero".to_owned());
        }
        Ok(())
    }
}
