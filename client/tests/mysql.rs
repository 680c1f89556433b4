//! A session's branch on a MariaDB server that is killed, restarted and interfered with.

#![cfg(all(feature = "mysql", not(madsim)))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use mysql_async::prelude::Queryable;
use tokio::time::timeout;
use tonic::Code;
use verdict_client::{
    Outcome,
    resource::{
        mysql::{Database, DsnError, Mysql, MysqlError, Session},
        xa::ClusterError,
    },
};
use verdict_proto::v1::{self, error_detail::Code as Detail};

use common::{
    cluster::{Call, Node, fails},
    mariadb::MariaDb,
    mariadb_bank::*,
};

#[tokio::test]
async fn a_branch_commits_or_rolls_back_with_its_transaction() {
    let server = MariaDb::start().await;
    for (commit, expected) in [(COMMITTED, [95, 95]), (ABORTED, [95, 95])] {
        let node = node(commit);
        let verdict = verdict(&node);
        let bank = open(&verdict, &server).await;
        let mut transaction = verdict.transaction();
        let sessions = [bank.enlist(&mut transaction).await.unwrap(), bank.enlist(&mut transaction).await.unwrap()];
        pay(&sessions[0], 1).await;
        pay(&sessions[1], 2).await;
        transaction.commit().await.unwrap();
        let votes = [(1, v1::Vote::Prepared), (2, v1::Vote::Prepared)];
        assert!(node.asked().contains(&Call::Commit(votes.to_vec())), "{:?}", node.asked());
        assert_eq!(reported(&node).await, [(1, v1::Settlement::Done), (2, v1::Settlement::Done)]);
        assert!(matches!(sessions[0].connection().await, Err(MysqlError::WorkIsOver { .. })));
        assert_eq!((server.prepared().await, server.balances().await), (0, expected));
    }
}

#[tokio::test]
async fn a_transaction_can_do_without_a_branch_that_could_not_begin() {
    let mut server = MariaDb::start().await;
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let (mut transaction, session) = paid(&verdict, &bank).await;
    transaction.rollback("to have an idle connection").await.unwrap();
    drop(session);
    server.kill();
    assert!(matches!(bank.enlist(&mut transaction).await, Err(MysqlError::Connect { .. })));
    let mut other = verdict.transaction();
    bank.enlist(&mut other).await.unwrap_err();
    server.restart().await;
    let session = bank.enlist(&mut other).await.unwrap();
    pay(&session, 1).await;
    other.commit().await.unwrap();
    assert!(node.asked().contains(&Call::Commit(vec![(1, v1::Vote::Prepared)])), "{:?}", node.asked());
    assert_eq!(server.balances().await, [95, 100]);
}

#[tokio::test]
async fn a_transaction_that_gives_up_leaves_nothing() {
    let server = MariaDb::start().await;
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let (transaction, session) = paid(&verdict, &bank).await;
    transaction.rollback("changed its mind").await.unwrap();
    drop((transaction, session));
    // Dropped without a word.
    drop(paid(&verdict, &bank).await);
    // The connections that they had can be used again: the pool has four.
    for _ in 0..6 {
        let (transaction, _session) = paid(&verdict, &bank).await;
        transaction.rollback("changed its mind").await.unwrap();
    }
    assert_eq!((server.prepared().await, server.balances().await), (0, [100, 100]));
}

#[tokio::test]
async fn a_branch_that_only_reads_is_out_of_phase_two_and_can_not_write() {
    let server = MariaDb::start().await;
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let mut transaction = verdict.transaction();
    let session = bank.enlist_read_only(&mut transaction).await.unwrap();
    let balance: Option<i32> =
        session.connection().await.unwrap().query_first("SELECT balance FROM accounts WHERE id = 1").await.unwrap();
    assert_eq!(balance, Some(100));
    let written = session.connection().await.unwrap().query_drop("UPDATE accounts SET balance = 0").await;
    assert!(written.unwrap_err().to_string().contains("READ ONLY"));
    transaction.commit().await.unwrap();
    assert!(node.asked().contains(&Call::Commit(vec![(1, v1::Vote::ReadOnly)])));
    assert_eq!((server.prepared().await, server.balances().await), (0, [100, 100]));
}

