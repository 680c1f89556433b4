//! What becomes of branches on a MariaDB server whose application has died, hangs, or has seen them ended by others.

#![cfg(all(feature = "mysql", not(madsim)))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{sync::Arc, time::Duration};

use mysql_async::prelude::Queryable;
use tokio::time::{Instant, timeout};
use verdict_client::{
    BranchId, ClusterId, LogTime, Outcome, Settlement, Verdict, Xid,
    participant::{ResourceManager, with_causes},
    resource::{
        mysql::Database,
        xa::{Agent, Grade, XaDatabase},
    },
};
use verdict_proto::v1::{self, branch_order::Order};

use common::{
    cluster::{Answer, CLUSTER, Call, Node, options},
    mariadb::MariaDb,
    mariadb_bank::*,
};

#[tokio::test]
async fn s45_a_branch_is_settled_after_its_server_was_killed_and_started_again() {
    for (outcome, balances) in [(v1::Outcome::Committed, [95, 100]), (v1::Outcome::Aborted, [100, 100])] {
        let mut server = MariaDb::start().await;
        let gate = Gate::new(outcome);
        let verdict = verdict(&gate.node);
        let bank = open(&verdict, &server).await;
        let agent = attend(&verdict, &bank);
        let (transaction, session) = paid(&verdict, &bank).await;
        let committing = commit(transaction);
        gate.asked_to_commit().await;
        server.kill();
        server.restart().await;
        assert_eq!(server.prepared().await, 1);
        gate.open();
        committing.await.unwrap().unwrap();
        server.has_prepared(0).await;
        assert_eq!(server.balances().await, balances);
        drop(session);
        agent.stop().await;
    }
}

#[tokio::test]
async fn s41_a_dead_application_s_branch_is_settled_by_the_agent() {
    for (outcome, balances) in [(v1::Outcome::Committed, [95, 100]), (v1::Outcome::Aborted, [100, 100])] {
        let server = MariaDb::start().await;
        let gate = Gate::new(outcome);
        let verdict = verdict(&gate.node);
        let bank = open(&verdict, &server).await;
        let (transaction, session) = paid(&verdict, &bank).await;
        let committing = commit(transaction);
        gate.asked_to_commit().await;
        committing.abort();
        drop(committing.await.unwrap_err());
        drop(session);
        server.has_prepared(1).await;
        let agent = attend(&verdict, &bank);
        gate.open();
        server.has_prepared(0).await;
        assert_eq!(server.balances().await, balances);
        agent.stop().await;
    }
}

#[tokio::test]
async fn s43_a_session_that_hangs_while_prepared_is_ended_by_the_agent() {
    let server = MariaDb::start().await;
    let gate = Gate::new(v1::Outcome::Committed);
    let (verdict, hung) = (verdict(&gate.node), Node::start(|_| Answer::Hangs));
    let bank = open(&verdict, &server).await;
    // Its application waits for a node that never answers.
    let patient = verdict_client::Options {
        deadline: Duration::from_secs(60),
        attempt_timeout: Duration::from_secs(60),
        ..options(&[hung.address])
    };
    let (transaction, session) = paid(&Verdict::new(patient).unwrap(), &bank).await;
    let committing = commit(transaction);
    server.has_prepared(1).await;
    let since = Instant::now();
    let agent = attend(&verdict, &bank);
    gate.open();
    server.has_prepared(0).await;
    assert!(since.elapsed() > Duration::from_secs(1), "it was given time");
    assert_eq!(server.balances().await, [95, 100]);
    committing.abort();
    drop(session);
    agent.stop().await;
}

#[tokio::test]
async fn s44_unknown_is_done_on_rollback_and_judged_by_evidence_on_commit() {
    let server = MariaDb::start().await;
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let agent = bank.agent();

    let (transaction, session) = paid(&verdict, &bank).await;
    let branch = BranchId { xid: transaction.xid(), number: 1 };
    transaction.commit().await.unwrap();
    let committed = agent.commit(settle(branch, "7")).await.unwrap();
    assert_eq!(committed.settlement, Settlement::Done, "its row is there");
    let opposite = agent.rollback(settle(branch, "7")).await.unwrap();
    assert_eq!(opposite.settlement, Settlement::HeuristicCommit);
    drop((transaction, session));

    let now = LogTime::from_millis(verdict.transaction().xid().birth().as_millis());
    let unknown = BranchId { xid: Xid::new(now, 0, 1), number: 1 };
    assert_eq!(agent.rollback(settle(unknown, "7")).await.unwrap().settlement, Settlement::Done);
    let lost = agent.commit(settle(unknown, "7")).await.unwrap();
    assert_eq!(lost.settlement, Settlement::HeuristicRollback, "it would have left a row: {:?}", lost.reason);

    let of_last_week = LogTime::from_millis(now.as_millis() - 7 * 86_400_000);
    let old = BranchId { xid: Xid::new(of_last_week, 0, 1), number: 1 };
    let swept = agent.commit(settle(old, "7")).await.unwrap();
    assert_eq!(swept.settlement, Settlement::HeuristicHazard, "its row may have been swept: {:?}", swept.reason);
}

