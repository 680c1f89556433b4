//! What a replica says about itself.

use std::fmt;

/// The number of a node, unique in its cluster for ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A place in the log. Two entries with the same index and term are the same entry.
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
    /// In the order of their ids.
    pub members: Vec<Member>,
    /// Why this replica acknowledges nothing more.
    pub stopped: Option<String>,
}

impl Status {
    /// Whether this node leads and has applied an entry of its own term: it knows all that was acknowledged before.
    pub fn leads(&self) -> bool {
        self.role == Role::Leader && self.applied.is_some_and(|applied| applied.term == self.term)
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
