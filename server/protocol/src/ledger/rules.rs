//! The cluster's own limits, fixed in the log when it is founded: replicas that judged by different limits would
//! come to different ledgers.

use serde::{Deserialize, Serialize};

/// Bounds that `apply` judges by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// How long an outcome is kept at least, in milliseconds.
    pub retention_ms: u64,
    /// How long a transaction may take from the birth of its xid to its first command, and stay open unasked unless Begin
    /// says more.
    pub max_lifetime_ms: u64,
    /// How long one that was begun may stay open unasked at most, if Begin says so.
    pub longest_lifetime_ms: u64,
    /// How far ahead of log time an xid may be born, in milliseconds: the skew allowed to clients' clocks.
    pub max_skew_ms: u64,
    /// The width of an outcome bucket, in milliseconds.
    pub bucket_ms: u64,
    /// Undecided and unsettled transactions at a time.
    pub max_open: u64,
    /// Branches of one transaction.
    pub max_branches: u64,
    /// Branches of open transactions at one resource that are not settled: one that is away must not take all room.
    pub max_open_per_resource: u64,
    /// How long the key of a committed transaction is kept at least, in milliseconds: longer than its last retry can come.
    pub key_retention_ms: u64,
    /// Keys at a time.
    pub max_keys: u64,
    /// Sessions at a time.
    pub max_sessions: u64,
}

impl Rules {
    /// The longest payload of a branch, in bytes. Checked at the door: it bounds messages, not the ledger's sense.
    pub const MAX_PAYLOAD: usize = 4096;
}

impl Default for Rules {
    /// An hour of outcomes and an hour of life, a week if Begin says so; five minutes of skew; buckets of a minute;
    /// 100,000 open transactions of 256 branches, 50,000 of which may wait for one resource; a day of keys, a million of
    /// them; 10,000 sessions.
    fn default() -> Self {
        Self {
            retention_ms: 3_600_000,
            max_lifetime_ms: 3_600_000,
            longest_lifetime_ms: 7 * 86_400_000,
            max_skew_ms: 300_000,
            bucket_ms: 60_000,
            max_open: 100_000,
            max_branches: 256,
            max_open_per_resource: 50_000,
            key_retention_ms: 86_400_000,
            max_keys: 1_000_000,
            max_sessions: 10_000,
        }
    }
}
