//! A participant whose database is a value in memory: the smallest complete [`ResourceManager`], for tests and
//! simulations.
//!
//! [`Memory`] is the database: it outlives the [`MemoryManager`]s that are opened on it, as a disk outlives the
//! processes that use it. What is recorded in it is durable at once.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use verdict_protocol::{BranchId, Conclusion, LogTime, Reason};

use super::Reservation;
use crate::participant::{
    Fence, NotAnswered, OnePhase, Prepare, Purpose, ResourceManager, Settle, Settled, Stamp, Voted,
    rules::{self, OnConclude, OnPrepare, OnSettle, Record},
};

/// A service's own state and code.
pub trait Ledger: Clone + fmt::Debug + Send + 'static {
    fn reserve(&mut self, branch: BranchId, payload: &[u8]) -> Reservation;
    fn confirm(&mut self, branch: BranchId, payload: &[u8]);
    fn cancel(&mut self, branch: BranchId, payload: &[u8]);
}

/// The database: a service's state and the branch table. Clones are the same database.
#[derive(Clone, Debug)]
pub struct Memory<L> {
    data: Arc<Mutex<Data<L>>>,
}

#[derive(Debug)]
struct Data<L> {
    ledger: L,
    branches: BTreeMap<BranchId, Row>,
    fence: Fence,
}

#[derive(Debug)]
struct Row {
    record: Record,
    payload: Bytes,
    reason: Option<Reason>,
    /// A finished branch is dropped when the horizon has passed this.
    keep_until: LogTime,
}

impl<L: Ledger> Memory<L> {
    pub fn new(ledger: L) -> Self {
        Self { data: Arc::new(Mutex::new(Data { ledger, branches: BTreeMap::new(), fence: Fence::default() })) }
    }

    /// Opens it as a process that has just started does.
    #[must_use]
    pub fn open(&self) -> MemoryManager<L> {
        // The term is not durable.
        self.data().fence.term = 0;
        MemoryManager { memory: self.clone() }
    }

    /// The service's state as it stands.
    #[must_use]
    pub fn ledger(&self) -> L {
        self.data().ledger.clone()
    }

    /// Changes the service's state beside any branch.
    pub fn change(&self, change: impl FnOnce(&mut L)) {
        change(&mut self.data().ledger);
    }

    /// What is recorded of a branch.
    #[must_use]
    pub fn record(&self, branch: BranchId) -> Option<Record> {
        self.data().branches.get(&branch).map(|row| row.record)
    }

