//! The log: records in segments, durable batch by batch.
//!
//! ```text
//!   stage ──► Staged ──► write ──► Written ──► sync ──► Synced ──► complete      one batch at a time
//!   encode, checksum     one write             one fdatasync       records count, may be acknowledged
//!
//!   …│ batch │ batch │ batch │ zeros      append only: also truncation is a batch, which says where records go on
//! ```
//!
//! Promise: records of a completed batch are read back as they were, until they are purged or truncated, over any
//! crash; else opening says [`Damage`]. Truncated records never come back. After a failed write or sync nothing more
//! is accepted until the log is opened again.
//!
//! Absences: no thread, no clock, no waiting, no chance.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::batch::{self, Header, Kind, MAX_BATCH, MAX_BODY, Place, Record};
use super::disk::{Disk, SECTOR};
use super::error::{Damage, Doing, StorageError};
use super::frame::sector_up;
use super::marks::{Marks, Purged};
use super::recovery::{BatchAt, Recovered, TornTail, cut, recover};
use super::segment::{FIRST_BATCH, Segment, SegmentHeader};
use super::spare::Spare;

/// What can be set for a log.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Names this log for ever: a file of another one is refused. For example a hash of cluster and node.
    pub id: u64,
    /// How large a file of the log is, in bytes, at least 4096; a batch that is larger gets a file of its own size.
    /// Purging frees whole files, and making one costs a pause for writing so many zeros.
    pub segment_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { id: 0, segment_bytes: 16 << 20 }
    }
}

/// What opening found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// The readable records.
    pub records: Range<u64>,
    pub purged: Option<Purged>,
    /// A batch that was being written at the end was cut off; it was never acknowledged.
    pub torn: Option<TornTail>,
    /// Acknowledged records may be gone: the log takes nothing until it is repaired.
    pub damage: Option<Damage>,
}

/// The log. See the module.
#[derive(Debug)]
pub struct Log {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) options: LogOptions,
    /// `None` only in a damaged log.
    pub(super) marks: Option<Marks>,
    pub(super) segments: BTreeMap<u64, Segment>,
    pub(super) batches: VecDeque<BatchAt>,
    pub(super) next_index: u64,
    pub(super) next_number: u64,
    pub(super) end: Place,
    pub(super) highest: u64,
    damage: Option<Damage>,
    failed: Option<StorageError>,
    in_flight: bool,
    /// The next segment's file, if it was made ahead.
    pub(super) spare: Option<Spare>,
    /// The last batch's memory, to be used again.
    buffer: Vec<u8>,
}

/// A batch that is encoded.
#[derive(Debug)]
#[must_use = "a batch must be written, synced and completed"]
pub struct Staged {
    header: Header,
    bytes: Vec<u8>,
}

/// A batch that is written and may still be lost.
#[derive(Debug)]
#[must_use = "a batch must be synced and completed"]
pub struct Written {
    header: Header,
    bytes: Vec<u8>,
    place: Place,
}

/// A batch that is durable.
#[derive(Debug)]
#[must_use = "a batch must be completed"]
pub struct Synced(Written);

impl Log {
    /// Opens the log on a disk, or makes a new one whose first record is 0.
    ///
    /// A damaged log opens too: its readable records can be read, and it can be repaired; see [`Recovery::damage`].
    ///
    /// # Errors
    /// When the disk fails, or a file was written by a newer version or belongs to another log.
    pub fn open(disk: Arc<dyn Disk>, options: LogOptions) -> Result<(Self, Recovery), StorageError> {
        Self::open_expected(disk, options, false)
    }

