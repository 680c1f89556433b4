//! The rules that the design fixes for the log's files, one test each; those for repairs and for snapshots are in files
//! of their own.
#![cfg(not(madsim))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod small_log;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use rand::{SeedableRng, rngs::StdRng};
use verdict_raft_log::files::testing::{DiskEvent, SimDisk};
use verdict_raft_log::files::{
    Damage, Log, LogFiles, LogOptions, Manifest, Purged, Record, SectionId, SlotFile, SnapshotStore, StorageError,
};

use small_log::{SEGMENT, append, five, open, options, record};

fn truncate(log: &mut Log, after: Option<u64>) {
    let staged = log.stage_truncate(after).unwrap();
    let written = log.write(staged).unwrap();
    let synced = log.sync(written).unwrap();
    log.complete(synced);
}

fn damage_of(sim: &SimDisk) -> Damage {
    open(sim).1.damage.expect("the damage is seen")
}

#[test]
fn one_fdatasync_a_batch() {
    let sim = SimDisk::new();
    let (mut log, _) = open(&sim);
    let before = sim.stats();
    append(&mut log, &(0..100).map(|index| record(index, 200)).collect::<Vec<_>>());
    append(&mut log, &[record(100, 200)]);
    let after = sim.stats();
    assert_eq!(
        (after.syncs - before.syncs, after.writes - before.writes, after.dir_syncs - before.dir_syncs),
        (2, 2, 0)
    );
}

