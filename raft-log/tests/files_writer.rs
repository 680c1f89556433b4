//! The driver of the log's files, on a thread over a real disk and as a task over a simulated one.
#![cfg(not(madsim))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rand::{SeedableRng, rngs::StdRng};
use verdict_raft_log::files::testing::{DiskEvent, SimDisk};
use verdict_raft_log::files::{
    Disk, LogFiles, LogOptions, LogWriter, RealDisk, Record, Spawn, StorageError, WriterOptions,
};

fn options() -> LogOptions {
    LogOptions { id: 7, segment_bytes: 16 << 10 }
}

fn open(disk: Arc<dyn Disk>) -> LogFiles {
    let (files, recovery) = LogFiles::open(disk, options()).unwrap();
    assert_eq!(recovery.damage, None);
    files
}

fn record(index: u64) -> Record {
    Record::new(index, format!("body {index}").into_bytes())
}

fn records(range: std::ops::Range<u64>) -> Vec<Record> {
    range.map(record).collect()
}

const TASK: Spawn = Spawn::Task { write: Duration::from_micros(20), sync: Duration::from_micros(100) };

async fn append(writer: &LogWriter, records: Vec<Record>) -> std::io::Result<()> {
    let (done, wait) = tokio::sync::oneshot::channel();
    writer.append(records, Box::new(move |result| done.send(result).unwrap())).await?;
    wait.await.unwrap()
}

async fn everything(disk: Arc<dyn Disk>, how: Spawn, small_tail: bool) {
    let tail_bytes = if small_tail { 200 } else { 1 << 20 };
    let writer_options = WriterOptions { tail_bytes, ..WriterOptions::default() };
    let writer = LogWriter::start(open(disk.clone()), how.clone(), writer_options.clone()).unwrap();
    writer.save_ballot(Bytes::from_static(b"term 1")).await.unwrap();
    for first in (0..300).step_by(3) {
        append(&writer, records(first..first + 3)).await.unwrap();
    }
    assert_eq!(writer.read(0..1000, usize::MAX).await.unwrap(), records(0..300));
    assert_eq!(writer.read(10..1000, 30).await.unwrap(), records(10..14));
    writer.truncate_after(Some(249)).await.unwrap();
    assert_eq!(writer.read(240..1000, usize::MAX).await.unwrap(), records(240..250));
    append(&writer, vec![Record::new(250, "another")]).await.unwrap();
    writer.purge_up_to(99, Bytes::from_static(b"mark")).await.unwrap();
    writer.save_ballot(Bytes::from_static(b"term 2")).await.unwrap();
    assert_eq!(writer.records(), 100..251);
    writer.close().await;

    let files = open(disk.clone());
    assert_eq!(files.ballot().unwrap(), "term 2");
    assert_eq!(files.log.records(), 100..251);
    assert_eq!(files.log.purged().unwrap().mark, "mark");
    let writer = LogWriter::start(files, how, writer_options).unwrap();
    let read = writer.read(0..1000, usize::MAX).await.unwrap();
    assert_eq!(read[..150], records(100..250));
    assert_eq!(read[150..], [Record::new(250, "another")]);
    writer.purge_up_to(999, Bytes::from_static(b"far")).await.unwrap();
    append(&writer, records(1000..1003)).await.unwrap();
    writer.close().await;
    let files = open(disk);
    assert_eq!(files.log.records(), 1000..1003);
}

