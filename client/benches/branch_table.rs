//! How many branches a second a SQLite branch table takes through prepare and commit, with the bare file beside it:
//! `cargo bench -p verdict-client --features sqlite`.

#![allow(clippy::unwrap_used, reason = "a benchmark")]

use std::{
    fs::File,
    io::Write,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use rusqlite::Connection;
use verdict_client::{
    BranchId, ClusterId, LogTime, Vote, Xid,
    participant::{Prepare, ResourceManager, Settle, Settled, Stamp},
    resource::{
        Reservation,
        sqlite::{BranchTable, Handler, TableOptions},
    },
};

#[derive(Debug)]
struct Seats;

impl Handler for Seats {
    fn reserve(&mut self, database: &Connection, branch: BranchId, payload: &[u8]) -> rusqlite::Result<Reservation> {
        database.prepare_cached("INSERT INTO held VALUES (?1, ?2)")?.execute((branch.xid.as_bytes(), payload))?;
        Ok(Reservation::Reserved)
    }

    fn confirm(&mut self, database: &Connection, branch: BranchId, payload: &[u8]) -> rusqlite::Result<()> {
        database.prepare_cached("DELETE FROM held WHERE xid = ?1")?.execute([branch.xid.as_bytes()])?;
        database.prepare_cached("INSERT INTO sold VALUES (?1, ?2)")?.execute((branch.xid.as_bytes(), payload))?;
        Ok(())
    }

    fn cancel(&mut self, database: &Connection, branch: BranchId, _: &[u8]) -> rusqlite::Result<()> {
        database.prepare_cached("DELETE FROM held WHERE xid = ?1")?.execute([branch.xid.as_bytes()])?;
        Ok(())
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(bench());
}

async fn bench() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    println!("bare file, one fdatasync a write of 400 bytes: p50 {:?}", bare(&directory.path().join("bare")));
    let database = Connection::open(directory.path().join("seats.db")).unwrap();
    database
        .execute_batch(
            "PRAGMA journal_mode = WAL; CREATE TABLE held (xid BLOB PRIMARY KEY, seat BLOB) WITHOUT ROWID; \
             CREATE TABLE sold (xid BLOB PRIMARY KEY, seat BLOB) WITHOUT ROWID;",
        )
        .unwrap();
    let table = BranchTable::open(directory.path().join("seats.db"), Seats, TableOptions::default()).unwrap();
    let mut next = 0;
    for at_once in [1, 16, 64, 256] {
        let count = 500 + 100 * at_once as u64;
        let start = Instant::now();
        let mut times: Vec<Duration> =
            stream::iter(next..next + count).map(|n| branch(&table, n)).buffer_unordered(at_once).collect().await;
        let took = start.elapsed();
        next += count;
        times.sort();
        let rate = count as f64 / took.as_secs_f64();
        let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
        println!("{at_once:>3} at once: {rate:>6.0} branches/s, prepare p50 {p50:?} p99 {p99:?}");
    }
}

/// Prepares and commits one branch; returns how long the vote took.
async fn branch(table: &BranchTable, n: u64) -> Duration {
    let stamp = Stamp { cluster: ClusterId([7; 16]), incarnation: 1, term: 1, horizon: LogTime::default() };
    let branch = BranchId { xid: Xid::new(LogTime::from_millis(1_700_000_000_000 + n), 0, n), number: 1 };
    let payload = Bytes::from_static(b"bus 42, seat 7, alice");
    let resource: verdict_client::ResourceName = "seats".try_into().unwrap();
    let vote_timeout = Duration::from_secs(60);
    let start = Instant::now();
    let prepare =
        Prepare { stamp, branch, resource: resource.clone(), payload: payload.clone(), vote_timeout, credential: None };
    assert_eq!(table.prepare(prepare).await.unwrap().vote, Vote::Prepared);
    let took = start.elapsed();
    assert_eq!(table.commit(Settle { stamp, branch, resource, payload }).await.unwrap(), Settled::DONE);
    took
}

fn bare(path: &std::path::Path) -> Duration {
    let mut file = File::create(path).unwrap();
    let mut times: Vec<Duration> = (0..500)
        .map(|_| {
            let start = Instant::now();
            file.write_all(&[7; 400]).unwrap();
            file.sync_data().unwrap();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}
