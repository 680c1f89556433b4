//! Reading the log back: what is whole, what was torn, and what is damaged.
//!
//! ```text
//!   newest segment's header ─ names where the log before it ends ─► … ─► the chain, read from its start
//!
//!   batch whole                                            take it
//!   in the newest segment, nothing whole behind it, and
//!     header all zeros, or a sector of the batch all zeros torn: never acknowledged, cut it
//!   anything else                                          damage: acknowledged records may be gone
//! ```
//!
//! Promise: nothing that was acknowledged is left out without saying so. A batch is written only when all before it
//! is synced, so a whole batch, or a newer segment, proves that all before it was acknowledged.
//!
//! Known limit: the last batch of all, acknowledged but with a sector turned into zeros by the disk, cannot be told
//! from a torn one.

use std::collections::{BTreeMap, VecDeque};

use super::batch::{self, Found, Header, Kind, Place};
use super::disk::{Disk, SECTOR};
use super::error::{Damage, StorageError};
use super::segment::{self, Evidence, FIRST_BATCH, Segment};
use super::spare::SPARE;

/// Where the records of one batch stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BatchAt {
    pub(super) first: u64,
    /// The index after its last record that counts.
    pub(super) next: u64,
    pub(super) place: Place,
    pub(super) size: u32,
}

/// A batch that was being written when the node stopped, and was cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    pub file: String,
    pub offset: u64,
    pub bytes: u64,
}

/// The log as it was read.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) chain: BTreeMap<u64, Segment>,
    pub(super) batches: VecDeque<BatchAt>,
    pub(super) next_index: u64,
    pub(super) next_number: u64,
    /// Where the next batch goes, and where the last one stands if it is in the same segment.
    pub(super) end: Place,
    pub(super) last: Option<(Place, Vec<u8>)>,
    pub(super) torn: Option<TornTail>,
    pub(super) damage: Option<Damage>,
    /// The highest number of any segment's file, whole or not.
    pub(super) highest: u64,
    /// Files that count for nothing any more.
    pub(super) void: Vec<String>,
}

