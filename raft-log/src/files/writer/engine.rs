//! The steps, without threads and without waiting.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::handle::Shared;
use crate::files::batch::Record;
use crate::files::error::StorageError;
use crate::files::log::{Log, Staged, Synced, Written};
use crate::files::store::LogFiles;

/// Called once when an append is durable, or with the reason why it may not be. On the thread that drives the files:
/// it must not block.
pub type Flushed = Box<dyn FnOnce(io::Result<()>) + Send>;
pub(super) type Answer = oneshot::Sender<Result<(), StorageError>>;

/// An operation in the queue.
pub(super) enum Op {
    Append { records: Vec<Record>, room: u32, flushed: Flushed },
    Truncate { after: Option<u64>, answer: Answer },
    Purge { index: u64, mark: Bytes, answer: Answer },
    Ballot { ballot: Bytes, answer: Answer },
    Read { range: Range<u64>, max_bytes: usize, answer: oneshot::Sender<Result<Vec<Record>, StorageError>> },
    Close { answer: oneshot::Sender<()> },
}

/// What will be done next, for those who let it take time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Write,
    Sync,
    Other,
}

enum Stage {
    Idle,
    Staged(Staged),
    Written(Written),
    Synced(Synced),
}

/// Who waits for the batch under way.
enum Waiting {
    Appends(Vec<(u32, Flushed)>),
    One(Answer),
}

pub(super) struct Engine {
    /// `None` after it was closed.
    files: Option<LogFiles>,
    shared: Arc<Shared>,
    max_batch_bytes: usize,
    pending: VecDeque<Op>,
    stage: Stage,
    waiting: Waiting,
    /// Who wants to know when all is closed.
    closing: Vec<oneshot::Sender<()>>,
}

impl Engine {
    pub(super) fn new(files: LogFiles, shared: Arc<Shared>, max_batch_bytes: usize) -> Self {
        let waiting = Waiting::Appends(Vec::new());
        Self {
            files: Some(files),
            shared,
            max_batch_bytes,
            pending: VecDeque::new(),
            stage: Stage::Idle,
            waiting,
            closing: Vec::new(),
        }
    }

    /// Takes an operation that was queued.
    pub(super) fn take(&mut self, op: Op) {
        self.pending.push_back(op);
    }

    /// Takes whatever else is queued, up to as many as the queue holds: the bound of both together is twice that.
    pub(super) fn take_more(&mut self, queue: &mut mpsc::Receiver<Op>) {
        while self.pending.len() < queue.max_capacity() {
            let Ok(op) = queue.try_recv() else { return };
            self.pending.push_back(op);
        }
    }

    /// The log, until it is closed.
    pub(super) fn log(&mut self) -> Option<&mut Log> {
        self.files.as_mut().map(|files| &mut files.log)
    }

    /// Answers those who closed the files; the driver has nothing open either.
    pub(super) fn tell_closed(&mut self) {
        for answer in self.closing.drain(..) {
            let _gone = answer.send(());
        }
    }

