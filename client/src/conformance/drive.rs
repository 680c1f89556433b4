//! What the cases are written in: messages, restarts, and what must be seen.

use std::{fmt::Debug, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use verdict_protocol::{BranchId, ClusterId, Conclusion, LogTime, ResourceName, Settlement, Vote, Xid};

use super::{Effects, Subject};
use crate::participant::{NotAnswered, OnePhase, Prepare, Settle, Settled, Stamp, Voted};

/// When the suite's transactions are born: some day in 2023.
pub(super) const BIRTH: LogTime = LogTime::from_millis(1_700_000_000_000);

const DAY_MS: u64 = 86_400_000;

pub(super) type Checked = Result<(), String>;

pub(super) struct Driver<'a> {
    subject: &'a mut dyn Subject,
    pub(super) stamp: Stamp,
    next: u64,
}

/// Fails a case unless two things are equal.
pub(super) fn expect<T: Debug + PartialEq>(what: &str, seen: T, expected: T) -> Checked {
    if seen == expected { Ok(()) } else { Err(format!("{what}: expected {expected:?}, saw {seen:?}")) }
}

impl<'a> Driver<'a> {
    pub(super) fn new(subject: &'a mut dyn Subject) -> Self {
        let stamp = Stamp { cluster: ClusterId([7; 16]), incarnation: 2, term: 5, horizon: BIRTH.minus(DAY_MS) };
        Self { subject, stamp, next: 0 }
    }

    /// A branch of a transaction of its own.
    pub(super) fn branch(&mut self) -> BranchId {
        self.next += 1;
        BranchId { xid: Xid::new(BIRTH.plus(self.next), 0, self.next), number: 1 }
    }

    pub(super) fn later_days(&self, days: u64) -> LogTime {
        BIRTH.plus(days * DAY_MS)
    }

    pub(super) async fn restart(&mut self) {
        self.subject.restart().await;
    }

    fn resource(&self) -> ResourceName {
        self.subject.resource()
    }

    /// None if the participant never votes so.
    pub(super) fn payload(&self, vote: Vote) -> Option<Bytes> {
        self.subject.payload(vote)
    }

    fn good_payload(&self) -> Bytes {
        self.payload(Vote::Prepared).expect("the subject has a payload on which it votes PREPARED")
    }

    pub(super) async fn try_prepare(&self, branch: BranchId, payload: Bytes) -> Result<Voted, NotAnswered> {
        let vote_timeout = Duration::from_secs(60);
        let request =
            Prepare { stamp: self.stamp, branch, resource: self.resource(), payload, vote_timeout, credential: None };
        self.subject.manager().prepare(request).await
    }

    pub(super) async fn try_commit(&self, branch: BranchId, payload: Bytes) -> Result<Settled, NotAnswered> {
        let request = Settle { stamp: self.stamp, branch, resource: self.resource(), payload };
        self.subject.manager().commit(request).await
    }

    pub(super) async fn try_rollback(&self, branch: BranchId, payload: Bytes) -> Result<Settled, NotAnswered> {
        let request = Settle { stamp: self.stamp, branch, resource: self.resource(), payload };
        self.subject.manager().rollback(request).await
    }

    /// Sends prepare with the payload for PREPARED and expects this vote.
    pub(super) async fn prepare(&self, branch: BranchId, expected: Vote) -> Checked {
        self.prepare_with(branch, self.good_payload(), expected).await
    }

    pub(super) async fn prepare_with(&self, branch: BranchId, payload: Bytes, expected: Vote) -> Checked {
        let voted = self.try_prepare(branch, payload).await.map_err(|error| format!("prepare: {error}"))?;
        expect("vote", voted.vote, expected)?;
        expect("a reason is given exactly with REFUSED", voted.reason.is_some(), expected == Vote::Refused)
    }

    pub(super) async fn commit(&self, branch: BranchId, expected: Settlement) -> Checked {
        let settled = self.try_commit(branch, self.good_payload()).await.map_err(|error| format!("commit: {error}"))?;
        settled_as("commit", &settled, expected)
    }

    pub(super) async fn rollback(&self, branch: BranchId, expected: Settlement) -> Checked {
        let settled =
            self.try_rollback(branch, self.good_payload()).await.map_err(|error| format!("rollback: {error}"))?;
        settled_as("rollback", &settled, expected)
    }

