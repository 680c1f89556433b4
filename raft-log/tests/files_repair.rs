//! Repairs of a damaged log: whole or not at all, and durable all the way down.
#![cfg(not(madsim))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod small_log;

use bytes::Bytes;
use rand::{SeedableRng, rngs::StdRng};
use verdict_raft_log::files::testing::SimDisk;
use verdict_raft_log::files::{Purged, RepairFrom, StorageError};

use small_log::{SEGMENT, append, five, open, record};

#[test]
fn a_damaged_log_is_repaired_with_records_from_a_peer() {
    let sim = SimDisk::new();
    let mut records = five(&sim);
    sim.flip_bit(SEGMENT, (512 * 2 + 100) * 8).unwrap();
    records.extend((5..300).map(|index| record(index, 400)));
    let (mut log, _) = open(&sim);
    let mut repair = log.repair(RepairFrom::After(0)).unwrap();
    repair.push(&records[1..3]).unwrap();
    assert!(matches!(repair.finish(), Err(StorageError::Misuse(_))), "not all that may be gone was given");
    assert!(log.damage().is_some());
    let mut repair = log.repair(RepairFrom::After(0)).unwrap();
    assert!(matches!(repair.push(&records[2..3]), Err(StorageError::Gap { expected: 1, found: 2 })));
    repair.push(&records[1..]).unwrap();
    let recovery = repair.finish().unwrap();
    assert_eq!((recovery.damage, recovery.records), (None, 0..300));
    append(&mut log, &[record(300, 5)]);
    records.push(record(300, 5));
    drop(log);
    sim.crash(&mut StdRng::seed_from_u64(3));
    let (log, recovery) = open(&sim);
    assert_eq!(recovery.damage, None);
    assert_eq!(log.read(0..1000, usize::MAX).unwrap(), records);
}

#[test]
fn a_log_that_the_peer_has_purged_begins_anew_behind_its_snapshot() {
    let sim = SimDisk::new();
    five(&sim);
    sim.flip_bit(SEGMENT, 600 * 8).unwrap();
    let (mut log, _) = open(&sim);
    let purged = Purged { index: 1000, mark: Bytes::from_static(b"term 9") };
    let recovery = log.repair(RepairFrom::Start(Some(purged.clone()))).unwrap().finish().unwrap();
    assert_eq!((recovery.damage, recovery.records, recovery.purged), (None, 1001..1001, Some(purged)));
    append(&mut log, &[record(1001, 5)]);
}

/// What a sync should have made durable and did not can be read until the power fails.
#[test]
fn a_repair_goes_on_behind_nothing_that_is_in_the_cache_alone() {
    for (sync_fails, seed) in [false, true].into_iter().flat_map(|fails| (0..10).map(move |seed| (fails, seed))) {
        let sim = SimDisk::new();
        let mut records = five(&sim);
        let (mut log, _) = open(&sim);
        records.push(record(5, 100));
        let staged = log.stage(&records[5..]).unwrap();
        let written = log.write(staged).unwrap();
        if sync_fails {
            sim.fail_syncs(0, 1);
            log.sync(written).unwrap_err();
        }
        drop(log);
        sim.flip_bit(SEGMENT, 512 * 7 * 8 + 77).unwrap();
        let (mut log, recovery) = open(&sim);
        assert_eq!(recovery.damage.expect("it is seen").offset, 512 * 7);
        records.push(record(6, 100));
        let mut repair = log.repair(RepairFrom::After(5)).unwrap();
        repair.push(&records[6..]).unwrap();
        repair.finish().unwrap();
        drop(log);
        sim.crash(&mut StdRng::seed_from_u64(seed));
        let (log, recovery) = open(&sim);
        assert_eq!(recovery.damage, None);
        assert_eq!(log.read(0..100, usize::MAX).unwrap(), records);
    }
}
