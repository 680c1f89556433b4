//! The log and the ballot of one node, opened together.

use std::sync::Arc;

use bytes::Bytes;

use super::disk::Disk;
use super::error::{Damage, StorageError};
use super::log::{Log, LogOptions, Recovery};
use super::slots::SlotFile;
use super::snapshots::{MANIFEST, SnapshotStore};

const BALLOT: &str = "ballot.slots";

/// The log and the ballot of one node.
#[derive(Debug)]
pub struct LogFiles {
    pub log: Log,
    ballot: SlotFile,
}

impl LogFiles {
    /// Opens both, or makes them.
    ///
    /// # Errors
    /// `Damage` when the ballot cannot be told for certain, or is missing beside a log: this node may have given a
    /// ballot that it does not remember, so it must come back without its files and take everything from the others.
    /// A damaged *log* is no error here; see [`Recovery::damage`].
    pub fn open(disk: Arc<dyn Disk>, options: LogOptions) -> Result<(Self, Recovery), StorageError> {
        let ballot = match SlotFile::open(&disk, BALLOT)? {
            Some(ballot) => ballot,
            None => {
                let names = disk.list().map_err(|e| StorageError::of("listing", "the data directory", e))?;
                if names.iter().any(|name| name.starts_with("log-") && !name.ends_with(".new")) {
                    return Err(Damage::whole(BALLOT, 0, "it is missing").into());
                }
                SlotFile::create(&disk, BALLOT, None)?
            }
        };
        // A node saves a ballot before it logs anything, and the log's files are made before that.
        let (log, recovery) = Log::open_expected(disk, options, ballot.value().is_some())?;
        Ok((Self { log, ballot }, recovery))
    }

    /// The ballot saved last.
    pub fn ballot(&self) -> Option<&Bytes> {
        self.ballot.value()
    }

    /// Saves a ballot; durable on return.
    pub fn save_ballot(&mut self, ballot: Bytes) -> Result<(), StorageError> {
        self.ballot.save(ballot)
    }

    /// Says that no snapshot is there, although records were purged behind one: its manifest was lost.
    pub fn snapshot_is_gone(&self, snapshots: &SnapshotStore) -> Option<Damage> {
        let purged = self.log.purged().filter(|_| snapshots.current().is_none())?;
        let what = format!("it is missing, and the log was purged up to record {} behind it", purged.index);
        let lost = 0..=purged.index;
        Some(Damage { file: MANIFEST.into(), offset: 0, what, lost, open_ended: false })
    }
}
