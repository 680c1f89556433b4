//! The next segment's file, filled with zeros ahead of its use.
//!
//! ```text
//!   current segment half full ─► SparePlan::make, beside the appends: log-spare.new, zeros, synced
//!   current segment full      ─► header, sync, rename: no pause for the zeros
//! ```
//!
//! Promise: a spare never matters to what is durable. Without one, or when making it fails, the segment is made when
//! it is needed, and that says what is wrong; one that is left over is removed on opening.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::disk::{Disk, DiskFile};
use super::error::{Doing, StorageError};
use super::log::Log;
use super::segment::{Segment, SegmentHeader, name};

/// What the file is called until it is used.
pub(super) const SPARE: &str = "log-spare.new";

/// After so many bytes the zeros are synced, so that the appends beside never wait for more of them.
const PIECE: u64 = 1 << 20;

/// A file of zeros for the next segment.
#[derive(Debug)]
pub struct Spare {
    file: Box<dyn DiskFile>,
    pub(super) capacity: u64,
}

/// What it takes to make a spare, on whatever thread.
#[derive(Debug)]
pub struct SparePlan {
    disk: Arc<dyn Disk>,
    capacity: u64,
    pub(super) after_segment: u64,
}

impl SparePlan {
    /// Makes the file; gives up early once `stop` is set.
    ///
    /// # Errors
    /// When the disk fails; nothing is left then.
    pub fn make(&self, stop: &AtomicBool) -> Result<Option<Spare>, StorageError> {
        let made = self.fill(stop);
        if !matches!(made, Ok(Some(_))) {
            // It gives its room back; if not, opening the log removes it.
            let _left = self.disk.remove(SPARE);
        }
        made
    }

    fn fill(&self, stop: &AtomicBool) -> Result<Option<Spare>, StorageError> {
        let mut file = self.disk.create(SPARE).doing("creating", SPARE)?;
        for from in (0..self.capacity).step_by(usize::try_from(PIECE).expect("1 MiB")) {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            file.write_zeros(from, (from + PIECE).min(self.capacity)).doing("filling", SPARE)?;
            file.sync().map_err(|e| StorageError::sync(SPARE, e))?;
        }
        Ok(Some(Spare { file, capacity: self.capacity }))
    }
}

impl Spare {
    /// Makes it a segment; durable, with its name, on return.
    pub(super) fn become_segment(mut self, disk: &dyn Disk, header: SegmentHeader) -> Result<Segment, StorageError> {
        let name = name(header.number);
        self.file.write_at(0, &header.encode()).doing("writing", SPARE)?;
        self.file.sync().map_err(|e| StorageError::sync(SPARE, e))?;
        disk.rename(SPARE, &name).doing("renaming", SPARE)?;
        disk.sync_dir().map_err(|e| StorageError::sync("the data directory", e))?;
        Ok(Segment { name, header, file: self.file })
    }
}

impl Log {
    /// How to make the next segment's file ahead; `None` while that is not worth it.
    pub fn spare_plan(&self) -> Option<SparePlan> {
        let half_full = self.end.offset * 2 >= self.options.segment_bytes;
        let runs = self.damage().is_none() && self.failure().is_none();
        (runs && half_full && self.spare.is_none()).then(|| SparePlan {
            disk: self.disk.clone(),
            capacity: self.segment_capacity(),
            after_segment: self.highest,
        })
    }

    /// Keeps a spare for the next segment.
    pub fn give_spare(&mut self, spare: Spare) {
        self.spare = Some(spare);
    }
}
