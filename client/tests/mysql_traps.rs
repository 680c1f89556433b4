//! What MariaDB does with XA branches, seen through the driver: what the adapter relies on, and what it must not.

#![cfg(all(feature = "mysql", not(madsim)))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use mysql_async::{Conn, Error, prelude::Queryable};

use common::mariadb::MariaDb;

/// The number of the server's error; 0 for none.
async fn says(connection: &mut Conn, statement: &str) -> u16 {
    match connection.query_drop(statement).await {
        Ok(()) => 0,
        Err(Error::Server(error)) => error.code,
        Err(error) => panic!("{statement}: {error}"),
    }
}

/// A session in which a branch has paid 5 from account 1.
async fn paid(server: &MariaDb, xid: &str) -> Conn {
    let mut session = server.root("bank").await;
    let pay = "UPDATE accounts SET balance = balance - 5 WHERE id = 1";
    assert_eq!(says(&mut session, &format!("XA START {xid}")).await, 0);
    assert_eq!(says(&mut session, pay).await, 0);
    session
}

async fn prepare(session: &mut Conn, xid: &str) {
    assert_eq!(says(session, &format!("XA END {xid}; XA PREPARE {xid}")).await, 0);
}

#[tokio::test]
async fn s43_a_branch_is_unknown_to_others_as_long_as_its_session_is_connected() {
    let server = MariaDb::start().await;
    let mut session = paid(&server, "'a'").await;
    prepare(&mut session, "'a'").await;
    let mut other = server.root("bank").await;
    assert_eq!(says(&mut other, "XA COMMIT 'a'").await, 1397);
    assert_eq!(says(&mut other, "XA ROLLBACK 'a'").await, 1397, "and it is still prepared");
    assert_eq!(server.prepared().await, 1);
    assert_eq!(server.balances().await, [100, 100]);

    assert_eq!(says(&mut other, &format!("KILL {}", session.id())).await, 0);
    server.is_rid_of(session.id()).await;
    assert_eq!(says(&mut other, "XA COMMIT 'a'").await, 0);
    assert_eq!(says(&mut other, "XA COMMIT 'a'").await, 1397, "the same for one that has ended");
    assert_eq!(server.balances().await, [95, 100]);
}

#[tokio::test]
async fn a_session_that_ends_before_it_has_prepared_loses_its_branch() {
    let server = MariaDb::start().await;
    let mut session = paid(&server, "'a'").await;
    assert_eq!(says(&mut session, "XA END 'a'").await, 0);
    let id = session.id();
    session.disconnect().await.unwrap();
    server.is_rid_of(id).await;
    assert_eq!(server.prepared().await, 0);
    let mut other = server.root("bank").await;
    assert_eq!(says(&mut other, "SET innodb_lock_wait_timeout = 5; XA START 'a'").await, 0, "its name is free");
    assert_eq!(says(&mut other, "UPDATE accounts SET balance = 7 WHERE id = 1").await, 0, "and so are its locks");
}

#[tokio::test]
async fn s45_what_was_prepared_is_there_after_a_kill_and_a_restart() {
    let mut server = MariaDb::start().await;
    let mut session = paid(&server, "'a'").await;
    prepare(&mut session, "'a'").await;
    let unprepared = paid_from_2(&server).await;
    server.kill();
    drop((session, unprepared));
    server.restart().await;
    assert_eq!(server.prepared().await, 1);
    let mut other = server.root("bank").await;
    assert_eq!(says(&mut other, "XA COMMIT 'a'").await, 0);
    assert_eq!(server.balances().await, [95, 100]);
}

async fn paid_from_2(server: &MariaDb) -> Conn {
    let mut session = server.root("bank").await;
    assert_eq!(says(&mut session, "XA START 'b'").await, 0);
    assert_eq!(says(&mut session, "UPDATE accounts SET balance = balance - 5 WHERE id = 2").await, 0);
    assert_eq!(says(&mut session, "XA END 'b'").await, 0);
    session
}

#[tokio::test]
async fn a_branch_that_wrote_nothing_prepares_and_is_rolled_back_with_its_session() {
    let server = MariaDb::start().await;
    let mut session = server.root("bank").await;
    assert_eq!(says(&mut session, "XA START 'a'; SELECT * FROM accounts; XA END 'a'; XA PREPARE 'a'").await, 0);
    assert_eq!(server.prepared().await, 1);
    let id = session.id();
    session.disconnect().await.unwrap();
    server.is_rid_of(id).await;
    assert_eq!(server.prepared().await, 1);
    let mut other = server.root("bank").await;
    assert_eq!(says(&mut other, "XA COMMIT 'a'").await, 1402, "XA_RBROLLBACK, of a branch that promised");
}

