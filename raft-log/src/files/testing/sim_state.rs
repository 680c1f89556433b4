//! What a simulated disk knows: a cache and a medium, for bytes and for names.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use rand::{Rng, RngExt};

use crate::files::disk::SECTOR;

/// Something that happened to a simulated disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskEvent {
    Mounted,
    Write {
        file: String,
        offset: u64,
        len: u64,
    },
    Sync {
        file: String,
    },
    SyncDir,
    /// A sync failed.
    SyncFailed {
        file: String,
    },
    /// A write found no room.
    NoSpace {
        file: String,
    },
    Removed {
        file: String,
    },
    Renamed {
        from: String,
        to: String,
    },
    Crashed,
    /// The test's own.
    Mark(String),
}

/// Counts since a simulated disk was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskStats {
    pub writes: u64,
    pub written_bytes: u64,
    /// Syncs of files that succeeded.
    pub syncs: u64,
    pub dir_syncs: u64,
    pub failed_syncs: u64,
    pub crashes: u64,
}

#[derive(Debug, Default, Clone)]
struct Inode {
    cache: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors that differ, or may.
    dirty: BTreeSet<usize>,
}

#[derive(Debug, Clone)]
enum NameOp {
    Link(String, u64),
    Unlink(String),
    /// Both at once.
    Rename(String, String, u64),
}

impl NameOp {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Link(name, inode) => {
                names.insert(name.clone(), *inode);
            }
            Self::Unlink(name) => {
                names.remove(name);
            }
            Self::Rename(from, to, inode) => {
                if names.get(from) == Some(inode) {
                    names.remove(from);
                }
                names.insert(to.clone(), *inode);
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) life: u64,
    pub(super) room: Option<u64>,
    /// After so many more operations the process that has the disk mounted dies.
    pub(super) operations_left: Option<u64>,
    /// How many syncs still succeed, and how many then fail.
    pub(super) failing_syncs: (u64, u64),
    pub(super) stats: DiskStats,
    pub(super) trace: Option<Vec<DiskEvent>>,
    inodes: BTreeMap<u64, Inode>,
    last_inode: u64,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    pending_names: Vec<NameOp>,
}

impl State {
    pub(super) fn log(&mut self, event: DiskEvent) {
        if let Some(trace) = &mut self.trace {
            trace.push(event);
        }
    }

    fn name_of(&self, inode: u64) -> String {
        let name = self.names.iter().find(|(_, at)| **at == inode).map(|(name, _)| name.clone());
        name.unwrap_or_else(|| format!("removed file {inode}"))
    }

