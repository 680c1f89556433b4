//! The branch table over MariaDB, against a real server: conformance at each isolation, races, errors.

#![cfg(feature = "mysql")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{sync::atomic::Ordering, time::Duration};

use verdict_client::{
    ClusterId, LogTime, Settlement, Vote,
    conformance::{self, Effects},
    participant::{NotAnswered, Prepare, ResourceManager, Settle, Settled, Stamp},
    resource::mysql::{
        mysql_async::{IsolationLevel, prelude::Queryable},
        pool,
        table::{BranchTable, OpenError, SCHEMA, TableOptions},
    },
};

use common::{
    mariadb::MariaDb,
    mariadb_seats::{InMariaDb, Seats},
    tables::{
        NOW, STAMP, branch, crowd, drops_what_the_horizon_has_passed, hex, prepare, refused, rivals_agree, settle,
        unanswered, vote,
    },
};

/// What a connection has by itself is REPEATABLE READ.
const LEVELS: [Option<IsolationLevel>; 3] =
    [None, Some(IsolationLevel::ReadCommitted), Some(IsolationLevel::Serializable)];

#[tokio::test]
async fn mariadb_conforms_at_each_isolation() {
    let server = MariaDb::start().await;
    for isolation in LEVELS {
        let conforms = conformance::run(async || InMariaDb::new(&server, isolation).await).await;
        assert_eq!(conforms, Ok(()), "{isolation:?}");
    }
}

#[tokio::test]
async fn rivals_at_two_processes_agree() {
    let server = MariaDb::start().await;
    for isolation in LEVELS {
        let subject = InMariaDb::new(&server, isolation).await;
        rivals_agree([&subject.table, &subject.another().await], 90).await;
        assert_eq!(subject.seats().await, Effects::default(), "{isolation:?}");
    }
}

#[tokio::test]
async fn a_crowd_on_one_row_loses_nothing() {
    let server = MariaDb::start().await;
    for isolation in LEVELS {
        let subject = InMariaDb::new(&server, isolation).await;
        let prepared = crowd(&subject.table, 0..40).await;
        println!("{isolation:?}: {prepared} of 40 prepared");
        assert!(prepared >= 8, "{prepared}");
        assert_eq!(subject.seats().await, Effects { reserved: prepared, confirmed: 0 });
        assert_eq!(subject.table.recover(99).await.unwrap().len() as u64, prepared);
    }
}

#[tokio::test]
async fn what_the_database_does_not_allow_is_refused_with_its_code() {
    let server = MariaDb::start_with(&["innodb-lock-wait-timeout=1"]).await;
    let subject = InMariaDb::new(&server, None).await;
    let table = &subject.table;
    for (n, payload, code, retryable) in [
        (1, "not allowed", "4025 (23000)", false),
        (2, "a trigger's no", "1644 (45000)", false),
        (3, "make way", "1213 (40001)", true),
        (4, "a seat on the sold-out bus", "SOLD_OUT", false),
    ] {
        for _ in 0..2 {
            assert_eq!(refused(table.prepare(prepare(n, payload)).await), (code.to_owned(), retryable), "{payload}");
        }
        // It is recorded.
        assert_eq!(refused(table.prepare(prepare(n, "one seat")).await).0, code);
        assert_eq!(table.commit(settle(n)).await.unwrap().settlement, Settlement::HeuristicRollback);
    }
    assert_eq!(subject.seats().await, Effects::default());
    let mut holder = subject.client().await;
    holder.query_drop("BEGIN; UPDATE seats SET reserved = 9").await.unwrap();
    assert_eq!(refused(table.prepare(prepare(6, "one seat")).await), ("1205 (HY000)".to_owned(), true));
    holder.query_drop("ROLLBACK").await.unwrap();
    assert_eq!(vote(table, 6, "one seat").await, Vote::Refused);
    assert_eq!(vote(table, 7, "one seat").await, Vote::Prepared);
}