    /// The same; a log that should be there and is not is damaged.
    pub(super) fn open_expected(
        disk: Arc<dyn Disk>,
        options: LogOptions,
        expected: bool,
    ) -> Result<(Self, Recovery), StorageError> {
        if options.segment_bytes < 8 * SECTOR as u64 || options.segment_bytes >= 1 << 32 {
            let why = format!("segment_bytes is {}, and must be from 4096 to below 4 GiB", options.segment_bytes);
            return Err(StorageError::Misuse(why));
        }
        disk.sync_dir().map_err(|e| StorageError::sync("the data directory", e))?;
        let (marks, marks_damage) = match Marks::open(&disk) {
            Ok(marks) => (marks, None),
            Err(StorageError::Damage(damage)) => (None, Some(damage)),
            Err(error) => return Err(error),
        };
        let (purged, newest) = marks.as_ref().map_or((0, 0), |marks| (marks.after_purged(), marks.newest));
        let mut found = recover(&*disk, options.id, purged, newest)?;
        let marks_damage = marks_damage.or_else(|| {
            let missing = marks.is_none() && (expected || found.highest > 0);
            missing.then(|| Damage::whole("log-marks.slots", 0, "it is missing"))
        });
        if let Some(damage) = marks_damage {
            let numbers: Vec<u64> = found.chain.keys().copied().collect();
            found.give_up(damage, &numbers, purged, &*disk, options.id)?;
        }
        let (torn, last) = (found.torn.take(), found.last.take());
        let void = std::mem::take(&mut found.void);
        let mut log = Self::from_recovered(disk, options, marks, found);
        if log.damage.is_none() {
            log.settle(last, &void)?;
        }
        let recovery =
            Recovery { records: log.records(), purged: log.purged().cloned(), torn, damage: log.damage.clone() };
        Ok((log, recovery))
    }

    fn from_recovered(disk: Arc<dyn Disk>, options: LogOptions, marks: Option<Marks>, found: Recovered) -> Self {
        Self {
            disk,
            options,
            marks,
            segments: found.chain,
            batches: found.batches,
            next_index: found.next_index,
            next_number: found.next_number,
            end: found.end,
            highest: found.highest,
            damage: found.damage,
            failed: None,
            in_flight: false,
            spare: None,
            buffer: Vec::new(),
        }
    }

    /// Makes what was read durable and clean, before anybody relies on it.
    fn settle(&mut self, last: Option<(Place, Vec<u8>)>, void: &[String]) -> Result<(), StorageError> {
        if self.marks.is_none() {
            self.marks = Some(Marks::create(&self.disk, 0, None)?);
        }
        if let Some(segment) = self.segments.get_mut(&self.end.segment) {
            // What was read may stand in the cache of the operating system alone, after a sync that failed: the last
            // batch, and zeros over a torn one.
            let doing = "writing again";
            if let Some((place, bytes)) = &last {
                segment.file.write_at(place.offset, bytes).doing(doing, &segment.name)?;
            }
            segment.file.write_zeros(self.end.offset, segment.header.capacity).doing(doing, &segment.name)?;
            segment.file.sync().map_err(|e| StorageError::sync(&segment.name, e))?;
        } else {
            self.add_segment(self.segment_capacity())?;
        }
        if self.marks()?.newest < self.highest {
            self.save_marks(self.marks()?.purged.clone())?;
        }
        for name in void {
            self.disk.remove(name).doing("removing", name)?;
        }
        self.cut_to_purged()
    }

    /// The records that are here: from the first to the one after the last.
    pub fn records(&self) -> Range<u64> {
        let purged = self.marks.as_ref().map_or(0, Marks::after_purged);
        let first = self.batches.front().map_or(self.next_index, |batch| batch.first.max(purged));
        first..self.next_index
    }

    /// The index that the next record gets.
    pub fn next_index(&self) -> u64 {
        self.next_index
    }

    pub fn purged(&self) -> Option<&Purged> {
        self.marks.as_ref()?.purged.as_ref()
    }

    /// Says that acknowledged records may be gone.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Takes nothing more until it is repaired: what it would go on behind is gone.
    pub fn distrust(&mut self, damage: Damage) {
        self.damage.get_or_insert(damage);
    }

    /// What stopped the log, if anything did.
    pub fn failure(&self) -> Option<&StorageError> {
        self.failed.as_ref()
    }

