//! A bank's side of the protocol, watched; with a flaw, one that breaks the contract.

use std::{
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use rand::{RngExt as _, rngs::StdRng};
use tokio::time::sleep;
use verdict_client::{
    participant::{NotAnswered, OnePhase, Prepare, ResourceManager, Settle, Settled, Stamp, Voted, rules::Record},
    resource::memory::{Memory, MemoryManager},
};
use verdict_protocol::{BranchId, Conclusion, Outcome, Reason};

use crate::{
    bank::Bank,
    flaws::Flaw,
    history::{History, What},
    plan::{Mood, Place},
    world::{Shared, lock},
};

/// A bank as its process serves it.
#[derive(Clone, Debug)]
pub(crate) struct Teller {
    pub shared: Arc<Shared>,
    pub random: Arc<Mutex<StdRng>>,
    pub place: Place,
    pub history: History,
    pub flaw: Option<Flaw>,
    pub memory: Memory<Bank>,
    pub manager: Arc<MemoryManager<Bank>>,
    /// The last stamp that any bank heard.
    pub heard: Arc<Mutex<Option<Stamp>>>,
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

/// What a bank does of its own accord at one request to prepare.
#[derive(Debug, Default)]
struct Caprice {
    refuses: bool,
    stalls: Duration,
    /// Before it votes, not after.
    stalls_first: bool,
    dies: Option<Duration>,
}

/// The longest that a bank stalls: some votes then come after their deadline.
const LONGEST_STALL_MS: u64 = 5_000;
/// The longest from a vote to its bank's death.
const DIES_WITHIN_MS: u64 = 60;

impl Teller {
    /// Refuses, with a tombstone: what was refused once is refused for ever.
    async fn refuse(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        let Prepare { stamp, branch, resource, .. } = request;
        self.manager.rollback(Settle { stamp, branch, resource, payload: Bytes::new() }).await?;
        Ok(Voted::refused(Reason::refused("not today", "MOOD", true)))
    }

    fn caprice(&self) -> Caprice {
        if self.shared.calm.load(Ordering::Relaxed) {
            return Caprice::default();
        }
        let Mood { refuses, stalls, dies_voting, dies_in_doubt } = self.shared.plan.mood;
        let random = &mut *lock(&self.random);
        let stall = Duration::from_millis(random.random_range(1..=LONGEST_STALL_MS));
        let soon = Duration::from_millis(random.random_range(1..=DIES_WITHIN_MS));
        Caprice {
            refuses: random.random_bool(refuses),
            stalls: if random.random_bool(stalls) { stall } else { Duration::ZERO },
            stalls_first: random.random_bool(0.5),
            dies: match (random.random_bool(dies_voting), random.random_bool(dies_in_doubt)) {
                (true, _) => Some(Duration::ZERO),
                (false, true) => Some(soon),
                (false, false) => None,
            },
        }
    }
}

impl Teller {
    /// Answers, or dies first, or soon after.
    async fn lives_on<T>(&self, dies: Option<Duration>, answer: T) -> T {
        match dies {
            Some(after) if after.is_zero() => {
                // With its vote durable and not answered.
                self.shared.dooms(self.place);
                std::future::pending().await
            }
            Some(after) => {
                let (shared, place) = (Arc::clone(&self.shared), self.place);
                drop(tokio::spawn(async move {
                    sleep(after).await;
                    shared.dooms(place);
                }));
                answer
            }
            None => answer,
        }
    }
}

#[tonic::async_trait]
impl ResourceManager for Teller {
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        let branch = request.branch;
        self.record(What::PrepareCame { branch, term: request.stamp.term });
        *lock(&self.heard) = Some(request.stamp);
        let Caprice { refuses, stalls, stalls_first, dies } = self.caprice();
        if stalls_first {
            sleep(stalls).await;
        }
        let answer = match self.memory.record(branch) {
            None if refuses => self.refuse(request).await,
            _ => self.manager.prepare(request).await,
        };
        self.record(match &answer {
            Ok(voted) => What::Voted { branch, vote: voted.vote },
            Err(error) => What::NotAnswered { branch, error: error.to_string() },
        });
        if !stalls_first && !stalls.is_zero() {
            sleep(stalls).await;
        }
        self.lives_on(dies, answer).await
    }

    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.settle(request, Outcome::Committed).await
    }

    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.settle(request, Outcome::Aborted).await
    }

    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        let branch = request.branch;
        let Caprice { refuses, stalls, stalls_first, dies } = self.caprice();
        if stalls_first {
            sleep(stalls).await;
        }
        let fence = request.fence || refuses;
        let answer = self.manager.commit_one_phase(OnePhase { fence, ..request }).await;
        self.record(match &answer {
            Ok(conclusion) => What::Concluded { branch, fence, committed: *conclusion == Conclusion::Committed },
            Err(error) => What::NotAnswered { branch, error: error.to_string() },
        });
        if !stalls_first && !stalls.is_zero() {
            sleep(stalls).await;
        }
        self.lives_on(dies, answer).await
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        self.manager.recover(limit).await
    }
}
