//! Seeded bugs, as wrappers around the disk seam. The histories must catch each.

use std::io;
use std::sync::Arc;

use verdict_raft_log::files::{Disk, DiskFile};

/// A bug to seed; the numbers are those of the mutants that the test plan lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    None,
    /// M1: the sync of a ballot is skipped.
    SkipBallotSync,
    /// M2: the sync of an append is skipped.
    SkipAppendSync,
    /// M3: an append is reported before its sync.
    ReportEarly,
    /// M18: the log is purged before the snapshot is synced.
    PurgeBeforeSnapshot,
    /// M19: the purge point is not persisted.
    SkipMarksSync,
    /// M35: the log is cut at the first bad checksum.
    CutAtBadChecksum,
    /// M36: the node goes on after a failed sync.
    IgnoreFailedSync,
    /// Names are never made durable.
    SkipDirSync,
}

#[derive(Debug)]
pub struct BuggyDisk {
    inner: Arc<dyn Disk>,
    bug: Bug,
}

impl BuggyDisk {
    pub fn new(inner: Arc<dyn Disk>, bug: Bug) -> Self {
        Self { inner, bug }
    }

    fn wrap(&self, name: &str, inner: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        let skip = match self.bug {
            Bug::SkipBallotSync => name == "ballot.slots",
            Bug::SkipAppendSync => name.ends_with(".seg"),
            Bug::SkipMarksSync => name == "log-marks.slots",
            _ => false,
        };
        Box::new(BuggyFile { inner, skip, ignore: self.bug == Bug::IgnoreFailedSync })
    }
}

impl Disk for BuggyDisk {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.wrap(name, self.inner.create(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut file = self.inner.open(name)?;
        if self.bug == Bug::CutAtBadChecksum && name.ends_with(".seg") {
            cut_at_bad_checksum(&mut *file)?;
        }
        Ok(self.wrap(name, file))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        match self.bug {
            Bug::SkipDirSync => Ok(()),
            Bug::IgnoreFailedSync => {
                let _ignored = self.inner.sync_dir();
                Ok(())
            }
            _ => self.inner.sync_dir(),
        }
    }
}

#[derive(Debug)]
struct BuggyFile {
    inner: Box<dyn DiskFile>,
    skip: bool,
    ignore: bool,
}

impl DiskFile for BuggyFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, bytes)
    }

    fn size(&self) -> io::Result<u64> {
        self.inner.size()
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.skip {
            return Ok(());
        }
        let done = self.inner.sync();
        if self.ignore { Ok(()) } else { done }
    }
}

/// What many logs do on opening: whatever follows the first batch that does not check is overwritten with zeros.
fn cut_at_bad_checksum(file: &mut dyn DiskFile) -> io::Result<()> {
    let mut bytes = vec![0; usize::try_from(file.size()?).expect("small")];
    file.read_at(0, &mut bytes)?;
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let mut at = 512;
    while at + 64 <= bytes.len() {
        let end = at + (64 + word(at + 36) as usize).next_multiple_of(512);
        let header_is_right = word(at + 60) == crc32c::crc32c(&bytes[at..at + 60]);
        if &bytes[at..at + 4] != b"vbat" || !header_is_right || end > bytes.len() || !records_are_right(&bytes[at..end])
        {
            return file.write_zeros(at as u64, bytes.len() as u64);
        }
        at = end;
    }
    Ok(())
}

fn records_are_right(batch: &[u8]) -> bool {
    let mask = &batch[48..56];
    let plain: Vec<u8> = batch[64..].iter().enumerate().map(|(at, byte)| byte ^ mask[at % 8]).collect();
    let word = |at: usize| plain.get(at..at + 4).map(|four| u32::from_le_bytes(four.try_into().expect("four bytes")));
    let count = u32::from_le_bytes(batch[32..36].try_into().expect("four bytes"));
    let mut at = 0;
    (0..count).all(|_| {
        let Some((crc, length)) = word(at).zip(word(at + 16)) else { return false };
        let record = plain.get(at + 4..at + 20 + length as usize);
        at += 20 + length as usize;
        record.is_some_and(|record| crc32c::crc32c(record) == crc)
    })
}