#[tokio::test]
async fn a_branch_that_wrote_nothing_keeps_its_promise_without_its_session() {
    let server = MariaDb::start().await;
    let gate = Gate::new(v1::Outcome::Committed);
    let verdict = verdict(&gate.node);
    let bank = open(&verdict, &server).await;
    let mut transaction = verdict.transaction();
    let session = bank.enlist(&mut transaction).await.unwrap();
    let id = session.connection().await.unwrap().id();
    let committing = commit(transaction);
    assert_eq!(gate.asked_to_commit().await, [(1, v1::Vote::Prepared)]);
    server.root("").await.query_drop(format!("KILL {id}")).await.unwrap();
    gate.open();
    assert_eq!(committing.await.unwrap().unwrap().outcome, Outcome::Committed);
    assert_eq!(reported(&gate.node).await, [(1, v1::Settlement::Done)]);
}

#[tokio::test]
async fn s41_s42_a_session_that_is_killed_while_prepared_is_settled_by_a_fresh_connection() {
    for (outcome, balances) in [(v1::Outcome::Committed, [95, 100]), (v1::Outcome::Aborted, [100, 100])] {
        let server = MariaDb::start().await;
        let gate = Gate::new(outcome);
        let verdict = verdict(&gate.node);
        let bank = open(&verdict, &server).await;
        let (transaction, session) = paid(&verdict, &bank).await;
        let id = session.connection().await.unwrap().id();
        let committing = commit(transaction);
        gate.asked_to_commit().await;
        let mut root = server.root("").await;
        // All the pool's connections die, the idle ones too.
        let sessions: Vec<u32> = root.query("SELECT id FROM information_schema.processlist").await.unwrap();
        assert!(sessions.contains(&id));
        let own = root.id();
        for other in sessions.into_iter().filter(|other| *other != own) {
            root.query_drop(format!("KILL {other}")).await.unwrap();
        }
        gate.open();
        committing.await.unwrap().unwrap();
        assert_eq!(reported(&gate.node).await, [(1, v1::Settlement::Done)]);
        assert_eq!((server.prepared().await, server.balances().await), (0, balances));
    }
}