    pub(super) async fn try_conclude(
        &self,
        branch: BranchId,
        payload: Bytes,
        fence: bool,
    ) -> Result<Conclusion, NotAnswered> {
        let request = OnePhase { stamp: self.stamp, branch, resource: self.resource(), payload, fence };
        self.subject.manager().commit_one_phase(request).await
    }

    /// Gives the branch the decision, or fences it, and expects it to have committed or never to do so.
    pub(super) async fn concludes(&self, branch: BranchId, fence: bool, committed: bool) -> Checked {
        let said = self.try_conclude(branch, self.good_payload(), fence).await;
        let said = said.map_err(|error| format!("commit in one phase: {error}"))?;
        expect("committed", said == Conclusion::Committed, committed)
    }

    pub(super) async fn conclude_twins(&self, branch: BranchId, twins: usize) -> Checked {
        for twin in join_all((0..twins).map(|_| self.concludes(branch, false, true))).await {
            twin?;
        }
        Ok(())
    }

    /// Prepare, commit and rollback must give no answer.
    pub(super) async fn answers_nothing(&self, branch: BranchId) -> Checked {
        let payload = self.good_payload();
        let (prepare, commit, rollback) = (
            self.try_prepare(branch, payload.clone()).await,
            self.try_commit(branch, payload.clone()).await,
            self.try_rollback(branch, payload).await,
        );
        if prepare.is_err() && commit.is_err() && rollback.is_err() {
            Ok(())
        } else {
            Err(format!("expected no answers, got {prepare:?}, {commit:?}, {rollback:?}"))
        }
    }

    /// Prepare must give no answer.
    pub(super) async fn gives_no_promise(&self, branch: BranchId) -> Checked {
        match self.try_prepare(branch, self.good_payload()).await {
            Err(_) => Ok(()),
            Ok(voted) => Err(format!("expected no answer to prepare, got {voted:?}")),
        }
    }

    /// Commit must be answered, and not with DONE.
    pub(super) async fn commit_is_not_done(&self, branch: BranchId) -> Checked {
        let settled = self.try_commit(branch, self.good_payload()).await.map_err(|error| format!("commit: {error}"))?;
        expect("commit is DONE", settled.settlement == Settlement::Done, false)
    }

    /// Many prepares of one branch at the same time.
    pub(super) async fn prepare_twins(&self, branch: BranchId, twins: usize) -> Checked {
        for twin in join_all((0..twins).map(|_| self.prepare(branch, Vote::Prepared))).await {
            twin?;
        }
        Ok(())
    }

    pub(super) async fn commit_twins(&self, branch: BranchId, twins: usize) -> Checked {
        for twin in join_all((0..twins).map(|_| self.commit(branch, Settlement::Done))).await {
            twin?;
        }
        Ok(())
    }

    pub(super) async fn rollback_twins(&self, branch: BranchId, twins: usize) -> Checked {
        for twin in join_all((0..twins).map(|_| self.rollback(branch, Settlement::Done))).await {
            twin?;
        }
        Ok(())
    }

    pub(super) async fn effects(&mut self, reserved: u64, confirmed: u64) -> Checked {
        expect("the participant's data", self.subject.effects().await, Effects { reserved, confirmed })
    }

    /// It keeps at most so many records.
    pub(super) async fn keeps_at_most(&mut self, most: u64) -> Checked {
        let kept = self.subject.records().await;
        if kept <= most { Ok(()) } else { Err(format!("{kept} records are kept, at most {most} should be")) }
    }

    /// The branches that it must hold prepared, oldest first.
    pub(super) async fn recovers(&self, expected: &[BranchId]) -> Checked {
        let held = self.recover(usize::MAX).await?;
        expect("recover", held.as_slice(), expected)
    }

    pub(super) async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, String> {
        self.subject.manager().recover(limit).await.map_err(|error| format!("recover: {error}"))
    }
}

fn settled_as(what: &str, settled: &Settled, expected: Settlement) -> Checked {
    expect(what, settled.settlement, expected)?;
    expect("a reason is given exactly with a heuristic", settled.reason.is_some(), expected != Settlement::Done)
}
