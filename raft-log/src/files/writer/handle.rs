//! The handle through which the files are used.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, oneshot};

pub use super::engine::Flushed;
use super::engine::{Engine, Op};
use super::spawn::{Spawn, spawn};
use crate::files::batch::{MAX_BATCH, MAX_BODY, Record};
use crate::files::error::StorageError;
use crate::files::marks::MAX_MARK;
use crate::files::slots::MAX_VALUE;
use crate::files::store::LogFiles;
use crate::files::tail::Tail;

/// What can be set for a writer.
#[derive(Debug, Clone)]
pub struct WriterOptions {
    /// How many operations may wait. More make callers wait; it bounds how much a sync that hangs piles up.
    pub queue: usize,
    /// How many bytes of records may wait to become durable, at most 4 GiB. A larger append waits until it is alone.
    pub queue_bytes: u32,
    /// How many bytes of durable records stay in memory for reading.
    pub tail_bytes: usize,
    /// Appends that wait are merged up to this many bytes; one that is larger by itself goes alone.
    pub batch_bytes: usize,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self { queue: 1024, queue_bytes: 32 << 20, tail_bytes: 16 << 20, batch_bytes: 1 << 20 }
    }
}

/// What the handles and the driver share.
#[derive(Debug)]
pub(super) struct Shared {
    tail: Mutex<Tail>,
    failure: Mutex<Option<StorageError>>,
    room: Semaphore,
}

impl Shared {
    pub(super) fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn failure(&self) -> Option<StorageError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn fail(&self, error: &StorageError) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| error.clone());
    }

    pub(super) fn give_back(&self, room: u32) {
        self.room.add_permits(room as usize);
    }
}

/// The log and the ballot of this node. Clones are the same files; when the last one is gone, what is queued is still
/// done, and the files are closed.
#[derive(Debug, Clone)]
pub struct LogWriter {
    queue: mpsc::Sender<Op>,
    shared: Arc<Shared>,
    queue_bytes: u32,
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Op")
    }
}

impl LogWriter {
    /// Starts driving opened files.
    ///
    /// # Errors
    /// `Damage` when the log is damaged: repair it first. When no thread can be started.
    pub fn start(files: LogFiles, how: Spawn, options: WriterOptions) -> Result<Self, StorageError> {
        if let Some(damage) = files.log.damage() {
            return Err(damage.clone().into());
        }
        let tail = Mutex::new(Tail::new(&files.log.records(), options.tail_bytes));
        let room = Semaphore::new(options.queue_bytes as usize);
        let shared = Arc::new(Shared { tail, failure: Mutex::new(None), room });
        let (queue, receiver) = mpsc::channel(options.queue.max(1));
        spawn(how, Engine::new(files, shared.clone(), options.batch_bytes), receiver)?;
        Ok(Self { queue, shared, queue_bytes: options.queue_bytes })
    }

    /// The records of the log, from the first to the one after the last, those included that are not yet durable.
    pub fn records(&self) -> Range<u64> {
        self.shared.tail().log()
    }

    /// What made the writer stop acknowledging, if anything did.
    pub fn failure(&self) -> Option<StorageError> {
        self.shared.failure()
    }

