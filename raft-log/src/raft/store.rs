//! Raft's log and ballot over the files of this node.
//!
//! Promise: an append is reported durable only after the sync that covers it, and a ballot is saved only after all
//! that was appended before it is durable, because one queue serves both in order. (Raft takes a saved ballot as
//! proof that earlier appends are durable: see `docs/decisions/0001-openraft.md`.) Truncations wait for the disk as
//! well; a purge does not, unless the log must go on behind it.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};

use super::record;
use super::types::{Ballot, Entry, LogId, TypeConfig};
use crate::files::{LogFiles, LogWriter, Record, Spawn, WriterOptions};

/// How many operations may wait for the disk. Raft's own loop waits when they are more, and a leader whose loop waits
/// sends no heartbeats; so it is far more than the proposals that are in flight while one sync hangs.
const QUEUE: usize = 8192;
/// How many bytes one message of entries carries, at least one entry.
const MESSAGE_BYTES: usize = 1 << 20;
/// How many bytes go to the files in one piece.
const APPEND_BYTES: usize = 16 << 20;
/// The first byte of a ballot and of a purge mark.
const VERSION: u8 = 1;

/// The log and the ballot. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    writer: LogWriter,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    ballot: Option<Ballot>,
    purged: Option<LogId>,
    last: Option<LogId>,
}

impl Store {
    /// Takes over files that were opened and are not damaged.
    pub(crate) fn start(files: LogFiles, spawn: Spawn) -> io::Result<Self> {
        let ballot = files.ballot().map(decode).transpose()?;
        let purged = files.log.purged().map(|purged| decode(&purged.mark)).transpose()?;
        let records = files.log.records();
        let last = match records.end.checked_sub(1).filter(|last| records.contains(last)) {
            None => purged,
            Some(last) => {
                let read = files.log.read(last..last + 1, usize::MAX)?;
                read.first().map(|record| record::decode_id(record.index, &record.body)).transpose()?
            }
        };
        let writer = LogWriter::start(files, spawn, WriterOptions { queue: QUEUE, ..WriterOptions::default() })?;
        Ok(Self { writer, state: Arc::new(Mutex::new(State { ballot, purged, last })) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ballot(&self) -> Option<Ballot> {
        self.state().ballot
    }

    pub(crate) fn purged(&self) -> Option<LogId> {
        self.state().purged
    }

    pub(crate) fn last(&self) -> Option<LogId> {
        self.state().last
    }

    /// Records as they are stored, as many as a message carries.
    pub(crate) async fn raw(&self, from: u64) -> io::Result<Vec<Record>> {
        self.records(from..u64::MAX, MESSAGE_BYTES).await
    }

    /// Reads records that count: a purge may still be on its way to the files.
    async fn records(&self, range: Range<u64>, max_bytes: usize) -> io::Result<Vec<Record>> {
        let first = self.purged().map_or(0, |purged| purged.index + 1);
        Ok(self.writer.read(range.start.max(first)..range.end, max_bytes).await?)
    }

    /// Voids all entries that are here.
    pub(crate) async fn begin_anew(&mut self) -> io::Result<()> {
        let purged = self.purged();
        self.truncate_after(purged).await
    }

    /// Lets the log go on after `last`, which a snapshot covers.
    pub(crate) async fn begin_after(&mut self, last: LogId) -> io::Result<()> {
        if self.purged() < Some(last) { self.purge(last).await } else { Ok(()) }
    }

    /// Appends records as a peer stores them; durable on return.
    pub(crate) async fn append_raw(&mut self, records: Vec<Record>) -> io::Result<()> {
        let Some(last) = records.last() else { return Ok(()) };
        let last = record::decode_id(last.index, &last.body)?;
        let (flushed, durable) = tokio::sync::oneshot::channel();
        let tell = Box::new(move |done| drop(flushed.send(done)));
        self.writer.append(records, tell).await?;
        durable.await.map_err(io::Error::other)??;
        self.state().last = Some(last);
        Ok(())
    }

    /// Stores a ballot; durable on return.
    pub(crate) async fn keep_ballot(&mut self, ballot: Ballot) -> io::Result<()> {
        self.save_vote(&ballot).await
    }

    /// Does what is queued and closes the files.
    pub(crate) async fn close(&self) {
        self.writer.close().await;
    }

    async fn read(&self, range: Range<u64>, max_bytes: usize) -> io::Result<Vec<Entry>> {
        let end = range.end.min(self.writer.records().end);
        let records = self.records(range, max_bytes).await?;
        // After a failure the files end before what was queued: that is not the end of the log, and an entry that is
        // left out must not pass for applied.
        if let Some(failure) = self.writer.failure()
            && records.last().map_or(0, |last| last.index + 1) < end
        {
            return Err(failure.into());
        }
        records.iter().map(|record| record::decode(record.index, &record.body)).collect()
    }
}

/// What only openraft's own suite needs.
#[cfg(test)]
impl Store {
    pub(super) fn is_new_log(&self) -> bool {
        self.state().last.is_none()
    }

    pub(super) async fn begin_at(&self, first: u64) -> io::Result<()> {
        Ok(self.writer.purge_up_to(first - 1, Bytes::new()).await?)
    }
}

/// A ballot or a purge mark.
pub(crate) fn encode<T: serde::Serialize>(value: &T) -> io::Result<Bytes> {
    Ok(postcard::to_extend(value, vec![VERSION]).map_err(io::Error::other)?.into())
}

pub(crate) fn decode<T: serde::de::DeserializeOwned>(bytes: &Bytes) -> io::Result<T> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => postcard::from_bytes(rest).map_err(io::Error::other),
        Some((other, _)) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "a ballot or purge mark has format version {other}, this node knows {VERSION}; run the version that wrote it"
            ),
        )),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "a ballot or purge mark is empty")),
    }
}

