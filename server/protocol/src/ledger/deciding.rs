//! Closing the list, taking votes, and the one place where an outcome is fixed.

use std::sync::Arc;

use super::{
    Change, Ledger, OpenTransaction, Phase, Recorded, Step,
    outcomes::OutcomeRecord,
    transaction::list_digest,
    transition::{Event, Ruling, rule},
};
use crate::{
    Answer, BranchId, BranchNumber, Brought, Conclusion, ListedBranch, Outcome, Reason, ReasonCode, Refusal,
    Settlement, Vote, Xid,
};

impl Ledger {
    pub(super) fn close(
        &mut self,
        xid: Xid,
        branches: &[ListedBranch],
        vote_timeout_ms: u64,
        delegate: Option<BranchNumber>,
        changes: &mut Vec<Change>,
    ) {
        let (at, list) = (self.at, list_digest(branches, delegate));
        let deadline = at.plus(vote_timeout_ms.min(self.rules.max_lifetime_ms));
        let open = self.open.entry(xid).or_insert_with(|| Arc::new(OpenTransaction::new(at, deadline)));
        let transaction = Arc::make_mut(open);
        let mut broken = Vec::new();
        let before = transaction.is_in_doubt();
        transaction.phase = Phase::Voting { deadline, list, delegate };
        for listed in branches {
            transaction.register(&listed.branch, &mut self.by_resource);
            let branch = transaction.branches.get_mut(&listed.branch.number).expect("it was just registered");
            match (&listed.vote, branch.vote) {
                (Some(brought), None) | (Some(brought @ Brought { vote: Vote::Refused, .. }), Some(_)) => {
                    if branch.vote.replace(brought.vote) == Some(Vote::Prepared) {
                        broken.push(BranchId { xid, number: listed.branch.number });
                    }
                    branch.reason.clone_from(&brought.reason);
                    branch.brought = true;
                }
                (None, _) | (Some(Brought { vote: Vote::Prepared | Vote::ReadOnly, .. }), Some(_)) => {}
            }
        }
        self.count_in_doubt(xid, before);
        broken.into_iter().for_each(|branch| self.broke_its_promise(branch, changes));
        if !self.tally(xid, changes) {
            changes.push(Change::Closed { xid, deadline });
            self.tells(xid, Step::Voting);
        }
    }

    /// Records ABORTED for a list that may not begin: whoever prepared a branch of it finds that when he asks.
    pub(super) fn refuse_list(&mut self, xid: Xid, refusal: &Refusal, changes: &mut Vec<Change>) {
        let code = match refusal {
            Refusal::Skewed { .. } => ReasonCode::Skewed,
            Refusal::Fenced => ReasonCode::Fenced,
            Refusal::Limit { .. }
            | Refusal::Closed
            | Refusal::Mismatch
            | Refusal::Expired
            | Refusal::UnknownTransaction
            | Refusal::UnknownBranch
            | Refusal::NotFounded
            | Refusal::KeyTaken { .. }
            | Refusal::NotDelegated
            | Refusal::Undecided
            | Refusal::NeedsForce { .. }
            | Refusal::NotPromised
            | Refusal::Forbidden { .. } => ReasonCode::Limit,
        };
        self.decide(xid, Outcome::Aborted, Some(Reason::new(code, refusal.to_string())), changes);
    }

    pub(super) fn vote(
        &mut self,
        id: BranchId,
        vote: Vote,
        reason: Option<&Reason>,
        changes: &mut Vec<Change>,
    ) -> Answer {
        let (known, earlier) = match self.transaction(id.xid) {
            Some(transaction) => {
                let branch = transaction.branches.get(&id.number);
                (branch.is_some(), branch.and_then(|branch| branch.vote))
            }
            None => {
                let record = self.outcomes.get(id.xid, &self.rules);
                let prepared = record.is_some_and(|record| record.prepared.contains(&id.number));
                (prepared, prepared.then_some(Vote::Prepared))
            }
        };
        let event = Event::Vote { vote, known, earlier };
        match rule(self.standing(id.xid), event) {
            Ruling::Record => {
                let open = self.open.get_mut(&id.xid).expect("a vote is recorded only in the open table");
                let transaction = Arc::make_mut(open);
                let before = transaction.is_in_doubt();
                let branch = transaction.branches.get_mut(&id.number).expect("only a known branch's vote is recorded");
                let broken = vote == Vote::Refused && branch.vote == Some(Vote::Prepared);
                branch.vote = Some(vote);
                branch.reason = reason.cloned();
                self.count_in_doubt(id.xid, before);
                if broken {
                    self.broke_its_promise(id, changes);
                }
                self.tally(id.xid, changes);
                Ok(())
            }
            Ruling::TellAgain => {
                // Who has acknowledged its outcome keeps it: the vote was only late.
                let settled = self.transaction(id.xid).and_then(|open| open.branches.get(&id.number)?.settlement);
                if settled.is_none() {
                    changes.push(Change::TellAgain { branch: id });
                }
                Ok(())
            }
            Ruling::Report => {
                self.broke_its_promise(id, changes);
                Ok(())
            }
            other => self.carry_out(id.xid, other, changes),
        }
    }

