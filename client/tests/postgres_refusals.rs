//! What a real PostgreSQL server, or the adapter for it, refuses: each with a code and a sentence, and nothing stays prepared.

#![cfg(all(feature = "postgres", not(madsim)))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use futures_util::future::join;
use verdict_client::{
    Outcome, Verdict,
    participant::with_causes,
    resource::postgres::{Postgres, PostgresError, pool},
};
use verdict_proto::v1;

use common::{
    cluster::{Node, dead, options},
    postgres::{APP, PostgresServer, texts},
    postgres_bank::*,
};

/// PREPARE in a failed block answers ROLLBACK and no error.
#[tokio::test]
async fn nothing_that_failed_counts_as_prepared() {
    let bank = Bank::open(PREPARES).await;
    for (work, code) in [
        ("UPDATE account SET balance = balance - 500 WHERE id = 1", "25P02"),
        ("UPDATE account SET balance = 1; SELECT 1 / 0", "25P02"),
        ("UPDATE account SET balance = 1; NOTIFY somebody", "0A000"),
        ("UPDATE account SET balance = 1; CREATE TEMP TABLE mine (id int)", "0A000"),
        ("UPDATE account SET balance = 1 WHERE id = 7; COMMIT", "25000"),
        ("UPDATE account SET balance = 1; ROLLBACK", "25000"),
        ("ROLLBACK; BEGIN; UPDATE account SET balance = 1", "25000"),
    ] {
        let transaction = bank.doing(work).await;
        assert_eq!(transaction.commit().await.unwrap().outcome, Outcome::Aborted, "{work}");
        assert_eq!(bank.refused().0, code, "{work}: {:?}", bank.refused());
        drop(transaction);
        assert_eq!(bank.server.balances("bank").await, ["100", "100"], "{work}");
        assert_eq!(bank.server.prepared().await, [""; 0], "{work}");
    }
    bank.pool_is_clean().await;
}

#[tokio::test]
async fn a_deferred_constraint_fails_at_prepare_with_its_own_code() {
    let bank = Bank::open(PREPARES).await;
    let client = bank.server.client("bank").await;
    let table = "CREATE TABLE note (account int REFERENCES account DEFERRABLE INITIALLY DEFERRED)";
    client.batch_execute(table).await.unwrap();
    let transaction = bank.doing("INSERT INTO note VALUES (9)").await;
    let decision = transaction.commit().await.unwrap();
    assert_eq!(decision.outcome, Outcome::Aborted);
    let (code, text, retryable) = bank.refused();
    assert_eq!((code.as_str(), retryable), ("23503", false));
    assert!(text.starts_with("accounts: ") && text.contains("Key (account)=(9)"), "{text}");
    drop(transaction);
    bank.pool_is_clean().await;
}

#[tokio::test]
async fn a_serialization_failure_at_prepare_is_worth_another_try() {
    let bank = Bank::open(PREPARES).await;
    // Write skew: each reads what the other writes.
    let skew = |id: u32| {
        format!(
            "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; SELECT sum(balance) FROM account; \
             UPDATE account SET balance = balance - 60 WHERE id = {id}"
        )
    };
    let (first, second) = (bank.doing(&skew(1)).await, bank.doing(&skew(2)).await);
    assert_eq!(first.commit().await.unwrap().outcome, Outcome::Committed);
    assert_eq!(second.commit().await.unwrap().outcome, Outcome::Aborted);
    let (code, text, retryable) = bank.refused();
    assert_eq!((code.as_str(), retryable), ("40001", true), "{text}");
    assert_eq!(bank.server.balances("bank").await, ["40", "100"]);
}

/// A deferred check waits for a lock at PREPARE TRANSACTION, and who has it waits for the branch.
#[tokio::test]
async fn a_deadlock_at_prepare_is_refused_and_worth_another_try() {
    let bank = Bank::open(PREPARES).await;
    let table = "CREATE TABLE note (account int REFERENCES account DEFERRABLE INITIALLY DEFERRED)";
    bank.server.client("bank").await.batch_execute(table).await.unwrap();
    let work = "UPDATE account SET balance = balance - 5 WHERE id = 1; INSERT INTO note VALUES (2)";
    let transaction = bank.doing(work).await;
    let (other, watcher) = (bank.server.superuser("bank").await, bank.server.superuser("bank").await);
    // The branch is the one that looks for a deadlock, and ends it.
    let lock = "SET deadlock_timeout = '1h'; BEGIN; SELECT FROM account WHERE id = 2 FOR UPDATE";
    other.batch_execute(lock).await.unwrap();
    let crosses = async { other.batch_execute("UPDATE account SET balance = 0 WHERE id = 1; ROLLBACK").await };
    let commits = async {
        let waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let by = Instant::now() + Duration::from_secs(20);
        while texts(&watcher, waits).await.is_empty() {
            assert!(Instant::now() < by, "the other waits for the branch");
        }
        transaction.commit().await
    };
    let (crossed, decision) = join(crosses, commits).await;
    crossed.unwrap();
    assert_eq!(decision.unwrap().outcome, Outcome::Aborted);
    let (code, text, retryable) = bank.refused();
    assert_eq!((code.as_str(), retryable), ("40P01", true));
    assert!(text.starts_with("accounts: deadlock detected"), "{text}");
    assert_eq!(bank.server.prepared().await, [""; 0]);
    assert_eq!(bank.server.balances("bank").await, ["100", "100"]);
    drop(transaction);
    bank.pool_is_clean().await;
}

