//! When to look at what again. A call and a transaction have at most one timer each, whose time they know.

use std::collections::BTreeSet;

use crate::{BranchNumber, LogTime, Xid};

/// `None` for the transaction as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Timers(BTreeSet<(LogTime, Xid, Option<BranchNumber>)>);

impl Timers {
    /// Sets the timer whose time `slot` knows to `at`.
    pub(super) fn set(&mut self, xid: Xid, number: Option<BranchNumber>, slot: &mut Option<LogTime>, at: LogTime) {
        self.clear(xid, number, slot);
        *slot = Some(at);
        self.0.insert((at, xid, number));
    }

    pub(super) fn clear(&mut self, xid: Xid, number: Option<BranchNumber>, slot: &mut Option<LogTime>) {
        if let Some(at) = slot.take() {
            self.0.remove(&(at, xid, number));
        }
    }

    pub(super) fn clear_all(&mut self) {
        self.0.clear();
    }

    pub(super) fn first(&self) -> Option<LogTime> {
        self.0.first().map(|(at, _, _)| *at)
    }

    /// Takes out the first timer whose time has come.
    pub(super) fn pop_due(&mut self, now: LogTime) -> Option<(LogTime, Xid, Option<BranchNumber>)> {
        if self.first()? <= now { self.0.pop_first() } else { None }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
