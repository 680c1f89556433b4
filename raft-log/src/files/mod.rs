//! Everything durable of a node: the log, the ballot, snapshots.
//!
//! ```text
//!   LogWriter (thread or task) ── LogFiles ──┬── Log           log-….seg, log-marks.slots
//!                                            └── SlotFile      ballot.slots
//!                                 SnapshotStore                snapshot.manifest, section-….sec
//!                                            └────── Disk: RealDisk, or testing::SimDisk
//! ```
//!
//! Promise: what was acknowledged is there after a crash, unaltered, or its damage is reported by name; it is never
//! silently less. After a failed write or sync nothing more is acknowledged.
//!
//! Absences: nothing here knows Raft, what a record means, a clock, or chance.

mod batch;
mod disk;
mod error;
mod frame;
mod log;
mod marks;
mod reading;
mod real_disk;
mod recovery;
mod repair;
mod segment;
mod slots;
mod snapshots;
mod spare;
mod store;
mod tail;
pub mod testing;
mod writer;

pub use batch::{MAX_BATCH, MAX_BODY, Record};
pub use disk::{Disk, DiskFile, SECTOR};
pub use error::{Damage, StorageError};
pub use log::{Log, LogOptions, Recovery, Staged, Synced, Written};
pub use marks::{MAX_MARK, Purged};
pub use real_disk::RealDisk;
pub use recovery::TornTail;
pub use repair::{Repair, RepairFrom};
pub use slots::{MAX_VALUE, SlotFile};
pub use snapshots::{MAX_SECTION_ID, Manifest, SectionId, SnapshotStore, StoredSection};
pub use spare::{Spare, SparePlan};
pub use store::LogFiles;
pub use writer::{Flushed, LogWriter, Pace, Spawn, WriterOptions};
