//! A service that sells seats from a PostgreSQL database, as a branch table's.

#![allow(dead_code, reason = "each test uses a part")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use verdict_client::{
    BranchId, ResourceName, Vote,
    conformance::{Effects, Subject},
    participant::ResourceManager,
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

use super::{
    decide,
    postgres::{APP, PostgresServer, texts},
    seats_payload,
};

/// Seats, all in one row.
#[derive(Default)]
pub(crate) struct Seats {
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
pub(crate) struct InPostgres {
    pub(crate) dsn: String,
    pub(crate) client: Client,
    pub(crate) table: BranchTable,
    pub(crate) options: TableOptions,
    pub(crate) conflicts: Arc<AtomicU32>,
}

impl InPostgres {
    pub(crate) async fn new(server: &PostgresServer, isolation: IsolationLevel) -> Self {
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
    pub(crate) async fn another(&self) -> BranchTable {
        open(&self.dsn, self.options, &self.conflicts).await.unwrap()
    }

    pub(crate) async fn seats(&self) -> Effects {
        let row = self.client.query_one("SELECT reserved, confirmed FROM seats", &[]).await.unwrap();
        let count = |at| u64::try_from(row.get::<_, i32>(at)).unwrap();
        Effects { reserved: count(0), confirmed: count(1) }
    }

    pub(crate) async fn schema(&self) -> String {
        texts(&self.client, "SELECT quote_ident(current_schema())").await.remove(0).unwrap()
    }

    pub(crate) async fn rows(&self) -> u64 {
        let count = self.client.query_one("SELECT count(*) FROM verdict_branch", &[]).await.unwrap();
        u64::try_from(count.get::<_, i64>(0)).unwrap()
    }

    /// Waits until so many others wait for locks of whatever kind.
    pub(crate) async fn others_wait(&self, others: i64) {
        let look =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        let by = Instant::now() + Duration::from_secs(20);
        while self.client.query_one(look, &[]).await.unwrap().get::<_, i64>(0) != others {
            assert!(Instant::now() < by, "{others} do not wait");
            tokio::task::yield_now().await;
        }
    }
}

pub(crate) fn app_pool(dsn: &str) -> Pool {
    pool(dsn, 8).unwrap()
}

pub(crate) async fn open(
    dsn: &str,
    options: TableOptions,
    conflicts: &Arc<AtomicU32>,
) -> Result<BranchTable, OpenError> {
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