    /// Encodes records, which must follow the last one, as one batch.
    ///
    /// # Errors
    /// `Gap`, `TooLarge`; the log goes on. `Stopped`, `Damage`.
    pub fn stage(&mut self, records: &[Record]) -> Result<Staged, StorageError> {
        self.check_running()?;
        if records.is_empty() {
            return Err(StorageError::Misuse("a batch has at least one record".into()));
        }
        let mut total = 0;
        for (expected, record) in (self.next_index..).zip(records) {
            if record.index != expected {
                return Err(StorageError::Gap { expected, found: record.index });
            }
            let size = record.body.len();
            if size > MAX_BODY {
                return Err(StorageError::TooLarge { what: "a record", size, limit: MAX_BODY });
            }
            total += record.size();
        }
        if total > MAX_BATCH {
            return Err(StorageError::TooLarge { what: "a batch", size: total, limit: MAX_BATCH });
        }
        Ok(self.encode(Kind::Records, self.next_index, records))
    }

    /// Encodes that all records after `after` are void; `None` voids all.
    ///
    /// # Errors
    /// `Misuse` when that reaches into what was purged. `Stopped`, `Damage`.
    pub fn stage_truncate(&mut self, after: Option<u64>) -> Result<Staged, StorageError> {
        self.check_running()?;
        let next = after.map_or(0, |index| index.saturating_add(1));
        let records = self.records();
        if next < records.start || next > records.end {
            let why = format!("truncating to {next} records is outside of the log, which has {records:?}");
            return Err(StorageError::Misuse(why));
        }
        Ok(self.encode(Kind::Cut, next, &[]))
    }

    fn encode(&mut self, kind: Kind, first: u64, records: &[Record]) -> Staged {
        self.in_flight = true;
        let mut header = Header {
            kind,
            log: self.options.id,
            number: self.next_number,
            first,
            count: 0,
            payload: 0,
            synced: self.end,
            mask: 0,
        };
        let mut bytes = std::mem::take(&mut self.buffer);
        batch::encode(&mut header, records, &mut bytes);
        Staged { header, bytes }
    }

    /// Writes a batch. Begins a new segment if this one is full.
    ///
    /// # Errors
    /// Any error stops the log.
    pub fn write(&mut self, staged: Staged) -> Result<Written, StorageError> {
        let Staged { header, bytes } = staged;
        let size = bytes.len() as u64;
        let full = self.segments.get(&self.end.segment).is_none_or(|now| self.end.offset + size > now.header.capacity);
        if full {
            let made = self.add_segment(self.segment_capacity().max(FIRST_BATCH + size));
            made.and_then(|()| self.save_marks(self.marks()?.purged.clone())).map_err(|e| self.stop(e))?;
        }
        let place = self.end;
        debug_assert!(header.synced <= place, "a batch is written behind what was synced");
        let segment = self.segments.get_mut(&place.segment).expect("the end is in a segment");
        segment.file.write_at(place.offset, &bytes).doing("writing", &segment.name).map_err(|e| self.stop(e))?;
        Ok(Written { header, bytes, place })
    }

    /// Makes a batch durable.
    ///
    /// # Errors
    /// Any error stops the log.
    pub fn sync(&mut self, written: Written) -> Result<Synced, StorageError> {
        let segment = self.segments.get_mut(&written.place.segment).expect("a batch is in a segment");
        match segment.file.sync() {
            Ok(()) => Ok(Synced(written)),
            Err(error) => {
                let error = StorageError::sync(&segment.name, error);
                Err(self.stop(error))
            }
        }
    }

