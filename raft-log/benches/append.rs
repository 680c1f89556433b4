//! A durable batch of the log against the barest thing that could be durable: a preallocated file with one write and
//! one fdatasync a batch. Both take turns in the same run, so that the disk's moods hit both.
//!
//! `cargo bench -p verdict-raft-log --bench append [-- ROUNDS]`; `VERDICT_BENCH_DIR` chooses the disk.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark fails by panicking and prints its result")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use verdict_raft_log::files::{Log, LogFiles, LogOptions, LogWriter, RealDisk, Record, Spawn, WriterOptions};

const BODY: usize = 200;
const BARE_BYTES: u64 = 64 << 20;

struct Bare {
    file: File,
    at: u64,
}

impl Bare {
    fn new(path: &std::path::Path) -> Self {
        let file = OpenOptions::new().create_new(true).write(true).open(path).unwrap();
        let zeros = vec![0; 1 << 20];
        for at in (0..BARE_BYTES).step_by(zeros.len()) {
            file.write_all_at(&zeros, at).unwrap();
        }
        file.sync_all().unwrap();
        Self { file, at: 0 }
    }

    fn append(&mut self, bytes: &[u8]) {
        if self.at + bytes.len() as u64 > BARE_BYTES {
            self.at = 0;
        }
        self.file.write_all_at(bytes, self.at).unwrap();
        self.file.sync_data().unwrap();
        self.at += bytes.len() as u64;
    }
}

fn bodies(count: usize) -> Vec<Bytes> {
    (0..count).map(|i| Bytes::from(vec![u8::try_from(i % 251).unwrap() + 1; BODY])).collect()
}

fn append(log: &mut Log, records: &[Record]) {
    let staged = log.stage(records).unwrap();
    let written = log.write(staged).unwrap();
    let synced = log.sync(written).unwrap();
    log.complete(synced);
}

/// Appends through the driver and waits for its answer, as a server does; the wait for the thread is part of it.
fn append_through(writer: &LogWriter, records: Vec<Record>) {
    let (done, wait) = sync_channel(1);
    let flushed = Box::new(move |result: std::io::Result<()>| done.send(result).unwrap());
    let mut append = std::pin::pin!(writer.append(records, flushed));
    // The queue is empty, so that nothing has to be waited for.
    match append.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(queued) => queued.unwrap(),
        Poll::Pending => panic!("the queue is full"),
    }
    wait.recv().unwrap().unwrap();
}

fn quantile(times: &mut [Duration], q: usize) -> f64 {
    times.sort_unstable();
    times[(times.len() - 1) * q / 100].as_secs_f64() * 1e6
}

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(1500);
    let base = std::env::var_os("VERDICT_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::Builder::new().prefix("verdict-append-").tempdir_in(base).unwrap();
    let options = LogOptions::default();
    println!(
        "p50 of a durable batch of 200-byte entries in microseconds, {rounds} rounds each, in {}",
        dir.path().display()
    );
    println!("batch │  bare file │        log  ratio │ via thread  ratio │ p99: bare    log  thread");
    for batch in [1, 8, 64, 512] {
        let name = |what: &str| dir.path().join(format!("{what}-{batch}"));
        let mut bare = Bare::new(&name("bare"));
        let (mut log, _) = Log::open(Arc::new(RealDisk::open(name("log")).unwrap()), options.clone()).unwrap();
        let disk = Arc::new(RealDisk::open(name("writer")).unwrap());
        let (files, _) = LogFiles::open(disk, options.clone()).unwrap();
        let writer = LogWriter::start(files, Spawn::Thread, WriterOptions::default()).unwrap();
        let bodies = bodies(batch);
        let plain: Vec<u8> = bodies.concat();
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..rounds {
            let records = |first: u64| -> Vec<Record> {
                (first..).zip(&bodies).map(|(index, body)| Record::new(index, body.clone())).collect()
            };
            let (for_log, for_writer) = (records(log.next_index()), records(writer.records().end));
            let mut for_writer = Some(for_writer);
            // Whoever goes after somebody who wrote much waits for him: take turns in that, too.
            for turn in 0..3 {
                let who = (round + turn) % 3;
                let start = Instant::now();
                match who {
                    0 => bare.append(&plain),
                    1 => append(&mut log, &for_log),
                    _ => append_through(&writer, for_writer.take().unwrap()),
                }
                times[who].push(start.elapsed());
            }
        }
        let [bare, log, writer] = &mut times;
        let (b, l, w) = (quantile(bare, 50), quantile(log, 50), quantile(writer, 50));
        println!(
            "{batch:>5} │ {b:>10.0} │ {l:>10.0} {:>6.2} │ {w:>10.0} {:>6.2} │ {:>9.0} {:>6.0} {:>7.0}",
            l / b,
            w / b,
            quantile(bare, 99),
            quantile(log, 99),
            quantile(writer, 99)
        );
    }
}
