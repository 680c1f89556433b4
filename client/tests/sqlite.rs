//! The branch table over SQLite: conformance, settings, growth, errors.

#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    io::{Seek, SeekFrom, Write},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use rusqlite::Connection;
use tempfile::TempDir;
use verdict_client::{
    BranchId, ClusterId, LogTime, ResourceName, Settlement, Vote, Xid,
    conformance::{self, Effects, Subject},
    participant::{Prepare, ResourceManager, Settle, Stamp},
    resource::{
        Reservation,
        sqlite::{BranchTable, Handler, OpenError, TableOptions, check_settings},
    },
};

use common::{decide, seats_payload};

#[derive(Debug)]
struct SeatTable;

impl Handler for SeatTable {
    fn reserve(&mut self, database: &Connection, _: BranchId, payload: &[u8]) -> rusqlite::Result<Reservation> {
        // Refused and read-only must undo this.
        database.execute("UPDATE seats SET reserved = reserved + 1", [])?;
        match payload {
            b"panic" => panic!("the service has a bug"),
            b"commit" => {
                database.execute_batch("COMMIT")?;
                Ok(Reservation::Reserved)
            }
            b"error" => database.execute("UPDATE no_such_table SET x = 1", []).map(|_| Reservation::Reserved),
            _ => Ok(decide(payload)),
        }
    }

    fn confirm(&mut self, database: &Connection, _: BranchId, payload: &[u8]) -> rusqlite::Result<()> {
        assert_eq!(payload, b"one seat", "the payload of the reservation");
        database.execute("UPDATE seats SET reserved = reserved - 1, confirmed = confirmed + 1", []).map(drop)
    }

    fn cancel(&mut self, database: &Connection, _: BranchId, payload: &[u8]) -> rusqlite::Result<()> {
        assert_eq!(payload, b"one seat", "the payload of the reservation");
        database.execute("UPDATE seats SET reserved = reserved - 1", []).map(drop)
    }
}

struct InSqlite {
    directory: TempDir,
    table: BranchTable,
}

impl InSqlite {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("seats.db");
        let database = Connection::open(&path).unwrap();
        database
            .execute_batch("CREATE TABLE seats (reserved INTEGER, confirmed INTEGER); INSERT INTO seats VALUES (0, 0)")
            .unwrap();
        let table = BranchTable::open(path, SeatTable, TableOptions::default()).unwrap();
        Self { directory, table }
    }

    fn connection(&self) -> Connection {
        Connection::open(self.directory.path().join("seats.db")).unwrap()
    }

    fn seats(&self) -> Effects {
        let count = |row: &rusqlite::Row<'_>, at| row.get::<_, u32>(at).map(u64::from);
        let read = |row: &rusqlite::Row<'_>| Ok(Effects { reserved: count(row, 0)?, confirmed: count(row, 1)? });
        self.connection().query_row("SELECT reserved, confirmed FROM seats", [], read).unwrap()
    }

    fn rows(&self) -> u64 {
        let count = "SELECT count(*) FROM verdict_branch";
        self.connection().query_row(count, [], |row| row.get::<_, u32>(0)).unwrap().into()
    }
}

#[tonic::async_trait]
impl Subject for InSqlite {
    fn manager(&self) -> Arc<dyn ResourceManager> {
        Arc::new(self.table.clone())
    }

    async fn restart(&mut self) {
        let path = self.directory.path().join("seats.db");
        self.table = BranchTable::open(path, SeatTable, TableOptions::default()).unwrap();
    }

    fn resource(&self) -> ResourceName {
        "seats".try_into().unwrap()
    }

    fn payload(&self, vote: Vote) -> Option<Bytes> {
        Some(seats_payload(vote))
    }

    async fn effects(&mut self) -> Effects {
        self.seats()
    }

    async fn records(&mut self) -> u64 {
        self.rows()
    }
}

/// An error with its causes.
fn said(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", said(source)),
        None => error.to_string(),
    }
}

const NOW: u64 = 1_700_000_000_000;

fn stamp(horizon: u64) -> Stamp {
    Stamp { cluster: ClusterId([7; 16]), incarnation: 1, term: 1, horizon: LogTime::from_millis(horizon) }
}

fn branch(n: u64) -> BranchId {
    BranchId { xid: Xid::new(LogTime::from_millis(NOW + n), 0, n), number: 1 }
}