#[tokio::test]
async fn s44_a_branch_that_an_operator_rolled_back_is_reported() {
    let server = MariaDb::start().await;
    let gate = Gate::new(v1::Outcome::Committed);
    let verdict = verdict(&gate.node);
    let bank = open(&verdict, &server).await;
    let (transaction, session) = paid(&verdict, &bank).await;
    let id = session.connection().await.unwrap().id();
    let committing = commit(transaction);
    gate.asked_to_commit().await;
    let mut root = server.root("").await;
    root.query_drop(format!("KILL {id}")).await.unwrap();
    let names: Vec<(u64, usize, usize, String)> = root.query("XA RECOVER FORMAT='SQL'").await.unwrap();
    let by_hand = async {
        // Until the server has let go of it.
        while root.query_drop(format!("XA ROLLBACK {}", names[0].3)).await.is_err() {}
    };
    timeout(Duration::from_secs(5), by_hand).await.unwrap();
    gate.open();
    assert_eq!(committing.await.unwrap().unwrap().outcome, Outcome::Committed);
    assert_eq!(reported(&gate.node).await, [(1, v1::Settlement::HeuristicRollback)]);
    assert_eq!(server.balances().await, [100, 100]);
}

#[tokio::test]
async fn s46_a_scan_that_fails_loses_and_misjudges_nothing() {
    let mut server = MariaDb::start().await;
    let gate = Gate::new(v1::Outcome::Committed);
    let verdict = verdict(&gate.node);
    let bank = open(&verdict, &server).await;
    let (transaction, session) = paid(&verdict, &bank).await;
    let branch = BranchId { xid: transaction.xid(), number: 1 };
    let committing = commit(transaction);
    gate.asked_to_commit().await;
    committing.abort();
    drop(session);
    let agent = bank.agent();
    assert_eq!(agent.recover(10).await.unwrap(), [branch]);
    server.kill();
    agent.recover(10).await.unwrap_err();
    agent.commit(settle(branch, "7")).await.unwrap_err();
    server.restart().await;
    assert_eq!(agent.recover(10).await.unwrap(), [branch]);
    assert_eq!(agent.commit(settle(branch, "7")).await.unwrap().settlement, Settlement::Done);
    assert_eq!(agent.commit(settle(branch, "7")).await.unwrap().settlement, Settlement::Done, "again");
    assert_eq!(agent.recover(10).await.unwrap(), []);
    assert_eq!(server.balances().await, [95, 100]);
}

#[tokio::test]
async fn s49_branches_of_others_are_never_touched() {
    let server = MariaDb::start().await;
    let node = Node::answering(|_, call| match call {
        Call::Inquire(_) => order(Order::Rollback),
        _ => COMMITTED,
    });
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let mine = "07070707070707070707070707070707";
    let (xid, format) = ("018BCFE568007000800000000000002A", 1_448_232_020);
    let bank_1 = "0000000162616E6B";
    let others = [
        "'somebody'".to_owned(),
        format!("X'{mine}018BCFE568007000800000000000002B',X'{bank_1}',1"),
        format!("X'08080808080808080808080808080808{xid}',X'{bank_1}',{format}"),
        format!("X'{mine}{xid}',X'000000016F7264657273',{format}"),
        format!("X'{mine}{xid}FF',X'{bank_1}',{format}"),
        format!("X'{mine}00112233445566778899AABBCCDDEEFF',X'{bank_1}',{format}"),
    ];
    let own = format!("X'{mine}{xid}',X'{bank_1}',{format}");
    for name in others.iter().chain([&own]) {
        let mut session = server.root("bank").await;
        session
            .query_drop(format!("XA START {name}; INSERT INTO accounts VALUES (50 + RAND() * 100000, 1)"))
            .await
            .unwrap();
        session.query_drop(format!("XA END {name}; XA PREPARE {name}")).await.unwrap();
        session.disconnect().await.unwrap();
    }
    let agent = attend(&verdict, &bank);
    server.has_prepared(others.len()).await;
    let asked = node.asked().into_iter().filter(|call| matches!(call, Call::Inquire(_))).count();
    assert_eq!(asked, 1, "about its own");
    agent.stop().await;
}

#[tokio::test]
async fn evidence_is_swept_by_age_and_never_waits_for_a_branch() {
    let server = MariaDb::start().await;
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let (transaction, session) = paid(&verdict, &bank).await;
    transaction.commit().await.unwrap();
    drop(session);
    let mut root = server.root("bank").await;
    let row = |cluster: u8, birth: LogTime, bqual: &str, hours: u32| {
        let gtrid = [[cluster; 16], *Xid::new(birth, 0, 3).as_bytes()].concat();
        let gtrid: String = gtrid.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("INSERT INTO verdict_branches VALUES (X'{gtrid}', '{bqual}', 1, NOW(3) - INTERVAL {hours} HOUR)")
    };
    let now = transaction.xid().birth();
    let old = LogTime::from_millis(now.as_millis() - 7 * 3_600_000);
    let kept = [row(8, old, "another cluster", 7), row(7, now, "young", 7), row(7, old, "prepared of late", 5)];
    for insert in kept.into_iter().chain([row(7, old, "old", 7), row(7, LogTime::from_millis(5), "very old", 7)]) {
        root.query_drop(insert).await.unwrap();
    }
    let mut holder = server.root("bank").await;
    holder.query_drop("XA START 'a'").await.unwrap();
    holder.query_drop(row(7, old, "still prepared", 7)).await.unwrap();
    holder.query_drop("XA END 'a'; XA PREPARE 'a'").await.unwrap();

    let database = Database::new("bank".try_into().unwrap(), server.pool());
    assert_eq!(database.sweep_evidence(ClusterId(CLUSTER)).await.unwrap(), 2);
    assert_eq!(database.sweep_evidence(ClusterId(CLUSTER)).await.unwrap(), 0);
    let left: Option<usize> = root.query_first("SELECT COUNT(*) FROM verdict_branches").await.unwrap();
    assert_eq!(left, Some(4), "three, and that of the transaction");
}

