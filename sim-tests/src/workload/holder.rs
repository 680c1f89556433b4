//! Clients that prepare their branches themselves, as an application does in the sessions that did the work, and bring
//! the votes along; and eyes that look at single nodes right after something was decided.

use std::{sync::Arc, time::Duration};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::time::{sleep, timeout};
use verdict_client::{
    Branch, CallError, Enlisted, LocalBranch, State, Transaction,
    participant::{NotAnswered, Prepare, ResourceManager as _, Settle, Settled, Voted},
};
use verdict_protocol::{BranchId, Outcome, Vote, Xid};

use super::{
    Lane,
    calls::{decided, failed},
};
use crate::{
    bank::Deed,
    flaws::Flaw,
    history::{Answer, Ask, What},
    world::{bank_name, bank_of},
};

/// The number of a branch that is prepared and left out of the list.
const LEFT_OUT: u32 = 99;
/// How long an application waits for its bank.
const PREPARES_WITHIN: Duration = Duration::from_secs(1);
/// How soon some clients take the outcome for unknown, and ask again.
const IMPATIENT: Duration = Duration::from_millis(100);

impl Lane {
    /// Registers the branches; those that are registered need not be listed again.
    pub(super) async fn enlist_and_leave_out(&self, transaction: &Transaction) -> Transaction {
        let xid = transaction.xid();
        let mut listing = self.verdict.resume(xid);
        let mut listed = Vec::new();
        self.shared.work.withhold(xid);
        for branch in self.shared.work.ordered(xid) {
            let done = self.enlist_one(&mut self.verdict.resume(xid), &branch).await;
            if !(done.is_some() && self.chance(0.5)) {
                listing.add_branch(branch.clone()).expect("the numbers differ");
                listed.push(branch);
            }
        }
        self.shared.work.list(xid, listed);
        listing
    }

    /// Prepares the branches in the banks, and leaves them to the cluster: brings the votes along or pushes them ahead.
    pub(super) async fn bring(&self) {
        let xid = self.order(self.verdict.transaction()).xid();
        let branches = self.shared.work.ordered(xid);
        let pushes = self.chance(0.3);
        let impatient = self.chance(0.4).then(|| self.verdict.with_deadline(IMPATIENT));
        let mut transaction = impatient.as_ref().unwrap_or(&self.verdict).resume(xid);
        let mut prepared = Vec::new();
        for mut branch in branches {
            let voted = self.prepare(xid, &branch).await;
            if voted.as_ref().is_some_and(|voted| voted.vote == Vote::Prepared) {
                prepared.push(branch.clone());
            }
            if pushes {
                let enlisted = self.enlist_one(&mut self.verdict.resume(xid), &branch).await;
                if let (Some(enlisted), Some(voted)) = (enlisted, voted) {
                    self.forge(enlisted).await;
                    // It is acknowledged or not: either is right.
                    drop(self.verdict.vote(enlisted, voted).await);
                }
            } else {
                branch.vote = voted;
            }
            transaction.add_branch(branch).expect("the numbers differ");
        }
        if self.chance(0.15) {
            let bank = self.random().random_range(0..self.shared.plan.banks);
            let (resource, payload) = (bank_name(bank), Deed::Append { list: 0 }.payload(0).into());
            let stranger = Branch { number: LEFT_OUT, resource, payload, vote: None };
            drop(self.prepare(xid, &stranger).await);
            self.shared.work.left_out(bank, BranchId { xid, number: LEFT_OUT });
        }
        if self.chance(0.1) {
            return;
        }
        let pause = {
            let random = &mut *self.random();
            match random.random_range(0..10) {
                // About when its branches, asking, are presumed to be nobody's.
                0 | 1 => random.random_range(5_900..7_600),
                2..5 => random.random_range(0..2_500),
                _ => 0,
            }
        };
        self.pause(pause).await;
        loop {
            let call = self.asks(xid, Ask::Commit);
            let done = transaction.commit().await;
            let unknown = matches!(done, Err(CallError::Unknown { .. }));
            if self.decided(call, xid, Ask::Commit, done) {
                return;
            }
            if unknown && self.shared.plan.flaw == Some(Flaw::ClientRollsBack) {
                for branch in &prepared {
                    self.roll_back_unasked(xid, branch).await;
                }
            }
        }
    }

    /// Votes, now and then, for a branch that is not his to speak for.
    async fn forge(&self, own: Enlisted) {
        let before = own.branch.number - 1;
        if before > 0 && self.chance(0.3) {
            let branch = BranchId { number: before, ..own.branch };
            let taken = self.verdict.vote(Enlisted { branch, ..own }, Voted::PREPARED).await.is_ok();
            self.history().record(self.place, What::Forged { branch, taken });
        }
    }

