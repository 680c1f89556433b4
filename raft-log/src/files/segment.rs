//! One file of the log.
//!
//! ```text
//!   log-00000000000000000007.seg
//!   0     "vseg"  4 version u16  6 kind u8  7 zero  8 log id u64  16 number u64  24 length of the file u64
//!         32 place where the log before it ends (segment u64, offset u64)  48 first batch's number u64
//!         56 index of the next record u64  64 crc32c u32 … zeros to 512
//!   512   batches, then zeros to the end
//! ```
//!
//! A segment is made under another name, filled with zeros, synced and then renamed; so one that bears its name is
//! whole. It is never written again where something stands, and never used again. Its header names the exact place
//! where the log before it ends: the chain of these places is the log, whatever else lies between is void. Of kind 2
//! are segments that a repair made: their chain leaves out what was damaged.

use bytes::BufMut;

use super::batch::{self, Place};
use super::disk::{Disk, DiskFile, SECTOR};
use super::error::{Damage, Doing, StorageError};
use super::frame::{UNFINISHED, seal, u16_at, u64_at, unseal};

const MAGIC: &[u8; 4] = b"vseg";
const VERSION: u16 = 1;
const HEADER: usize = 68;

/// Where the first batch stands.
pub(super) const FIRST_BATCH: u64 = SECTOR as u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) repair: bool,
    pub(super) log: u64,
    pub(super) number: u64,
    pub(super) capacity: u64,
    pub(super) before: Place,
    pub(super) first_batch: u64,
    pub(super) next_index: u64,
}

impl SegmentHeader {
    pub(super) fn encode(&self) -> [u8; SECTOR] {
        let mut bytes = Vec::with_capacity(SECTOR);
        bytes.put_slice(MAGIC);
        bytes.put_u16_le(VERSION);
        bytes.put_u8(if self.repair { 2 } else { 1 });
        bytes.put_u8(0);
        bytes.put_u64_le(self.log);
        bytes.put_u64_le(self.number);
        bytes.put_u64_le(self.capacity);
        bytes.put_u64_le(self.before.segment);
        bytes.put_u64_le(self.before.offset);
        bytes.put_u64_le(self.first_batch);
        bytes.put_u64_le(self.next_index);
        seal(&mut bytes);
        bytes.resize(SECTOR, 0);
        bytes.try_into().expect("resized to a sector")
    }
}

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) name: String,
    pub(super) header: SegmentHeader,
    pub(super) file: Box<dyn DiskFile>,
}

pub(super) fn name(number: u64) -> String {
    format!("log-{number:020}.seg")
}

/// The number of a segment's file name.
pub(super) fn number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("log-")?.strip_suffix(".seg")?;
    (number.len() == 20).then(|| number.parse().ok())?
}

/// Whether it is a segment that was never finished.
pub(super) fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(UNFINISHED).and_then(number).is_some()
}

impl Segment {
    /// Makes a segment; durable, with its name, on return.
    pub(super) fn create(disk: &dyn Disk, header: SegmentHeader) -> Result<Self, StorageError> {
        let mut making = Making::start(disk, header.number)?;
        making.at = FIRST_BATCH;
        making.finish(disk, header)
    }

    /// Opens a segment and reads its header.
    pub(super) fn open(disk: &dyn Disk, number: u64, log: u64) -> Result<Self, StorageError> {
        let name = name(number);
        let file = disk.open(&name).doing("opening", &name)?;
        let size = file.size().doing("measuring", &name)?;
        if size < FIRST_BATCH {
            return Err(Damage::whole(&name, size, "it ends within its header").into());
        }
        let mut bytes = [0; HEADER];
        file.read_at(0, &mut bytes).doing("reading", &name)?;
        if &bytes[..4] != MAGIC || unseal(&bytes).is_none() {
            return Err(Damage::whole(&name, 0, "its header's checksum is wrong").into());
        }
        let version = u16_at(&bytes, 4);
        if version > VERSION {
            return Err(StorageError::Newer { file: name, offset: 0, found: version, supported: VERSION });
        }
        let header = SegmentHeader {
            repair: bytes[6] == 2,
            log: u64_at(&bytes, 8),
            number: u64_at(&bytes, 16),
            capacity: u64_at(&bytes, 24),
            before: Place { segment: u64_at(&bytes, 32), offset: u64_at(&bytes, 40) },
            first_batch: u64_at(&bytes, 48),
            next_index: u64_at(&bytes, 56),
        };
        if header.log != log {
            return Err(StorageError::Foreign { file: name, found: header.log, expected: log });
        }
        if header.number != number {
            return Err(Damage::whole(&name, 16, "it is another segment under this name").into());
        }
        Ok(Self { name, header, file })
    }

    /// Reads all of it; shorter than its capacity when the file was cut.
    pub(super) fn read(&self) -> Result<Vec<u8>, StorageError> {
        let size = self.file.size().doing("measuring", &self.name)?.min(self.header.capacity);
        let mut bytes = vec![0; usize::try_from(size).expect("segments fit into memory")];
        self.file.read_at(0, &mut bytes).doing("reading", &self.name)?;
        Ok(bytes)
    }
}

/// A segment that is being filled before it gets its name.
#[derive(Debug)]
pub(super) struct Making {
    unfinished: String,
    file: Box<dyn DiskFile>,
    /// Where the next batch goes.
    pub(super) at: u64,
}

impl Making {
    pub(super) fn start(disk: &dyn Disk, number: u64) -> Result<Self, StorageError> {
        let unfinished = format!("{}{UNFINISHED}", name(number));
        let file = disk.create(&unfinished).doing("creating", &unfinished)?;
        Ok(Self { unfinished, file, at: FIRST_BATCH })
    }

    pub(super) fn push(&mut self, batch: &[u8]) -> Result<(), StorageError> {
        self.file.write_at(self.at, batch).doing("writing", &self.unfinished)?;
        self.at += batch.len() as u64;
        Ok(())
    }

    pub(super) fn finish(mut self, disk: &dyn Disk, header: SegmentHeader) -> Result<Segment, StorageError> {
        let name = name(header.number);
        self.file.write_at(0, &header.encode()).doing("writing", &self.unfinished)?;
        self.file.write_zeros(self.at, header.capacity).doing("filling", &self.unfinished)?;
        self.file.sync().map_err(|e| StorageError::sync(&self.unfinished, e))?;
        disk.rename(&self.unfinished, &name).doing("renaming", &self.unfinished)?;
        disk.sync_dir().map_err(|e| StorageError::sync("the data directory", e))?;
        Ok(Segment { name, header, file: self.file })
    }
}

/// Where a damaged log goes on: batches that are whole and newer than what was read.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// The lowest place of a record in them, and the index after the highest.
    pub(super) range: Option<(u64, u64)>,
}

impl Evidence {
    /// Looks for batches from an offset on. Whether something stands behind the last of them.
    pub(super) fn look(&mut self, bytes: &[u8], from: u64, log: u64, newer_than: u64) -> bool {
        let from = usize::try_from(from).unwrap_or(bytes.len()).min(bytes.len());
        let mut end = from;
        for (position, sector) in bytes[from..].chunks(SECTOR).enumerate() {
            if let batch::Found::Header(header) = batch::read_header(sector)
                && header.log == log
                && header.number >= newer_than
            {
                let (low, high) = self.range.unwrap_or((header.first, header.next()));
                self.range = Some((low.min(header.first), high.max(header.next())));
                let size = usize::try_from(header.size()).unwrap_or(bytes.len());
                end = (from + position * SECTOR).saturating_add(size).min(bytes.len());
            }
        }
        !batch::is_zero(&bytes[end..])
    }
}