    /// Does one step and tells what the next one will do; `None` when there is nothing left to do.
    pub(super) fn step(&mut self) -> Option<Step> {
        let Some(files) = &mut self.files else {
            self.pending.drain(..).for_each(|op| refuse(op, &self.shared, &StorageError::Closed));
            return None;
        };
        match mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Staged(staged) => match files.log.write(staged) {
                Ok(written) => {
                    self.stage = Stage::Written(written);
                    return Some(Step::Sync);
                }
                Err(error) => self.answer(Err(error)),
            },
            Stage::Written(written) => match files.log.sync(written) {
                Ok(synced) => {
                    self.stage = Stage::Synced(synced);
                    return Some(Step::Other);
                }
                Err(error) => self.answer(Err(error)),
            },
            Stage::Synced(synced) => {
                files.log.complete(synced);
                let next = files.log.next_index();
                if let Waiting::Appends(_) = self.waiting {
                    self.shared.tail().set_durable(next);
                }
                self.answer(Ok(()));
            }
            Stage::Idle => return self.begin(),
        }
        if self.pending.is_empty() { None } else { Some(Step::Other) }
    }

    /// Begins the next operation.
    fn begin(&mut self) -> Option<Step> {
        let files = self.files.as_mut()?;
        let op = self.pending.pop_front()?;
        if let Some(failure) = self.shared.failure()
            && !matches!(op, Op::Read { .. } | Op::Close { .. })
        {
            refuse(op, &self.shared, &failure.again());
            return Some(Step::Other);
        }
        match op {
            Op::Append { records, room, flushed } => return Some(self.begin_append(records, room, flushed)),
            Op::Truncate { after, answer } => {
                self.waiting = Waiting::One(answer);
                match files.log.stage_truncate(after) {
                    Ok(staged) => {
                        self.stage = Stage::Staged(staged);
                        return Some(Step::Write);
                    }
                    Err(error) => self.answer(Err(error)),
                }
            }
            Op::Purge { index, mark, answer } => {
                self.waiting = Waiting::One(answer);
                let done = files.log.purge_up_to(index, mark);
                self.answer(done);
            }
            Op::Ballot { ballot, answer } => {
                self.waiting = Waiting::One(answer);
                let done = files.save_ballot(ballot);
                self.answer(done);
            }
            Op::Read { range, max_bytes, answer } => {
                // Whoever asked may have gone.
                let _gone = answer.send(files.log.read(range, max_bytes));
            }
            Op::Close { answer } => {
                self.files = None;
                self.closing.push(answer);
            }
        }
        Some(Step::Other)
    }

    /// One batch of this append and of those that follow it directly.
    fn begin_append(&mut self, mut records: Vec<Record>, room: u32, flushed: Flushed) -> Step {
        let mut waiting = vec![(room, flushed)];
        let mut bytes: usize = records.iter().map(Record::size).sum();
        while let Some(Op::Append { records: more, .. }) = self.pending.front() {
            bytes += more.iter().map(Record::size).sum::<usize>();
            if bytes > self.max_batch_bytes {
                break;
            }
            if let Some(Op::Append { records: more, room, flushed }) = self.pending.pop_front() {
                records.extend(more);
                waiting.push((room, flushed));
            }
        }
        self.waiting = Waiting::Appends(waiting);
        let staged = match &mut self.files {
            Some(files) => files.log.stage(&records),
            None => Err(StorageError::Closed),
        };
        match staged {
            Ok(staged) => {
                self.stage = Stage::Staged(staged);
                Step::Write
            }
            Err(error) => {
                self.answer(Err(error));
                Step::Other
            }
        }
    }

    /// Answers those who wait for what was just done. The first error is the last thing that this writer says.
    fn answer(&mut self, done: Result<(), StorageError>) {
        if let Err(error) = &done {
            self.shared.fail(error);
        }
        match mem::replace(&mut self.waiting, Waiting::Appends(Vec::new())) {
            Waiting::Appends(appends) => {
                for (room, flushed) in appends {
                    self.shared.give_back(room);
                    flushed(done.clone().map_err(io::Error::from));
                }
            }
            Waiting::One(answer) => {
                let _gone = answer.send(done);
            }
        }
    }
}

/// Answers an operation without doing it.
fn refuse(op: Op, shared: &Shared, error: &StorageError) {
    match op {
        Op::Append { room, flushed, .. } => {
            shared.give_back(room);
            flushed(Err(error.clone().into()));
        }
        Op::Truncate { answer, .. } | Op::Purge { answer, .. } | Op::Ballot { answer, .. } => {
            let _gone = answer.send(Err(error.clone()));
        }
        Op::Read { answer, .. } => {
            let _gone = answer.send(Err(error.clone()));
        }
        Op::Close { answer } => {
            let _gone = answer.send(());
        }
    }
}
