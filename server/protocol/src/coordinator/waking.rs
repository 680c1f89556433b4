//! What comes due: retries, expiry and vote deadlines. A timer decides nothing, it only proposes.

use super::{Coordinator, Effect, Pending, work::Work};
use crate::{BranchId, Command, Ledger, LogTime, OpenTransaction, Phase, Reason, ReasonCode, ResourceName, Xid};

/// How long a proposed decision may stay out of the log before it is proposed again, in milliseconds.
const PROPOSE_AGAIN_MS: u64 = 1_000;

impl Coordinator {
    pub(super) fn wake(&mut self, now: LogTime, ledger: &Ledger, effects: &mut Vec<Effect>) {
        self.armed = None;
        while let Some((at, xid, number)) = self.timers.pop_due(now) {
            if let Some(work) = self.works.get_mut(&xid) {
                work.timer_came(at, number);
            }
            match number {
                Some(number) => self.wake_branch(now, BranchId { xid, number }, ledger, effects),
                None => self.wake_transaction(now, xid, ledger, effects),
            }
        }
    }

    /// Whoever failed to ask or tell this participant, and waits for its next turn, has it now.
    pub(super) fn reached(
        &mut self,
        now: LogTime,
        resource: &ResourceName,
        ledger: &Ledger,
        effects: &mut Vec<Effect>,
    ) {
        let mut turns = Vec::new();
        for (xid, work) in &mut self.works {
            let Some(open) = ledger.transaction(*xid) else { continue };
            for (number, _) in open.branches.iter().filter(|(_, branch)| branch.resource == *resource) {
                for call in [work.asking.get_mut(number), work.telling.get_mut(number)].into_iter().flatten() {
                    if call.due.is_some() && call.last_error.is_some() {
                        self.timers.clear(*xid, Some(*number), &mut call.due);
                        turns.push(BranchId { xid: *xid, number: *number });
                    }
                }
            }
        }
        for branch in turns {
            self.wake_branch(now, branch, ledger, effects);
        }
    }

    /// Before the list is closed nobody is asked again: `closed` does that.
    fn wake_branch(&mut self, now: LogTime, branch: BranchId, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let Some(open) = ledger.transaction(branch.xid) else { return };
        let Some(record) = open.branches.get(&branch.number) else { return };
        let Some(work) = self.works.get_mut(&branch.xid) else { return };
        match &open.phase {
            Phase::Active { .. } => {}
            Phase::Delegated { .. } => self.ask_delegate(now, branch.xid, ledger, effects),
            Phase::Voting { .. } => {
                if record.vote.is_none() {
                    work.ask_again(now, branch, &record.resource, &record.payload, effects);
                }
            }
            Phase::Decided { .. } => {
                if record.settlement.is_some() {
                    work.told(branch, &mut self.timers);
                } else if work.telling.get(&branch.number).is_some_and(|call| !call.in_flight) {
                    self.tell(branch, ledger, effects);
                }
            }
        }
    }

    fn wake_transaction(&mut self, now: LogTime, xid: Xid, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let Some(transaction) = ledger.transaction(xid) else {
            self.end(xid);
            return;
        };
        let work = self.works.entry(xid).or_default();
        let due = match transaction.phase {
            Phase::Active { expires_at } => expires_at,
            Phase::Voting { .. } => {
                // Past the deadline only a full list counts.
                work.slow = now < work.deadline;
                work.deadline
            }
            Phase::Delegated { .. } => return self.propose_conclusion(xid, ledger, effects),
            Phase::Decided { .. } => return,
        };
        // Votes that are complete but did not get into the log go before the deadline's abort.
        self.propose_votes(xid, ledger, effects);
        if now < due {
            self.arm(xid, due);
            return;
        }
        let work = self.works.entry(xid).or_default();
        if !work.votes_proposed && !std::mem::replace(&mut work.abort_proposed, true) {
            let command = Command::Abort { xid, reason: too_late(transaction, work) };
            self.propose(Pending::Abort { xid }, vec![command], effects);
        }
        self.arm(xid, now.plus(PROPOSE_AGAIN_MS));
    }

    /// Looks at the transaction again at `at`, instead of any time set before.
    pub(super) fn arm(&mut self, xid: Xid, at: LogTime) {
        let work = self.works.entry(xid).or_default();
        self.timers.set(xid, None, &mut work.look_at, at);
    }
}

/// Why a transaction that is not decided yet is to be aborted.
fn too_late(transaction: &OpenTransaction, work: &Work) -> Reason {
    if matches!(transaction.phase, Phase::Active { .. }) {
        return Reason::new(ReasonCode::Timeout, "it was not asked to commit within its timeout");
    }
    let silent = transaction.unvoted().filter(|(number, _)| !work.votes.contains_key(number));
    let silent: Vec<String> = silent.map(|(number, branch)| format!("{number} ({})", branch.resource)).collect();
    Reason::new(ReasonCode::Deadline, format!("no vote from branch {} before the deadline", silent.join(", ")))
}
