//! The branch table over PostgreSQL, against a real server: conformance at each isolation, races, errors.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use verdict_client::{
    BranchId, ClusterId, LogTime, ResourceName, Settlement, Vote,
    conformance::{self, Effects, Subject},
    participant::{NotAnswered, Prepare, ResourceManager, Stamp},
    resource::{
        Reservation,
        postgres::{
            deadpool_postgres::{Pool, Transaction},
            pool,
            table::{BranchTable, Handler, OpenError, TableOptions},
            tokio_postgres::{Client, Error, IsolationLevel},
        },
    },
};

use common::{
    decide,
    postgres::{APP, PostgresServer, texts},
    seats_payload,
    tables::{
        NOW, STAMP, branch, crowd, drops_what_the_horizon_has_passed, prepare, refused, rivals_agree, settle,
        unanswered, vote,
    },
};

const LEVELS: [IsolationLevel; 3] =
    [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

/// Seats, all in one row.
#[derive(Default)]
struct Seats {
    /// How many confirms have to make way before one does not.
    conflicts: Arc<AtomicU32>,
    /// How often a first lock was taken by those that want two.
    holders: AtomicU32,
}

impl Seats {
    async fn both_hold_one(&self) {
        self.holders.fetch_add(1, Ordering::Relaxed);
        while self.holders.load(Ordering::Relaxed) < 2 {
            tokio::task::yield_now().await;
        }
    }
}

const MAKE_WAY: &str = "DO $$ BEGIN RAISE EXCEPTION 'make way' USING ERRCODE = '40001'; END $$";

#[tonic::async_trait]
impl Handler for Seats {
    async fn reserve(&self, database: &Transaction<'_>, _: BranchId, payload: &[u8]) -> Result<Reservation, Error> {
        // Refused and read-only must undo this.
        database.execute("UPDATE seats SET reserved = reserved + 1", &[]).await?;
        let first = match payload {
            b"panic" => panic!("the service has a bug"),
            b"end it" => "COMMIT",
            b"end it and begin another" => "COMMIT; BEGIN",
            b"give up" => "ROLLBACK",
            b"no such table" => "UPDATE no_such_table SET x = 1",
            b"not allowed" => "UPDATE seats SET confirmed = -1",
            b"not allowed in the end" => "INSERT INTO pairs VALUES (1)",
            b"a trigger's no" => "DO $$ BEGIN RAISE EXCEPTION 'sold out'; END $$",
            b"make way" => MAKE_WAY,
            b"go on" => {
                drop(database.batch_execute("UPDATE no_such_table SET x = 1").await);
                return Ok(Reservation::Reserved);
            }
            b"one after two" => "SELECT 1 FROM lockable WHERE id = 2 FOR UPDATE",
            b"two after one" => "SELECT 1 FROM lockable WHERE id = 1 FOR UPDATE",
            _ => return Ok(decide(payload)),
        };
        database.batch_execute(first).await?;
        let then = match payload {
            b"one after two" => "SELECT 1 FROM lockable WHERE id = 1 FOR UPDATE",
            b"two after one" => "SELECT 1 FROM lockable WHERE id = 2 FOR UPDATE",
            _ => return Ok(Reservation::Reserved),
        };
        self.both_hold_one().await;
        database.batch_execute(then).await?;
        Ok(Reservation::Reserved)
    }

    async fn confirm(&self, database: &Transaction<'_>, _: BranchId, payload: &[u8]) -> Result<(), Error> {
        assert_eq!(payload, b"one seat", "the payload of the reservation");
        database.execute("UPDATE seats SET reserved = reserved - 1, confirmed = confirmed + 1", &[]).await?;
        let again = |left: u32| left.checked_sub(1);
        if self.conflicts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, again).is_ok() {
            database.batch_execute(MAKE_WAY).await?;
        }
        Ok(())
    }

    async fn cancel(&self, database: &Transaction<'_>, _: BranchId, payload: &[u8]) -> Result<(), Error> {
        assert_eq!(payload, b"one seat", "the payload of the reservation");
        database.execute("UPDATE seats SET reserved = reserved - 1", &[]).await.map(drop)
    }
}

const TABLES: &str = "CREATE TABLE seats (reserved int NOT NULL, confirmed int NOT NULL CHECK (confirmed >= 0)); \
    INSERT INTO seats VALUES (0, 0); CREATE TABLE lockable (id int PRIMARY KEY); INSERT INTO lockable VALUES (1), (2); \
    CREATE TABLE pairs (id int REFERENCES pair DEFERRABLE INITIALLY DEFERRED)";

/// A service with a schema of its own on a server that others use, too.
struct InPostgres {
    dsn: String,
    client: Client,
    table: BranchTable,
    options: TableOptions,
    conflicts: Arc<AtomicU32>,
}