#[tokio::test]
async fn a_thread_drives_a_real_disk() {
    for small_tail in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        everything(Arc::new(RealDisk::open(dir.path()).unwrap()), Spawn::Thread, small_tail).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_drives_a_simulated_disk() {
    for small_tail in [false, true] {
        everything(Arc::new(SimDisk::new().mount()), TASK, small_tail).await;
    }
}

#[tokio::test(start_paused = true)]
async fn appends_that_wait_share_one_sync() {
    let sim = SimDisk::new();
    let writer = LogWriter::start(open(Arc::new(sim.mount())), TASK, WriterOptions::default()).unwrap();
    append(&writer, records(0..1)).await.unwrap();
    let before = sim.stats().syncs;
    let order = Arc::new(Mutex::new(Vec::new()));
    let (done, wait) = tokio::sync::oneshot::channel();
    let mut done = Some(done);
    for index in 1..21 {
        let (order, done) = (order.clone(), if index == 20 { done.take() } else { None });
        let flushed = move |result: std::io::Result<()>| {
            result.unwrap();
            order.lock().unwrap().push(index);
            if let Some(done) = done {
                done.send(()).unwrap();
            }
        };
        writer.append(records(index..index + 1), Box::new(flushed)).await.unwrap();
        assert_eq!(writer.read(index..index + 1, 100).await.unwrap(), records(index..index + 1), "readable at once");
    }
    wait.await.unwrap();
    assert_eq!(*order.lock().unwrap(), (1..21).collect::<Vec<_>>());
    assert_eq!(sim.stats().syncs - before, 1);
}

#[tokio::test(start_paused = true)]
async fn a_gap_is_refused_and_the_writer_goes_on() {
    let writer = LogWriter::start(open(Arc::new(SimDisk::new().mount())), TASK, WriterOptions::default()).unwrap();
    let refused = writer.append(records(1..2), Box::new(|_| panic!("not queued"))).await;
    assert!(matches!(refused, Err(StorageError::Gap { expected: 0, found: 1 })));
    append(&writer, records(0..2)).await.unwrap();
    assert!(matches!(writer.truncate_after(Some(5)).await, Err(StorageError::Misuse(_))));
    append(&writer, records(2..3)).await.unwrap();
}

/// I19: after a failed sync nothing more is acknowledged; opening again starts again.
#[tokio::test(start_paused = true)]
async fn after_a_failed_sync_nothing_is_acknowledged_until_it_is_opened_again() {
    let sim = SimDisk::new();
    let writer = LogWriter::start(open(Arc::new(sim.mount())), TASK, WriterOptions::default()).unwrap();
    append(&writer, records(0..5)).await.unwrap();
    sim.record_trace();
    sim.fail_syncs(0, 1);
    let error = append(&writer, records(5..6)).await.unwrap_err();
    assert!(error.to_string().contains("syncing log-00000000000000000001.seg failed"), "{error}");
    assert!(matches!(writer.failure(), Some(StorageError::SyncFailed { .. })));
    // The disk would work again, the writer does not.
    for _ in 0..3 {
        let error = append(&writer, records(6..7)).await.unwrap_err();
        assert!(error.to_string().contains("stopped by an earlier failure"), "{error}");
    }
    assert!(writer.save_ballot(Bytes::from_static(b"x")).await.is_err());
    assert!(writer.truncate_after(Some(1)).await.is_err());
    assert!(writer.purge_up_to(1, Bytes::new()).await.is_err());
    assert_eq!(writer.read(0..5, usize::MAX).await.unwrap(), records(0..5), "reading goes on");
    let trace = sim.take_trace();
    let failed = trace.iter().position(|event| matches!(event, DiskEvent::SyncFailed { .. })).unwrap();
    assert_eq!(trace.len(), failed + 1, "nothing is written after the failure: {trace:?}");
    drop(writer);

    let writer = LogWriter::start(open(Arc::new(sim.mount())), TASK, WriterOptions::default()).unwrap();
    let next = writer.records().end;
    assert!(next >= 5);
    append(&writer, records(next..next + 1)).await.unwrap();
    sim.crash(&mut StdRng::seed_from_u64(1));
    assert_eq!(open(Arc::new(sim.mount())).log.read(0..100, usize::MAX).unwrap(), records(0..next + 1));
}

/// The same for a full disk; it starts again once there is room.
#[tokio::test(start_paused = true)]
async fn after_a_full_disk_nothing_is_acknowledged_until_there_is_room() {
    let sim = SimDisk::new();
    let writer = LogWriter::start(open(Arc::new(sim.mount())), TASK, WriterOptions::default()).unwrap();
    sim.set_room(Some(1000));
    let mut acknowledged = 0;
    let error = loop {
        match append(&writer, records(acknowledged..acknowledged + 1)).await {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 1000, "the disk never filled");
    };
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    assert!(error.to_string().contains("make room and start again"), "{error}");
    sim.set_room(None);
    assert!(append(&writer, records(acknowledged..acknowledged + 1)).await.is_err());
    drop(writer);
    let writer = LogWriter::start(open(Arc::new(sim.mount())), TASK, WriterOptions::default()).unwrap();
    assert_eq!(writer.records(), 0..acknowledged);
    append(&writer, records(acknowledged..acknowledged + 1)).await.unwrap();
}
