//! A bank's side of the protocol, watched; with a flaw, one that breaks the contract.

use std::sync::Arc;

use verdict_client::{
    participant::{NotAnswered, Prepare, ResourceManager, Settle, Settled, Voted, rules::Record},
    resource::memory::{Memory, MemoryManager},
};
use verdict_protocol::{BranchId, Outcome};

use crate::{
    bank::Bank,
    flaws::Flaw,
    history::{History, What},
    plan::Place,
};

/// A bank as its process serves it.
#[derive(Clone, Debug)]
pub(super) struct Teller {
    pub place: Place,
    pub history: History,
    pub flaw: Option<Flaw>,
    pub memory: Memory<Bank>,
    pub manager: Arc<MemoryManager<Bank>>,
}

impl Teller {
    fn record(&self, what: What) {
        self.history.record(self.place, what);
    }

    async fn settle(&self, request: Settle, outcome: Outcome) -> Result<Settled, NotAnswered> {
        let branch = request.branch;
        self.record(What::OutcomeCame { branch, outcome, term: request.stamp.term });
        let on_record = self.memory.record(branch);
        let answer = match (outcome, self.flaw, on_record) {
            (Outcome::Committed, Some(Flaw::CommitTwice), Some(Record::Committed)) => {
                self.memory.ledger().apply(branch, &request.payload);
                Ok(Settled::DONE)
            }
            (Outcome::Aborted, Some(Flaw::NoTombstone), None) => Ok(Settled::DONE),
            (Outcome::Committed, _, _) => self.manager.commit(request).await,
            (Outcome::Aborted, _, _) => self.manager.rollback(request).await,
        };
        self.record(match &answer {
            Ok(settled) => What::Settled { branch, outcome, settlement: settled.settlement },
            Err(error) => What::NotAnswered { branch, error: error.to_string() },
        });
        answer
    }
}

#[tonic::async_trait]
impl ResourceManager for Teller {
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        let branch = request.branch;
        self.record(What::PrepareCame { branch, term: request.stamp.term });
        let answer = self.manager.prepare(request).await;
        self.record(match &answer {
            Ok(voted) => What::Voted { branch, vote: voted.vote },
            Err(error) => What::NotAnswered { branch, error: error.to_string() },
        });
        answer
    }

    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.settle(request, Outcome::Committed).await
    }

    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.settle(request, Outcome::Aborted).await
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        self.manager.recover(limit).await
    }
}
