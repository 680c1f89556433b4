//! Giving a damaged log back what it lost.
//!
//! ```text
//!   damaged   │ seg 3 whole │ seg 4 whole ✗ damaged … │ seg 5 │
//!   repaired  │ seg 3 whole │ seg 4 whole │                    seg 6: "goes on behind ✗", the peer's records
//! ```
//!
//! Promise: a repair counts whole or not at all. The peer's records are collected in a file of their own; giving that
//! its name makes it the newest segment, and its header leaves the damaged part out of the chain. A crash before
//! leaves the log damaged, so that it is repaired again. What it goes on behind is made durable first: the last batch
//! that was read may have stood in the cache of the operating system alone.

use super::batch::{self, Header, Kind, MAX_BODY, Place, Record};
use super::error::{Doing, StorageError};
use super::log::{Log, Recovery};
use super::marks::{Marks, Purged};
use super::segment::{Making, SegmentHeader};

/// Where a repair begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepairFrom {
    /// Keep the readable records up to this one, which the peer must have too: the same term at the same index.
    After(u64),
    /// Keep none: the log begins anew behind what a snapshot covers, or with record 0.
    Start(Option<Purged>),
}

/// A repair under way.
#[derive(Debug)]
pub struct Repair<'a> {
    log: &'a mut Log,
    making: Making,
    before: Place,
    synced: Place,
    first_index: u64,
    next_index: u64,
    first_number: u64,
    next_number: u64,
    purged: Option<Option<Purged>>,
    buffer: Vec<u8>,
}

impl Log {
    /// Begins a repair. The log stays damaged until [`Repair::finish`]; dropping the repair gives it up.
    ///
    /// # Errors
    /// `Misuse` when there is no damage, or `After` names no readable record. When the disk fails.
    pub fn repair(&mut self, from: RepairFrom) -> Result<Repair<'_>, StorageError> {
        if self.damage().is_none() {
            return Err(StorageError::Misuse("this log is not damaged: there is nothing to repair".into()));
        }
        let (before, next_index, purged) = match from {
            RepairFrom::After(index) => {
                let batch = self.batches.iter().find(|batch| batch.first <= index && index < batch.next);
                let Some(batch) = batch else {
                    let why = format!("record {index} is not readable, only {:?} are", self.records());
                    return Err(StorageError::Misuse(why));
                };
                let (place, size) = (batch.place, batch.size);
                self.write_again(place, size)?;
                (Place { offset: place.offset + u64::from(size), ..place }, index + 1, None)
            }
            RepairFrom::Start(purged) => {
                let next = purged.as_ref().map_or(0, |purged| purged.index + 1);
                (Place::NONE, next, Some(purged))
            }
        };
        let making = Making::start(&*self.disk, self.highest + 1)?;
        let number = self.next_number;
        Ok(Repair {
            log: self,
            making,
            before,
            synced: before,
            first_index: next_index,
            next_index,
            first_number: number,
            next_number: number,
            purged,
            buffer: Vec::new(),
        })
    }

    /// A sync alone would not do after one that failed: what it did not write counts as written since.
    fn write_again(&mut self, place: Place, size: u32) -> Result<(), StorageError> {
        let segment = self.segments.get_mut(&place.segment).expect("a readable batch is in a segment");
        let mut bytes = vec![0; size as usize];
        segment.file.read_at(place.offset, &mut bytes).doing("reading", &segment.name)?;
        segment.file.write_at(place.offset, &bytes).doing("writing again", &segment.name)?;
        segment.file.sync().map_err(|e| StorageError::sync(&segment.name, e))
    }
}

impl Repair<'_> {
    /// The index of the record that is wanted next.
    pub fn next_index(&self) -> u64 {
        self.next_index
    }

    /// Adds records from a peer, in order.
    ///
    /// # Errors
    /// `Gap`, `TooLarge`; the repair can go on. When the disk fails.
    pub fn push(&mut self, records: &[Record]) -> Result<(), StorageError> {
        for record in records {
            if record.index != self.next_index {
                return Err(StorageError::Gap { expected: self.next_index, found: record.index });
            }
            if record.body.len() > MAX_BODY {
                return Err(StorageError::TooLarge { what: "a record", size: record.body.len(), limit: MAX_BODY });
            }
            let mut header = Header {
                kind: Kind::Records,
                log: self.log.options.id,
                number: self.next_number,
                first: self.next_index,
                count: 0,
                payload: 0,
                synced: self.synced,
                mask: 0,
            };
            batch::encode(&mut header, std::slice::from_ref(record), &mut self.buffer);
            let end = self.making.at + self.buffer.len() as u64;
            if end >= 1 << 32 {
                return Err(StorageError::TooLarge { what: "a repair", size: usize::MAX, limit: u32::MAX as usize });
            }
            self.making.push(&self.buffer)?;
            self.synced = Place { segment: self.log.highest + 1, offset: end };
            (self.next_index, self.next_number) = (header.next(), self.next_number + 1);
        }
        Ok(())
    }

    /// Makes the repair count, and opens the log again.
    ///
    /// # Errors
    /// `Misuse` when not all records that may be gone were given. When the disk fails.
    pub fn finish(self) -> Result<Recovery, StorageError> {
        if let Some(damage) = self.log.damage()
            && self.next_index <= *damage.lost.end()
        {
            let (next, end) = (self.next_index, damage.lost.end());
            let why = format!("the repair ends before record {next}, and records up to {end} may be gone");
            return Err(StorageError::Misuse(why));
        }
        self.finish_settled()
    }

    /// As [`Repair::finish`], when the owner knows from elsewhere that no record behind those given was acknowledged.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn finish_settled(self) -> Result<Recovery, StorageError> {
        let number = self.log.highest + 1;
        let header = SegmentHeader {
            repair: true,
            log: self.log.options.id,
            number,
            capacity: self.making.at.max(self.log.options.segment_bytes),
            before: self.before,
            first_batch: self.first_number,
            next_index: self.first_index,
        };
        let disk = self.log.disk.clone();
        if let Some(purged) = self.purged {
            // A segment that the marks name and that is not there yet is damage too.
            match &mut self.log.marks {
                Some(marks) => marks.save(number, purged)?,
                None => self.log.marks = Some(Marks::create(&disk, number, purged)?),
            }
        }
        self.making.finish(&*disk, header)?;
        let (log, recovery) = Log::open(disk, self.log.options.clone())?;
        *self.log = log;
        Ok(recovery)
    }
}
