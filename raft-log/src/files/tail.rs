//! The newest records in memory, so that reading them back touches no disk.
//!
//! ```text
//!   disk │ ………………………………………………………………│            durable
//!   tail          │ first …………………………………… next │     bounded in bytes; unsynced records always
//! ```
//!
//! Promise: a record is here from the moment that its append is queued, at least until it is durable.

use std::collections::VecDeque;
use std::ops::Range;

use super::batch::Record;

#[derive(Debug)]
pub(super) struct Tail {
    records: VecDeque<Record>,
    /// The index after the last record, also when none is here.
    next: u64,
    /// The first record of the log, here or on the disk.
    log_first: u64,
    /// Records before this index are durable.
    durable: u64,
    bytes: usize,
    max_bytes: usize,
}

/// What a record takes besides its body, roughly.
const OVERHEAD: usize = 64;

impl Tail {
    pub(super) fn new(log: &Range<u64>, max_bytes: usize) -> Self {
        Self { records: VecDeque::new(), next: log.end, log_first: log.start, durable: log.end, bytes: 0, max_bytes }
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The records of the log, from the first to the one after the last, those included that are not durable.
    pub(super) fn log(&self) -> Range<u64> {
        self.log_first..self.next
    }

    pub(super) fn push(&mut self, records: &[Record]) {
        for record in records {
            self.bytes += record.body.len() + OVERHEAD;
            self.next = record.index + 1;
            self.records.push_back(record.clone());
        }
        self.shrink();
    }

    pub(super) fn set_durable(&mut self, next: u64) {
        self.durable = next;
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.bytes > self.max_bytes && self.records.front().is_some_and(|record| record.index < self.durable) {
            self.pop_front();
        }
    }

    fn pop_front(&mut self) {
        if let Some(record) = self.records.pop_front() {
            self.bytes -= record.body.len() + OVERHEAD;
        }
    }

    pub(super) fn truncate(&mut self, next: u64) {
        while self.records.back().is_some_and(|record| record.index >= next) {
            if let Some(record) = self.records.pop_back() {
                self.bytes -= record.body.len() + OVERHEAD;
            }
        }
        self.next = next;
        self.durable = self.durable.min(next);
    }

    pub(super) fn purge(&mut self, first: u64) {
        while self.records.front().is_some_and(|record| record.index < first) {
            self.pop_front();
        }
        self.log_first = self.log_first.max(first);
        self.next = self.next.max(first);
        self.durable = self.durable.max(first);
    }

    /// Records of the range, cut to what the log has; `None` when the first of them is not here.
    pub(super) fn read(&self, range: &Range<u64>, max_bytes: usize) -> Option<Vec<Record>> {
        let range = range.start.max(self.log_first)..range.end.min(self.next);
        if range.is_empty() {
            return Some(Vec::new());
        }
        let here = self.records.front()?.index;
        let skip = usize::try_from(range.start.checked_sub(here)?).ok()?;
        let mut bytes = 0;
        let mut found = Vec::new();
        for record in self.records.range(skip.min(self.records.len())..).take_while(|r| r.index < range.end) {
            bytes += record.body.len();
            if bytes > max_bytes && !found.is_empty() {
                break;
            }
            found.push(record.clone());
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(range: Range<u64>) -> Vec<Record> {
        range.map(|index| Record::new(index, vec![0; 36])).collect()
    }

    #[test]
    fn keeps_what_is_not_durable_and_then_its_bound() {
        let mut tail = Tail::new(&(0..0), 300);
        tail.push(&records(0..10));
        assert_eq!(tail.read(&(0..99), usize::MAX), Some(records(0..10)));
        tail.set_durable(5);
        assert_eq!(tail.read(&(0..99), usize::MAX), None);
        assert_eq!(tail.read(&(5..99), usize::MAX), Some(records(5..10)));
        tail.set_durable(10);
        assert_eq!(tail.read(&(6..99), usize::MAX), None);
        assert_eq!(tail.read(&(7..99), usize::MAX), Some(records(7..10)));
        assert_eq!(tail.read(&(7..99), 0), Some(records(7..8)));
        assert_eq!(tail.read(&(10..99), usize::MAX), Some(vec![]));
    }

    #[test]
    fn truncated_and_purged_records_are_gone() {
        let mut tail = Tail::new(&(0..0), 10_000);
        tail.push(&records(0..10));
        tail.truncate(6);
        tail.purge(3);
        assert_eq!(tail.read(&(0..99), usize::MAX), Some(records(3..6)));
        tail.purge(20);
        assert_eq!(tail.log(), 20..20);
        tail.push(&records(20..22));
        assert_eq!(tail.read(&(0..99), usize::MAX), Some(records(20..22)));
    }
}
