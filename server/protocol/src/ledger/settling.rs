//! Acknowledgements, what operators say, and the end.

use std::sync::Arc;

use super::{Change, Ledger, OpenTransaction, Phase, Step};
use crate::{
    Answer, BranchId, BranchNumber, Outcome, Reason, ReasonCode, Refusal, Resolution, ResourceName, SettledItem,
    Settlement, Vote, Word, Xid,
};

impl Ledger {
    pub(super) fn settle(&mut self, item: &SettledItem, changes: &mut Vec<Change>) {
        let xid = item.branch.xid;
        let open = self.open.get_mut(&xid).expect("a decided transaction is in the open table");
        let transaction = Arc::make_mut(open);
        let before = transaction.is_in_doubt();
        let Some(branch) = transaction.branches.get_mut(&item.branch.number) else { return };
        if branch.settlement.is_some() {
            return;
        }
        branch.settlement = Some(item.settlement);
        let resource = branch.resource.clone();
        self.one_less_at(&resource);
        changes.push(Change::Settled { branch: item.branch });
        self.tells_of(item.branch, Step::Settled { branch: item.branch.number, settlement: item.settlement });
        self.count_in_doubt(xid, before);
        self.end_if_settled(xid, changes);
    }

    /// A transaction with a heuristic settlement stays: an operator has to see it.
    pub(super) fn end_if_settled(&mut self, xid: Xid, changes: &mut Vec<Change>) {
        let Some(transaction) = self.transaction(xid) else {
            changes.push(Change::Ended { xid });
            self.tells(xid, Step::Ended);
            return;
        };
        if transaction.unsettled().next().is_none() && !transaction.has_heuristic() {
            self.tells(xid, Step::Ended);
            self.leaves(xid);
            changes.push(Change::Ended { xid });
        }
    }

    /// Takes a transaction out of the open table.
    fn leaves(&mut self, xid: Xid) {
        let Some(open) = self.open.remove(&xid) else { return };
        for branch in open.branches.values().filter(|branch| branch.settlement.is_none()) {
            self.one_less_at(&branch.resource);
        }
    }

    pub(super) fn one_less_at(&mut self, resource: &ResourceName) {
        if let Some(count) = self.by_resource.get_mut(resource) {
            *count -= 1;
            if *count == 0 {
                self.by_resource.remove(resource);
            }
        }
    }

    pub(super) fn count_in_doubt(&mut self, xid: Xid, before: bool) {
        let after = self.transaction(xid).is_some_and(OpenTransaction::is_in_doubt);
        match (before, after) {
            (false, true) => self.in_doubt += 1,
            (true, false) => self.in_doubt -= 1,
            (false, false) | (true, true) => {}
        }
    }

    /// Does as an operator says, if that is possible and, without `force`, safe.
    pub(super) fn resolve(
        &mut self,
        xid: Xid,
        resolution: Resolution,
        word: &Word,
        force: bool,
        changes: &mut Vec<Change>,
    ) -> Answer {
        let Some(open) = self.transaction(xid) else {
            return match (resolution, self.outcome(xid)) {
                (Resolution::Decide(wanted), Some(outcome)) if outcome.value() != wanted => Err(Refusal::Closed),
                _ => self.of_no_open(xid),
            };
        };
        match (resolution, &open.phase) {
            (Resolution::Decide(wanted), Phase::Decided { outcome, .. }) => {
                if wanted == *outcome {
                    Ok(())
                } else {
                    Err(Refusal::Closed)
                }
            }
            (Resolution::Decide(outcome), Phase::Delegated { delegate, .. }) => {
                if !force {
                    let what = format!("branch {delegate} decides and may have done so, the other way");
                    return Err(Refusal::NeedsForce { what });
                }
                let number = *delegate;
                self.says(xid, word);
                self.stand_in(BranchId { xid, number }, outcome);
                self.decide(xid, outcome, Some(Reason::new(ReasonCode::Operator, word.to_string())), changes);
                Ok(())
            }
            (Resolution::Decide(Outcome::Aborted), Phase::Active { .. } | Phase::Voting { .. }) => {
                self.says(xid, word);
                self.decide(xid, Outcome::Aborted, Some(Reason::new(ReasonCode::Operator, word.to_string())), changes);
                Ok(())
            }
            (Resolution::Decide(Outcome::Committed), Phase::Active { .. } | Phase::Voting { .. }) => {
                Err(Refusal::NotPromised)
            }
            (Resolution::Settle { number, settlement }, Phase::Decided { outcome, .. }) => {
                let outcome = *outcome;
                self.resolve_branch(BranchId { xid, number }, settlement, outcome, word, force, changes)
            }
            (Resolution::Settle { .. }, Phase::Active { .. } | Phase::Voting { .. } | Phase::Delegated { .. }) => {
                Err(Refusal::Undecided)
            }
        }
    }

