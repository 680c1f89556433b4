//! Reading records back from the segments, each checked again.

use std::ops::Range;

use super::batch::{self, Record};
use super::error::{Damage, Doing, StorageError};
use super::log::Log;
use super::recovery::BatchAt;

impl Log {
    /// Reads records of a range, as many as there are and as fit into `max_bytes`, but at least one if there is one.
    ///
    /// # Errors
    /// `Damage` when what stands on the disk is not what was written.
    pub fn read(&self, range: Range<u64>, max_bytes: usize) -> Result<Vec<Record>, StorageError> {
        let here = self.records();
        let range = range.start.max(here.start)..range.end.min(here.end);
        let mut records = Vec::new();
        let mut bytes = 0;
        let start = self.batches.partition_point(|batch| batch.next <= range.start);
        for at in self.batches.range(start..).take_while(|batch| batch.first < range.end) {
            for record in self.read_batch(at)? {
                if range.contains(&record.index) && record.index < at.next {
                    bytes += record.body.len();
                    if bytes > max_bytes && !records.is_empty() {
                        return Ok(records);
                    }
                    records.push(record);
                }
            }
        }
        Ok(records)
    }

    fn read_batch(&self, at: &BatchAt) -> Result<Vec<Record>, StorageError> {
        let segment = &self.segments[&at.place.segment];
        let mut bytes = vec![0; at.size as usize];
        segment.file.read_at(at.place.offset, &mut bytes).doing("reading", &segment.name)?;
        let damage = |offset: u64, what: String| {
            let lost = at.first..=at.next - 1;
            StorageError::from(Damage { file: segment.name.clone(), offset, what, lost, open_ended: false })
        };
        let batch::Found::Header(header) = batch::read_header(&bytes) else {
            return Err(damage(at.place.offset, "a batch's header is not what was written".into()));
        };
        if header.first != at.first || header.size() != u64::from(at.size) {
            return Err(damage(at.place.offset, "another batch stands here".into()));
        }
        batch::decode(&header, bytes).map_err(|bad| damage(at.place.offset + bad.at as u64, bad.what))
    }
}
