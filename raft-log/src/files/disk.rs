//! The disk seam: the few operations on files that everything durable is built from.
//!
//! ```text
//!   Log  SlotFile  SnapshotStore
//!     └──────┼──────────┘
//!          Disk ── RealDisk   one directory, std::fs
//!               └─ SimDisk    in memory; loses, tears, flips, fills up, fails  (crate::testing)
//! ```
//!
//! Promise asked of an implementation: what was written before a [`DiskFile::sync`] that succeeded is there after a
//! crash; a sector of [`SECTOR`] bytes that was not synced is there after a crash either as it was or as it was last
//! written, each sector by itself; a name created, renamed or removed before a [`Disk::sync_dir`] that succeeded
//! stays so, and an unsynced one may or may not.

use std::fmt::Debug;
use std::io;

/// The unit that a disk writes whole or not at all, in bytes.
pub const SECTOR: usize = 512;

/// Zeros are written in pieces of this many bytes.
const ZEROS: &[u8] = &[0; 128 << 10];

/// One flat directory of files. Names hold no separators.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Makes a file for reading and writing; one that is there under this name is emptied.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Gives a file another name at once; a file that had that name is gone.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// The names of all files, sorted.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes creations, renames and removals so far durable.
    fn sync_dir(&self) -> io::Result<()>;
}

/// An open file. It stays readable after its name is gone.
pub trait DiskFile: Debug + Send {
    /// Writes all of `bytes`; a gap behind the end reads as zeros.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Fills all of `bytes`.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file ends before.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// The file's length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Makes what was written durable, with the length needed to read it back (fdatasync).
    ///
    /// After an error, what was written since the last sync may be gone although it still reads back.
    fn sync(&mut self) -> io::Result<()>;

    /// Writes zeros over a range, so that later writes there allocate nothing.
    fn write_zeros(&mut self, from: u64, to: u64) -> io::Result<()> {
        let mut at = from;
        while at < to {
            let step = (to - at).min(ZEROS.len() as u64);
            self.write_at(at, &ZEROS[..usize::try_from(step).expect("at most 128 KiB")])?;
            at += step;
        }
        Ok(())
    }
}
