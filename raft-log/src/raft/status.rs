//! What a replica says about itself.

use std::fmt;

use openraft::{RaftMetrics, ServerState};

use super::types::{LogId, TypeConfig, position};

/// The number of a node, unique in its cluster for ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A place in the log. An applied entry is the same on all replicas at the same index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Position {
    /// Counts from 0 and has no gaps.
    pub index: u64,
    /// The term of the leader that first appended the entry.
    pub term: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.index, self.term)
    }
}

/// What a replica is at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Leader,
    Follower,
    Candidate,
    /// Receives the log and has no ballot.
    Learner,
    /// Acknowledges nothing more; [`Status::stopped`] says why.
    Stopped,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Candidate => "candidate",
            Self::Learner => "learner",
            Self::Stopped => "stopped",
        })
    }
}

/// A replica as it sees itself and its cluster, at one moment. It may be out of date when it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Grows with each change; see [`crate::Replica::status_changed`].
    pub version: u64,
    pub node: NodeId,
    pub role: Role,
    /// The leader of `term`, if this node knows it.
    pub leader: Option<NodeId>,
    pub term: u64,
    /// The last entry in this node's log.
    pub last_index: Option<u64>,
    /// The last entry that this node's machine has applied.
    pub applied: Option<Position>,
    /// The last entry that the current snapshot contains.
    pub snapshot: Option<Position>,
    /// The last entry that is no longer in this node's log.
    pub purged: Option<Position>,
    /// In the order of their ids.
    pub members: Vec<Member>,
    /// Why this replica acknowledges nothing more.
    pub stopped: Option<String>,
    /// Whether an entry of this very leadership has been applied.
    pub(crate) settled: bool,
}

impl Status {
    /// Whether this node leads and has applied an entry of its own leadership: it has applied all that was
    /// acknowledged before.
    pub fn leads(&self) -> bool {
        self.role == Role::Leader && self.settled
    }

    /// Raft is gone without a word; says whether that is news.
    pub(crate) fn ended(&mut self) -> bool {
        if self.stopped.is_some() {
            return false;
        }
        let stopped =
            Some("Raft ended unexpectedly: see the log of this node for the panic, and start it again".to_owned());
        let ended = Self { role: Role::Stopped, leader: None, stopped, ..self.clone() };
        self.replace(ended)
    }

    /// Takes over what is new; says whether anything is.
    pub(crate) fn replace(&mut self, mut new: Self) -> bool {
        new.version = self.version;
        if *self == new {
            return false;
        }
        new.version += 1;
        *self = new;
        true
    }
}

/// One node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub node: NodeId,
    pub address: String,
    /// Whether it has a ballot.
    pub voter: bool,
    /// Up to which index its log is known to equal the leader's. Known to the leader only.
    pub matched: Option<u64>,
}

/// What Raft's own measurements say.
pub(crate) fn status_of(metrics: &RaftMetrics<TypeConfig>, applied: Option<LogId>) -> Status {
    let stopped = match &metrics.running_state {
        Err(fatal) => Some(fatal.to_string()),
        Ok(()) if metrics.state == ServerState::Shutdown => Some("it was stopped".to_owned()),
        Ok(()) => None,
    };
    let role = match metrics.state {
        _ if stopped.is_some() => Role::Stopped,
        ServerState::Learner => Role::Learner,
        ServerState::Follower => Role::Follower,
        ServerState::Candidate => Role::Candidate,
        ServerState::Leader => Role::Leader,
        ServerState::Shutdown => Role::Stopped,
    };
    let membership = metrics.membership_config.membership();
    let matched = metrics.replication.as_ref();
    let members = membership.nodes().map(|(id, node)| Member {
        node: NodeId(*id),
        address: node.addr.clone(),
        voter: membership.get_joint_config().iter().any(|voters| voters.contains(id)),
        matched: matched.and_then(|all| all.get(id).copied().flatten()).map(|at| at.index),
    });
    Status {
        version: 0,
        node: NodeId(metrics.id),
        role,
        leader: metrics.current_leader.map(NodeId),
        term: metrics.current_term,
        last_index: metrics.last_log_index,
        applied: applied.as_ref().map(position),
        snapshot: metrics.snapshot.as_ref().map(position),
        purged: metrics.purged.as_ref().map(position),
        members: members.collect(),
        stopped,
        settled: applied.is_some_and(|applied| applied.leader_id == metrics.vote.leader_id),
    }
}
