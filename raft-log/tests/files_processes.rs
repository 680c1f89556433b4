//! Real processes on a real disk: killed in the middle, and watched at the system calls.
//!
//! ```text
//!   this test ── starts itself as a child ──► appends, prints "acked N" when told that N is durable
//!        └ kill -9, opens the files: all that was printed is there
//! ```
#![cfg(not(madsim))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use verdict_raft_log::files::{LogFiles, LogOptions, LogWriter, RealDisk, Record, Spawn, WriterOptions};

const CHILD_DIR: &str = "VERDICT_TEST_CHILD_DIR";
const CHILD_APPENDS: &str = "VERDICT_TEST_CHILD_APPENDS";

fn options() -> LogOptions {
    LogOptions { id: 7, segment_bytes: 64 << 10 }
}

/// A body that tells where it belongs.
fn body(index: u64) -> Bytes {
    let mut rng = StdRng::seed_from_u64(index);
    let len = if index.is_multiple_of(40) { rng.random_range(2000..9000) } else { rng.random_range(0..300) };
    (0..len).map(|_| rng.random::<u8>()).collect()
}

/// One line in one write, so that a kill leaves it whole or not at all.
fn say(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

/// What the other tests of this file start as a process of its own; without them there is nothing to do.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let appends: Option<u64> = std::env::var(CHILD_APPENDS).ok().map(|count| count.parse().unwrap());
    let (files, recovery) = LogFiles::open(Arc::new(RealDisk::open(dir).unwrap()), options()).unwrap();
    assert_eq!(recovery.damage, None);
    let mut ballots = files.ballot().map_or(0, |ballot| u64::from_le_bytes(ballot[..].try_into().unwrap()));
    let writer = LogWriter::start(files, Spawn::Thread, WriterOptions::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        if let Some(appends) = appends {
            for index in 0..appends {
                let (done, wait) = tokio::sync::oneshot::channel();
                let flushed = move |result: std::io::Result<()>| {
                    result.unwrap();
                    say(&format!("acked {index}"));
                    done.send(()).unwrap();
                };
                writer.append(vec![Record::new(index, body(index))], Box::new(flushed)).await.unwrap();
                wait.await.unwrap();
            }
            return;
        }
        for round in 0_u64.. {
            let next = writer.records().end;
            let count = 1 + next % 7;
            let records = (next..next + count).map(|index| Record::new(index, body(index))).collect();
            let flushed = move |result: std::io::Result<()>| {
                result.unwrap();
                say(&format!("acked {}", next + count - 1));
            };
            writer.append(records, Box::new(flushed)).await.unwrap();
            if round % 10 == 9 {
                ballots += 1;
                writer.save_ballot(Bytes::copy_from_slice(&ballots.to_le_bytes())).await.unwrap();
                say(&format!("ballot {ballots}"));
            }
            if round % 50 == 49 && next > 400 {
                writer.purge_up_to(next - 400, Bytes::new()).await.unwrap();
                say(&format!("purged {}", next - 400));
            }
        }
    });
}