impl RaftLogReader<TypeConfig> for Store {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry>, io::Error> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        self.read(start..end, usize::MAX).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        self.read(start..end, MESSAGE_BYTES).await
    }

    async fn read_vote(&mut self) -> Result<Option<Ballot>, io::Error> {
        Ok(self.ballot())
    }
}

impl RaftLogStorage<TypeConfig> for Store {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let state = *self.state();
        Ok(LogState { last_purged_log_id: state.purged, last_log_id: state.last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, ballot: &Ballot) -> Result<(), io::Error> {
        self.writer.save_ballot(encode(ballot)?).await?;
        self.state().ballot = Some(*ballot);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let mut buffer = BytesMut::new();
        let mut records = Vec::new();
        let mut bytes = 0;
        let mut last = None;
        for entry in entries {
            let size = record::size(&entry);
            if bytes + size > APPEND_BYTES && !records.is_empty() {
                // The flush of the last piece tells of all: they become durable in order, or none after a failure.
                self.writer.append(std::mem::take(&mut records), Box::new(|_earlier| {})).await?;
                bytes = 0;
            }
            bytes += size;
            record::encode(&entry, &mut buffer)?;
            records.push(Record { index: entry.log_id.index, body: buffer.split().freeze() });
            last = Some(entry.log_id);
        }
        let result = self.writer.append(records, Box::new(move |done| flushed.io_completed(done))).await;
        if result.is_ok() && last.is_some() {
            self.state().last = last;
        }
        Ok(result?)
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let end = self.state().last.map(|last| last.index);
        if last.map(|last| last.index) >= end {
            return Ok(());
        }
        self.writer.truncate_after(last.map(|last| last.index)).await?;
        self.state().last = last;
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        let beyond = {
            let mut state = self.state();
            state.purged = state.purged.max(Some(upto));
            let beyond = state.last < Some(upto);
            state.last = state.last.max(Some(upto));
            beyond
        };
        let mark = encode(&upto)?;
        if beyond {
            // What is appended next follows the purged entry, so the files must know it first.
            self.writer.purge_up_to(upto.index, mark).await?;
        } else {
            let writer = self.writer.clone();
            // Nothing waits for it; a failure stops the writer, and with it everything.
            drop(tokio::spawn(async move {
                if let Err(error) = writer.purge_up_to(upto.index, mark).await {
                    tracing::error!(%error, "purging the log failed");
                }
            }));
        }
        Ok(())
    }
}

#[cfg(all(test, not(madsim)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::time::Duration;

    use openraft::entry::RaftEntry;

    use super::super::types::{LeaderId, Payload};
    use super::*;
    use crate::files::{LogOptions, testing::SimDisk};

    fn records(range: Range<u64>) -> Vec<Record> {
        let entry = |index| Entry::new(LogId { leader_id: LeaderId { term: 1, node_id: 1 }, index }, Payload::Blank);
        let encoded = |index| {
            let mut bytes = BytesMut::new();
            record::encode(&entry(index), &mut bytes).unwrap();
            Record::new(index, bytes)
        };
        range.map(encoded).collect()
    }

    #[tokio::test]
    async fn what_a_failed_log_no_longer_counts_is_not_taken_for_its_end() {
        let disk = SimDisk::new();
        let start = || {
            let (files, _) = LogFiles::open(Arc::new(disk.mount()), LogOptions::default()).unwrap();
            Store::start(files, Spawn::Task { write: Duration::ZERO, sync: Duration::ZERO }).unwrap()
        };
        let mut store = start();
        store.append_raw(records(0..3)).await.unwrap();
        store.close().await;
        // What was there before is read from the disk, not from memory.
        let mut store = start();
        disk.fail_syncs(0, 1);
        store.append_raw(records(3..4)).await.unwrap_err();
        store.try_get_log_entries(1..4).await.unwrap_err();
        assert_eq!(store.try_get_log_entries(1..3).await.unwrap().len(), 2);
    }
}