    /// How many branches are recorded.
    #[must_use]
    pub fn len(&self) -> usize {
        self.data().branches.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn data(&self) -> MutexGuard<'_, Data<L>> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The participant on a [`Memory`].
#[derive(Clone, Debug)]
pub struct MemoryManager<L> {
    memory: Memory<L>,
}

impl<L: Ledger> Data<L> {
    fn admit(&mut self, stamp: &Stamp, purpose: Purpose) -> Result<(), NotAnswered> {
        let before = self.fence.horizon;
        self.fence.admit(stamp, purpose)?;
        let horizon = self.fence.horizon;
        if horizon > before {
            self.branches.retain(|_, row| row.record == Record::Prepared || row.keep_until >= horizon);
        }
        Ok(())
    }

    fn record(&mut self, branch: BranchId, record: Record, payload: Bytes, reason: Option<Reason>) {
        let keep_until = rules::keep_until(branch.xid, self.fence.horizon);
        self.branches.insert(branch, Row { record, payload, reason, keep_until });
    }

    fn prepare(&mut self, request: Prepare) -> Voted {
        let branch = request.branch;
        let row = self.branches.get(&branch);
        match rules::on_prepare(row.map(|row| row.record), self.fence.expired(branch.xid)) {
            OnPrepare::Answer(voted) => voted,
            OnPrepare::RefusedBefore => {
                let reason = row.and_then(|row| row.reason.clone());
                Voted::refused(reason.unwrap_or_else(|| Reason::refused("refused before", "", false)))
            }
            OnPrepare::Reserve => {
                let before = self.ledger.clone();
                match self.ledger.reserve(branch, &request.payload) {
                    Reservation::Reserved => {
                        self.record(branch, Record::Prepared, request.payload, None);
                        Voted::PREPARED
                    }
                    Reservation::ReadOnly => {
                        self.record(branch, Record::ReadOnly, Bytes::new(), None);
                        Voted::READ_ONLY
                    }
                    Reservation::Refused(reason) => {
                        self.ledger = before;
                        self.record(branch, Record::Refused, Bytes::new(), Some(reason.clone()));
                        Voted::refused(reason)
                    }
                }
            }
        }
    }

    fn conclude(&mut self, request: &OnePhase) -> Conclusion {
        let branch = request.branch;
        let row = self.branches.get(&branch);
        let (record, expired) = (row.map(|row| row.record), self.fence.expired(branch.xid));
        match rules::on_conclude(record, expired, request.fence) {
            OnConclude::Answer(conclusion) => conclusion,
            OnConclude::RefusedBefore => Conclusion::Fenced(row.and_then(|row| row.reason.clone())),
            OnConclude::Record(record) => {
                self.record(branch, record, Bytes::new(), None);
                rules::concluded(record)
            }
            OnConclude::Finish(record) => {
                let payload = row.map(|row| row.payload.clone()).unwrap_or_default();
                match record {
                    Record::Committed => self.ledger.confirm(branch, &payload),
                    _ => self.ledger.cancel(branch, &payload),
                }
                self.record(branch, record, Bytes::new(), None);
                rules::concluded(record)
            }
            OnConclude::Work => {
                let before = self.ledger.clone();
                match self.ledger.reserve(branch, &request.payload) {
                    Reservation::Refused(reason) => {
                        self.ledger = before;
                        self.record(branch, Record::Refused, Bytes::new(), Some(reason.clone()));
                        return Conclusion::Fenced(Some(reason));
                    }
                    Reservation::Reserved => self.ledger.confirm(branch, &request.payload),
                    Reservation::ReadOnly => {}
                }
                self.record(branch, Record::Committed, Bytes::new(), None);
                Conclusion::Committed
            }
        }
    }

    fn settle(
        &mut self,
        request: &Settle,
        step: OnSettle,
        record: Record,
        finish: fn(&mut L, BranchId, &[u8]),
    ) -> Settled {
        let branch = request.branch;
        match step {
            OnSettle::Answer(settled) => settled,
            OnSettle::Tombstone => {
                self.record(branch, Record::RolledBack, Bytes::new(), None);
                Settled::DONE
            }
            OnSettle::Finish => {
                let payload = self.branches.get(&branch).map(|row| row.payload.clone()).unwrap_or_default();
                finish(&mut self.ledger, branch, &payload);
                self.record(branch, record, Bytes::new(), None);
                Settled::DONE
            }
        }
    }
}

#[tonic::async_trait]
impl<L: Ledger> ResourceManager for MemoryManager<L> {
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        let mut data = self.memory.data();
        data.admit(&request.stamp, Purpose::Promise)?;
        Ok(data.prepare(request))
    }

    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered> {
        let mut data = self.memory.data();
        data.admit(&request.stamp, Purpose::Outcome)?;
        let step = rules::on_commit(data.branches.get(&request.branch).map(|row| row.record));
        Ok(data.settle(&request, step, Record::Committed, L::confirm))
    }

    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        let mut data = self.memory.data();
        data.admit(&request.stamp, Purpose::Outcome)?;
        let record = data.branches.get(&request.branch).map(|row| row.record);
        let step = rules::on_rollback(record, data.fence.expired(request.branch.xid));
        Ok(data.settle(&request, step, Record::RolledBack, L::cancel))
    }

    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        let mut data = self.memory.data();
        data.admit(&request.stamp, Purpose::Outcome)?;
        Ok(data.conclude(&request))
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        let data = self.memory.data();
        let held = data.branches.iter().filter(|(_, row)| row.record == Record::Prepared);
        Ok(held.map(|(branch, _)| *branch).take(limit).collect())
    }
}