#[tokio::test]
async fn a_branch_takes_no_ddl_no_end_but_its_own_and_no_work_once_prepared() {
    let server = MariaDb::start().await;
    let mut session = paid(&server, "'a'").await;
    for statement in ["CREATE TABLE t (i INT)", "TRUNCATE accounts", "BEGIN", "COMMIT", "ROLLBACK", "XA PREPARE 'a'"] {
        assert_eq!(says(&mut session, statement).await, 1399, "{statement}");
    }
    prepare(&mut session, "'a'").await;
    for statement in ["SELECT * FROM accounts", "XA START 'b'", "UPDATE accounts SET balance = 0"] {
        assert_eq!(says(&mut session, statement).await, 1399, "{statement}");
    }
    assert_eq!(session.query_first::<String, _>("SELECT 'alive'").await.unwrap().unwrap(), "alive");
    assert_eq!(says(&mut session, "XA ROLLBACK 'a'").await, 0);
    assert_eq!(server.balances().await, [100, 100]);
}

#[tokio::test]
async fn a_deadlock_leaves_nothing_but_a_rollback_and_a_lock_wait_leaves_the_branch() {
    let server = MariaDb::start().await;
    let (mut a, mut b) = (paid(&server, "'a'").await, server.root("bank").await);
    assert_eq!(says(&mut b, "SET innodb_lock_wait_timeout = 1; XA START 'b'").await, 0);
    assert_eq!(says(&mut b, "UPDATE accounts SET balance = balance - 5 WHERE id = 2").await, 0);
    let from_1 = "UPDATE accounts SET balance = balance - 5 WHERE id = 1";
    assert_eq!(says(&mut b, from_1).await, 1205, "its wait is over; what it did before stands");

    let from_2 = "UPDATE accounts SET balance = balance - 5 WHERE id = 2";
    let (first, second) = tokio::join!(says(&mut a, from_2), says(&mut b, from_1));
    let (loser, name) = if first == 1213 { (&mut a, "'a'") } else { (&mut b, "'b'") };
    assert!([first, second].contains(&1213), "{first} {second}");
    for statement in [from_1, &format!("XA END {name}"), &format!("XA PREPARE {name}")] {
        assert_eq!(says(loser, statement).await, 1399, "{statement}");
    }
    assert_eq!(says(loser, &format!("XA ROLLBACK {name}")).await, 0);
}

#[tokio::test]
async fn names_take_no_parameters_and_have_128_bytes() {
    let server = MariaDb::start().await;
    let mut session = server.root("bank").await;
    let named = session.exec_drop("XA START ?", ("b",)).await;
    assert!(matches!(named, Err(Error::Server(error)) if error.code == 1064), "no parameters");
    let long = format!("XA START X'{}'", "ab".repeat(65));
    assert_eq!(says(&mut session, &long).await, 1064, "65 bytes");
    let longest = format!("X'{0}',X'{0}',2147483647", "ab".repeat(64));
    let mut other = server.root("bank").await;
    assert_eq!(says(&mut other, &format!("XA START {longest}; XA END {longest}; XA PREPARE {longest}")).await, 0);
    let rows: Vec<(u64, usize, usize, Vec<u8>)> = session.query("XA RECOVER").await.unwrap();
    assert_eq!(rows, [(2_147_483_647, 64, 64, [0xab; 128].to_vec())], "bytes come as they are");
}

#[tokio::test]
async fn the_format_is_no_part_of_a_name() {
    let server = MariaDb::start().await;
    let mut session = paid(&server, "'a','b',1").await;
    prepare(&mut session, "'a','b',1").await;
    let mut other = server.root("bank").await;
    assert_eq!(says(&mut other, "XA START 'a','b',2").await, 1440, "XAER_DUPID");
    assert_eq!(says(&mut session, "XA ROLLBACK 'a','b',2").await, 0, "it ended the other's");
}

#[tokio::test]
async fn what_a_user_may_do() {
    let server = MariaDb::start().await;
    let mut root = server.root("bank").await;
    root.query_drop("CREATE USER app, agent; GRANT SELECT, UPDATE ON bank.* TO app, agent").await.unwrap();
    let mut app = Conn::from_url(server.url("app", "bank")).await.unwrap();
    let mut agent = Conn::from_url(server.url("agent", "bank")).await.unwrap();
    assert_eq!(says(&mut app, "XA START 'a'; UPDATE accounts SET balance = 0; XA END 'a'; XA PREPARE 'a'").await, 0);
    assert_eq!(says(&mut agent, "XA RECOVER").await, 0, "MariaDB shows it to everybody");
    assert_eq!(says(&mut agent, &format!("KILL {}", app.id())).await, 1095, "another user's session");
    assert_eq!(says(&mut agent, "SELECT * FROM information_schema.INNODB_TRX").await, 1227, "needs PROCESS");
    root.query_drop("GRANT CONNECTION ADMIN ON *.* TO agent").await.unwrap();
    let mut agent = Conn::from_url(server.url("agent", "bank")).await.unwrap();
    assert_eq!(says(&mut agent, &format!("KILL {}", app.id())).await, 0);
    server.is_rid_of(app.id()).await;
    assert_eq!(says(&mut agent, &format!("KILL {}", app.id())).await, 1094, "no such session");
    assert_eq!(says(&mut agent, "XA COMMIT 'a'").await, 0, "anybody may end what anybody prepared");
}