#[tokio::test]
async fn an_agent_that_may_not_end_another_user_s_session_says_what_it_needs() {
    let server = MariaDb::start().await;
    let gate = Gate::new(v1::Outcome::Committed);
    let verdict = verdict(&gate.node);
    let bank = open(&verdict, &server).await;
    let mut root = server.root("").await;
    root.query_drop("CREATE USER agent; GRANT SELECT, DELETE ON bank.verdict_branches TO agent").await.unwrap();
    let (transaction, session) = paid(&verdict, &bank).await;
    let branch = BranchId { xid: transaction.xid(), number: 1 };
    let committing = commit(transaction);
    server.has_prepared(1).await;
    let agent = |user: &str| {
        let database = Database::at("bank".try_into().unwrap(), &server.url(user, "bank"), 2).unwrap();
        Agent::new(Arc::new(database), Some(ClusterId(CLUSTER)))
    };
    let powerless = agent("agent");
    assert_eq!(powerless.recover(10).await.unwrap(), [branch]);
    let until_it_may = async {
        loop {
            let error = with_causes(&powerless.commit(settle(branch, "7")).await.unwrap_err());
            if error.contains("CONNECTION ADMIN") {
                return error;
            }
            assert!(error.contains("session alone"), "{error}");
        }
    };
    let error = timeout(Duration::from_secs(10), until_it_may).await.unwrap();
    assert!(error.contains("1095"), "{error}");
    root.query_drop("GRANT CONNECTION ADMIN ON *.* TO agent").await.unwrap();
    let settled = agent("agent").commit(settle(branch, "7")).await;
    assert_eq!(settled.unwrap().settlement, Settlement::Done);
    committing.abort();
    drop(session);
}

#[tokio::test]
async fn a_database_that_was_made_anew_is_another_one() {
    let mut server = MariaDb::start().await;
    let database = Database::new("bank".try_into().unwrap(), server.pool());
    let agent = Agent::new(Arc::new(database.clone()), Some(ClusterId(CLUSTER)));
    agent.recover(10).await.unwrap();
    let identity = database.probe().await.unwrap();
    server.kill();
    server.restart().await;
    assert_eq!(database.probe().await.unwrap(), identity, "a restart changes nothing");
    agent.recover(10).await.unwrap();
    assert!(agent.presumes());

    // As one that is restored from a dump, later than in the same second.
    let mut root = server.root("bank").await;
    root.query_drop("DROP TABLE verdict_branches; DO SLEEP(1.1)").await.unwrap();
    agent.recover(10).await.unwrap();
    assert!(!agent.presumes());
    assert_ne!(database.probe().await.unwrap(), identity);
}

#[tokio::test]
async fn the_check_judges_what_the_server_says() {
    let server = MariaDb::start_with(&["innodb-flush-log-at-trx-commit=2", "log-bin", "sync-binlog=0"]).await;
    let mut root = server.root("bank").await;
    root.query_drop("CREATE USER reader; GRANT SELECT ON bank.accounts TO reader").await.unwrap();
    let check = async |user| {
        let database = Database::new("bank".try_into().unwrap(), server.pool_of(user));
        let findings = database.check().await.unwrap();
        let of = |grade| {
            let graded = findings.iter().filter(|finding| finding.grade == grade);
            graded.map(|finding| format!("{} {}", finding.setting, finding.value)).collect::<Vec<_>>()
        };
        [of(Grade::Fine), of(Grade::Warning), of(Grade::Error)]
    };
    let [fine, warnings, errors] = check("root").await;
    assert_eq!(errors, ["innodb_flush_log_at_trx_commit 2", "sync_binlog 0"]);
    assert_eq!(warnings, ["innodb_lock_wait_timeout 50"]);
    assert!(fine[0].starts_with("version 10."), "{fine:?}");
    for line in ["tx_isolation REPEATABLE-READ", "XA RECOVER can be used", "verdict_branches can be used"] {
        assert!(fine.contains(&line.to_owned()), "{line}: {fine:?}");
    }
    root.query_drop("DROP TABLE verdict_branches").await.unwrap();
    let [_, _, errors] = check("reader").await;
    assert_eq!(errors[2], "verdict_branches refused");
}