#[tokio::test]
async fn errors_are_no_votes_and_leave_nothing() {
    let server = MariaDb::start().await;
    let subject = InMariaDb::new(&server, None).await;
    let table = &subject.table;
    for (n, payload, what) in [
        (1, "panic", "panicked"),
        (2, "no such table", "no_such_table"),
        (3, "its row", "restore it"),
        (4, "give up", "neither begin nor end"),
    ] {
        let error = unanswered(table.prepare(prepare(n, payload)).await);
        assert!(error.contains(what), "{error}");
        assert_eq!(subject.seats().await, Effects::default(), "{payload}");
        assert_eq!(subject.rows().await, 0, "{payload}");
        // Nothing stands in the way of the next time.
        assert_eq!(vote(table, n, "is there a seat?").await, Vote::ReadOnly);
        subject.run("DELETE FROM verdict_branch").await;
    }
    for (n, payload) in [(5, "end it"), (6, "end it and begin another"), (7, "a table more")] {
        let error = unanswered(table.prepare(prepare(n, payload)).await);
        assert!(error.contains("neither begin nor end"), "{error}");
        // What it has committed by itself is there; of the branch nothing is known.
        assert_eq!(table.recover(9).await.unwrap(), []);
        assert_eq!(table.rollback(settle(n)).await.unwrap().settlement, Settlement::Done);
        assert_eq!(vote(table, n, "one seat").await, Vote::Refused);
    }
    // Here a statement that failed leaves the others as they were.
    let before = subject.seats().await;
    assert_eq!(vote(table, 8, "go on").await, Vote::Prepared);
    assert_eq!(subject.seats().await, Effects { reserved: before.reserved + 1, ..before });
    // A row that can't be written is no vote.
    subject.run("CREATE TRIGGER no BEFORE UPDATE ON verdict_branch FOR EACH ROW SIGNAL SQLSTATE '45000'").await;
    assert!(unanswered(table.prepare(prepare(9, "one seat")).await).contains("1644"));
    assert_eq!(table.recover(9).await.unwrap(), [branch(8)]);
}

#[tokio::test]
async fn a_deadlock_makes_way_and_comes_again() {
    let server = MariaDb::start().await;
    let subject = InMariaDb::new(&server, Some(IsolationLevel::ReadCommitted)).await;
    // They meet at nothing else.
    subject.run("DELETE FROM seats").await;
    let (one, two) = tokio::join!(vote(&subject.table, 1, "one after two"), vote(&subject.table, 2, "two after one"));
    assert_eq!((one, two), (Vote::Prepared, Vote::Prepared));
    let deadlocks = subject.client().await.query_first("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").await.unwrap();
    assert!(deadlocks.is_some_and(|(_, n): (String, u64)| n > 0), "there was no deadlock");
}