    /// Takes the word of the branch that decides.
    pub(super) fn conclude(&mut self, id: BranchId, conclusion: &Conclusion, changes: &mut Vec<Change>) -> Answer {
        let known = self.transaction(id.xid).and_then(OpenTransaction::delegate) == Some(id.number);
        let committed = *conclusion == Conclusion::Committed;
        match rule(self.standing(id.xid), Event::Conclude { committed, known }) {
            Ruling::Conclude => {
                let (outcome, reason) = match conclusion {
                    Conclusion::Committed => (Outcome::Committed, None),
                    Conclusion::Fenced(reason) => (Outcome::Aborted, Some(self.fenced(id, reason.clone()))),
                };
                let open = self.open.get_mut(&id.xid).expect("a delegated transaction is in the open table");
                let branch = Arc::make_mut(open).branches.get_mut(&id.number).expect("it is the one that decides");
                // It needs to be told nothing.
                branch.vote = Some(if committed { Vote::Prepared } else { Vote::Refused });
                branch.settlement = Some(Settlement::Done);
                branch.reason.clone_from(&reason);
                let resource = branch.resource.clone();
                self.one_less_at(&resource);
                self.tells_of(id, Step::Settled { branch: id.number, settlement: Settlement::Done });
                self.decide(id.xid, outcome, reason, changes);
                Ok(())
            }
            Ruling::Report => {
                self.broke_its_promise(id, changes);
                Ok(())
            }
            other => self.carry_out(id.xid, other, changes),
        }
    }

    fn broke_its_promise(&mut self, branch: BranchId, changes: &mut Vec<Change>) {
        changes.push(Change::PromiseBroken { branch });
        self.tells_of(branch, Step::PromiseBroken { branch: branch.number });
    }

    fn fenced(&self, id: BranchId, reason: Option<Reason>) -> Reason {
        reason.unwrap_or_else(|| {
            let branch = self.transaction(id.xid).and_then(|open| open.branches.get(&id.number));
            let resource = branch.map_or_else(String::new, |branch| format!(" ({})", branch.resource));
            Reason::new(ReasonCode::Refused, format!("branch {}{resource} decides, and did not commit", id.number))
        })
    }

    /// Decides if the votes do, or hands the decision to the branch that is to have it. A refusal aborts at once;
    /// COMMITTED takes a closed list that has voted in full.
    fn tally(&mut self, xid: Xid, changes: &mut Vec<Change>) -> bool {
        let Some(transaction) = self.transaction(xid) else { return false };
        let refused = transaction.branches.iter().find(|(_, branch)| branch.vote == Some(Vote::Refused));
        if let Some((number, branch)) = refused {
            let reason = branch.reason.clone().unwrap_or_else(|| {
                Reason::new(ReasonCode::Refused, format!("branch {number} ({}) refused", branch.resource))
            });
            self.decide(xid, Outcome::Aborted, Some(reason), changes);
            return true;
        }
        let Phase::Voting { deadline, list, delegate } = transaction.phase else { return false };
        if transaction.unvoted().next().is_some() {
            return false;
        }
        match delegate.filter(|number| transaction.branches.get(number).is_some_and(|branch| branch.vote.is_none())) {
            None => self.decide(xid, Outcome::Committed, None, changes),
            Some(delegate) => {
                let open = self.open.get_mut(&xid).expect("it was just read");
                Arc::make_mut(open).phase = Phase::Delegated { deadline, list, delegate };
                changes.push(Change::Delegated { xid });
                self.tells(xid, Step::Delegated { branch: delegate });
            }
        }
        true
    }

    pub(super) fn decide(&mut self, xid: Xid, outcome: Outcome, reason: Option<Reason>, changes: &mut Vec<Change>) {
        let index = self.index;
        self.tells(xid, Step::Decided { outcome: Recorded::new(outcome, index), reason: reason.clone() });
        let list = self.closed_list(xid).unwrap_or(0);
        let (mut prepared, mut others): (Vec<BranchNumber>, Vec<BranchNumber>) = Default::default();
        if let Some(open) = self.open.get_mut(&xid) {
            let transaction = Arc::make_mut(open);
            debug_assert!(!matches!(transaction.phase, Phase::Decided { .. }), "{xid} is decided once");
            transaction.phase = Phase::Decided { outcome, reason: reason.clone(), index, list };
            let (key, session) = (transaction.key.clone(), transaction.session.clone());
            let numbers = transaction.branches.keys();
            (prepared, others) = numbers.partition(|number| transaction.branches[number].vote == Some(Vote::Prepared));
            self.stops_working(xid, key.as_ref(), session.as_ref(), outcome);
        }
        let record = OutcomeRecord {
            outcome,
            reason: reason.map(Box::new),
            index,
            list,
            prepared: prepared.into(),
            others: others.into(),
        };
        self.outcomes.insert(xid, self.at, record, &self.rules);
        changes.push(Change::Decided { xid, outcome: Recorded::new(outcome, index) });
        self.end_if_settled(xid, changes);
    }
}
