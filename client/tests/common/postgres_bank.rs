//! Transactions on a PostgreSQL server of the test's, with a node that answers as the test says.

#![allow(dead_code, reason = "each test uses a part")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use verdict_client::{
    BranchId, ClusterId, LogTime, ResourceName, Transaction, Verdict, Xid,
    participant::{Settle, Stamp},
    resource::{
        postgres::{Database, Postgres, deadpool_postgres::Pool, pool},
        xa::Agent,
    },
};
use verdict_proto::v1;

use super::{
    cluster::{Answer, CLUSTER, Call, Node, options},
    postgres::{APP, PostgresServer, texts},
};

pub(crate) const PREPARES: &[&str] = &["max_prepared_transactions=20"];
pub(crate) const OWN: ClusterId = ClusterId(CLUSTER);

/// A database with two accounts, and a cluster that commits what promised and aborts what did not.
pub(crate) struct Bank {
    pub(crate) server: PostgresServer,
    pub(crate) node: Node,
    pub(crate) verdict: Verdict,
    pub(crate) pool: Pool,
    pub(crate) accounts: Postgres,
    /// Commit is not answered.
    pub(crate) silent: Arc<AtomicBool>,
}

pub(crate) fn accounts() -> ResourceName {
    "accounts".try_into().unwrap()
}

pub(crate) fn judges(call: &Call) -> Answer {
    let refused = |votes: &[(u32, v1::Vote)]| votes.iter().any(|(_, vote)| *vote == v1::Vote::Refused);
    match call {
        Call::Commit(votes) if refused(votes) => Answer::Outcome(v1::Outcome::Aborted),
        Call::Rollback => Answer::Outcome(v1::Outcome::Aborted),
        _ => Answer::Outcome(v1::Outcome::Committed),
    }
}

impl Bank {
    pub(crate) async fn open(settings: &[&str]) -> Self {
        let server = PostgresServer::start(settings).await;
        server.database("bank").await;
        let silent = Arc::new(AtomicBool::new(false));
        let now = Arc::clone(&silent);
        let node = Node::answering(move |_, call| match call {
            Call::Commit(_) if now.load(Ordering::SeqCst) => Answer::Hangs,
            call => judges(call),
        });
        let verdict = Verdict::new(options(&[node.address])).unwrap().with_deadline(Duration::from_secs(20));
        let pool = pool(&server.dsn(APP, "bank"), 4).unwrap();
        let accounts = Postgres::open(&verdict, accounts(), pool.clone()).await.unwrap();
        Self { server, node, verdict, pool, accounts, silent }
    }

    /// A transaction with one branch that has done this, whether or not it could.
    pub(crate) async fn doing(&self, work: &str) -> Transaction {
        let mut transaction = self.verdict.transaction();
        let session = self.accounts.enlist(&mut transaction).await.unwrap();
        drop(session.client().unwrap().batch_execute(work).await);
        transaction
    }

    pub(crate) async fn paying(&self) -> Transaction {
        self.doing("UPDATE account SET balance = balance - 5 WHERE id = 1").await
    }

    /// Why the last commit's only branch refused: code and sentence.
    pub(crate) fn refused(&self) -> (String, String, bool) {
        let [branch] = &self.node.brought()[..] else { panic!("one branch: {:?}", self.node.brought()) };
        assert_eq!(branch.vote(), v1::Vote::Refused);
        let reason = branch.reason.clone().unwrap();
        (reason.source_code, reason.text, reason.retryable)
    }

    pub(crate) async fn prepared_is(&self, count: usize) {
        let by = Instant::now() + Duration::from_secs(20);
        while self.server.prepared().await.len() != count {
            assert!(Instant::now() < by, "prepared: {:?}", self.server.prepared().await);
        }
    }

    /// Every connection of the pool's can work; none is in a transaction block or broken.
    pub(crate) async fn pool_is_clean(&self) {
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(self.pool.get().await.unwrap());
        }
        for client in &clients {
            let open = "SELECT state FROM pg_stat_activity WHERE usename = 'app' AND state LIKE 'idle in%'";
            assert_eq!(texts(client, open).await, []);
        }
    }
}

pub(crate) fn stamp() -> Stamp {
    Stamp { cluster: OWN, incarnation: 1, term: 1, horizon: LogTime::from_millis(1) }
}

pub(crate) fn settle(branch: BranchId, payload: &str) -> Settle {
    Settle { stamp: stamp(), branch, resource: accounts(), payload: payload.to_owned().into() }
}

pub(crate) fn gid(cluster: u8, branch: BranchId) -> String {
    let cluster: String = [cluster; 16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("verdict:{cluster}:{branch}")
}

pub(crate) fn agent(server: &PostgresServer) -> Agent<Database> {
    Agent::new(Arc::new(server.agent_database("bank")), Some(OWN))
}

pub(crate) fn a_branch(n: u64) -> BranchId {
    BranchId { xid: Xid::new(LogTime::from_millis(1_700_000_000_000), 0, n), number: 1 }
}

/// As an application does that dies afterwards.
pub(crate) async fn left_prepared(server: &PostgresServer, gid: &str) {
    left_prepared_at(server, "UPDATE account SET balance = balance - 5 WHERE id = 1", gid).await;
}

pub(crate) async fn left_prepared_at(server: &PostgresServer, work: &str, gid: &str) {
    let client = server.client("bank").await;
    let work = format!("BEGIN; {work}; PREPARE TRANSACTION '{gid}'");
    client.batch_execute(&work).await.unwrap();
}
