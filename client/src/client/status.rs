//! What Verdict tells of transactions, branches and the cluster.

use std::time::Duration;

use bytes::Bytes;
use verdict_protocol::{
    BranchId, BranchNumber, ClusterId, Credential, LogTime, Outcome, Reason, ResourceName, Settlement, State, Vote,
    Word, Xid,
};

use super::Transaction;
use crate::participant::{Stamp, Voted};

/// A branch as a client lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    pub number: BranchNumber,
    pub resource: ResourceName,
    /// Handed to the participant. At most 4 KiB.
    pub payload: Bytes,
    /// Only for a branch that the client has prepared itself.
    pub vote: Option<Voted>,
}

/// A branch that is registered, and what shows that one may speak for it: to vote for it, to bring its vote along, to say
/// how it was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enlisted {
    pub branch: BranchId,
    pub credential: Credential,
}

/// What a transaction came to. Fixed once: it never changes, but is forgotten after the retention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub xid: Xid,
    pub outcome: Outcome,
    /// Why it was aborted.
    pub reason: Option<Reason>,
    /// Where in the replicated log the outcome stands.
    pub log_index: u64,
}

/// What came of beginning under an idempotency key.
#[derive(Debug)]
pub enum Begun {
    /// The right to work is this attempt's.
    Ours(Transaction),
    /// Another attempt works under the key, or has committed: this is its status.
    Taken(TransactionStatus),
}

/// All that is known of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionStatus {
    pub xid: Xid,
    pub state: State,
    /// None while undecided or unknown.
    pub decision: Option<Decision>,
    pub branches: Vec<BranchStatus>,
    /// Since it was begun, in log time.
    pub age: Duration,
    /// What operators said of it, with the log time at which it was recorded.
    pub words: Vec<(LogTime, Word)>,
}

/// All that is known of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchStatus {
    pub number: BranchNumber,
    pub resource: ResourceName,
    /// None until it has voted.
    pub vote: Option<Vote>,
    pub reason: Option<Reason>,
    /// None until it has acknowledged the outcome.
    pub settlement: Option<Settlement>,
    /// Why it has not voted or is not settled yet: the participant's last error, empty if there is none.
    pub last_error: String,
    /// With an error: attempts that the leader made in vain.
    pub failed_attempts: u32,
    /// With an error: in how long it makes the next; zero if one is under way.
    pub next_attempt: Duration,
}

/// Which transactions to list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// At most so many: 0 means 100, the most is 1000.
    pub limit: u32,
    /// Only transactions with a branch in doubt.
    pub in_doubt: bool,
    /// Only transactions at least this old.
    pub older_than: Duration,
    /// Where the last page ended.
    pub after: Option<Xid>,
}

/// Some transactions, by xid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub transactions: Vec<TransactionStatus>,
    /// Whether more follow: ask with [`ListQuery::after`] set to the last one's xid.
    pub more: bool,
}

/// What a branch that asks is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Still voting, or unknown and within the grace: ask again.
    Wait {
        retry_after: Duration,
    },
    Commit(Stamp),
    Rollback(Stamp),
}

/// The cluster as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The node that answered.
    pub node: u64,
    pub leader: Option<u64>,
    pub term: u64,
    /// None until the cluster is founded.
    pub cluster: Option<ClusterId>,
    pub incarnation: u64,
    pub nodes: Vec<NodeStatus>,
    pub last_index: u64,
    pub applied_index: u64,
    pub log_time: LogTime,
    pub open_transactions: u64,
    pub in_doubt: u64,
    pub ended_transactions: u64,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    pub node: u64,
    pub address: String,
    pub voter: bool,
    /// How far the leader knows its log to reach; 0 unless the leader answered.
    pub matched_index: u64,
}