    /// Queues records, which must follow the last one. On return they can be read; `flushed` is called once when they
    /// are durable, or with the reason why they may not be. Waits while the queue is full.
    ///
    /// # Errors
    /// When nothing was queued; `flushed` is then not called. `Gap`, `TooLarge`, `Stopped`, `Closed`.
    pub async fn append(&self, records: Vec<Record>, flushed: Flushed) -> Result<(), StorageError> {
        let mut bytes = 0;
        for record in &records {
            check_size("a record", record.body.len(), MAX_BODY)?;
            bytes += record.size();
        }
        check_size("an append", bytes, MAX_BATCH)?;
        let room = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.queue_bytes);
        let permit = self.shared.room.acquire_many(room).await.map_err(|_closed| StorageError::Closed)?;
        let place = self.place().await?;
        let mut tail = self.shared.tail();
        for (expected, record) in (tail.next()..).zip(&records) {
            if record.index != expected {
                return Err(StorageError::Gap { expected, found: record.index });
            }
        }
        permit.forget();
        if records.is_empty() {
            drop(tail);
            self.shared.give_back(room);
            flushed(Ok(()));
            return Ok(());
        }
        tail.push(&records);
        // Under the lock, so that the queue has the order of the tail.
        place.send(Op::Append { records, room, flushed });
        Ok(())
    }

    /// Voids all records after `after`; `None` voids all. Durable on return, and out of sight at once.
    pub async fn truncate_after(&self, after: Option<u64>) -> Result<(), StorageError> {
        let next = after.map_or(0, |index| index.saturating_add(1));
        self.ask(|tail, answer| {
            let log = tail.log();
            if next < log.start || next > log.end {
                let why = format!("truncating to {next} records is outside of the log, which has {log:?}");
                return Err(StorageError::Misuse(why));
            }
            tail.truncate(next);
            Ok(Op::Truncate { after, answer })
        })
        .await
    }

    /// Forgets all records up to `index`, remembering `mark`; durable on return. The caller has synced a snapshot that
    /// covers them. An index beyond the last record makes the log go on after it.
    pub async fn purge_up_to(&self, index: u64, mark: Bytes) -> Result<(), StorageError> {
        check_size("a purge mark", mark.len(), MAX_MARK)?;
        self.ask(|tail, answer| {
            tail.purge(index.saturating_add(1));
            Ok(Op::Purge { index, mark, answer })
        })
        .await
    }

    /// Saves a ballot; durable on return.
    pub async fn save_ballot(&self, ballot: Bytes) -> Result<(), StorageError> {
        check_size("a ballot", ballot.len(), MAX_VALUE)?;
        self.ask(|_tail, answer| Ok(Op::Ballot { ballot, answer })).await
    }

    /// Reads records of a range, as many as there are and as fit into `max_bytes`, but at least one if there is one.
    /// Touches the disk only for records that are no longer in memory.
    ///
    /// # Errors
    /// `Damage` when what stands on the disk is not what was written. `Closed`.
    pub async fn read(&self, range: Range<u64>, max_bytes: usize) -> Result<Vec<Record>, StorageError> {
        if let Some(records) = self.shared.tail().read(&range, max_bytes) {
            return Ok(records);
        }
        let (answer, answered) = oneshot::channel();
        let place = self.queue.reserve().await.map_err(|_gone| StorageError::Closed)?;
        place.send(Op::Read { range, max_bytes, answer });
        answered.await.map_err(|_gone| StorageError::Closed)?
    }

    /// Does what is queued, then closes the files. On return the data directory can be opened again.
    pub async fn close(&self) {
        let (answer, answered) = oneshot::channel();
        if let Ok(place) = self.queue.reserve().await {
            place.send(Op::Close { answer });
            // A driver that is gone has closed them too.
            let _gone = answered.await;
        }
    }

    async fn place(&self) -> Result<mpsc::Permit<'_, Op>, StorageError> {
        if let Some(failure) = self.shared.failure() {
            return Err(failure.again());
        }
        self.queue.reserve().await.map_err(|_gone| StorageError::Closed)
    }

    async fn ask(
        &self,
        op: impl FnOnce(&mut Tail, super::engine::Answer) -> Result<Op, StorageError>,
    ) -> Result<(), StorageError> {
        let place = self.place().await?;
        let (answer, answered) = oneshot::channel();
        {
            let mut tail = self.shared.tail();
            place.send(op(&mut tail, answer)?);
        }
        answered.await.map_err(|_gone| StorageError::Closed)?
    }
}

fn check_size(what: &'static str, size: usize, limit: usize) -> Result<(), StorageError> {
    if size > limit { Err(StorageError::TooLarge { what, size, limit }) } else { Ok(()) }
}
