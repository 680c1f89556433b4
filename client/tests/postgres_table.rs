//! The branch table over PostgreSQL, against a real server: conformance at each isolation, races, errors.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{sync::atomic::Ordering, time::Duration};

use verdict_client::{
    ClusterId, LogTime, Settlement, Vote,
    conformance::{self, Effects},
    participant::{NotAnswered, Prepare, ResourceManager, Settle, Settled, Stamp},
    resource::postgres::{
        table::{BranchTable, OpenError, SCHEMA, TableOptions},
        tokio_postgres::IsolationLevel,
    },
};

use common::{
    postgres::{APP, PostgresServer},
    postgres_seats::{InPostgres, Seats, app_pool, open},
    tables::{
        NOW, STAMP, branch, crowd, drops_what_the_horizon_has_passed, hex, prepare, refused, rivals_agree, settle,
        unanswered, vote,
    },
};

const LEVELS: [IsolationLevel; 3] =
    [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

/// Without anything that can be prepared: the table needs none of it.
async fn server() -> PostgresServer {
    let server = PostgresServer::start(&["max_prepared_transactions=0", "deadlock_timeout=50ms"]).await;
    server.database("bank").await;
    server
}

#[tokio::test]
async fn postgres_conforms_at_each_isolation() {
    let server = server().await;
    for isolation in LEVELS {
        let conforms = conformance::run(async || InPostgres::new(&server, isolation).await).await;
        assert_eq!(conforms, Ok(()), "{isolation:?}");
    }
}

#[tokio::test]
async fn rivals_at_two_processes_agree() {
    let server = server().await;
    for isolation in LEVELS {
        let subject = InPostgres::new(&server, isolation).await;
        rivals_agree([&subject.table, &subject.another().await], 90).await;
        assert_eq!(subject.seats().await, Effects::default(), "{isolation:?}");
    }
}

#[tokio::test]
async fn a_crowd_on_one_row_loses_nothing() {
    let server = server().await;
    for isolation in LEVELS {
        let subject = InPostgres::new(&server, isolation).await;
        let prepared = crowd(&subject.table, 0..40).await;
        println!("{isolation:?}: {prepared} of 40 prepared");
        assert!(prepared >= 8, "{prepared}");
        assert_eq!(subject.seats().await, Effects { reserved: prepared, confirmed: 0 });
        assert_eq!(subject.table.recover(99).await.unwrap().len() as u64, prepared);
    }
}

#[tokio::test]
async fn what_the_database_does_not_allow_is_refused_with_its_code() {
    let server = server().await;
    let subject = InPostgres::new(&server, IsolationLevel::ReadCommitted).await;
    let table = &subject.table;
    for (n, payload, code, retryable) in [
        (1, "not allowed", "23514", false),
        (2, "not allowed in the end", "23503", false),
        (3, "a trigger's no", "P0001", false),
        (4, "make way", "40001", true),
        (5, "a seat on the sold-out bus", "SOLD_OUT", false),
    ] {
        for _ in 0..2 {
            assert_eq!(refused(table.prepare(prepare(n, payload)).await), (code.to_owned(), retryable), "{payload}");
        }
        // It is recorded.
        assert_eq!(refused(table.prepare(prepare(n, "one seat")).await).0, code);
        assert_eq!(table.commit(settle(n)).await.unwrap().settlement, Settlement::HeuristicRollback);
    }
    assert_eq!(subject.seats().await, Effects::default());
    let holder = server.client("bank").await;
    let role = format!("ALTER ROLE {APP} SET lock_timeout = '100ms'");
    server.superuser("postgres").await.batch_execute(&role).await.unwrap();
    let table = subject.another().await;
    holder.batch_execute(&format!("BEGIN; LOCK TABLE {}.seats", subject.schema().await)).await.unwrap();
    assert_eq!(refused(table.prepare(prepare(6, "one seat")).await), ("55P03".to_owned(), true));
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(vote(&table, 6, "one seat").await, Vote::Refused);
    assert_eq!(vote(&table, 7, "one seat").await, Vote::Prepared);
}

#[tokio::test]
async fn errors_are_no_votes_and_leave_nothing() {
    let server = server().await;
    let subject = InPostgres::new(&server, IsolationLevel::ReadCommitted).await;
    let table = &subject.table;
    for (n, payload, what) in [
        (1, "panic", "panicked"),
        (2, "no such table", "no_such_table"),
        (3, "go on", "went on after a statement had failed"),
        (4, "give up", "neither begin nor end"),
    ] {
        let error = unanswered(table.prepare(prepare(n, payload)).await);
        assert!(error.contains(what), "{error}");
        assert_eq!(subject.seats().await, Effects::default(), "{payload}");
        assert_eq!(subject.rows().await, 0, "{payload}");
        // Nothing stands in the way of the next time.
        assert_eq!(vote(table, n, "is there a seat?").await, Vote::ReadOnly);
        subject.client.batch_execute("DELETE FROM verdict_branch").await.unwrap();
    }
    for (n, payload) in [(5, "end it"), (6, "end it and begin another")] {
        let error = unanswered(table.prepare(prepare(n, payload)).await);
        assert!(error.contains("neither begin nor end"), "{error}");
        // What it has committed by itself is there; of the branch nothing is known.
        assert_eq!(table.recover(9).await.unwrap(), []);
        assert_eq!(table.rollback(settle(n)).await.unwrap().settlement, Settlement::Done);
        assert_eq!(vote(table, n, "one seat").await, Vote::Refused);
    }
}

#[tokio::test]
async fn a_deadlock_makes_way_and_comes_again() {
    let server = server().await;
    let subject = InPostgres::new(&server, IsolationLevel::ReadCommitted).await;
    // They meet at nothing else.
    subject.client.batch_execute("DELETE FROM seats").await.unwrap();
    let (one, two) = tokio::join!(vote(&subject.table, 1, "one after two"), vote(&subject.table, 2, "two after one"));
    assert_eq!((one, two), (Vote::Prepared, Vote::Prepared));
    let log = std::fs::read_to_string(server.log()).unwrap();
    assert!(log.contains("deadlock detected"), "there was no deadlock");
}

#[tokio::test]
async fn an_outcome_that_has_to_make_way_is_not_lost() {
    let server = server().await;
    let subject = InPostgres::new(&server, IsolationLevel::ReadCommitted).await;
    let table = &subject.table;
    assert_eq!(vote(table, 1, "one seat").await, Vote::Prepared);
    subject.conflicts.store(5, Ordering::Relaxed);
    assert_eq!(table.commit(settle(1)).await.unwrap().settlement, Settlement::Done);
    assert_eq!(vote(table, 2, "one seat").await, Vote::Prepared);
    subject.conflicts.store(u32::MAX, Ordering::Relaxed);
    let error = unanswered(table.commit(settle(2)).await);
    assert!(error.contains("make way"), "{error}");
    assert_eq!(table.recover(9).await.unwrap(), [branch(2)]);
    subject.conflicts.store(0, Ordering::Relaxed);
    assert_eq!(table.commit(settle(2)).await.unwrap().settlement, Settlement::Done);
    assert_eq!(subject.seats().await, Effects { reserved: 0, confirmed: 2 });
}

/// A promise to the cluster that was, still being made when the restored one speaks, is made before it is answered.
#[tokio::test]
async fn an_incarnation_is_raised_when_no_older_one_is_at_work() {
    let server = server().await;
    for isolation in LEVELS {
        let subject = InPostgres::new(&server, isolation).await;
        let (old, new) = (&subject.table, &subject.another().await);
        // The first message makes the cluster known.
        assert_eq!(vote(old, 1, "is there a seat?").await, Vote::ReadOnly);
        let holder = server.client("bank").await;
        let table = format!("{}.seats", subject.schema().await);
        holder.batch_execute(&format!("BEGIN; UPDATE {table} SET confirmed = confirmed + 1")).await.unwrap();
        let restored = Stamp { incarnation: 3, ..STAMP };
        let release = async {
            subject.others_wait(1).await;
            // It touches nothing that the other holds.
            let raise = new.rollback(Settle { stamp: restored, ..settle(3) });
            let release = async {
                subject.others_wait(2).await;
                holder.batch_execute("ROLLBACK").await.unwrap();
            };
            let (raised, ()) = tokio::join!(raise, release);
            (raised.unwrap(), new.recover(9).await.unwrap())
        };
        let (promise, (raised, held)) = tokio::join!(vote(old, 2, "one seat"), release);
        assert_eq!((promise, raised), (Vote::Prepared, Settled::DONE), "{isolation:?}");
        assert_eq!(held, [branch(2)], "{isolation:?}");
        let stale = old.prepare(prepare(4, "one seat")).await;
        assert!(
            matches!(stale, Err(NotAnswered::StaleIncarnation { message: 2, seen: 3 })),
            "{isolation:?}: {stale:?}"
        );
        // One that comes while it is being raised, to a process that has just started.
        let fresh = subject.another().await;
        let raiser = server.client("bank").await;
        let raise = format!(
            "SET search_path = {}; BEGIN; LOCK TABLE verdict_stamp IN EXCLUSIVE MODE; \
             UPDATE verdict_stamp SET incarnation = 4",
            subject.schema().await
        );
        raiser.batch_execute(&raise).await.unwrap();
        let late = fresh.prepare(Prepare { stamp: restored, ..prepare(5, "one seat") });
        let commit = async {
            subject.others_wait(1).await;
            raiser.batch_execute("COMMIT").await.unwrap();
        };
        let late = tokio::join!(late, commit).0;
        assert!(matches!(late, Err(NotAnswered::StaleIncarnation { message: 3, seen: 4 })), "{isolation:?}: {late:?}");
    }
}

/// A prepare that was long under way waits for the transaction by which its tombstone goes, or comes and goes.
#[tokio::test]
async fn a_tombstone_that_goes_leaves_the_horizon_behind() {
    let server = server().await;
    for (isolation, comes) in LEVELS.into_iter().flat_map(|level| [(level, false), (level, true)]) {
        let subject = InPostgres::new(&server, isolation).await;
        let purger = server.client("bank").await;
        let mut purge = format!("SET search_path = {}; BEGIN; ", subject.schema().await);
        // The cluster is known.
        assert_eq!(vote(&subject.table, 9, "is there a seat?").await, Vote::ReadOnly);
        if comes {
            purge += &format!(
                "INSERT INTO verdict_branch (xid, number, state, payload, keep_until_ms) VALUES ('\\x{}', 1, 4, '', 0); ",
                hex(1)
            );
        } else {
            assert_eq!(subject.table.rollback(settle(1)).await.unwrap(), Settled::DONE);
        }
        purge += &format!("UPDATE verdict_horizon SET horizon_ms = {}; DELETE FROM verdict_branch", NOW + 1000);
        purger.batch_execute(&purge).await.unwrap();
        let late = async { subject.table.prepare(prepare(1, "one seat")).await.unwrap().vote };
        let commit = async {
            subject.others_wait(1).await;
            purger.batch_execute("COMMIT").await.unwrap();
        };
        assert_eq!(tokio::join!(late, commit).0, Vote::Refused, "{isolation:?}, {comes}");
        assert_eq!(subject.seats().await, Effects::default());
    }
}

#[tokio::test]
async fn what_the_horizon_has_passed_goes() {
    let server = server().await;
    let subject = InPostgres::new(&server, IsolationLevel::ReadCommitted).await;
    drops_what_the_horizon_has_passed(&subject.table, async || subject.rows().await).await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_not_answered_and_comes_again() {
    let server = server().await;
    let subject = InPostgres::new(&server, IsolationLevel::ReadCommitted).await;
    let options = TableOptions { call_timeout: Duration::from_millis(300), ..subject.options };
    let hasty = open(&subject.dsn, options, &subject.conflicts).await.unwrap();
    assert_eq!(vote(&hasty, 1, "is there a seat?").await, Vote::ReadOnly);
    subject.client.batch_execute("BEGIN; LOCK TABLE seats").await.unwrap();
    let error = unanswered(hasty.prepare(prepare(2, "one seat")).await);
    assert!(error.contains("took longer than 300ms"), "{error}");
    subject.client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(vote(&subject.table, 2, "one seat").await, Vote::Prepared);
    assert_eq!(subject.seats().await, Effects { reserved: 1, confirmed: 0 });
}

#[tokio::test]
async fn a_table_that_can_keep_no_promise_is_not_opened() {
    let server = server().await;
    let subject = InPostgres::new(&server, IsolationLevel::ReadCommitted).await;
    let of = |cluster| TableOptions { cluster: Some(ClusterId([cluster; 16])), ..TableOptions::default() };
    let open = async |dsn: &str, options| BranchTable::open(app_pool(dsn), Seats::default(), options).await;
    open(&subject.dsn, of(1)).await.unwrap();
    open(&subject.dsn, of(1)).await.unwrap();
    assert!(matches!(open(&subject.dsn, of(2)).await, Err(OpenError::Cluster { .. })));
    subject.client.batch_execute("UPDATE verdict_stamp SET format = 2").await.unwrap();
    assert!(matches!(open(&subject.dsn, of(1)).await, Err(OpenError::Newer { found: 2, known: 1 })));

    // One who may not create tables can use those that are there.
    let root = server.superuser("bank").await;
    root.batch_execute("CREATE ROLE guest LOGIN; REVOKE CREATE ON SCHEMA public FROM public, app").await.unwrap();
    let guest = server.dsn("guest", "bank");
    assert!(matches!(open(&guest, of(1)).await, Err(OpenError::Schema(_))));
    root.batch_execute(SCHEMA).await.unwrap();
    assert!(matches!(open(&guest, of(1)).await, Err(OpenError::Schema(_))));
    let grant = "GRANT SELECT, INSERT, UPDATE, DELETE ON verdict_branch, verdict_stamp, verdict_horizon TO guest";
    root.batch_execute(grant).await.unwrap();
    let table = open(&guest, of(1)).await.unwrap();
    let stamp = Stamp { cluster: ClusterId([1; 16]), horizon: LogTime::from_millis(1), ..STAMP };
    let voted = table.prepare(Prepare { stamp, ..prepare(1, "no such table") }).await;
    assert!(unanswered(voted).contains("seats"), "the handler has run");

    root.batch_execute("ALTER ROLE guest SET synchronous_commit = off").await.unwrap();
    let unfit = open(&guest, of(1)).await;
    assert!(matches!(&unfit, Err(OpenError::Unfit { setting: "synchronous_commit", .. })), "{unfit:?}");
    assert!(matches!(open("host=127.0.0.1 port=1 user=app dbname=bank", of(1)).await, Err(OpenError::Connect(_))));
}
