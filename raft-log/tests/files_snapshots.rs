//! The rules that the design fixes for snapshots, one test each.
#![cfg(not(madsim))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use bytes::Bytes;
use rand::{SeedableRng, rngs::StdRng};
use verdict_raft_log::files::testing::SimDisk;
use verdict_raft_log::files::{LogFiles, LogOptions, Manifest, SectionId, SnapshotStore, StorageError};

fn id(id: &str) -> SectionId {
    SectionId::new(id).unwrap()
}

fn snapshots(sim: &SimDisk) -> SnapshotStore {
    let (store, damage) = SnapshotStore::open(Arc::new(sim.mount())).unwrap();
    assert_eq!(damage, None);
    store
}

#[test]
fn a_sealed_section_is_written_once_and_shared_by_later_snapshots() {
    let sim = SimDisk::new();
    let mut store = snapshots(&sim);
    let sealed = store.put(id("bucket-1"), || Bytes::from(vec![1; 5000])).unwrap();
    let open = store.put(id("open-10"), || Bytes::from_static(b"ten")).unwrap();
    store.commit(Manifest { meta: Bytes::from_static(b"10"), sections: vec![sealed.clone(), open] }).unwrap();
    let before = sim.stats().written_bytes;
    let again = store.put(id("bucket-1"), || panic!("it is stored, so its body is not made")).unwrap();
    assert_eq!((&again, sim.stats().written_bytes), (&sealed, before));
    let open = store.put(id("open-20"), || Bytes::from_static(b"twenty")).unwrap();
    store.commit(Manifest { meta: Bytes::from_static(b"20"), sections: vec![again, open.clone()] }).unwrap();
    assert_eq!(store.remove_unreferenced(&[]).unwrap(), 1);
    assert!(sim.stats().written_bytes - before < 500, "a snapshot costs what changed");
    sim.crash(&mut StdRng::seed_from_u64(1));
    let mut store = snapshots(&sim);
    let manifest = store.current().unwrap().clone();
    assert_eq!(manifest.meta, "20");
    assert_eq!(store.read(&manifest.sections[0]).unwrap(), vec![1; 5000]);
    assert_eq!(store.read(&open).unwrap(), "twenty");
}

#[test]
fn only_the_sections_that_are_missing_are_asked_for_and_what_comes_is_checked() {
    let (from, to) = (SimDisk::new(), SimDisk::new());
    let (mut from, mut to) = (snapshots(&from), snapshots(&to));
    let shared = from.put(id("bucket-1"), || Bytes::from_static(b"shared")).unwrap();
    let new = from.put(id("open-7"), || Bytes::from_static(b"new")).unwrap();
    let offer = Manifest { meta: Bytes::from_static(b"7"), sections: vec![shared.clone(), new.clone()] };
    to.put(id("bucket-1"), || Bytes::from_static(b"shared")).unwrap();
    assert_eq!(to.missing(&offer), std::slice::from_ref(&new));
    assert!(matches!(to.commit(offer.clone()), Err(StorageError::Misuse(_))), "not before all is there");
    assert!(matches!(to.put_offered(&new, b"wrong"), Err(StorageError::Misuse(_))));
    to.put_offered(&new, b"new").unwrap();
    assert_eq!(to.remove_unreferenced(&offer.sections).unwrap(), 0, "what is being installed is kept");
    to.commit(offer.clone()).unwrap();
    assert_eq!(to.current(), Some(&offer));
}

#[test]
fn a_crash_leaves_the_old_snapshot_or_the_new_one_and_both_are_whole() {
    let mut seen = std::collections::BTreeSet::new();
    for operations in 0..40 {
        let sim = SimDisk::new();
        let mut store = snapshots(&sim);
        let take = |store: &mut SnapshotStore, name: &'static str| {
            let section = store.put(id(name), || Bytes::from(name.repeat(400)))?;
            store.commit(Manifest { meta: Bytes::from_static(name.as_bytes()), sections: vec![section] })?;
            store.remove_unreferenced(&[]).map(drop)
        };
        take(&mut store, "old").unwrap();
        sim.die_after(Some(operations));
        let done = take(&mut store, "new");
        sim.crash(&mut StdRng::seed_from_u64(operations));
        sim.die_after(None);
        let mut store = snapshots(&sim);
        let manifest = store.current().unwrap().clone();
        let name = std::str::from_utf8(&manifest.meta).unwrap();
        assert_eq!(store.read(&manifest.sections[0]).unwrap(), name.repeat(400));
        assert!(done.is_err() || name == "new");
        seen.insert(name.to_owned());
    }
    assert_eq!(seen.len(), 2, "both happen");
}

#[test]
fn a_damaged_section_or_manifest_is_said_and_can_be_put_again() {
    let sim = SimDisk::new();
    let mut store = snapshots(&sim);
    let section = store.put(id("a"), || Bytes::from_static(b"body")).unwrap();
    let manifest = Manifest { meta: Bytes::new(), sections: vec![section.clone()] };
    store.commit(manifest.clone()).unwrap();
    let (name, _) = sim.sizes().into_iter().find(|(name, _)| name.starts_with("section-")).unwrap();
    sim.flip_bit(&name, 25 * 8).unwrap();
    assert!(matches!(store.read(&section), Err(StorageError::Damage(_))));
    assert_eq!(store.missing(&manifest), std::slice::from_ref(&section));
    store.put_offered(&section, b"body").unwrap();
    assert_eq!(store.read(&section).unwrap(), "body");
    for bit in 0..sim.file("snapshot.manifest").unwrap().len() as u64 * 8 {
        sim.flip_bit("snapshot.manifest", bit).unwrap();
        let (store, damage) = SnapshotStore::open(Arc::new(sim.mount())).unwrap();
        assert_eq!((damage.unwrap().file.as_str(), store.current()), ("snapshot.manifest", None));
        sim.flip_bit("snapshot.manifest", bit).unwrap();
    }
    assert_eq!(snapshots(&sim).current(), Some(&manifest));
}

#[test]
fn a_snapshot_that_is_gone_behind_a_purge_is_said() {
    let sim = SimDisk::new();
    let open = || {
        let (files, _) = LogFiles::open(Arc::new(sim.mount()), LogOptions::default()).unwrap();
        let gone = files.snapshot_is_gone(&SnapshotStore::open(Arc::new(sim.mount())).unwrap().0);
        (files, gone)
    };
    assert_eq!(open().1, None, "nothing was purged");
    let mut store = snapshots(&sim);
    store.commit(Manifest { meta: Bytes::new(), sections: Vec::new() }).unwrap();
    let (mut files, _) = LogFiles::open(Arc::new(sim.mount()), LogOptions::default()).unwrap();
    files.log.purge_up_to(9, Bytes::new()).unwrap();
    assert_eq!(open().1, None, "the snapshot is there");
    assert!(sim.lose_file("snapshot.manifest"));
    let damage = open().1.expect("the loss is seen");
    assert_eq!((damage.file.as_str(), damage.lost), ("snapshot.manifest", 0..=9));
}