    /// Takes a durable batch into account: now its records may be acknowledged.
    pub fn complete(&mut self, synced: Synced) {
        let Written { header, bytes, place } = synced.0;
        match header.kind {
            Kind::Records => self.batches.push_back(BatchAt {
                first: header.first,
                next: header.next(),
                place,
                size: u32::try_from(bytes.len()).expect("limited by MAX_BATCH"),
            }),
            Kind::Cut => cut(&mut self.batches, header.first),
        }
        self.next_index = header.next();
        self.next_number = header.number + 1;
        self.end.offset = place.offset + bytes.len() as u64;
        self.buffer = bytes;
        // One batch of unusual size must not hold its memory for ever.
        if self.buffer.capacity() > 4 << 20 {
            self.buffer = Vec::new();
        }
        self.in_flight = false;
    }

    /// Forgets all records up to `index`, remembering `mark`; durable on return. May reach beyond the last record:
    /// then the log goes on after it.
    ///
    /// The caller has synced a snapshot that covers them.
    ///
    /// # Errors
    /// `Misuse` when a batch is under way. `Stopped`, `Damage`. Any other stops the log.
    pub fn purge_up_to(&mut self, index: u64, mark: bytes::Bytes) -> Result<(), StorageError> {
        self.check_running()?;
        if self.purged().is_some_and(|purged| index <= purged.index) {
            return Ok(());
        }
        match self.save_marks(Some(Purged { index, mark })) {
            Ok(()) => {}
            Err(error @ StorageError::TooLarge { .. }) => return Err(error),
            Err(error) => return Err(self.stop(error)),
        }
        self.cut_to_purged()?;
        while self.batches.front().is_some_and(|batch| batch.next <= index + 1) {
            self.batches.pop_front();
        }
        let needed = self.batches.front().map_or(self.end.segment, |batch| batch.place.segment);
        let kept = self.segments.split_off(&needed);
        let dropped = std::mem::replace(&mut self.segments, kept);
        for segment in dropped.into_values() {
            self.disk.remove(&segment.name).doing("removing", &segment.name).map_err(|e| self.stop(e))?;
        }
        Ok(())
    }

    /// Where a purge reached beyond the last record, says so in the log.
    fn cut_to_purged(&mut self) -> Result<(), StorageError> {
        let next = self.marks()?.after_purged();
        if self.next_index >= next {
            return Ok(());
        }
        let staged = self.encode(Kind::Cut, next, &[]);
        let written = self.write(staged)?;
        let synced = self.sync(written)?;
        self.complete(synced);
        Ok(())
    }

    pub(super) fn segment_capacity(&self) -> u64 {
        sector_up(self.options.segment_bytes)
    }

    fn add_segment(&mut self, capacity: u64) -> Result<(), StorageError> {
        let header = SegmentHeader {
            repair: false,
            log: self.options.id,
            number: self.highest + 1,
            capacity,
            before: self.end,
            first_batch: self.next_number,
            next_index: self.next_index,
        };
        let segment = match self.spare.take_if(|spare| spare.capacity == capacity) {
            Some(spare) => spare.become_segment(&*self.disk, header)?,
            None => Segment::create(&*self.disk, header)?,
        };
        self.highest = header.number;
        self.end = Place { segment: header.number, offset: FIRST_BATCH };
        self.segments.insert(header.number, segment);
        Ok(())
    }

    fn marks(&self) -> Result<&Marks, StorageError> {
        self.marks.as_ref().ok_or_else(|| StorageError::Misuse("a damaged log has no marks".into()))
    }

    fn save_marks(&mut self, purged: Option<Purged>) -> Result<(), StorageError> {
        let newest = self.highest;
        match &mut self.marks {
            Some(marks) => marks.save(newest, purged),
            None => Err(StorageError::Misuse("a damaged log has no marks".into())),
        }
    }

    fn check_running(&self) -> Result<(), StorageError> {
        if let Some(first) = &self.failed {
            return Err(first.again());
        }
        if let Some(damage) = &self.damage {
            return Err(damage.clone().into());
        }
        if self.in_flight {
            return Err(StorageError::Misuse("one batch at a time: complete the one under way first".into()));
        }
        Ok(())
    }

    fn stop(&mut self, error: StorageError) -> StorageError {
        self.failed.get_or_insert(error).clone()
    }
}