#[test]
fn segments_are_filled_with_zeros_before_they_are_used() {
    let sim = SimDisk::new();
    let (mut log, _) = open(&sim);
    assert_eq!(sim.file(SEGMENT).unwrap().len(), 64 << 10);
    append(&mut log, &[record(0, 100)]);
    let content = sim.file(SEGMENT).unwrap();
    assert_eq!(content.len(), 64 << 10, "an append does not make the file longer");
    assert!(content[1024..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_segment_made_ahead_is_used_and_one_left_over_is_removed() {
    let sim = SimDisk::new();
    let (mut log, _) = open(&sim);
    assert!(log.spare_plan().is_none(), "not before the current one is half full");
    (0..64).for_each(|index| append(&mut log, &[record(index, 400)]));
    let spare = log.spare_plan().unwrap().make(&AtomicBool::new(false)).unwrap().unwrap();
    log.give_spare(spare);
    assert!(log.spare_plan().is_none(), "one is enough");
    let before = sim.stats().written_bytes;
    (64..190).for_each(|index| append(&mut log, &[record(index, 400)]));
    assert!(sim.stats().written_bytes - before < 66 << 10, "the zeros were written before");
    assert!(log.spare_plan().unwrap().make(&AtomicBool::new(true)).unwrap().is_none(), "it can be stopped");
    drop(log.spare_plan().unwrap().make(&AtomicBool::new(false)).unwrap());
    assert!(sim.file("log-spare.new").is_some());
    drop(log);
    sim.crash(&mut StdRng::seed_from_u64(1));
    let (log, recovery) = open(&sim);
    assert_eq!((recovery.damage, recovery.records), (None, 0..190));
    assert_eq!(log.read(0..190, usize::MAX).unwrap().len(), 190);
    assert!(sim.file("log-spare.new").is_none());
}

#[test]
fn a_torn_last_batch_is_cut_and_never_seen_again() {
    // The batch has 8 sectors, three of them with nothing but zeros in the bodies; any one may be missing.
    let bodies = [record(5, 1200), Record::new(6, vec![0; 2000]), record(7, 700)];
    for missing in 0..8 {
        let sim = SimDisk::new();
        let records = five(&sim);
        let (mut log, _) = open(&sim);
        append(&mut log, &bodies);
        drop(log);
        let mut content = sim.file(SEGMENT).unwrap();
        let at = 512 * (1 + 5 + missing);
        assert!(content[at..at + 512].iter().any(|byte| *byte != 0), "no sector of a batch is all zeros");
        content[at..at + 512].fill(0);
        sim.put_file(SEGMENT, &content);
        let (mut log, recovery) = open(&sim);
        assert_eq!(recovery.damage, None);
        let torn = recovery.torn.expect("it is reported");
        assert_eq!((torn.file.as_str(), torn.offset), (SEGMENT, 512 * 6));
        assert_eq!(log.read(0..100, usize::MAX).unwrap(), records);
        append(&mut log, &[record(5, 10)]);
        drop(log);
        sim.crash(&mut StdRng::seed_from_u64(missing as u64));
        let (log, recovery) = open(&sim);
        assert_eq!((recovery.damage, recovery.torn), (None, None));
        assert_eq!(log.read(5..100, usize::MAX).unwrap(), [record(5, 10)]);
    }
}

#[test]
fn a_flipped_bit_in_the_last_batch_is_damage_and_no_torn_write() {
    for bit in (0..(64 + 20 + 100) * 8).step_by(7) {
        let sim = SimDisk::new();
        let records = five(&sim);
        sim.flip_bit(SEGMENT, 512 * 5 * 8 + bit).unwrap();
        let (log, recovery) = open(&sim);
        let damage = recovery.damage.expect("it is seen");
        assert_eq!((damage.file.as_str(), damage.offset, damage.lost), (SEGMENT, 512 * 5, 4..=4), "bit {bit}");
        assert_eq!(log.read(0..100, usize::MAX).unwrap(), records[..4]);
    }
}

#[test]
fn damage_below_a_synced_offset_is_never_cut_even_if_it_looks_torn() {
    let sim = SimDisk::new();
    five(&sim);
    let mut content = sim.file(SEGMENT).unwrap();
    content[512 * 3..512 * 4].fill(0);
    sim.put_file(SEGMENT, &content);
    let damage = damage_of(&sim);
    assert_eq!((damage.offset, damage.lost, damage.open_ended), (512 * 3, 2..=4, false));
}

#[test]
fn damage_names_file_offset_and_records_and_stops_the_log() {
    let sim = SimDisk::new();
    five(&sim);
    sim.flip_bit(SEGMENT, (512 * 2 + 100) * 8).unwrap();
    let (mut log, recovery) = open(&sim);
    let damage = recovery.damage.expect("it is seen");
    let text = damage.to_string();
    for part in [SEGMENT, "byte 1024", "records 1 to 4", "fetch them from a peer"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(matches!(log.stage(&[record(1, 1)]), Err(StorageError::Damage(_))));
    assert!(matches!(log.stage_truncate(None), Err(StorageError::Damage(_))));
    assert!(matches!(log.purge_up_to(0, Bytes::new()), Err(StorageError::Damage(_))));
    assert_eq!(log.read(0..100, usize::MAX).unwrap(), [record(0, 100)], "what is whole can be read");
}

#[test]
fn a_missing_or_shortened_file_is_damage() {
    let fill = |sim: &SimDisk| {
        let (mut log, _) = open(sim);
        (0..400).for_each(|index| append(&mut log, &[record(index, 400)]));
        assert!(sim.sizes().len() > 3);
    };
    for lost in 1..=4 {
        let sim = SimDisk::new();
        fill(&sim);
        assert!(sim.lose_file(&format!("log-{lost:020}.seg")));
        let damage = damage_of(&sim);
        assert!(damage.what.contains("missing") && damage.file.contains(&format!("{lost}.seg")), "{damage}");
        assert!(!damage.lost.is_empty());
    }
    let sim = SimDisk::new();
    fill(&sim);
    assert!(sim.lose_file("log-marks.slots"));
    assert_eq!((damage_of(&sim).file.as_str(), damage_of(&sim).lost), ("log-marks.slots", 0..=399));
    let sim = SimDisk::new();
    fill(&sim);
    let last = "log-00000000000000000004.seg";
    let content = sim.file(last).unwrap();
    sim.put_file(last, &content[..5000]);
    assert_eq!((damage_of(&sim).file.as_str(), damage_of(&sim).what.as_str()), (last, "the file was cut short"));
}

#[test]
fn truncated_records_never_come_back() {
    let sim = SimDisk::new();
    let mut records = five(&sim);
    let (mut log, _) = open(&sim);
    truncate(&mut log, Some(1));
    assert_eq!(log.records(), 0..2);
    drop(log);
    for seed in 0..20 {
        sim.crash(&mut StdRng::seed_from_u64(seed));
        let (log, recovery) = open(&sim);
        assert_eq!((recovery.damage, log.read(0..100, usize::MAX).unwrap()), (None, records[..2].to_vec()));
    }
    let (mut log, _) = open(&sim);
    append(&mut log, &[record(2, 33)]);
    records.splice(2.., [record(2, 33)]);
    drop(log);
    sim.crash(&mut StdRng::seed_from_u64(0));
    assert_eq!(open(&sim).0.read(0..100, usize::MAX).unwrap(), records);
}

#[test]
fn a_truncation_that_is_not_synced_takes_all_or_nothing() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let sim = SimDisk::new();
        five(&sim);
        let (mut log, _) = open(&sim);
        let staged = log.stage_truncate(Some(1)).unwrap();
        let _unsynced = log.write(staged).unwrap();
        sim.crash(&mut StdRng::seed_from_u64(seed));
        let (log, recovery) = open(&sim);
        assert_eq!(recovery.damage, None);
        seen.insert(log.records().end);
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [2, 5]);
}

#[test]
fn purged_records_give_their_files_back_and_the_mark_is_kept() {
    let sim = SimDisk::new();
    let (mut log, _) = open(&sim);
    (0..1000).for_each(|index| append(&mut log, &[record(index, 400)]));
    let files = sim.sizes().len();
    log.purge_up_to(900, Bytes::from_static(b"mark")).unwrap();
    assert!(sim.sizes().len() < files - 5);
    log.purge_up_to(500, Bytes::from_static(b"late")).unwrap();
    drop(log);
    sim.crash(&mut StdRng::seed_from_u64(1));
    let (log, recovery) = open(&sim);
    assert_eq!((recovery.damage, recovery.records), (None, 901..1000));
    assert_eq!(recovery.purged.unwrap(), Purged { index: 900, mark: Bytes::from_static(b"mark") });
    assert_eq!(log.read(0..2000, usize::MAX).unwrap().len(), 99);
}

#[test]
fn the_ballot_survives_a_torn_write() {
    let old = Bytes::from(vec![1; 1500]);
    let new = Bytes::from(vec![2; 1800]);
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let sim = SimDisk::new();
        let mut file = SlotFile::create(&(Arc::new(sim.mount()) as _), "ballot", None).unwrap();
        file.save(Bytes::from_static(b"first")).unwrap();
        file.save(old.clone()).unwrap();
        sim.fail_syncs(0, 1);
        file.save(new.clone()).unwrap_err();
        assert!(matches!(file.save(new.clone()), Err(StorageError::Stopped(_))), "fail-stop");
        // The failed sync left nothing to be torn; write it again, unsynced, and lose the power.
        let mut file = SlotFile::open(&(Arc::new(sim.mount()) as _), "ballot").unwrap().unwrap();
        let read = file.value().cloned().unwrap();
        assert!(read == old || read == new);
        file.save(old.clone()).unwrap();
        sim.die_after(Some(1));
        file.save(new.clone()).unwrap_err();
        sim.crash(&mut StdRng::seed_from_u64(seed));
        let file = SlotFile::open(&(Arc::new(sim.mount()) as _), "ballot").unwrap().unwrap();
        let value = file.value().unwrap();
        assert!(*value == old || *value == new);
        seen.insert(*value == new);
    }
    assert_eq!(seen.len(), 2, "both happen");
}

#[test]
fn a_damaged_ballot_is_never_replaced_by_an_older_one() {
    for bit in (0..8192 * 8).step_by(101) {
        let sim = SimDisk::new();
        let (mut files, _) = LogFiles::open(Arc::new(sim.mount()), options()).unwrap();
        files.save_ballot(Bytes::from_static(b"term 1")).unwrap();
        files.save_ballot(Bytes::from_static(b"term 2")).unwrap();
        sim.flip_bit("ballot.slots", bit).unwrap();
        let error = LogFiles::open(Arc::new(sim.mount()), options()).unwrap_err();
        assert!(matches!(error, StorageError::Damage(_)), "bit {bit}: {error}");
    }
    let sim = SimDisk::new();
    drop(LogFiles::open(Arc::new(sim.mount()), options()).unwrap());
    assert!(sim.lose_file("ballot.slots"));
    assert!(matches!(LogFiles::open(Arc::new(sim.mount()), options()), Err(StorageError::Damage(_))));
}

/// The caller's order: the trace shows the manifest durable before the purge point is written.
#[test]
fn a_purge_comes_after_a_synced_snapshot() {
    let sim = SimDisk::new();
    five(&sim);
    let (mut log, _) = open(&sim);
    let (mut store, _) = SnapshotStore::open(Arc::new(sim.mount())).unwrap();
    drop(log);
    sim.record_trace();
    let section = store.put(SectionId::new("a").unwrap(), || Bytes::from_static(b"body")).unwrap();
    store.commit(Manifest { meta: Bytes::new(), sections: vec![section] }).unwrap();
    (log, _) = open(&sim);
    log.purge_up_to(3, Bytes::new()).unwrap();
    let trace = sim.take_trace();
    let at = |wanted: &dyn Fn(&DiskEvent) -> bool| trace.iter().position(wanted).expect("it happens");
    let renamed = at(&|event| matches!(event, DiskEvent::Renamed { to, .. } if to == "snapshot.manifest"));
    assert_eq!(trace[renamed + 1], DiskEvent::SyncDir);
    let written = at(&|event| matches!(event, DiskEvent::Sync { file } if file == "snapshot.manifest.new"));
    assert!(written < renamed);
}

/// Sets a version to 2 and makes the checksum that covers it right again.
fn make_newer(sim: &SimDisk, name: &str, version_at: usize, covered: std::ops::Range<usize>, crc_at: usize) {
    let mut content = sim.file(name).unwrap();
    content[version_at..version_at + 2].copy_from_slice(&2_u16.to_le_bytes());
    let crc = crc32c::crc32c(&content[covered]);
    content[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
    sim.put_file(name, &content);
}

#[test]
fn a_newer_format_is_refused_clearly_in_every_file_and_entry() {
    let is_refused = |what: &str, done: Result<(), StorageError>| match done {
        Err(error @ StorageError::Newer { found: 2, supported: 1, .. }) => {
            let text = error.to_string();
            assert!(text.contains("version 2") && text.contains("start a newer program"), "{what}: {text}");
        }
        other => panic!("{what}: {other:?}"),
    };
    let reopen = |sim: &SimDisk| LogFiles::open(Arc::new(sim.mount()), options()).map(drop);
    let fresh = || {
        let sim = SimDisk::new();
        let (mut files, _) = LogFiles::open(Arc::new(sim.mount()), options()).unwrap();
        append(&mut files.log, &[record(0, 100)]);
        sim
    };
    let sim = fresh();
    make_newer(&sim, SEGMENT, 4, 0..64, 64);
    is_refused("a segment", reopen(&sim));
    let sim = fresh();
    make_newer(&sim, SEGMENT, 512 + 4, 512..512 + 60, 512 + 60);
    is_refused("a batch", reopen(&sim));
    let sim = fresh();
    make_newer(&sim, SEGMENT, 576 + 4, 576 + 4..576 + 20 + 100, 576);
    is_refused("a record", reopen(&sim));
    for name in ["ballot.slots", "log-marks.slots"] {
        let sim = fresh();
        make_newer(&sim, name, 4, 0..508, 508);
        is_refused(name, reopen(&sim));
    }
    let sim = fresh();
    let (mut store, _) = SnapshotStore::open(Arc::new(sim.mount())).unwrap();
    let section = store.put(SectionId::new("a").unwrap(), || Bytes::from_static(b"body")).unwrap();
    store.commit(Manifest { meta: Bytes::new(), sections: vec![section.clone()] }).unwrap();
    let (name, _) = sim.sizes().into_iter().find(|(name, _)| name.starts_with("section-")).unwrap();
    make_newer(&sim, &name, 4, 0..20, 20);
    is_refused("a section", SnapshotStore::open(Arc::new(sim.mount())).unwrap().0.read(&section).map(drop));
    let end = sim.file("snapshot.manifest").unwrap().len() - 4;
    make_newer(&sim, "snapshot.manifest", 4, 0..end, end);
    is_refused("a manifest", SnapshotStore::open(Arc::new(sim.mount())).map(drop));
}

#[test]
fn a_file_of_another_log_is_refused() {
    let sim = SimDisk::new();
    five(&sim);
    let other = LogOptions { id: 8, ..options() };
    let error = Log::open(Arc::new(sim.mount()), other).unwrap_err();
    assert!(matches!(error, StorageError::Foreign { found: 7, expected: 8, .. }), "{error}");
}

/// After a sync that failed the batch may read back from the cache of the operating system, without being on the
/// medium: opening writes it again before anybody relies on it.
#[test]
fn a_batch_whose_sync_failed_is_made_durable_when_it_is_found() {
    let sim = SimDisk::new();
    let mut records = five(&sim);
    let (mut log, _) = open(&sim);
    let staged = log.stage(&[record(5, 100)]).unwrap();
    let written = log.write(staged).unwrap();
    sim.fail_syncs(0, 1);
    assert!(matches!(log.sync(written), Err(StorageError::SyncFailed { .. })));
    drop(log);
    let (log, _) = open(&sim);
    records.push(record(5, 100));
    assert_eq!(log.read(0..100, usize::MAX).unwrap(), records);
    drop(log);
    sim.crash(&mut StdRng::seed_from_u64(1));
    assert_eq!(open(&sim).0.read(0..100, usize::MAX).unwrap(), records);
}

#[test]
fn what_rotted_while_the_log_ran_is_damage_when_it_is_read() {
    let sim = SimDisk::new();
    let records = five(&sim);
    let (log, _) = open(&sim);
    sim.flip_bit(SEGMENT, (512 * 3 + 90) * 8).unwrap();
    let error = log.read(0..100, usize::MAX).unwrap_err();
    assert!(matches!(&error, StorageError::Damage(damage) if damage.lost == (2..=2)), "{error}");
    assert_eq!(log.read(0..2, usize::MAX).unwrap(), records[..2]);
}