impl InPostgres {
    async fn new(server: &PostgresServer, isolation: IsolationLevel) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let schema = format!("\"Seats {}\"", NEXT.fetch_add(1, Ordering::Relaxed));
        let client = server.client("bank").await;
        let create = format!(
            "CREATE SCHEMA {schema}; SET search_path = {schema}; CREATE TABLE pair (id int PRIMARY KEY); {TABLES}"
        );
        client.batch_execute(&create).await.unwrap();
        let dsn = format!("{} options='-c search_path={}'", server.dsn(APP, "bank"), schema.replace(' ', "\\\\ "));
        let options = TableOptions { isolation, ..TableOptions::default() };
        let conflicts = Arc::default();
        let table = open(&dsn, options, &conflicts).await.unwrap();
        Self { dsn, client, table, options, conflicts }
    }

    /// Another process of the service.
    async fn another(&self) -> BranchTable {
        open(&self.dsn, self.options, &self.conflicts).await.unwrap()
    }

    async fn seats(&self) -> Effects {
        let row = self.client.query_one("SELECT reserved, confirmed FROM seats", &[]).await.unwrap();
        let count = |at| u64::try_from(row.get::<_, i32>(at)).unwrap();
        Effects { reserved: count(0), confirmed: count(1) }
    }

    async fn rows(&self) -> u64 {
        let count = self.client.query_one("SELECT count(*) FROM verdict_branch", &[]).await.unwrap();
        u64::try_from(count.get::<_, i64>(0)).unwrap()
    }

    /// Waits until so many others wait for locks of whatever kind.
    async fn others_wait(&self, others: i64) {
        let look =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        let by = Instant::now() + Duration::from_secs(20);
        while self.client.query_one(look, &[]).await.unwrap().get::<_, i64>(0) != others {
            assert!(Instant::now() < by, "{others} do not wait");
            tokio::task::yield_now().await;
        }
    }
}

fn app_pool(dsn: &str) -> Pool {
    pool(dsn, 8).unwrap()
}

async fn open(dsn: &str, options: TableOptions, conflicts: &Arc<AtomicU32>) -> Result<BranchTable, OpenError> {
    let seats = Seats { conflicts: conflicts.clone(), ..Seats::default() };
    BranchTable::open(app_pool(dsn), seats, options).await
}

#[tonic::async_trait]
impl Subject for InPostgres {
    fn manager(&self) -> Arc<dyn ResourceManager> {
        Arc::new(self.table.clone())
    }

    async fn restart(&mut self) {
        self.table = self.another().await;
    }

    fn resource(&self) -> ResourceName {
        "seats".try_into().unwrap()
    }

    fn payload(&self, vote: Vote) -> Option<Bytes> {
        Some(seats_payload(vote))
    }

    async fn effects(&mut self) -> Effects {
        self.seats().await
    }

    async fn records(&mut self) -> u64 {
        self.rows().await
    }
}

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
    holder.batch_execute(&format!("BEGIN; LOCK TABLE {}.seats", schema(&subject).await)).await.unwrap();
    assert_eq!(refused(table.prepare(prepare(6, "one seat")).await), ("55P03".to_owned(), true));
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(vote(&table, 6, "one seat").await, Vote::Refused);
    assert_eq!(vote(&table, 7, "one seat").await, Vote::Prepared);
}

async fn schema(subject: &InPostgres) -> String {
    texts(&subject.client, "SELECT quote_ident(current_schema())").await.remove(0).unwrap()
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
        let table = format!("{}.seats", schema(&subject).await);
        holder.batch_execute(&format!("BEGIN; UPDATE {table} SET confirmed = confirmed + 1")).await.unwrap();
        let restored = Stamp { incarnation: 3, ..STAMP };
        let release = async {
            subject.others_wait(1).await;
            let raise = new.prepare(Prepare { stamp: restored, ..prepare(3, "is there a seat?") });
            let release = async {
                subject.others_wait(2).await;
                holder.batch_execute("ROLLBACK").await.unwrap();
            };
            let (raised, ()) = tokio::join!(raise, release);
            (raised.unwrap().vote, new.recover(9).await.unwrap())
        };
        let (promise, (raised, held)) = tokio::join!(vote(old, 2, "one seat"), release);
        assert_eq!((promise, raised), (Vote::Prepared, Vote::ReadOnly), "{isolation:?}");
        assert_eq!(held, [branch(2)], "{isolation:?}");
        let stale = old.prepare(prepare(4, "one seat")).await;
        assert!(
            matches!(stale, Err(NotAnswered::StaleIncarnation { message: 2, seen: 3 })),
            "{isolation:?}: {stale:?}"
        );
    }
}

/// A prepare that was long under way waits for the transaction by which its tombstone goes.
#[tokio::test]
async fn a_tombstone_that_goes_leaves_the_horizon_behind() {
    let server = server().await;
    for isolation in LEVELS {
        let subject = InPostgres::new(&server, isolation).await;
        assert_eq!(subject.table.rollback(settle(1)).await.unwrap().settlement, Settlement::Done);
        let purger = server.client("bank").await;
        let schema = schema(&subject).await;
        let purge = format!(
            "SET search_path = {schema}; BEGIN; UPDATE verdict_horizon SET horizon_ms = {}; DELETE FROM verdict_branch",
            NOW + 1000
        );
        purger.batch_execute(&purge).await.unwrap();
        let late = async { subject.table.prepare(prepare(1, "one seat")).await.unwrap().vote };
        let commit = async {
            subject.others_wait(1).await;
            purger.batch_execute("COMMIT").await.unwrap();
        };
        assert_eq!(tokio::join!(late, commit).0, Vote::Refused, "{isolation:?}");
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
    root.batch_execute(verdict_client::resource::postgres::table::SCHEMA).await.unwrap();
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