#[tokio::test]
async fn a_session_that_broke_before_it_was_prepared_refuses() {
    let server = MariaDb::start().await;
    let node = node(ABORTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let (transaction, session) = paid(&verdict, &bank).await;
    let id = session.connection().await.unwrap().id();
    server.root("").await.query_drop(format!("KILL {id}")).await.unwrap();
    assert_eq!(transaction.commit().await.unwrap().outcome, Outcome::Aborted);
    let (_, text, again) = refused(&node);
    assert!(again && text.contains("could not be prepared"), "{text}");
    assert_eq!((server.prepared().await, server.balances().await), (0, [100, 100]));
}

#[tokio::test]
async fn what_the_database_refuses_is_refused_in_its_words_and_leaves_nothing() {
    let server = MariaDb::start().await;
    let mut root = server.root("bank").await;
    let node = node(ABORTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;

    // The evidence can't be written.
    let (transaction, session) = paid(&verdict, &bank).await;
    root.query_drop("RENAME TABLE verdict_branches TO elsewhere").await.unwrap();
    assert_eq!(transaction.commit().await.unwrap().outcome, Outcome::Aborted);
    let (code, text, again) = refused(&node);
    assert_eq!((code.as_str(), again), ("1146 (42S02)", false));
    assert!(text.contains("bank: ") && text.contains("verdict_branches' doesn't exist"), "{text}");
    assert_eq!(server.prepared().await, 0);
    root.query_drop("RENAME TABLE elsewhere TO verdict_branches").await.unwrap();
    drop((transaction, session));

    // A deadlock that the application took no notice of.
    let mut transactions = [verdict.transaction(), verdict.transaction()];
    let [first, second] = &mut transactions;
    let (a, b) = (bank.enlist(first).await.unwrap(), bank.enlist(second).await.unwrap());
    pay(&a, 1).await;
    pay(&b, 2).await;
    let cross = |session: Session, from: u32| async move {
        let pay = format!("UPDATE accounts SET balance = balance - 5 WHERE id = {from}");
        session.connection().await.unwrap().query_drop(pay).await.is_err()
    };
    let (first_lost, second_lost) = tokio::join!(cross(a.clone(), 2), cross(b.clone(), 1));
    assert!(first_lost != second_lost, "one of them met it");
    let loser = usize::from(second_lost);
    transactions[loser].commit().await.unwrap();
    let (code, text, again) = refused(&node);
    assert_eq!((code.as_str(), again), ("1399 (XAE07)", true));
    assert!(text.contains("deadlock"), "{text}");
    transactions[1 - loser].commit().await.unwrap();
    assert_eq!((server.prepared().await, server.balances().await), (0, [100, 100]));
}

#[tokio::test]
async fn a_leftover_answer_is_not_taken_for_a_promise() {
    let server = MariaDb::start().await;
    let node = node(ABORTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let (transaction, session) = paid(&verdict, &bank).await;
    {
        let mut connection = session.connection().await.unwrap();
        // The application gives up on a statement, and on nothing else.
        let slow = connection.query_drop("SELECT SLEEP(0.2)");
        drop(timeout(Duration::from_millis(50), slow).await);
        drop(connection.query_drop("UPDATE accounts SET balance = 0 WHERE id = 3").await);
    }
    assert_eq!(transaction.commit().await.unwrap().outcome, Outcome::Aborted);
    assert!(node.asked().contains(&Call::Commit(vec![(1, v1::Vote::Refused)])), "{:?}", node.asked());
    drop((transaction, session));
    server.has_prepared(0).await;
    assert_eq!(server.balances().await, [100, 100]);
}

#[tokio::test]
async fn a_statement_that_fails_leaves_the_rest_to_be_committed() {
    let server = MariaDb::start().await;
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let (transaction, session) = paid(&verdict, &bank).await;
    let twice = session.connection().await.unwrap().query_drop("INSERT INTO accounts VALUES (2, 7)").await;
    assert!(twice.unwrap_err().to_string().contains("1062"));
    let ddl = session.connection().await.unwrap().query_drop("CREATE TABLE t (i INT)").await;
    assert!(ddl.unwrap_err().to_string().contains("1399"));
    transaction.commit().await.unwrap();
    assert_eq!((server.prepared().await, server.balances().await), (0, [95, 100]));
}

#[test]
fn a_url_that_can_not_be_used_is_not_shown() {
    let at = |url| Database::at("bank".try_into().unwrap(), url, 2).unwrap_err();
    assert_eq!(at("postgres://app:hunter2@host/bank"), DsnError::Syntax);
    assert_eq!(at("hunter2"), DsnError::Syntax);
    assert_eq!(at("mysql://host/bank"), DsnError::Missing("user"));
    assert_eq!(at("mysql://app:hunter2@host"), DsnError::Missing("database"));
    assert_eq!(at("mysql://app:hunter2@host/bank?require_ssl=true"), DsnError::Tls);
    assert_eq!(at("mysql://app:hunter2@host/bank?pool_limit=7"), DsnError::Parameter("pool_limit".to_owned()));
    let none = Database::at("bank".try_into().unwrap(), "mysql://app:hunter2@host/bank", 0).unwrap_err();
    assert_eq!(none, DsnError::NoConnections);
}

#[tokio::test]
async fn what_can_not_be_used_says_why() {
    let server = MariaDb::start().await;
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    let mut root = server.root("bank").await;
    let refuses = async |resource: &str, pool| {
        let error = Mysql::open(&verdict, resource.try_into().unwrap(), pool).await.unwrap_err();
        format!("{error} {error:?}")
    };
    let long = "r".repeat(61);
    assert!(refuses(&long, server.pool()).await.contains("60 bytes"));

    let nowhere = mysql_async::Pool::from_url(server.url("root", "")).unwrap();
    assert!(refuses("bank", nowhere).await.contains("names no database"));

    root.query_drop("CREATE USER reader; GRANT SELECT ON bank.* TO reader").await.unwrap();
    let no_evidence = refuses("bank", server.pool_of("reader")).await;
    assert!(no_evidence.contains("verdict_branches is missing") && no_evidence.contains("1142"), "{no_evidence}");

    let secret = mysql_async::Pool::from_url(server.url("root:hunter2", "bank")).unwrap();
    let wrong = refuses("bank", secret).await;
    assert!(wrong.contains("no connection") && wrong.contains("1045") && !wrong.contains("hunter2"), "{wrong}");

    root.query_drop("SET GLOBAL read_only = 1").await.unwrap();
    assert!(refuses("bank", server.pool()).await.contains("read_only is ON"));
    root.query_drop("SET GLOBAL read_only = 0, GLOBAL innodb_flush_log_at_trx_commit = 0").await.unwrap();
    assert!(refuses("bank", server.pool()).await.contains("a crash loses the votes"));

    let stranger = Node::answering(|_, call| match call {
        Call::Enlist => fails(Code::InvalidArgument, Detail::Unspecified, None, 0),
        _ => COMMITTED,
    });
    let unknown = common::mariadb_bank::verdict(&stranger);
    let error = Mysql::open(&unknown, "bank".try_into().unwrap(), server.pool()).await.unwrap_err();
    assert!(matches!(error, MysqlError::Cluster { source: ClusterError::NotConfigured(_), .. }), "{error:?}");
}

#[tokio::test]
async fn s40_a_server_without_xa_is_refused_at_the_start() {
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    for (settings, says) in [
        (&["wsrep-on=ON", "binlog-format=ROW"][..], "wsrep_on is ON: Galera"),
        (&["skip-innodb", "default-storage-engine=Aria"], ": there is no InnoDB"),
    ] {
        let mut server = MariaDb::start().await;
        server.restart_with(settings).await;
        let refused = Mysql::open(&verdict, "bank".try_into().unwrap(), server.pool()).await.unwrap_err();
        assert!(matches!(refused, MysqlError::Unfit { .. }) && refused.to_string().contains(says), "{refused:?}");
    }
}

/// The row of evidence is written in the branch, so its lack leaves nothing.
#[tokio::test]
async fn an_application_that_may_not_write_evidence_is_refused_with_the_servers_own_words() {
    let server = MariaDb::start().await;
    let node = node(ABORTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let mut root = server.root("bank").await;
    let grants = "CREATE USER app; GRANT SELECT, UPDATE ON bank.accounts TO app; \
                  GRANT SELECT ON bank.verdict_branches TO app";
    root.query_drop(grants).await.unwrap();
    let of_app = Mysql::open(&verdict, "bank".try_into().unwrap(), server.pool_of("app")).await.unwrap();
    let (transaction, session) = paid(&verdict, &of_app).await;
    assert_eq!(transaction.commit().await.unwrap().outcome, Outcome::Aborted);
    let (code, text, again) = refused(&node);
    assert_eq!((code.as_str(), again), ("1142 (42000)", false));
    assert!(text.contains("INSERT command denied to user 'app'") && text.contains("verdict_branches"), "{text}");
    assert_eq!((server.prepared().await, server.balances().await), (0, [100, 100]));
    drop((transaction, session));
    // Its locks are gone too.
    let (transaction, _session) = paid(&verdict, &bank).await;
    transaction.rollback("it could").await.unwrap();
}

#[tokio::test]
async fn nothing_writes_a_password() {
    let server = MariaDb::start().await;
    server
        .root("")
        .await
        .query_drop("CREATE USER app IDENTIFIED BY 'hunter2'; GRANT ALL ON bank.* TO app")
        .await
        .unwrap();
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    let pool = mysql_async::Pool::from_url(server.url("app:hunter2", "bank")).unwrap();
    let bank = Mysql::open(&verdict, "bank".try_into().unwrap(), pool).await.unwrap();
    let (transaction, session) = paid(&verdict, &bank).await;
    let written = format!("{bank:?} {:?} {transaction:?} {session:?} {:?}", bank.agent(), session.connection().await);
    assert!(!written.contains("hunter2"), "{written}");
}
