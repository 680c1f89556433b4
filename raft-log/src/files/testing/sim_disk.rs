//! A disk in memory that outlives the processes that use it.
//!
//! ```text
//!   SimDisk ── mount() ──► Mount (a Disk) ── one process's life ──► crash(): the mount is dead
//!      └ cache │ durable, for bytes and for names alike
//! ```
//!
//! Promise: the same calls with the same chance give the same disk. After [`SimDisk::crash`] what was synced is
//! there; of what was not, any choice of sectors, lengths and names is.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::{Rng, RngExt};

use super::sim_state::{DiskEvent, DiskStats, State};
use crate::files::disk::{Disk, DiskFile};

/// A simulated disk. Clones are the same disk.
#[derive(Debug, Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

impl SimDisk {
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk as a new process sees it. Earlier mounts go dead, as when their process was killed: what they wrote
    /// stays, synced or not.
    pub fn mount(&self) -> Mount {
        let mut state = self.state();
        state.life += 1;
        state.log(DiskEvent::Mounted);
        Mount { disk: self.clone(), life: state.life }
    }

    /// The machine loses its power: mounts go dead, and what was not synced is lost in part or whole, by chance.
    pub fn crash(&self, rng: &mut impl Rng) {
        self.state().crash(rng);
    }

    /// The next `count` syncs fail, after the first `skip` succeeded. What they should have made durable can be read
    /// until a crash, and is gone then.
    pub fn fail_syncs(&self, skip: u64, count: u64) {
        let mut state = self.state();
        state.failing_syncs = (skip, count);
    }

    /// The process that has the disk mounted dies after so many more operations; that many succeed.
    pub fn die_after(&self, operations: Option<u64>) {
        self.state().operations_left = operations;
    }

    /// How many more bytes files can grow by; `None`: any.
    pub fn set_room(&self, room: Option<u64>) {
        self.state().room = room;
    }

    /// Flips one bit of a file, on the medium and in the cache.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn flip_bit(&self, name: &str, bit: u64) -> io::Result<()> {
        self.state().flip_bit(name, bit)
    }

    /// Flips one bit of any file, and tells which.
    pub fn flip_any_bit(&self, rng: &mut impl Rng) -> Option<(String, u64)> {
        let mut state = self.state();
        let files: Vec<(String, u64)> = state.sizes().into_iter().filter(|(_, size)| *size > 0).collect();
        if files.is_empty() {
            return None;
        }
        let (name, size) = files[rng.random_range(0..files.len())].clone();
        let bit = rng.random_range(0..size * 8);
        state.flip_bit(&name, bit).ok()?;
        Some((name, bit))
    }

    /// Replaces a file's content, durably.
    pub fn put_file(&self, name: &str, content: &[u8]) {
        self.state().put_file(name, content);
    }

    /// A file's content as a process would read it.
    pub fn file(&self, name: &str) -> Option<Vec<u8>> {
        self.state().file(name)
    }

    /// Removes a file durably; whether it was there.
    pub fn lose_file(&self, name: &str) -> bool {
        self.state().lose_file(name)
    }

    /// All files with their lengths, sorted by name.
    pub fn sizes(&self) -> Vec<(String, u64)> {
        self.state().sizes()
    }

    /// Counts since the disk was made.
    pub fn stats(&self) -> DiskStats {
        self.state().stats
    }

    /// Puts a mark of the test's own into the trace, for example an acknowledgement.
    pub fn mark(&self, what: impl Into<String>) {
        self.state().log(DiskEvent::Mark(what.into()));
    }

    /// Records from now on what happens; see [`SimDisk::trace`].
    pub fn record_trace(&self) {
        self.state().trace.get_or_insert_default();
    }

    /// What happened since [`SimDisk::record_trace`], oldest first; empties the record.
    pub fn take_trace(&self) -> Vec<DiskEvent> {
        self.state().trace.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// The disk as one process sees it.
#[derive(Debug, Clone)]
pub struct Mount {
    disk: SimDisk,
    life: u64,
}

impl Mount {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.state();
        if state.life != self.life {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the process of this mount is dead"));
        }
        if let Some(left) = &mut state.operations_left {
            if *left == 0 {
                state.life += 1;
                state.operations_left = None;
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the process of this mount died"));
            }
            *left -= 1;
        }
        act(&mut state)
    }
}

impl Disk for Mount {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let inode = self.with(|state| Ok(state.create(name)))?;
        Ok(Box::new(SimFile { mount: self.clone(), inode }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let inode = self.with(|state| state.lookup(name))?;
        Ok(Box::new(SimFile { mount: self.clone(), inode }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.with(|state| state.remove(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.with(|state| state.rename(from, to))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.with(|state| Ok(state.sizes().into_iter().map(|(name, _)| name).collect()))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.with(State::sync_dir)
    }
}

#[derive(Debug)]
struct SimFile {
    mount: Mount,
    inode: u64,
}

impl DiskFile for SimFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.mount.with(|state| state.write(self.inode, offset, bytes))
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.mount.with(|state| state.read(self.inode, offset, bytes))
    }

    fn size(&self) -> io::Result<u64> {
        self.mount.with(|state| state.size(self.inode))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.mount.with(|state| state.sync(self.inode))
    }
}
