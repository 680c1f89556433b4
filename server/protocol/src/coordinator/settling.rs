//! Carrying the outcome to every branch until each has acknowledged it.

use super::{Coordinator, Effect, Reply, Report};
use crate::{BranchId, Ledger, LogTime, Outcome, Recorded, SettledItem, Settlement, Vote, Xid};

/// How long an acknowledged settlement may stay out of the log before the branch is told again, in milliseconds.
const SETTLED_LATE_MS: u64 = 5_000;

impl Coordinator {
    pub(super) fn decided(
        &mut self,
        now: LogTime,
        xid: Xid,
        outcome: Recorded<Outcome>,
        ledger: &Ledger,
        effects: &mut Vec<Effect>,
    ) {
        self.release_early(xid, ledger, effects);
        let work = self.works.entry(xid).or_default();
        for token in std::mem::take(&mut work.waiting) {
            effects.push(Effect::Reply { token, reply: Reply::Decided { xid, outcome } });
        }
        work.stop_asking(xid, &mut self.timers);
        self.tell_all(now, xid, ledger, effects);
    }

    /// A repeated acknowledgement only puts off telling the branch again: the log may have lost the first.
    pub(super) fn acknowledged(
        &mut self,
        now: LogTime,
        branch: BranchId,
        settlement: Settlement,
        ledger: &Ledger,
        effects: &mut Vec<Effect>,
    ) {
        let Some(work) = self.works.get_mut(&branch.xid) else { return };
        let record = ledger.transaction(branch.xid).and_then(|open| open.branches.get(&branch.number));
        if record.is_some_and(|record| record.settlement.is_some()) {
            // It was told again because it voted again.
            work.told(branch, &mut self.timers);
            return;
        }
        let Some(call) = work.telling.get_mut(&branch.number) else { return };
        if settlement != Settlement::Done {
            effects.push(Effect::Report(Report::Heuristic { branch, settlement }));
        }
        effects.push(Effect::ProposeLater { item: SettledItem { branch, settlement } });
        call.last_error = None;
        call.wait_until(branch, now.plus(SETTLED_LATE_MS), &mut self.timers);
    }

    /// A client that brought a branch's vote settles the branch too: it is told only if that takes too long.
    pub(super) fn tell_all(&mut self, now: LogTime, xid: Xid, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let unsettled = ledger.transaction(xid).into_iter().flat_map(|transaction| transaction.unsettled());
        for (number, record) in unsettled {
            let branch = BranchId { xid, number };
            if record.brought && self.patience.settle_grace_ms > 0 {
                let call = self.works.entry(xid).or_default().telling.entry(number).or_default();
                call.wait_until(branch, now.plus(self.patience.settle_grace_ms), &mut self.timers);
            } else {
                self.tell(branch, ledger, effects);
            }
        }
    }

    /// COMMIT goes only to a branch whose PREPARED counted: one that voted READ_ONLY first has nothing to commit.
    pub(super) fn tell(&mut self, branch: BranchId, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let Some(outcome) = ledger.outcome(branch.xid) else { return };
        let Some(record) = ledger.transaction(branch.xid).and_then(|open| open.branches.get(&branch.number)) else {
            return;
        };
        if outcome.value() == Outcome::Committed && record.vote != Some(Vote::Prepared) {
            return;
        }
        let call = self.works.entry(branch.xid).or_default().telling.entry(branch.number).or_default();
        if !std::mem::replace(&mut call.in_flight, true) {
            let (resource, payload) = (record.resource.clone(), record.payload.clone());
            effects.push(Effect::Tell { branch, resource, payload, outcome });
        }
    }
}
