//! The log and the ballot of one node, opened together.

use std::sync::Arc;

use bytes::Bytes;

use super::disk::Disk;
use super::error::{Damage, StorageError};
use super::log::{Log, LogOptions, Recovery};
use super::slots::SlotFile;

const BALLOT: &str = "ballot.slots";

/// The log and the ballot of one node.
#[derive(Debug)]
pub struct LogFiles {
    pub log: Log,
    pub(super) ballot: SlotFile,
}

impl LogFiles {
    /// Opens both, or makes them.
    ///
    /// # Errors
    /// `Damage` when the ballot cannot be told for certain, or is missing beside a log: this node may have given a
    /// ballot that it does not remember, so it must come back under a new id. A damaged *log* is no error here; see
    /// [`Recovery::damage`].
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
        let (log, recovery) = Log::open(disk, options)?;
        Ok((Self { log, ballot }, recovery))
    }

    /// The ballot saved last.
    pub fn ballot(&self) -> Option<&Bytes> {
        self.ballot.value()
    }
}