/// What the application's role may not do fails at once, and takes the whole branch with it.
#[tokio::test]
async fn a_missing_privilege_fails_the_branch() {
    let bank = Bank::open(PREPARES).await;
    let taken = "ALTER TABLE account OWNER TO postgres; GRANT SELECT, UPDATE ON account TO app";
    bank.server.superuser("bank").await.batch_execute(taken).await.unwrap();
    let mut transaction = bank.verdict.transaction();
    let session = bank.accounts.enlist(&mut transaction).await.unwrap();
    let client = session.client().unwrap();
    client.batch_execute("UPDATE account SET balance = 1 WHERE id = 1").await.unwrap();
    let refused = client.batch_execute("INSERT INTO account VALUES (3, 1)").await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "42501", "{refused}");
    assert_eq!(transaction.commit().await.unwrap().outcome, Outcome::Aborted);
    assert_eq!(bank.refused().0, "25P02");
    assert_eq!(bank.server.prepared().await, [""; 0]);
    assert_eq!(bank.server.balances("bank").await, ["100", "100"]);
}

#[tokio::test]
async fn s40_no_room_to_prepare_is_refused_with_the_settings_name() {
    let bank = Bank::open(&["max_prepared_transactions=2"]).await;
    left_prepared(&bank.server, "somebody-else").await;
    let raise = |id: u32| format!("INSERT INTO account VALUES ({id}, 1)");
    let mut transaction = bank.verdict.transaction();
    for id in [11, 12, 13] {
        let session = bank.accounts.enlist(&mut transaction).await.unwrap();
        session.client().unwrap().batch_execute(&raise(id)).await.unwrap();
    }
    assert_eq!(transaction.commit().await.unwrap().outcome, Outcome::Aborted);
    let brought = bank.node.brought();
    let refused: Vec<_> = brought.iter().filter(|branch| branch.vote() == v1::Vote::Refused).collect();
    assert_eq!(refused.len(), 2);
    for branch in refused {
        let reason = branch.reason.clone().unwrap();
        assert!(reason.text.contains("max_prepared_transactions"), "{}", reason.text);
        assert_eq!((reason.source_code.as_str(), reason.retryable), ("53200", true));
    }
    assert_eq!(bank.server.prepared().await, ["somebody-else"]);
    drop(transaction);
    bank.pool_is_clean().await;
}

#[tokio::test]
async fn s40_a_server_that_cannot_prepare_is_refused_at_the_start() {
    let server = PostgresServer::start(&["max_prepared_transactions=0"]).await;
    server.database("bank").await;
    let node = Node::answering(|_, call| judges(call));
    let verdict = Verdict::new(options(&[node.address])).unwrap();
    let refused = Postgres::open(&verdict, accounts(), pool(&server.dsn(APP, "bank"), 1).unwrap()).await.unwrap_err();
    assert!(matches!(refused, PostgresError::Unfit { setting: "max_prepared_transactions", .. }), "{refused}");
    assert!(refused.to_string().contains("= 60 in postgresql.conf and restart"), "{refused}");
}

#[tokio::test]
async fn bad_connection_strings_are_told_without_their_passwords() {
    for dsn in
        ["", "host", "postgres://app:secret@host:port/bank", "host=a user=b dbname=c passwd=secret", "host=x dbname=y"]
    {
        let refused = pool(dsn, 1).map(drop).unwrap_err().to_string();
        assert!(!refused.contains("secret"), "{refused}");
    }
    assert!(pool("host=a user=b dbname=c", 0).is_err());
    assert!(pool("host=a user=b dbname=c sslmode=require", 1).unwrap_err().to_string().contains("TLS"));
    let server = PostgresServer::start(PREPARES).await;
    let node = Node::answering(|_, call| judges(call));
    let verdict = Verdict::new(options(&[node.address])).unwrap();
    let nowhere = server.dsn(APP, "nowhere");
    for (dsn, says) in [
        (nowhere.clone(), "database \"nowhere\" does not exist"),
        (nowhere.replace("user=app", "user=nobody"), "role \"nobody\" does not exist"),
        (format!("host=127.0.0.1 port={} user=a password=secret dbname=b", dead().port()), "Connection refused"),
    ] {
        let refused = Postgres::open(&verdict, accounts(), pool(&dsn, 1).unwrap()).await.unwrap_err();
        let text = with_causes(&refused);
        assert!(text.contains(says) && !text.contains("secret"), "{text}");
    }
}