fn child_command(dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture"]).env(CHILD_DIR, dir).env_remove(CHILD_APPENDS);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

#[derive(Default)]
struct Said {
    acked: Option<u64>,
    ballot: u64,
    purged: Option<u64>,
}

impl Said {
    fn hear(&mut self, line: &str) -> bool {
        let Some((what, number)) = line.split_once(' ') else { return false };
        let Ok(number) = number.parse() else { return false };
        match what {
            "acked" => self.acked = Some(number),
            "ballot" => self.ballot = number,
            "purged" => self.purged = Some(number),
            _ => return false,
        }
        true
    }
}

#[test]
fn what_was_acknowledged_is_there_after_each_of_50_kills() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = StdRng::seed_from_u64(50);
    let mut said = Said::default();
    for kill in 0..50 {
        let mut child = child_command(dir.path()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let enough = rng.random_range(1..120);
        let (mut heard, mut line) = (0, String::new());
        while heard < enough {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "the child ended by itself");
            heard += usize::from(said.hear(line.trim_end()));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        rest.lines().for_each(|line| _ = said.hear(line));

        let (files, recovery) = LogFiles::open(Arc::new(RealDisk::open(dir.path()).unwrap()), options()).unwrap();
        assert_eq!(recovery.damage, None, "kill {kill}");
        let there = files.log.records();
        assert!(Some(there.end) > said.acked, "kill {kill}: {there:?}, and {:?} was acknowledged", said.acked);
        assert!(there.start <= files.log.purged().map_or(0, |purged| purged.index + 1));
        assert!(files.log.purged().map(|purged| purged.index) >= said.purged, "kill {kill}");
        let records = files.log.read(there.clone(), usize::MAX).unwrap();
        assert!(records.iter().map(|record| record.index).eq(there), "kill {kill}");
        for record in records {
            assert_eq!(record.body, body(record.index), "kill {kill}: record {}", record.index);
        }
        let ballot = files.ballot().map_or(0, |ballot| u64::from_le_bytes(ballot[..].try_into().unwrap()));
        assert!(ballot >= said.ballot, "kill {kill}");
    }
    assert!(said.acked > Some(1000) && said.purged.is_some(), "the children did too little");
}

/// A system call of the trace, of the thread that drives the files.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    Write,
    Sync,
    Acked(u64),
}

fn parse_trace(trace: &str) -> Vec<Call> {
    let mut calls = Vec::new();
    // By thread: a sync that has begun and whose end another thread's call interrupted in the trace.
    let mut begun = std::collections::BTreeMap::new();
    for line in trace.lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        if call.starts_with("pwrite64(") && call.contains(".seg>,") {
            calls.push(Call::Write);
        } else if call.starts_with("fdatasync(") && call.contains(".seg>") {
            if call.ends_with("= 0") {
                calls.push(Call::Sync);
            } else {
                assert!(call.ends_with("<unfinished ...>"), "{line}");
                begun.insert(thread, ());
            }
        } else if call.starts_with("<... fdatasync resumed>") && begun.remove(thread).is_some() {
            assert!(call.ends_with("= 0"), "{line}");
            calls.push(Call::Sync);
        } else if let Some((_, text)) = call.split_once("\"acked ")
            && call.starts_with("write(1")
        {
            let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
            calls.push(Call::Acked(digits.parse().unwrap()));
        }
    }
    calls
}

#[test]
fn the_system_calls_show_one_fdatasync_before_each_acknowledgement() {
    const APPENDS: u64 = 300;
    let dir = tempfile::tempdir().unwrap();
    let (data, trace) = (dir.path().join("data"), dir.path().join("trace"));
    let child = child_command(&data);
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-s", "32", "-e", "trace=pwrite64,write,fdatasync,fsync", "-o"]).arg(&trace).arg("--");
    strace.arg(child.get_program()).args(child.get_args());
    strace.env(CHILD_DIR, &data).env(CHILD_APPENDS, APPENDS.to_string()).stdin(Stdio::null());
    let output = match strace.output() {
        Ok(output) => output,
        Err(error) => panic!("this test needs strace ({error}): apt-get install strace"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let calls = parse_trace(&std::fs::read_to_string(&trace).unwrap());
    // What opening the files wrote and synced comes first.
    let first = calls.iter().position(|call| matches!(call, Call::Acked(0))).expect("the first is acknowledged") - 2;
    let expected: Vec<_> = (0..APPENDS).flat_map(|index| [Call::Write, Call::Sync, Call::Acked(index)]).collect();
    assert_eq!(calls[first..], expected);
}

/// The rule above, broken on purpose in a trace, is seen.
#[test]
fn a_trace_without_the_fdatasync_is_seen() {
    let trace = "7 pwrite64(5</d/log-1.seg>, \"x\", 512, 512) = 512\n\
                 8 fdatasync(5</d/log-1.seg> <unfinished ...>\n\
                 7 write(1</p>, \"acked 0\\n\", 8) = 8\n\
                 8 <... fdatasync resumed>) = 0\n";
    assert_eq!(parse_trace(trace), [Call::Write, Call::Acked(0), Call::Sync]);
}
