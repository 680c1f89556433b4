//! Asking the one branch that decides, once the log says that it does, until it has.

use super::{Coordinator, Effect, Pending};
use crate::{BranchId, Command, Conclusion, Ledger, LogTime, Phase, Xid};

impl Coordinator {
    /// Asks the branch, unless an attempt is under way, its turn is set, or its word is there.
    ///
    /// Past the deadline it is asked to make sure that it never commits, if it has not done so.
    pub(super) fn ask_delegate(&mut self, now: LogTime, xid: Xid, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let Some(open) = ledger.transaction(xid) else { return };
        let Phase::Delegated { deadline, delegate, .. } = open.phase else { return };
        let Some(record) = open.branches.get(&delegate) else { return };
        let work = self.works.entry(xid).or_default();
        if work.conclusion.is_some() {
            return;
        }
        let call = work.asking.entry(delegate).or_default();
        if call.due.is_none() && !std::mem::replace(&mut call.in_flight, true) {
            let (branch, resource) = (BranchId { xid, number: delegate }, record.resource.clone());
            effects.push(Effect::Delegate {
                branch,
                resource,
                payload: record.payload.clone(),
                fence: now >= deadline,
            });
        }
    }

    /// The branch has decided: nothing that it says later changes that.
    pub(super) fn concluded(
        &mut self,
        branch: BranchId,
        conclusion: Conclusion,
        ledger: &Ledger,
        effects: &mut Vec<Effect>,
    ) {
        let Some(work) = self.works.get_mut(&branch.xid) else { return };
        let Some(call) = work.asking.get_mut(&branch.number) else { return };
        call.in_flight = false;
        call.last_error = None;
        self.timers.clear(branch.xid, Some(branch.number), &mut call.due);
        work.conclusion.get_or_insert(conclusion);
        self.propose_conclusion(branch.xid, ledger, effects);
    }

    pub(super) fn propose_conclusion(&mut self, xid: Xid, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let Some(Phase::Delegated { delegate, .. }) = ledger.transaction(xid).map(|open| &open.phase) else { return };
        let Some(work) = self.works.get_mut(&xid) else { return };
        let Some(conclusion) = work.conclusion.clone().filter(|_| !work.votes_proposed) else { return };
        work.votes_proposed = true;
        let command = Command::Conclude { branch: BranchId { xid, number: *delegate }, conclusion };
        self.propose(Pending::Votes { xid }, vec![command], effects);
    }
}
