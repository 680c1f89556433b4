//! Acknowledgements, and the end.

use std::sync::Arc;

use super::{Change, Ledger, OpenTransaction};
use crate::{SettledItem, Xid};

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
        changes.push(Change::Settled { branch: item.branch });
        self.count_in_doubt(xid, before);
        self.end_if_settled(xid, changes);
    }

    /// A transaction with a heuristic settlement stays: an operator has to see it.
    pub(super) fn end_if_settled(&mut self, xid: Xid, changes: &mut Vec<Change>) {
        let Some(transaction) = self.transaction(xid) else {
            changes.push(Change::Ended { xid });
            return;
        };
        if transaction.unsettled().next().is_none() && !transaction.has_heuristic() {
            self.open.remove(&xid);
            changes.push(Change::Ended { xid });
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
}