    /// Leaves the branches to the client's own library: it prepares, brings the votes, settles, and says so.
    pub(super) async fn drive(&self) {
        let xid = self.order(self.verdict.transaction()).xid();
        let mut transaction = self.verdict.resume(xid);
        for branch in self.shared.work.ordered(xid) {
            if self.chance(0.3) {
                self.enlist_one(&mut transaction, &branch).await;
            } else {
                transaction.add_branch(branch.clone()).expect("the numbers differ");
            }
            self.drives(&mut transaction, &branch);
        }
        if self.chance(0.1) {
            return self.rollback(&transaction).await;
        }
        self.commit(&transaction).await;
    }

    /// Leaves a branch that was added to its library, in a session with its bank.
    pub(super) fn drives(&self, transaction: &mut Transaction, branch: &Branch) {
        let session = BankSession { lane: self.clone(), branch: branch.clone() };
        transaction.drive(branch.number, Arc::new(session)).expect("it was just added");
    }

    /// Commits, for the first time that anybody hears of it, when its xid is about to be too old.
    pub(super) async fn commit_late(&self) {
        let transaction = self.order(self.verdict.transaction());
        self.shared.work.withhold(transaction.xid());
        let rules = &self.shared.plan.rules;
        let old = rules.retention_ms + rules.max_lifetime_ms;
        let pause = self.random().random_range(old - 1_000..old + 1_000);
        self.pause(pause).await;
        self.commit(&transaction).await;
    }

    /// Waits, in milliseconds, unless nothing new is begun any more.
    async fn pause(&self, ms: u64) {
        const STEP_MS: u64 = 50;
        for _ in 0..ms / STEP_MS {
            if self.shared.work.is_closing() {
                return;
            }
            sleep(Duration::from_millis(STEP_MS)).await;
        }
        sleep(Duration::from_millis(ms % STEP_MS)).await;
    }

    async fn prepare(&self, xid: Xid, branch: &Branch) -> Option<Voted> {
        let (teller, stamp) = self.shared.teller(bank_of(&branch.resource))?;
        let (resource, payload) = (branch.resource.clone(), branch.payload.clone());
        let id = BranchId { xid, number: branch.number };
        let request = Prepare { stamp, branch: id, resource, payload, vote_timeout: Duration::ZERO, credential: None };
        // A bank that dies says nothing.
        timeout(PREPARES_WITHIN, teller.prepare(request)).await.ok()?.ok()
    }

    /// Tells a branch of this client's its outcome.
    async fn settle(&self, id: BranchId, branch: &Branch, outcome: Outcome) -> Result<Settled, NotAnswered> {
        let away = || NotAnswered::unavailable("the bank is away");
        let (teller, stamp) = self.shared.teller(bank_of(&branch.resource)).ok_or_else(away)?;
        let (resource, payload) = (branch.resource.clone(), branch.payload.clone());
        let request = Settle { stamp, branch: id, resource, payload };
        let settling = async {
            match outcome {
                Outcome::Committed => teller.commit(request).await,
                Outcome::Aborted => teller.rollback(request).await,
            }
        };
        timeout(PREPARES_WITHIN, settling).await.map_err(|_| away())?
    }

    /// The flaw.
    async fn roll_back_unasked(&self, xid: Xid, branch: &Branch) {
        let Some((teller, stamp)) = self.shared.teller(bank_of(&branch.resource)) else { return };
        let (resource, payload) = (branch.resource.clone(), branch.payload.clone());
        drop(
            teller.rollback(Settle { stamp, branch: BranchId { xid, number: branch.number }, resource, payload }).await,
        );
    }

    /// Looks a transaction up a moment later, at one node and no other.
    pub(super) fn peek(&self, xid: Xid) {
        let mut random = StdRng::seed_from_u64(self.random().random());
        let most = [1, 20, 300, 1_500][random.random_range(0..4)];
        let pause = Duration::from_micros(random.random_range(1..most * 1_000));
        let verdict = self.shared.eye(self.place, random.random_range(1..=self.shared.plan.nodes));
        let lane = self.clone();
        drop(tokio::spawn(async move {
            sleep(pause).await;
            let call = lane.asks(xid, Ask::Get);
            let answer = match verdict.get(xid).await {
                Ok(status) => {
                    if status.state == State::Ended {
                        lane.history().record(lane.place, What::SaidEnded { xid });
                    }
                    status.decision.map_or(Answer::Undecided(status.state), decided)
                }
                Err(error) => failed(&error),
            };
            lane.hears(call, xid, Ask::Get, answer);
        }));
    }
}

/// A client's own session with a bank, in which one branch's work is done.
#[derive(Debug)]
struct BankSession {
    lane: Lane,
    branch: Branch,
}

#[tonic::async_trait]
impl LocalBranch for BankSession {
    async fn prepare(&self, branch: BranchId) -> Result<Voted, NotAnswered> {
        let voted = self.lane.prepare(branch.xid, &self.branch).await;
        voted.ok_or_else(|| NotAnswered::unavailable("the bank is away"))
    }

    async fn settle(&self, branch: BranchId, outcome: Outcome) -> Result<Settled, NotAnswered> {
        let settled = self.lane.settle(branch, &self.branch, outcome).await;
        if settled.is_ok() {
            self.lane.history().record(self.lane.place, What::Drove { branch });
        }
        settled
    }
}