enum Next {
    Batch(Header),
    /// Not a whole batch: what is wrong, and its header if that is right.
    Bad(&'static str, Option<Header>, String),
}

/// Reads the log. `purged` is the index after the last purged record; `newest` the least number that the newest
/// segment must have. Changes nothing on the disk.
pub(super) fn recover(disk: &dyn Disk, log: u64, purged: u64, newest: u64) -> Result<Recovered, StorageError> {
    let names = disk.list().map_err(|e| StorageError::of("listing", "the data directory", e))?;
    let numbers: Vec<u64> = names.iter().filter_map(|name| segment::number(name)).collect();
    let highest = numbers.last().copied().unwrap_or(0);
    let mut found = Recovered {
        chain: BTreeMap::new(),
        batches: VecDeque::new(),
        next_index: purged,
        next_number: 1,
        end: Place::NONE,
        last: None,
        torn: None,
        damage: None,
        highest,
        void: names.iter().filter(|name| segment::is_unfinished(name) || *name == SPARE).cloned().collect(),
    };
    let mut next = numbers.last().copied();
    while let Some(number) = next {
        let segment = match Segment::open(disk, number, log) {
            Ok(segment) => segment,
            Err(StorageError::Damage(damage)) => {
                found.give_up(damage, &numbers, purged, disk, log)?;
                return Ok(found);
            }
            Err(error) => return Err(error),
        };
        let before = segment.header.before.segment;
        found.chain.insert(number, segment);
        next = (before < number && numbers.binary_search(&before).is_ok()).then_some(before);
    }
    let void = numbers.iter().filter(|number| !found.chain.contains_key(number)).map(|number| segment::name(*number));
    found.void.extend(void);
    found.read_chain(log)?;
    found.check_ends(purged, newest);
    found.forget_purged(purged);
    Ok(found)
}

impl Recovered {
    fn read_chain(&mut self, log: u64) -> Result<(), StorageError> {
        let chain: Vec<u64> = self.chain.keys().copied().collect();
        for (position, number) in chain.iter().enumerate() {
            let header = self.chain[number].header;
            if position == 0 {
                (self.next_index, self.next_number) = (header.next_index, header.first_batch);
            } else if header.repair {
                self.cut(header.next_index);
                self.next_number = header.first_batch;
            }
            let bytes = self.chain[number].read()?;
            let bound = chain.get(position + 1).map(|next| self.chain[next].header.before.offset);
            if header.next_index != self.next_index || header.first_batch != self.next_number {
                return self.damaged(&chain[position..], 0, "its header does not follow the segment before it", log);
            }
            if (bytes.len() as u64) < bound.unwrap_or(header.capacity) {
                return self.damaged(&chain[position..], bytes.len() as u64, "the file was cut short", log);
            }
            let previous_end = header.before;
            if !self.read_segment(&chain[position..], &bytes, bound, previous_end, log)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether it was read to its end without damage. `rest` is the chain from this segment on.
    fn read_segment(
        &mut self,
        rest: &[u64],
        bytes: &[u8],
        bound: Option<u64>,
        mut synced: Place,
        log: u64,
    ) -> Result<bool, StorageError> {
        let number = rest[0];
        let end = bound.unwrap_or(bytes.len() as u64).min(bytes.len() as u64);
        let mut at = FIRST_BATCH;
        let mut last = None;
        while at < end {
            match self.next_batch(number, bytes, at, synced, log)? {
                Next::Batch(header) => {
                    let place = Place { segment: number, offset: at };
                    match header.kind {
                        Kind::Records => self.batches.push_back(BatchAt {
                            first: header.first,
                            next: header.next(),
                            place,
                            size: u32::try_from(header.size()).expect("limited by MAX_BATCH"),
                        }),
                        Kind::Cut => self.cut(header.first),
                    }
                    (self.next_index, self.next_number) = (header.next(), header.number + 1);
                    last = Some((place, header.size()));
                    at += header.size();
                    synced = Place { segment: number, offset: at };
                }
                Next::Bad(what, header, detail) => {
                    if bound.is_none() {
                        match tail_shape(bytes, at, header) {
                            Tail::Empty => break,
                            Tail::Torn { until } => {
                                let file = self.chain[&number].name.clone();
                                self.torn = Some(TornTail { file, offset: at, bytes: until - at });
                                break;
                            }
                            Tail::Damaged => {}
                        }
                    }
                    let what = if detail.is_empty() { what.to_owned() } else { format!("{what}: {detail}") };
                    self.damaged(rest, at, &what, log)?;
                    return Ok(false);
                }
            }
        }
        if bound.is_some() && at != end {
            self.damaged(rest, at, "the segment after it begins elsewhere", log)?;
            return Ok(false);
        }
        self.end = Place { segment: number, offset: at };
        self.last = last.map(|(place, size)| (place, slice(bytes, place.offset, place.offset + size).to_vec()));
        Ok(true)
    }

    fn next_batch(&self, number: u64, bytes: &[u8], at: u64, synced: Place, log: u64) -> Result<Next, StorageError> {
        let newer = |offset, found| StorageError::Newer {
            file: segment::name(number),
            offset,
            found,
            supported: batch::VERSION,
        };
        let header = match batch::read_header(slice(bytes, at, bytes.len() as u64)) {
            Found::Header(header) => header,
            Found::Newer(version) => return Err(newer(at, version)),
            Found::Neither => return Ok(Next::Bad("no batch begins here", None, String::new())),
        };
        let bad = |what| Ok(Next::Bad(what, None, String::new()));
        if header.log != log {
            return bad("a batch of another log");
        }
        if header.number != self.next_number {
            return bad("a batch with another number than is next");
        }
        // The first batch of a segment may have been encoded before the segment was made, or after.
        let begins = at == FIRST_BATCH && header.synced == (Place { segment: number, offset: at });
        if header.synced != synced && !begins {
            return bad("a batch that was written after another place");
        }
        if header.kind == Kind::Records && header.first != self.next_index {
            return bad("a batch with another index than is next");
        }
        if at + header.size() > bytes.len() as u64 {
            return bad("a batch that is longer than its file");
        }
        match batch::decode(&header, slice(bytes, at, at + header.size()).to_vec()) {
            Ok(_) => Ok(Next::Batch(header)),
            Err(batch::BadRecord { at: within, newer: Some(version), .. }) => Err(newer(at + within as u64, version)),
            Err(bad) => Ok(Next::Bad("a batch is not whole", Some(header), format!("{} at {}", bad.what, bad.at))),
        }
    }

    /// Records from `index` on are void.
    fn cut(&mut self, index: u64) {
        cut(&mut self.batches, index);
        self.next_index = index;
    }

    /// Reading ends here; finds out how much may be gone.
    fn damaged(&mut self, rest: &[u64], offset: u64, what: &str, log: u64) -> Result<(), StorageError> {
        let mut evidence = Evidence::default();
        let mut open_ended = false;
        for (position, number) in rest.iter().enumerate() {
            let segment = &self.chain[number];
            let from = if position == 0 { offset } else { FIRST_BATCH };
            if position > 0 {
                let index = segment.header.next_index;
                let (low, high) = evidence.range.unwrap_or((index, index));
                evidence.range = Some((low.min(index), high.max(index)));
            }
            open_ended = evidence.look(&segment.read()?, from, log, self.next_number);
        }
        let keep = evidence.range.map_or(self.next_index, |(low, _)| low.min(self.next_index));
        let after = evidence.range.map_or(keep, |(_, high)| high);
        self.cut(keep);
        self.damage = Some(Damage {
            file: self.chain[&rest[0]].name.clone(),
            offset,
            what: what.into(),
            lost: keep..=after.max(keep + 1) - 1,
            open_ended: open_ended || evidence.range.is_none(),
        });
        Ok(())
    }

    /// Nothing of the log can be believed, because its chain cannot be followed.
    pub(super) fn give_up(
        &mut self,
        damage: Damage,
        numbers: &[u64],
        purged: u64,
        disk: &dyn Disk,
        log: u64,
    ) -> Result<(), StorageError> {
        let mut evidence = Evidence::default();
        for number in numbers {
            match Segment::open(disk, *number, log) {
                Ok(segment) => {
                    evidence.look(&segment.read()?, FIRST_BATCH, log, 0);
                }
                Err(StorageError::Damage(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let after = evidence.range.map_or(purged, |(_, high)| high);
        self.chain.clear();
        self.batches.clear();
        self.next_index = purged;
        self.damage = Some(Damage { lost: purged..=after.max(purged + 1) - 1, open_ended: true, ..damage });
        Ok(())
    }

    /// Is it all there, besides what was found already?
    fn check_ends(&mut self, purged: u64, newest: u64) {
        let missing =
            |file: String, lost, open_ended| Damage { file, offset: 0, what: "it is missing".into(), lost, open_ended };
        if self.highest < newest {
            let lost = self.next_index..=self.next_index;
            let damage = self.damage.get_or_insert_with(|| missing(segment::name(newest), lost, true));
            damage.open_ended = true;
        }
        let first = self.batches.front().map_or(self.next_index, |batch| batch.first);
        if first > purged {
            let before = self.chain.values().next().map_or(0, |first| first.header.before.segment);
            let lost = purged..=self.next_index.max(purged + 1) - 1;
            let damage = self.damage.get_or_insert_with(|| missing(segment::name(before), lost, false));
            damage.lost = purged..=*damage.lost.end();
            self.batches.clear();
            self.next_index = purged;
        }
    }

    /// Drops what was purged, and the segments in which nothing else is.
    fn forget_purged(&mut self, purged: u64) {
        while self.batches.front().is_some_and(|batch| batch.next <= purged) {
            self.batches.pop_front();
        }
        let needed = self.batches.front().map_or(self.end.segment, |batch| batch.place.segment);
        if self.damage.is_none() {
            let kept = self.chain.split_off(&needed);
            let dropped = std::mem::replace(&mut self.chain, kept);
            self.void.extend(dropped.into_values().map(|segment| segment.name));
        }
    }
}

/// Records from `index` on are void; a cut beyond the end voids all.
pub(super) fn cut(batches: &mut VecDeque<BatchAt>, index: u64) {
    if batches.back().is_some_and(|batch| batch.next < index) {
        batches.clear();
    }
    while batches.back().is_some_and(|batch| batch.first >= index) {
        batches.pop_back();
    }
    if let Some(batch) = batches.back_mut() {
        batch.next = batch.next.min(index);
    }
}

enum Tail {
    Empty,
    /// A batch that did not get through whole; nothing but zeros from `until` on.
    Torn {
        until: u64,
    },
    Damaged,
}

/// Judges what stands at the end of the newest segment where no whole batch does.
fn tail_shape(bytes: &[u8], at: u64, header: Option<Header>) -> Tail {
    let tail = slice(bytes, at, bytes.len() as u64);
    let Some(last) = tail.iter().rposition(|byte| *byte != 0) else { return Tail::Empty };
    let until = (at + last as u64 + 1).next_multiple_of(SECTOR as u64).min(bytes.len() as u64);
    match header {
        Some(header) => {
            let batch = slice(bytes, at, at + header.size());
            let a_sector_is_missing = batch.chunks(SECTOR).any(batch::is_zero);
            if a_sector_is_missing && until <= at + header.size() { Tail::Torn { until } } else { Tail::Damaged }
        }
        None => {
            // Behind a header that was never written there are sectors of its batch, and no whole batch: that would
            // have been written only once this one was synced.
            let no_header = batch::is_zero(slice(bytes, at, at + SECTOR as u64));
            let nothing_newer =
                !tail.chunks(SECTOR).any(|sector| matches!(batch::read_header(sector), Found::Header(_)));
            if no_header && nothing_newer { Tail::Torn { until } } else { Tail::Damaged }
        }
    }
}

fn slice(bytes: &[u8], from: u64, to: u64) -> &[u8] {
    let bound = |at: u64| usize::try_from(at).unwrap_or(bytes.len()).min(bytes.len());
    &bytes[bound(from)..bound(to)]
}
