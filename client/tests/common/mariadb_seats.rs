//! A service that sells seats from a MariaDB database, as a branch table's.

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
        mysql::{
            mysql_async::{Conn, IsolationLevel, Result as MysqlResult, Transaction, prelude::Queryable},
            pool,
            table::{BranchTable, Handler, OpenError, TableOptions},
        },
    },
};

use super::{decide, mariadb::MariaDb, seats_payload};

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

const MAKE_WAY: &str = "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'make way'";

#[tonic::async_trait]
impl Handler for Seats {
    async fn reserve(&self, database: &mut Transaction<'_>, _: BranchId, payload: &[u8]) -> MysqlResult<Reservation> {
        // Refused and read-only must undo this.
        database.query_drop("UPDATE seats SET reserved = reserved + 1").await?;
        let first = match payload {
            b"panic" => panic!("the service has a bug"),
            b"end it" => "COMMIT",
            b"end it and begin another" => "COMMIT; START TRANSACTION",
            b"give up" => "ROLLBACK",
            b"a table more" => "CREATE TABLE more (id INT)",
            b"no such table" => "UPDATE no_such_table SET x = 1",
            b"not allowed" => "UPDATE seats SET confirmed = -1",
            b"a trigger's no" => "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'sold out'",
            b"make way" => MAKE_WAY,
            b"its row" => "DELETE FROM verdict_branch",
            b"go on" => {
                drop(database.query_drop("UPDATE no_such_table SET x = 1").await);
                return Ok(Reservation::Reserved);
            }
            b"one after two" => "SELECT 1 FROM lockable WHERE id = 2 FOR UPDATE",
            b"two after one" => "SELECT 1 FROM lockable WHERE id = 1 FOR UPDATE",
            _ => return Ok(decide(payload)),
        };
        database.query_drop(first).await?;
        let then = match payload {
            b"one after two" => "SELECT 1 FROM lockable WHERE id = 1 FOR UPDATE",
            b"two after one" => "SELECT 1 FROM lockable WHERE id = 2 FOR UPDATE",
            _ => return Ok(Reservation::Reserved),
        };
        self.both_hold_one().await;
        database.query_drop(then).await?;
        Ok(Reservation::Reserved)
    }

    async fn confirm(&self, database: &mut Transaction<'_>, _: BranchId, payload: &[u8]) -> MysqlResult<()> {
        assert_eq!(payload, b"one seat", "the payload of the reservation");
        database.query_drop("UPDATE seats SET reserved = reserved - 1, confirmed = confirmed + 1").await?;
        let again = |left: u32| left.checked_sub(1);
        if self.conflicts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, again).is_ok() {
            database.query_drop(MAKE_WAY).await?;
        }
        Ok(())
    }

    async fn cancel(&self, database: &mut Transaction<'_>, _: BranchId, payload: &[u8]) -> MysqlResult<()> {
        assert_eq!(payload, b"one seat", "the payload of the reservation");
        database.query_drop("UPDATE seats SET reserved = reserved - 1").await
    }
}

const TABLES: &str = "CREATE TABLE seats (reserved INT NOT NULL, confirmed INT NOT NULL CHECK (confirmed >= 0)) ENGINE=InnoDB; \
    INSERT INTO seats VALUES (0, 0); CREATE TABLE lockable (id INT PRIMARY KEY) ENGINE=InnoDB; \
    INSERT INTO lockable VALUES (1), (2)";

/// A service with a database of its own on a server that others use, too.
pub(crate) struct InMariaDb<'a> {
    server: &'a MariaDb,
    pub(crate) database: String,
    pub(crate) table: BranchTable,
    pub(crate) options: TableOptions,
    pub(crate) conflicts: Arc<AtomicU32>,
}

impl<'a> InMariaDb<'a> {
    pub(crate) async fn new(server: &'a MariaDb, isolation: Option<IsolationLevel>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let database = format!("the-seats-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let create = format!("CREATE DATABASE `{database}`; USE `{database}`; {TABLES}");
        server.root("").await.query_drop(create).await.unwrap();
        let options = TableOptions { isolation, ..TableOptions::default() };
        let conflicts = Arc::default();
        let table = open(&server.url("root", &database), options, &conflicts).await.unwrap();
        Self { server, database, table, options, conflicts }
    }

    /// Another process of the service.
    pub(crate) async fn another(&self) -> BranchTable {
        open(&self.server.url("root", &self.database), self.options, &self.conflicts).await.unwrap()
    }

    pub(crate) async fn client(&self) -> Conn {
        self.server.root(&self.database).await
    }

    pub(crate) async fn run(&self, statements: &str) {
        self.client().await.query_drop(statements).await.unwrap();
    }

    pub(crate) async fn seats(&self) -> Effects {
        let seats = self.client().await.query_first("SELECT reserved, confirmed FROM seats").await.unwrap();
        let (reserved, confirmed): (u64, u64) = seats.unwrap_or_default();
        Effects { reserved, confirmed }
    }

    pub(crate) async fn rows(&self) -> u64 {
        self.client().await.query_first("SELECT COUNT(*) FROM verdict_branch").await.unwrap().unwrap()
    }

    /// Waits until so many transactions wait for locks.
    pub(crate) async fn others_wait(&self, others: u64) {
        let look = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'";
        let mut client = self.client().await;
        let by = Instant::now() + Duration::from_secs(20);
        while client.query_first::<u64, _>(look).await.unwrap() != Some(others) {
            assert!(Instant::now() < by, "{others} do not wait");
            // InnoDB refreshes that table ten times a second, and not while it is being looked at.
            tokio::time::sleep(Duration::from_millis(110)).await;
        }
    }
}

pub(crate) async fn open(
    url: &str,
    options: TableOptions,
    conflicts: &Arc<AtomicU32>,
) -> Result<BranchTable, OpenError> {
    let seats = Seats { conflicts: conflicts.clone(), ..Seats::default() };
    BranchTable::open(pool(url, 8).unwrap(), seats, options).await
}

#[tonic::async_trait]
impl Subject for InMariaDb<'_> {
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