fn prepare(n: u64, payload: &'static [u8]) -> Prepare {
    let resource = "seats".try_into().unwrap();
    let vote_timeout = Duration::from_secs(60);
    Prepare {
        stamp: stamp(0),
        branch: branch(n),
        resource,
        payload: Bytes::from_static(payload),
        vote_timeout,
        credential: None,
    }
}

fn settle(n: u64) -> Settle {
    Settle { stamp: stamp(0), branch: branch(n), resource: "seats".try_into().unwrap(), payload: Bytes::new() }
}

#[tokio::test]
async fn sqlite_conforms() {
    assert_eq!(conformance::run(async || InSqlite::new()).await, Ok(()));
}

#[test]
fn settings_under_which_a_vote_is_not_durable_are_refused() {
    let in_memory = BranchTable::open(":memory:", SeatTable, TableOptions::default()).unwrap_err();
    assert!(matches!(&in_memory, OpenError::Setting { setting: "journal_mode", found, .. } if found == "memory"));

    let subject = InSqlite::new();
    let database = subject.connection();
    check_settings(&database).unwrap();
    database.execute_batch("PRAGMA synchronous = NORMAL").unwrap();
    let normal = check_settings(&database).unwrap_err().to_string();
    assert!(normal.starts_with("synchronous is NORMAL, must be FULL"), "{normal}");
}

#[test]
fn a_table_of_another_cluster_or_a_newer_format_is_refused() {
    let subject = InSqlite::new();
    let path = subject.directory.path().join("seats.db");
    let of = |cluster| TableOptions { cluster: Some(ClusterId([cluster; 16])), ..TableOptions::default() };
    BranchTable::open(&path, SeatTable, of(1)).unwrap();
    BranchTable::open(&path, SeatTable, of(1)).unwrap();
    assert!(matches!(BranchTable::open(&path, SeatTable, of(2)), Err(OpenError::Cluster { .. })));
    subject.connection().execute("UPDATE verdict_stamp SET format = 2", []).unwrap();
    let newer = BranchTable::open(&path, SeatTable, of(1));
    assert!(matches!(newer, Err(OpenError::Newer { found: 2, known: 1 })));
}

#[tokio::test]
async fn one_calls_error_is_no_vote_and_does_not_hurt_the_batch() {
    let subject = InSqlite::new();
    let table = &subject.table;
    const KINDS: [&[u8]; 4] = [b"one seat", b"panic", b"error", b"sold out"];
    let calls = (0..40).zip(KINDS.iter().cycle()).map(|(n, kind)| table.prepare(prepare(n, kind)));
    let answers = join_all(calls).await;
    for (n, answer) in answers.iter().enumerate() {
        match n % 4 {
            0 => assert_eq!(answer.as_ref().unwrap().vote, Vote::Prepared),
            1 => assert!(answer.as_ref().unwrap_err().to_string().contains("panicked"), "{answer:?}"),
            2 => assert!(said(answer.as_ref().unwrap_err()).contains("no such table"), "{answer:?}"),
            _ => assert_eq!(answer.as_ref().unwrap().vote, Vote::Refused),
        }
    }
    assert_eq!(subject.seats(), Effects { reserved: 10, confirmed: 0 });
    assert_eq!(table.recover(100).await.unwrap().len(), 10);
}

#[tokio::test]
async fn a_handler_that_ends_the_transaction_is_told_so() {
    let subject = InSqlite::new();
    let error = subject.table.prepare(prepare(1, b"commit")).await.unwrap_err().to_string();
    assert!(error.contains("neither begin nor end"), "{error}");
    assert_eq!(subject.table.prepare(prepare(2, b"one seat")).await.unwrap().vote, Vote::Prepared);
}

#[tokio::test]
async fn a_locked_database_is_unavailable_and_then_goes_on() {
    let subject = InSqlite::new();
    let path = subject.directory.path().join("seats.db");
    let options = TableOptions { busy_timeout: Duration::from_millis(20), ..TableOptions::default() };
    let table = BranchTable::open(path, SeatTable, options).unwrap();
    let other = subject.connection();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = table.prepare(prepare(1, b"one seat")).await.unwrap_err().to_string();
    assert!(error.contains("locked by another connection"), "{error}");
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(table.prepare(prepare(1, b"one seat")).await.unwrap().vote, Vote::Prepared);
}