    /// The operator's word stands for that of the branch that was to decide. It is told the outcome all the same: its
    /// answer shows what it did.
    fn stand_in(&mut self, id: BranchId, outcome: Outcome) {
        let Some(open) = self.open.get_mut(&id.xid).map(Arc::make_mut) else { return };
        let before = open.is_in_doubt();
        if let Some(branch) = open.branches.get_mut(&id.number)
            && outcome == Outcome::Committed
        {
            branch.vote = Some(Vote::Prepared);
        }
        self.count_in_doubt(id.xid, before);
    }

    fn resolve_branch(
        &mut self,
        branch: BranchId,
        settlement: Settlement,
        outcome: Outcome,
        word: &Word,
        force: bool,
        changes: &mut Vec<Change>,
    ) -> Answer {
        let record = self.transaction(branch.xid).and_then(|open| open.branches.get(&branch.number));
        match record.ok_or(Refusal::UnknownBranch)?.settlement {
            Some(known) if known == settlement => return Ok(()),
            Some(_) => return Err(Refusal::Closed),
            None => {}
        }
        if settlement != Settlement::Done && !force {
            let what = format!("branch {} would count as ended otherwise than {outcome}", branch.number);
            return Err(Refusal::NeedsForce { what });
        }
        self.says(branch.xid, word);
        self.settle(&SettledItem { branch, settlement }, changes);
        Ok(())
    }

    /// Takes a transaction that has ended for all its branches, some of them otherwise than decided, out of the table.
    pub(super) fn forget(&mut self, xid: Xid, word: &Word, force: bool, changes: &mut Vec<Change>) -> Answer {
        let Some(open) = self.transaction(xid) else { return self.of_no_open(xid) };
        if !matches!(open.phase, Phase::Decided { .. }) {
            return Err(Refusal::Undecided);
        }
        let unsettled: Vec<BranchNumber> = open.unsettled().map(|(number, _)| number).collect();
        if !unsettled.is_empty() && !force {
            let what =
                format!("branches {unsettled:?} have not acknowledged the outcome and would not be told any more");
            return Err(Refusal::NeedsForce { what });
        }
        let was_in_doubt = open.is_in_doubt();
        self.says(xid, word);
        self.tells(xid, Step::Ended);
        self.leaves(xid);
        self.count_in_doubt(xid, was_in_doubt);
        changes.push(Change::Ended { xid });
        Ok(())
    }

    fn of_no_open(&self, xid: Xid) -> Answer {
        match self.outcome(xid) {
            Some(_) => Ok(()),
            None if xid.birth() < self.horizon() => Err(Refusal::Expired),
            None => Err(Refusal::UnknownTransaction),
        }
    }

    fn says(&mut self, xid: Xid, word: &Word) {
        let at = self.at;
        if let Some(open) = self.open.get_mut(&xid)
            && open.words.len() < OpenTransaction::MOST_WORDS
        {
            Arc::make_mut(open).words.push((at, word.clone()));
        }
    }
}
