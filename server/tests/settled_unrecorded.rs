//! The coordinator crashes after every branch was committed and before it has recorded that.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../client/tests/common/mariadb.rs"]
mod mariadb;
#[path = "../../client/tests/common/postgres.rs"]
mod postgres;
mod support;
#[path = "dead_application/tap.rs"]
mod tap;

use std::{fs, time::Duration};

use mariadb::MariaDb;
use postgres::{APP, PostgresServer};
use support::{Cluster, name};
use tap::{Said, Tap};
use tokio::time::{Instant, sleep};
use verdict_client::{
    Options, Outcome, Settlement, State, Verdict, Xid,
    resource::{
        mysql::{self, Mysql, mysql_async::prelude::Queryable as _},
        postgres::{Postgres, pool},
    },
};

/// Moves 5 from PostgreSQL to MariaDB.
async fn transfer(nodes: Vec<String>, dsn: String, url: String) -> (Xid, Outcome) {
    let verdict = Verdict::new(Options::new(nodes)).unwrap();
    let accounts = Postgres::open(&verdict, name("accounts"), pool(&dsn, 1).unwrap()).await.unwrap();
    let ledger = Mysql::open(&verdict, name("ledger"), mysql::pool(&url, 1).unwrap()).await.unwrap();
    let mut transfer = verdict.transaction();
    let (from, to) = (accounts.enlist(&mut transfer).await.unwrap(), ledger.enlist(&mut transfer).await.unwrap());
    from.client().unwrap().batch_execute("UPDATE account SET balance = balance - 5 WHERE id = 1").await.unwrap();
    to.connection().await.unwrap().query_drop("UPDATE accounts SET balance = balance + 5 WHERE id = 1").await.unwrap();
    (transfer.xid(), transfer.commit().await.unwrap().outcome)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s48_what_was_committed_and_not_recorded_ends_quietly() {
    let postgres = PostgresServer::start(&["max_prepared_transactions=20"]).await;
    postgres.database("bank").await;
    let mariadb = MariaDb::start().await;
    // The cluster leaves the branches to their application for longer than it takes to kill all nodes.
    let tables = format!(
        "accounts = \"postgres\"\nledger = \"mariadb\"\n[databases.accounts]\ndsn_file = {:?}\n[databases.ledger]\n\
         dsn_file = {:?}\n[timeouts]\nsettle_grace_ms = 3000\n",
        postgres.dsn_file("bank"),
        mariadb.url_file(),
    );
    let mut cluster = Cluster::start_as(&|_, manager| manager, &tables).await;
    let mut taps = [Tap::before(postgres.port).await, Tap::before(mariadb.port).await];
    taps.iter_mut().for_each(|tap| tap.holds(&[Said::Settle]));
    let dsn = postgres.dsn(APP, "bank").replace(&postgres.port.to_string(), &taps[0].port.to_string());
    let url = mariadb.url("root", "bank").replace(&mariadb.port.to_string(), &taps[1].port.to_string());

    // A runtime of its own, with which all ends that the application would still say.
    let application = tokio::runtime::Runtime::new().unwrap();
    let committing = application.spawn(transfer(cluster.nodes.values().cloned().collect(), dsn, url));
    for tap in &mut taps {
        tap.hears(Said::Settle).await;
    }
    for node in cluster.nodes.clone().into_keys() {
        cluster.kill(node);
    }
    taps.iter_mut().for_each(|tap| tap.lets_go(true));
    let (xid, outcome) = committing.await.unwrap();
    application.shutdown_background();
    assert_eq!(outcome, Outcome::Committed);
    assert_eq!((postgres.prepared().await.len(), mariadb.prepared().await), (0, 0), "nobody has anything to do");
    assert_eq!((&*postgres.balances("bank").await[0], mariadb.balances().await[0]), ("95", 105));

    for node in cluster.nodes.clone().into_keys() {
        cluster.start_node(node);
    }
    cluster.leader().await;
    let verdict = cluster.client();
    let restarted = verdict.get(xid).await.unwrap();
    assert_eq!(restarted.state, State::Decided, "no log says that it was settled");
    assert!(restarted.branches.iter().all(|branch| branch.settlement.is_none()), "{restarted:?}");
    let by = Instant::now() + Duration::from_secs(20);
    loop {
        let status = verdict.get(xid).await.unwrap();
        for branch in &status.branches {
            assert!(matches!(branch.settlement, None | Some(Settlement::Done)), "{branch:?}");
            assert_eq!(branch.last_error, "");
        }
        if status.state == State::Ended {
            break;
        }
        assert!(Instant::now() < by, "{status:?}; see {}", cluster.logs());
        sleep(Duration::from_millis(20)).await;
    }
    for node in cluster.nodes.keys() {
        let log = fs::read_to_string(cluster.config(*node).with_extension("log")).unwrap();
        let loud = |line: &&str| line.contains(&xid.to_string()) && (line.contains("WARN") || line.contains("ERROR"));
        assert_eq!(log.lines().filter(loud).collect::<Vec<_>>(), [""; 0], "node {node}");
    }
    assert_eq!((&*postgres.balances("bank").await[0], mariadb.balances().await[0]), ("95", 105), "once");
}
