//! A log of a few small batches on a simulated disk.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use verdict_raft_log::files::testing::SimDisk;
use verdict_raft_log::files::{Log, LogOptions, Record, Recovery};

pub(crate) const SEGMENT: &str = "log-00000000000000000001.seg";

pub(crate) fn options() -> LogOptions {
    LogOptions { id: 7, segment_bytes: 64 << 10 }
}

pub(crate) fn open(sim: &SimDisk) -> (Log, Recovery) {
    Log::open(Arc::new(sim.mount()), options()).unwrap()
}

pub(crate) fn record(index: u64, size: usize) -> Record {
    Record::new(index, vec![u8::try_from(index % 255).unwrap() + 1; size])
}

pub(crate) fn append(log: &mut Log, records: &[Record]) {
    let staged = log.stage(records).unwrap();
    let written = log.write(staged).unwrap();
    let synced = log.sync(written).unwrap();
    log.complete(synced);
}

/// A log with five batches of one record each, at 512, 1024, …; each fits into a sector.
pub(crate) fn five(sim: &SimDisk) -> Vec<Record> {
    let (mut log, _) = open(sim);
    let records: Vec<_> = (0..5).map(|index| record(index, 100)).collect();
    records.iter().for_each(|record| append(&mut log, std::slice::from_ref(record)));
    records
}