#[tokio::test]
async fn an_outcome_that_has_to_make_way_is_not_lost() {
    let server = MariaDb::start().await;
    let subject = InMariaDb::new(&server, None).await;
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
    let server = MariaDb::start().await;
    for isolation in LEVELS {
        let subject = InMariaDb::new(&server, isolation).await;
        let (old, new) = (&subject.table, &subject.another().await);
        // The first message makes the cluster known.
        assert_eq!(vote(old, 1, "is there a seat?").await, Vote::ReadOnly);
        let mut holder = subject.client().await;
        holder.query_drop("BEGIN; UPDATE seats SET confirmed = confirmed + 1").await.unwrap();
        let restored = Stamp { incarnation: 3, ..STAMP };
        let release = async {
            subject.others_wait(1).await;
            // It touches nothing that the other holds.
            let raise = new.rollback(Settle { stamp: restored, ..settle(3) });
            let release = async {
                subject.others_wait(2).await;
                holder.query_drop("ROLLBACK").await.unwrap();
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
        let mut raiser = subject.client().await;
        let raise = "BEGIN; UPDATE verdict_stamp SET incarnation = 4";
        raiser.query_drop(raise).await.unwrap();
        let late = fresh.prepare(Prepare { stamp: restored, ..prepare(5, "one seat") });
        let commit = async {
            subject.others_wait(1).await;
            raiser.query_drop("COMMIT").await.unwrap();
        };
        let late = tokio::join!(late, commit).0;
        assert!(matches!(late, Err(NotAnswered::StaleIncarnation { message: 3, seen: 4 })), "{isolation:?}: {late:?}");
    }
}

/// A prepare that was long under way waits for the transaction by which its tombstone goes, or comes and goes.
#[tokio::test]
async fn a_tombstone_that_goes_leaves_the_horizon_behind() {
    let server = MariaDb::start().await;
    for (isolation, comes) in LEVELS.into_iter().flat_map(|level| [(level, false), (level, true)]) {
        let subject = InMariaDb::new(&server, isolation).await;
        let mut purger = subject.client().await;
        let mut purge = "BEGIN; ".to_owned();
        // The cluster is known.
        assert_eq!(vote(&subject.table, 9, "is there a seat?").await, Vote::ReadOnly);
        if comes {
            purge += &format!(
                "INSERT INTO verdict_branch (xid, number, state, payload, keep_until_ms) VALUES (X'{}', 1, 4, '', 0); ",
                hex(1)
            );
        } else {
            assert_eq!(subject.table.rollback(settle(1)).await.unwrap(), Settled::DONE);
        }
        purge += &format!("UPDATE verdict_horizon SET horizon_ms = {}; DELETE FROM verdict_branch", NOW + 1000);
        purger.query_drop(purge).await.unwrap();
        let late = async { subject.table.prepare(prepare(1, "one seat")).await.unwrap().vote };
        let commit = async {
            subject.others_wait(1).await;
            purger.query_drop("COMMIT").await.unwrap();
        };
        assert_eq!(tokio::join!(late, commit).0, Vote::Refused, "{isolation:?}, {comes}");
        assert_eq!(subject.seats().await, Effects::default());
    }
}

#[tokio::test]
async fn what_the_horizon_has_passed_goes() {
    let server = MariaDb::start().await;
    let subject = InMariaDb::new(&server, None).await;
    drops_what_the_horizon_has_passed(&subject.table, async || subject.rows().await).await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_not_answered_and_comes_again() {
    let server = MariaDb::start().await;
    let subject = InMariaDb::new(&server, None).await;
    let options = TableOptions { call_timeout: Duration::from_millis(300), ..subject.options };
    // With one connection, which the next one gets if it goes back.
    let one = pool(&server.url("root", &subject.database), 1).unwrap();
    let hasty = BranchTable::open(one, Seats::default(), options).await.unwrap();
    assert_eq!(vote(&hasty, 1, "is there a seat?").await, Vote::ReadOnly);
    let mut holder = subject.client().await;
    holder.query_drop("BEGIN; UPDATE seats SET reserved = 9").await.unwrap();
    let error = unanswered(hasty.prepare(prepare(2, "one seat")).await);
    assert!(error.contains("took longer than 300ms"), "{error}");
    holder.query_drop("ROLLBACK").await.unwrap();
    assert_eq!(vote(&subject.table, 2, "one seat").await, Vote::Prepared);
    // Nothing of the question that nobody waited for is taken for an answer.
    for n in 3..12 {
        assert_eq!(vote(&hasty, n, "one seat").await, Vote::Prepared);
    }
    assert_eq!(subject.seats().await, Effects { reserved: 10, confirmed: 0 });
}

#[tokio::test]
async fn a_table_that_can_keep_no_promise_is_not_opened() {
    let server = MariaDb::start().await;
    let subject = InMariaDb::new(&server, None).await;
    let database = &subject.database;
    let of = |cluster| TableOptions { cluster: Some(ClusterId([cluster; 16])), ..TableOptions::default() };
    let open = async |user: &str, options| {
        BranchTable::open(pool(&server.url(user, database), 4).unwrap(), Seats::default(), options).await
    };
    open("root", of(1)).await.unwrap();
    open("root", of(1)).await.unwrap();
    assert!(matches!(open("root", of(2)).await, Err(OpenError::Cluster { .. })));
    subject.run("UPDATE verdict_stamp SET format = 2").await;
    assert!(matches!(open("root", of(1)).await, Err(OpenError::Newer { found: 2, known: 1 })));

    // One who may not create tables can use those that are there.
    subject.run("DROP TABLE verdict_branch, verdict_stamp, verdict_horizon; CREATE USER guest").await;
    let grant = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON `{database}`.* TO guest");
    subject.run(&grant).await;
    assert!(matches!(open("guest", of(1)).await, Err(OpenError::Schema(_))));
    subject.run(SCHEMA).await;
    let table = open("guest", of(1)).await.unwrap();
    let stamp = Stamp { cluster: ClusterId([1; 16]), horizon: LogTime::from_millis(1), ..STAMP };
    let voted = table.prepare(Prepare { stamp, ..prepare(1, "one seat") }).await;
    assert_eq!(voted.unwrap().vote, Vote::Prepared);

    subject.run("SET GLOBAL innodb_flush_log_at_trx_commit = 2").await;
    let unfit = open("guest", of(1)).await;
    assert!(matches!(&unfit, Err(OpenError::Unfit { setting: "innodb_flush_log_at_trx_commit", .. })), "{unfit:?}");
    let nowhere = pool("mysql://root@127.0.0.1:1/bank", 1).unwrap();
    assert!(matches!(BranchTable::open(nowhere, Seats::default(), of(1)).await, Err(OpenError::Connect(_))));
}
