//! What a node's files should hold, and what they were found to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use verdict_raft_log::files::{
    Damage, Disk, LogFiles, LogOptions, Manifest, Record, Recovery, SectionId, SnapshotStore, StorageError,
};

/// The content of a node's files, as far as it matters to anybody.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Model {
    pub records: BTreeMap<u64, Bytes>,
    pub next: u64,
    pub purged: Option<(u64, Bytes)>,
    pub ballot: Option<Bytes>,
    /// Up to which index the current snapshot reaches, and its bodies.
    pub snapshot: Option<(u64, Vec<Bytes>)>,
}

/// Bodies as lengths and checksums.
impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |body: &Bytes| format!("{}:{:04x}", body.len(), crc32c::crc32c(body) & 0xffff);
        let records: Vec<_> = self.records.iter().map(|(index, body)| format!("{index}={}", short(body))).collect();
        write!(f, "[{}] next {}", records.join(" "), self.next)?;
        write!(f, " purged {:?} ballot {:?}", self.purged.as_ref().map(|p| p.0), self.ballot.as_ref().map(short))?;
        let snapshot = self.snapshot.as_ref();
        write!(f, " snapshot {:?}", snapshot.map(|(at, bodies)| (at, bodies.iter().map(short).collect::<Vec<_>>())))
    }
}

impl Model {
    pub fn append(&mut self, records: &[Record]) {
        for record in records {
            self.records.insert(record.index, record.body.clone());
            self.next = record.index + 1;
        }
    }

    pub fn truncate(&mut self, next: u64) {
        self.records.split_off(&next);
        self.next = next;
    }

    pub fn purge(&mut self, index: u64, mark: Bytes) {
        if self.purged.as_ref().is_some_and(|(purged, _)| index <= *purged) {
            return;
        }
        self.records = self.records.split_off(&(index + 1));
        self.next = self.next.max(index + 1);
        self.purged = Some((index, mark));
    }

    /// The index of the first record that is not purged.
    pub fn first(&self) -> u64 {
        self.purged.as_ref().map_or(0, |(index, _)| index + 1)
    }
}

/// A node's opened files.
pub struct Node {
    pub files: LogFiles,
    pub snapshots: SnapshotStore,
}

pub fn options() -> LogOptions {
    LogOptions { id: 7, segment_bytes: 4096 }
}

/// Opens a node.
pub fn open(disk: Arc<dyn Disk>) -> Result<(Node, Recovery), StorageError> {
    let (files, recovery) = LogFiles::open(disk.clone(), options())?;
    let (snapshots, damage) = SnapshotStore::open(disk)?;
    if let Some(damage) = damage {
        return Err(damage.into());
    }
    Ok((Node { files, snapshots }, recovery))
}

impl Node {
    pub fn observe(&mut self) -> Result<Model, StorageError> {
        let log = &self.files.log;
        let range = log.records();
        let records = log.read(range.clone(), usize::MAX)?;
        let purged = log.purged().map(|purged| (purged.index, purged.mark.clone()));
        let snapshot = match self.snapshots.current().cloned() {
            None => None,
            Some(manifest) => {
                let index = u64::from_le_bytes(manifest.meta[..8].try_into().expect("eight bytes"));
                let bodies: Result<Vec<_>, _> = manifest.sections.iter().map(|s| self.snapshots.read(s)).collect();
                Some((index, bodies?))
            }
        };
        Ok(Model {
            records: records.into_iter().map(|record| (record.index, record.body)).collect(),
            next: range.end,
            purged,
            ballot: self.files.ballot().cloned(),
            snapshot,
        })
    }

    pub fn snapshot(&mut self, index: u64, sections: &[(String, Bytes)]) -> Result<(), StorageError> {
        let mut stored = Vec::new();
        for (id, body) in sections {
            stored.push(self.snapshots.put(SectionId::new(id.clone())?, || body.clone())?);
        }
        self.snapshots.commit(Manifest { meta: Bytes::copy_from_slice(&index.to_le_bytes()), sections: stored })?;
        self.snapshots.remove_unreferenced(&[])?;
        Ok(())
    }
}

/// Judges what a damaged log still shows against what it should hold.
pub fn judge_damage(
    damage: &Damage,
    seen: &Model,
    allowed: &[Model],
    ever: &BTreeMap<u64, BTreeSet<Bytes>>,
) -> Result<(), String> {
    for (index, body) in &seen.records {
        if !ever.get(index).is_some_and(|bodies| bodies.contains(body)) {
            return Err(format!("record {index} of a damaged log was never written so: {damage}"));
        }
    }
    let covers =
        |lost: &RangeInclusive<u64>, index: u64| index >= *lost.start() && (index <= *lost.end() || damage.open_ended);
    let explains = |model: &Model| {
        let gone = |(index, body): &(&u64, &Bytes)| seen.records.get(index) != Some(body);
        model
            .records
            .iter()
            .filter(gone)
            .all(|(index, _)| covers(&damage.lost, *index) || seen.records.contains_key(index))
    };
    if allowed.iter().any(explains) {
        return Ok(());
    }
    Err(format!("records are gone that the damage does not name: {damage}; sees {:?}", seen.records.keys()))
}
