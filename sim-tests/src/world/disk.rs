//! A node's disk, watched; with a flaw, one that lies about syncs.

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use verdict_raft_log::files::{Disk, DiskFile, testing::Mount};

use crate::{
    flaws::Flaw,
    history::{History, What},
    logs::{self, Journal},
    plan::Place,
};

/// The disk as one life of a node sees it.
#[derive(Clone, Debug)]
pub(super) struct WatchedDisk {
    pub mount: Mount,
    pub node: u64,
    pub history: History,
    pub flaw: Option<Flaw>,
    pub journal: Journal,
    /// Whether this life of the node has met an error of its log's or ballot's files.
    pub failed: Arc<AtomicBool>,
}

#[derive(Debug)]
struct WatchedFile {
    file: Box<dyn DiskFile>,
    disk: WatchedDisk,
    name: String,
    /// Was there before: zeros written over something cut it off.
    reopened: bool,
    /// A sync that was reported and is not done.
    owed: bool,
}

impl WatchedDisk {
    fn watch(&self, file: Box<dyn DiskFile>, name: &str, reopened: bool) -> Box<dyn DiskFile> {
        Box::new(WatchedFile { file, disk: self.clone(), name: name.to_owned(), reopened, owed: false })
    }
}

impl WatchedFile {
    fn note(&self, text: fmt::Arguments<'_>) {
        self.disk.history.note(Place::Node(self.disk.node), text);
    }
}

impl WatchedFile {
    /// Whether something is acknowledged on the word of this file.
    fn matters(&self) -> bool {
        logs::is_segment(&self.name) || self.name.starts_with("ballot")
    }

    /// Takes note of an error. (A dead process's files are no disk that fails.)
    fn look<T>(&self, done: &io::Result<T>) {
        let Err(error) = done else { return };
        if self.matters() && error.kind() != io::ErrorKind::BrokenPipe {
            self.disk.failed.store(true, Ordering::Relaxed);
            let (file, error) = (self.name.clone(), error.to_string());
            self.disk.history.record(Place::Node(self.disk.node), What::DiskFailed { file, error });
        }
    }
}

impl Disk for WatchedDisk {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.watch(self.mount.create(name)?, name, false))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.watch(self.mount.open(name)?, name, true))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.mount.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.mount.rename(from, to)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.mount.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.mount.sync_dir()
    }
}

impl DiskFile for WatchedFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if std::mem::take(&mut self.owed) {
            self.file.sync()?;
        }
        let written = self.file.write_at(offset, bytes);
        self.look(&written);
        written?;
        self.note(format_args!("writes {} bytes at {offset} of {}", bytes.len(), self.name));
        if logs::is_segment(&self.name) {
            self.disk.journal.wrote(self.disk.node, &self.name, bytes);
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, bytes)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn sync(&mut self) -> io::Result<()> {
        let (segment, ballot) = (logs::is_segment(&self.name), self.name.starts_with("ballot"));
        let synced = match self.disk.flaw {
            Some(Flaw::BallotNotSynced) if ballot => Ok(()),
            Some(Flaw::LogNotSynced) if segment => Ok(()),
            Some(Flaw::FlushEarly) if segment || ballot => {
                self.owed = true;
                Ok(())
            }
            _ => {
                let done = self.file.sync();
                if done.is_ok() && self.matters() {
                    self.disk.journal.synced(self.disk.node, &self.name);
                    if self.disk.failed.load(Ordering::Relaxed) {
                        let what = What::AfterDiskFailed(format!("syncs {}", self.name));
                        self.disk.history.record(Place::Node(self.disk.node), what);
                    }
                }
                self.look(&done);
                done
            }
        };
        match &synced {
            Ok(()) => self.note(format_args!("syncs {}", self.name)),
            Err(error) => self.note(format_args!("fails to sync {}: {error}", self.name)),
        }
        if self.disk.flaw == Some(Flaw::SyncErrorIgnored) { Ok(()) } else { synced }
    }

    fn write_zeros(&mut self, from: u64, to: u64) -> io::Result<()> {
        if self.reopened && logs::is_segment(&self.name) {
            let end = self.file.size()?.min(to);
            let mut there = vec![0; usize::try_from(end.saturating_sub(from)).map_err(io::Error::other)?];
            self.file.read_at(from, &mut there)?;
            if let Some(last) = there.iter().rposition(|byte| *byte != 0) {
                let torn = What::TornTail { file: self.name.clone(), bytes: last as u64 + 1 };
                self.disk.history.record(Place::Node(self.disk.node), torn);
            }
        }
        self.file.write_zeros(from, to)
    }
}