#[tokio::test]
async fn a_full_disk_is_unavailable_and_keeps_what_was_promised() {
    let subject = InSqlite::new();
    let pages: i64 = subject.connection().pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    let table = BranchTable::open(
        subject.directory.path().join("seats.db"),
        Full { pages: pages + 4, inner: SeatTable },
        TableOptions::default(),
    )
    .unwrap();
    let mut promised = 0;
    let error = loop {
        match table.prepare(prepare(promised, b"one seat")).await {
            Ok(voted) => assert_eq!(voted.vote, Vote::Prepared),
            Err(error) => break error.to_string(),
        }
        promised += 1;
        assert!(promised < 10_000, "the disk never got full");
    };
    assert!(error.contains("is full: make room"), "{error}");
    assert_eq!(subject.seats(), Effects { reserved: promised, confirmed: 0 });
    // Promises can still be kept: settling shrinks the branch's record.
    assert_eq!(table.commit(settle(0)).await.unwrap().settlement, Settlement::Done);
    assert_eq!(table.recover(10_000).await.unwrap().len() as u64, promised - 1);
}

/// A disk with room for so many pages.
struct Full {
    pages: i64,
    inner: SeatTable,
}

impl Handler for Full {
    fn reserve(&mut self, database: &Connection, branch: BranchId, payload: &[u8]) -> rusqlite::Result<Reservation> {
        database.query_row(&format!("PRAGMA max_page_count = {}", self.pages), [], |_| Ok(()))?;
        self.inner.reserve(database, branch, payload)
    }

    fn confirm(&mut self, database: &Connection, branch: BranchId, payload: &[u8]) -> rusqlite::Result<()> {
        self.inner.confirm(database, branch, payload)
    }

    fn cancel(&mut self, database: &Connection, branch: BranchId, payload: &[u8]) -> rusqlite::Result<()> {
        self.inner.cancel(database, branch, payload)
    }
}

#[tokio::test]
async fn a_damaged_database_stops_the_table() {
    let subject = InSqlite::new();
    let path = subject.directory.path().join("seats.db");
    assert_eq!(subject.table.prepare(prepare(1, b"one seat")).await.unwrap().vote, Vote::Prepared);
    let database = subject.connection();
    let number = |sql| database.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap();
    let root = number("SELECT rootpage FROM sqlite_schema WHERE name = 'verdict_branch'");
    let page_size = number("PRAGMA page_size");
    assert_eq!(number("PRAGMA wal_checkpoint(TRUNCATE)"), 0);
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(u64::from((root - 1) * page_size))).unwrap();
    file.write_all(&vec![0xFF; page_size as usize]).unwrap();

    let table = BranchTable::open(path, SeatTable, TableOptions::default()).unwrap();
    let damaged = table.prepare(prepare(2, b"one seat")).await.unwrap_err().to_string();
    assert!(damaged.contains("is damaged: restore it"), "{damaged}");
    let stopped = table.commit(settle(1)).await.unwrap_err().to_string();
    assert!(stopped.contains("stopped after an earlier error, restart the service"), "{stopped}");
}

#[tokio::test]
async fn what_the_horizon_has_passed_goes_in_bounded_batches_and_what_is_promised_stays() {
    let subject = InSqlite::new();
    let table = &subject.table;
    let count = 700;
    join_all((0..count).map(|n| table.prepare(prepare(n, b"one seat")))).await;
    join_all((1..count).map(|n| table.commit(settle(n)))).await;
    assert_eq!(subject.rows(), count);

    let passing = |n| Settle { stamp: stamp(NOW + 10_000), ..settle(n) };
    let mut rows = count;
    for _ in 0..3 {
        table.rollback(passing(count + 1)).await.unwrap();
        let left = subject.rows();
        assert!(left < rows && rows - left <= 256, "{rows} rows became {left}");
        rows = left;
    }
    assert_eq!(rows, 1, "only the promise is left");
    assert_eq!(table.recover(9).await.unwrap(), [branch(0)]);
    // Finished behind the horizon: kept a while longer, for the repeats that are still under way.
    assert_eq!(table.commit(passing(0)).await.unwrap().settlement, Settlement::Done);
    assert_eq!(table.commit(passing(0)).await.unwrap().settlement, Settlement::Done);
    let hour_later = Settle { stamp: stamp(NOW + 10_000 + 3_700_000), ..settle(0) };
    assert_eq!(table.commit(hour_later).await.unwrap().settlement, Settlement::Done);
    assert_eq!(subject.rows(), 0);
}