    pub(super) fn lookup(&self, name: &str) -> io::Result<u64> {
        self.names.get(name).copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, name.to_owned()))
    }

    fn inode(&mut self, inode: u64) -> io::Result<&mut Inode> {
        self.inodes.get_mut(&inode).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    pub(super) fn create(&mut self, name: &str) -> u64 {
        // An emptied file is a new one here: its old content can come back, which is worse than what files do.
        self.last_inode += 1;
        let inode = self.last_inode;
        self.inodes.insert(inode, Inode::default());
        self.change_names(NameOp::Link(name.into(), inode));
        inode
    }

    pub(super) fn remove(&mut self, name: &str) -> io::Result<()> {
        self.lookup(name)?;
        self.log(DiskEvent::Removed { file: name.into() });
        self.change_names(NameOp::Unlink(name.into()));
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let inode = self.lookup(from)?;
        self.log(DiskEvent::Renamed { from: from.into(), to: to.into() });
        self.change_names(NameOp::Rename(from.into(), to.into(), inode));
        Ok(())
    }

    fn change_names(&mut self, op: NameOp) {
        op.apply(&mut self.names);
        self.pending_names.push(op);
    }

    pub(super) fn sync_dir(&mut self) -> io::Result<()> {
        if self.sync_fails() {
            self.pending_names.clear();
            self.log(DiskEvent::SyncFailed { file: "the directory".into() });
            return Err(io::Error::other("input/output error (simulated)"));
        }
        self.pending_names.clear();
        self.durable_names = self.names.clone();
        self.stats.dir_syncs += 1;
        self.log(DiskEvent::SyncDir);
        self.forget_unnamed();
        Ok(())
    }

    /// Open files stay readable after their names are gone in life; here only those of the current process can be
    /// open, and it reads none that it removed after syncing the directory.
    fn forget_unnamed(&mut self) {
        let named: BTreeSet<u64> = self.names.values().chain(self.durable_names.values()).copied().collect();
        self.inodes.retain(|inode, _| named.contains(inode));
    }

    pub(super) fn write(&mut self, inode: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let from = usize::try_from(offset).expect("simulated files are small");
        let to = from + bytes.len();
        let grows = to.saturating_sub(self.inode(inode)?.cache.len()) as u64;
        if let Some(room) = &mut self.room {
            if grows > *room {
                let file = self.name_of(inode);
                self.log(DiskEvent::NoSpace { file });
                return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on device (simulated)"));
            }
            *room -= grows;
        }
        let file = self.inode(inode)?;
        if to > file.cache.len() {
            let old = file.cache.len();
            file.cache.resize(to, 0);
            file.dirty.extend(old / SECTOR..to.div_ceil(SECTOR));
        }
        file.cache[from..to].copy_from_slice(bytes);
        file.dirty.extend(from / SECTOR..to.div_ceil(SECTOR));
        self.stats.writes += 1;
        self.stats.written_bytes += bytes.len() as u64;
        if self.trace.is_some() {
            let file = self.name_of(inode);
            self.log(DiskEvent::Write { file, offset, len: bytes.len() as u64 });
        }
        Ok(())
    }

    pub(super) fn read(&mut self, inode: u64, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let file = self.inode(inode)?;
        let from = usize::try_from(offset).expect("simulated files are small");
        let there = file.cache.get(from..from + bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(there);
        Ok(())
    }

    pub(super) fn size(&mut self, inode: u64) -> io::Result<u64> {
        Ok(self.inode(inode)?.cache.len() as u64)
    }

    fn sync_fails(&mut self) -> bool {
        let (skip, count) = &mut self.failing_syncs;
        if *count == 0 {
            return false;
        }
        if *skip > 0 {
            *skip -= 1;
            return false;
        }
        *count -= 1;
        self.stats.failed_syncs += 1;
        true
    }

    pub(super) fn sync(&mut self, inode: u64) -> io::Result<()> {
        let fails = self.sync_fails();
        let traced = self.trace.is_some() || fails;
        let name = if traced { self.name_of(inode) } else { String::new() };
        let file = self.inode(inode)?;
        if fails {
            // The pages count as clean from now on, and were never written.
            file.dirty.clear();
            self.log(DiskEvent::SyncFailed { file: name });
            return Err(io::Error::other("input/output error (simulated)"));
        }
        file.durable.resize(file.cache.len(), 0);
        for sector in std::mem::take(&mut file.dirty) {
            let (from, to) = (sector * SECTOR, ((sector + 1) * SECTOR).min(file.cache.len()));
            file.durable[from..to].copy_from_slice(&file.cache[from..to]);
        }
        self.stats.syncs += 1;
        self.log(DiskEvent::Sync { file: name });
        Ok(())
    }

    pub(super) fn crash(&mut self, rng: &mut impl Rng) {
        self.life += 1;
        self.stats.crashes += 1;
        self.log(DiskEvent::Crashed);
        // Journals keep the order of names; other file systems need not.
        let ordered = rng.random_bool(0.5);
        let mut keeps = true;
        for op in std::mem::take(&mut self.pending_names) {
            let chance = rng.random_bool(0.6);
            keeps = if ordered { keeps && chance } else { chance };
            if keeps {
                op.apply(&mut self.durable_names);
            }
        }
        self.names = self.durable_names.clone();
        self.forget_unnamed();
        for file in self.inodes.values_mut() {
            crash_file(file, rng);
        }
    }

    pub(super) fn flip_bit(&mut self, name: &str, bit: u64) -> io::Result<()> {
        let inode = self.lookup(name)?;
        let file = self.inode(inode)?;
        let at = usize::try_from(bit / 8).expect("simulated files are small");
        for copy in [&mut file.cache, &mut file.durable] {
            if let Some(byte) = copy.get_mut(at) {
                *byte ^= 1 << (bit % 8);
            }
        }
        Ok(())
    }

    pub(super) fn put_file(&mut self, name: &str, content: &[u8]) {
        self.last_inode += 1;
        let inode = Inode { cache: content.to_vec(), durable: content.to_vec(), dirty: BTreeSet::new() };
        self.inodes.insert(self.last_inode, inode);
        self.names.insert(name.into(), self.last_inode);
        self.durable_names.insert(name.into(), self.last_inode);
    }

    pub(super) fn file(&self, name: &str) -> Option<Vec<u8>> {
        self.inodes.get(self.names.get(name)?).map(|file| file.cache.clone())
    }

    pub(super) fn lose_file(&mut self, name: &str) -> bool {
        self.durable_names.remove(name);
        self.names.remove(name).is_some()
    }

    pub(super) fn sizes(&self) -> Vec<(String, u64)> {
        let size = |inode| self.inodes.get(inode).map_or(0, |file| file.cache.len() as u64);
        self.names.iter().map(|(name, inode)| (name.clone(), size(inode))).collect()
    }
}

/// Any choice of the unsynced sectors gets through, and of the length. Often all, none, or all up to one.
fn crash_file(file: &mut Inode, rng: &mut impl Rng) {
    let dirty: Vec<usize> = std::mem::take(&mut file.dirty).into_iter().collect();
    let mode = rng.random_range(0..5);
    let cut = rng.random_range(0..=dirty.len());
    for (position, sector) in dirty.iter().enumerate() {
        let survives = match mode {
            0 => true,
            1 => false,
            2 => position < cut,
            _ => rng.random_bool(0.5),
        };
        let (from, to) = (sector * SECTOR, ((sector + 1) * SECTOR).min(file.cache.len()));
        if survives && from < to {
            if file.durable.len() < to {
                file.durable.resize(to, 0);
            }
            file.durable[from..to].copy_from_slice(&file.cache[from..to]);
        }
    }
    if file.cache.len() > file.durable.len() && rng.random_bool(0.3) {
        let len = rng.random_range(file.durable.len()..=file.cache.len());
        file.durable.resize(len, 0);
    }
    file.cache = file.durable.clone();
}
