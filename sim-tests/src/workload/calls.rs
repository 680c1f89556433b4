//! Calls, each with its question and its answer in the history.

use verdict_client::{Branch, CallError, Decision, Enlisted, RefusalCode, Transaction, TransactionStatus, Verdict};
use verdict_protocol::{State, Xid};

use super::Lane;
use crate::history::{Answer, Ask, What};

impl Lane {
    /// Registers branches, each by a call; or only some.
    pub(super) async fn enlist(&self, transaction: &Transaction, all: bool) {
        let branches = self.shared.work.ordered(transaction.xid());
        let mut registering = self.verdict.resume(transaction.xid());
        for branch in branches {
            if !all && self.chance(0.4) {
                continue;
            }
            // Who is not sure asks again.
            for _ in 0..if self.chance(0.2) { 2 } else { 1 } {
                self.enlist_one(&mut registering, &branch).await;
            }
        }
    }

    /// What it was given, if it was acknowledged.
    pub(super) async fn enlist_one(&self, registering: &mut Transaction, branch: &Branch) -> Option<Enlisted> {
        let (xid, ask) = (registering.xid(), Ask::Enlist(branch.number));
        let Branch { number, resource, payload, .. } = branch.clone();
        let call = self.asks(xid, ask);
        let enlisted = registering.enlist_as(number, resource, payload).await;
        self.hears(call, xid, ask, enlisted.as_ref().map_or_else(failed, |_| Answer::Done));
        enlisted.ok()
    }

    /// Commits until there is an answer.
    pub(super) async fn commit(&self, transaction: &Transaction) {
        let xid = transaction.xid();
        loop {
            let call = self.asks(xid, Ask::Commit);
            let done = transaction.commit().await;
            if self.decided(call, xid, Ask::Commit, done) {
                return;
            }
        }
    }

    pub(super) async fn rollback(&self, transaction: &Transaction) {
        let xid = transaction.xid();
        loop {
            let call = self.asks(xid, Ask::Rollback);
            let done = transaction.rollback("the client changed its mind").await;
            if self.decided(call, xid, Ask::Rollback, done) {
                return;
            }
        }
    }

    /// Records an answer; false if there was none.
    pub(super) fn decided(&self, call: u64, xid: Xid, ask: Ask, done: Result<Decision, CallError>) -> bool {
        let (answer, heard) = match done {
            Ok(decision) => (decided(decision), true),
            Err(error @ CallError::Unknown { .. }) => (failed(&error), false),
            // Nothing was logged for want of room: it may be asked again.
            Err(error) => (failed(&error), error.code() != Some(RefusalCode::Overloaded)),
        };
        self.hears(call, xid, ask, answer);
        if heard {
            self.shared.work.heard(xid);
            if self.chance(0.5) {
                self.peek(xid);
            }
        }
        heard
    }

    pub(super) async fn get(&self, xid: Xid) {
        let call = self.asks(xid, Ask::Get);
        let answer = look_up(&self.verdict, xid).await;
        self.hears(call, xid, Ask::Get, answer);
    }

    /// What state it is in, as far as there is an answer.
    pub(super) async fn look_up_state(&self, xid: Xid) -> Option<State> {
        let call = self.asks(xid, Ask::Get);
        let status = self.verdict.get(xid).await;
        let state = status.as_ref().ok().map(|status| status.state);
        self.hears(call, xid, Ask::Get, self::status(status));
        state
    }

    pub(super) fn asks(&self, xid: Xid, ask: Ask) -> u64 {
        let call = self.history().call();
        self.history().record(self.place, What::Asked { call, xid, ask });
        call
    }

    pub(super) fn hears(&self, call: u64, xid: Xid, ask: Ask, answer: Answer) {
        self.history().record(self.place, What::Answered { call, xid, ask, answer });
    }
}

/// Looks a transaction up.
pub async fn look_up(verdict: &Verdict, xid: Xid) -> Answer {
    status(verdict.get(xid).await)
}

pub(super) fn status(said: Result<TransactionStatus, CallError>) -> Answer {
    match said {
        Ok(status) => status.decision.map_or(Answer::Undecided(status.state), decided),
        Err(error) => failed(&error),
    }
}

pub(super) fn decided(decision: Decision) -> Answer {
    let reason = decision.reason.map_or_else(String::new, |reason| format!("{}: {}", reason.code, reason.text));
    Answer::Decided { outcome: decision.outcome, index: decision.log_index, reason }
}

pub(super) fn failed(error: &CallError) -> Answer {
    match error {
        CallError::Unknown { .. } => Answer::Unknown,
        CallError::Refused { code, .. } => Answer::Refused(code.to_string()),
    }
}
