//! What a node is told when it starts, checked once.

use std::{collections::BTreeMap, time::Duration};

use thiserror::Error;
use verdict_protocol::{ResourceName, Rules};
use verdict_raft_log::NodeId;

/// What a node is told when it starts. [`Options::new`] gives defaults for three nodes in one data centre.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster's name, the same on all its nodes: a node of another cluster is refused.
    pub cluster: String,
    pub node: NodeId,
    /// All nodes with the addresses (`host:port`) that they serve on, this one included.
    pub nodes: BTreeMap<NodeId, String>,
    /// The participants that can be enlisted.
    pub resources: BTreeMap<ResourceName, Reach>,
    /// How long the branches may take to vote, where Commit does not say.
    pub vote_timeout: Duration,
    /// The longest that Commit may say.
    pub max_vote_timeout: Duration,
    /// How long a transaction may stay open before it is asked to commit, where Begin does not say.
    pub timeout: Duration,
    /// What a new leader leaves a transaction that was voting, at least.
    pub least_vote_timeout: Duration,
    /// How long a branch must be held prepared before its unknown transaction is presumed aborted. Above
    /// `max_vote_timeout`.
    pub grace: Duration,
    /// How long a client that brought a branch's vote may take to settle that branch before the cluster tells it.
    pub settle_grace: Duration,
    /// Client calls that are worked on at a time; more are refused with RESOURCE_EXHAUSTED. As many votes, inquiries
    /// and rollbacks again have room besides.
    pub max_calls: usize,
    /// The cluster's limits, fixed in its log by its first leader; later changes here have no effect.
    pub rules: Rules,
    /// Whoever watches transactions.
    pub watch: WatchOptions,
    /// Heartbeats, elections and snapshots of the replicated log.
    pub log: LogOptions,
}

/// Of watching.
#[derive(Clone, Copy, Debug)]
pub struct WatchOptions {
    /// Watchers of one node at a time; more are refused with RESOURCE_EXHAUSTED.
    pub watchers: usize,
    /// The last so many transitions are kept, within 16 MiB: who asks for older ones is told of a gap.
    pub transitions: usize,
}

impl WatchOptions {
    /// More than a node could serve.
    pub const MOST_WATCHERS: usize = 100_000;
}

/// How a participant is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// At `http://host:port`.
    Endpoint(String),
    /// By the streams that it opens to the leader.
    Stream,
    /// It is a database whose applications prepare by themselves: by an agent of this node's own.
    Database(DatabaseOptions),
}

/// Of the agent of one database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseOptions {
    /// How often the leader looks what stands prepared. A branch whose application has died waits that much longer.
    pub sweep_every: Duration,
    /// How long a branch must be seen prepared before the ledger is asked about it. Longer than an application takes to
    /// settle: asking earlier only costs work.
    pub settle_after: Duration,
    /// The database whose word counts, as the log tells its identity. Where another is found, nothing is presumed. None
    /// takes the first that is found.
    pub identity: Option<String>,
}

impl Default for DatabaseOptions {
    fn default() -> Self {
        Self { sweep_every: Duration::from_secs(1), settle_after: Duration::from_secs(2), identity: None }
    }
}

/// Of the replicated log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    pub heartbeat: Duration,
    pub election_min: Duration,
    pub election_max: Duration,
    pub snapshot_every: u64,
    pub keep_entries: u64,
    /// The size of one file of the log, in bytes: a purge frees whole files.
    pub segment_bytes: u64,
}

/// What is wrong with the options: names the one, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key}: {problem}")]
pub struct OptionsError {
    /// The option as the configuration file spells it.
    pub key: String,
    pub problem: String,
}

impl Options {
    /// Options for one node of a cluster, with defaults for the rest.
    #[must_use]
    pub fn new(cluster: impl Into<String>, node: NodeId, nodes: BTreeMap<NodeId, String>) -> Self {
        let log = verdict_raft_log::Options::new(node, nodes.clone());
        Self {
            cluster: cluster.into(),
            node,
            nodes,
            resources: BTreeMap::new(),
            vote_timeout: Duration::from_secs(10),
            max_vote_timeout: Duration::from_secs(60),
            timeout: Duration::from_secs(60),
            least_vote_timeout: Duration::from_secs(1),
            grace: Duration::from_secs(90),
            settle_grace: Duration::from_secs(1),
            max_calls: 10_000,
            rules: Rules::default(),
            watch: WatchOptions { watchers: 100, transitions: 50_000 },
            log: LogOptions {
                heartbeat: log.heartbeat,
                election_min: log.election_min,
                election_max: log.election_max,
                snapshot_every: log.snapshot_every,
                keep_entries: log.keep_entries,
                segment_bytes: log.segment_bytes,
            },
        }
    }

    /// Checks what no single value shows.
    ///
    /// # Errors
    /// An [`OptionsError`] that names the first option that is wrong.
    pub fn check(&self) -> Result<(), OptionsError> {
        let wrong = |key: &str, problem: String| Err(OptionsError { key: key.to_owned(), problem });
        if self.cluster.is_empty() || self.cluster.len() > 64 {
            return wrong("cluster", "a name of 1 to 64 bytes is needed, the same on every node".into());
        }
        if !self.nodes.contains_key(&self.node) {
            return wrong("node", format!("node {} has no address in [nodes]: add it", self.node));
        }
        if self.nodes.contains_key(&NodeId(0)) {
            return wrong("nodes", "nodes are numbered from 1".into());
        }
        let mut addresses: Vec<&String> = self.nodes.values().collect();
        addresses.sort_unstable();
        if let Some(pair) = addresses.windows(2).find(|pair| pair[0] == pair[1]) {
            return wrong("nodes", format!("two nodes have the address {}", pair[0]));
        }
        if self.vote_timeout.is_zero() || self.vote_timeout > self.max_vote_timeout {
            let most = self.max_vote_timeout.as_millis();
            return wrong("timeouts.vote_ms", format!("must be from 1 to timeouts.max_vote_ms, which is {most}"));
        }
        if self.grace <= self.max_vote_timeout {
            let most = self.max_vote_timeout.as_millis();
            return wrong("timeouts.grace_ms", format!("must be above timeouts.max_vote_ms, which is {most}"));
        }
        if self.timeout.is_zero() {
            return wrong("timeouts.transaction_ms", "must be above 0".into());
        }
        if self.rules.longest_lifetime_ms < self.rules.max_lifetime_ms {
            let least = self.rules.max_lifetime_ms;
            let problem = format!("must be at least retention.lifetime_ms, which is {least}");
            return wrong("retention.longest_lifetime_ms", problem);
        }
        for (name, reach) in &self.resources {
            if matches!(reach, Reach::Database(options) if options.sweep_every.is_zero()) {
                return wrong(&format!("databases.{name}.sweep_ms"), "must be above 0".into());
            }
        }
        if self.max_calls == 0 {
            return wrong("limits.calls", "must be above 0".into());
        }
        if self.watch.watchers > WatchOptions::MOST_WATCHERS {
            return wrong("limits.watchers", format!("must be at most {}", WatchOptions::MOST_WATCHERS));
        }
        let rules = &self.rules;
        let limits = [rules.bucket_ms, rules.max_open, rules.max_branches, rules.max_open_per_resource];
        if limits.contains(&0) {
            return wrong("limits", "open transactions, branches and the bucket width must be above 0".into());
        }
        Ok(())
    }
}
