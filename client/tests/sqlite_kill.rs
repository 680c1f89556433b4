//! kill -9 of a participant's process between vote and commit: what it has said is there when it is back.

#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use rusqlite::Connection;
use verdict_client::{
    BranchId, ClusterId, LogTime, Settlement, Vote, Xid,
    participant::{Prepare, ResourceManager, Settle, Stamp},
    resource::{
        Reservation,
        sqlite::{BranchTable, Handler, TableOptions},
    },
};

const DATABASE: &str = "VERDICT_TEST_DATABASE";
const FIRST: &str = "VERDICT_TEST_FIRST";
const KILLS: u64 = 20;

/// One row a branch: 1 reserved, 2 confirmed.
#[derive(Debug)]
struct Rows;

fn number(branch: BranchId) -> u64 {
    u64::from_be_bytes(branch.xid.as_bytes()[8..].try_into().unwrap()) & u64::from(u32::MAX)
}

impl Handler for Rows {
    fn reserve(&mut self, database: &Connection, branch: BranchId, _: &[u8]) -> rusqlite::Result<Reservation> {
        database.execute("INSERT INTO work VALUES (?1, 1)", [u32::try_from(number(branch)).unwrap()])?;
        Ok(Reservation::Reserved)
    }

    fn confirm(&mut self, database: &Connection, branch: BranchId, _: &[u8]) -> rusqlite::Result<()> {
        let changed = database
            .execute("UPDATE work SET state = state + 1 WHERE n = ?1", [u32::try_from(number(branch)).unwrap()])?;
        assert_eq!(changed, 1);
        Ok(())
    }

    fn cancel(&mut self, database: &Connection, branch: BranchId, _: &[u8]) -> rusqlite::Result<()> {
        database.execute("DELETE FROM work WHERE n = ?1", [u32::try_from(number(branch)).unwrap()]).map(drop)
    }
}

fn branch(n: u64) -> BranchId {
    BranchId { xid: Xid::new(LogTime::from_millis(1_700_000_000_000 + n), 0, n), number: 1 }
}

const STAMP: Stamp = Stamp { cluster: ClusterId([7; 16]), incarnation: 1, term: 1, horizon: LogTime::from_millis(1) };

fn settle(n: u64) -> Settle {
    Settle { stamp: STAMP, branch: branch(n), resource: "work".try_into().unwrap(), payload: Bytes::new() }
}

async fn prepare(table: &BranchTable, n: u64) -> Vote {
    let resource = "work".try_into().unwrap();
    let payload = Bytes::from_static(b"work");
    let vote_timeout = Duration::from_secs(60);
    table
        .prepare(Prepare { stamp: STAMP, branch: branch(n), resource, payload, vote_timeout, credential: None })
        .await
        .unwrap()
        .vote
}

fn open(path: &Path) -> BranchTable {
    BranchTable::open(path, Rows, TableOptions::default()).unwrap()
}

/// Prepares one branch after the other, several at a time, commits every other one, and says what it was told.
async fn child(path: &Path, first: u64) {
    let table = open(path);
    let say = |what: String| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{what}").unwrap();
        out.flush().unwrap();
    };
    stream::iter(first..)
        .for_each_concurrent(8, |n| {
            let table = &table;
            async move {
                assert_eq!(prepare(table, n).await, Vote::Prepared);
                say(format!("prepared {n}"));
                if n % 2 == 0 {
                    assert_eq!(table.commit(settle(n)).await.unwrap().settlement, Settlement::Done);
                    say(format!("committed {n}"));
                }
            }
        })
        .await;
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Sends SIGKILL.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn what_was_said_before_kill_9_is_there_after_it() {
    if let (Ok(path), Ok(first)) = (env::var(DATABASE), env::var(FIRST)) {
        return child(path.as_ref(), first.parse().unwrap()).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("work.db");
    let database = Connection::open(&path).unwrap();
    database.execute_batch("CREATE TABLE work (n INTEGER PRIMARY KEY, state INTEGER)").unwrap();
    let row = |n: u64| -> Option<u8> {
        let n = u32::try_from(n).unwrap();
        database.query_row("SELECT state FROM work WHERE n = ?1", [n], |row| row.get(0)).ok()
    };

    let (mut kept, mut finished) = (0, 0);
    for kill in 0..KILLS {
        let first = kill * 100_000;
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "what_was_said_before_kill_9_is_there_after_it", "--nocapture"])
            .env(DATABASE, &path)
            .env(FIRST, first.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = Process(child);
        let out = BufReader::new(child.0.stdout.take().unwrap());
        let (mut prepared, mut committed) = (Vec::new(), Vec::new());
        let mut lines = out.lines().map_while(Result::ok).filter_map(|line| {
            let (what, n) = line.split_once(' ')?;
            Some((what.to_owned(), n.parse::<u64>().ok()?))
        });
        let mut hear = |(what, n): (String, u64)| match what.as_str() {
            "prepared" => prepared.push(n),
            "committed" => committed.push(n),
            _ => {}
        };
        lines.by_ref().take(20 + usize::try_from(kill).unwrap() * 7).for_each(&mut hear);
        drop(child);
        // What it had said before it died.
        lines.for_each(&mut hear);
        assert!(prepared.len() >= 10, "kill {kill}: it said too little");

        let table = open(&path);
        let held: Vec<u64> = table.recover(usize::MAX).await.unwrap().into_iter().map(number).collect();
        for n in &committed {
            assert_eq!(row(*n), Some(2), "kill {kill}: {n} was committed");
            assert!(!held.contains(n));
            // The acknowledgement may have been lost: told again, it is done once.
            assert_eq!(table.commit(settle(*n)).await.unwrap().settlement, Settlement::Done);
            assert_eq!(row(*n), Some(2));
        }
        for n in prepared.iter().filter(|n| !committed.contains(n)) {
            // An even one may have been committed without having said so.
            assert!(held.contains(n) || (n % 2 == 0 && row(*n) == Some(2)), "kill {kill}: {n} was prepared");
        }
        for n in held {
            assert_eq!(row(n), Some(1), "kill {kill}: {n} is held, so it is reserved");
            assert_eq!(prepare(&table, n).await, Vote::Prepared);
            assert_eq!(table.commit(settle(n)).await.unwrap().settlement, Settlement::Done);
            assert_eq!(row(n), Some(2));
            kept += 1;
        }
        finished += committed.len();
        assert!(table.recover(1).await.unwrap().is_empty());
    }
    println!("{KILLS} kills: {finished} branches finished before, {kept} held and finished after");
    assert!(kept > 0, "never was anything in doubt at a kill");
}
