//! A value that stands in the replicated log.

/// Proof that a value was applied from the replicated log, and where.
///
/// Only the ledger makes one, and it has no way in from bytes: whatever tells a client or a branch an outcome takes
/// a `Recorded<Outcome>`, so a decision that a majority does not hold cannot be spoken, because it cannot be spelled.
///
/// ```compile_fail
/// # use verdict_protocol::{Outcome, Recorded};
/// let forged = Recorded { value: Outcome::Committed, index: 7 };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Recorded<T> {
    value: T,
    index: u64,
}

impl<T> Recorded<T> {
    pub(in crate::ledger) fn new(value: T, index: u64) -> Self {
        Self { value, index }
    }

    /// The index of the log entry that fixed it.
    pub fn index(&self) -> u64 {
        self.index
    }
}

impl<T: Copy> Recorded<T> {
    pub fn value(&self) -> T {
        self.value
    }
}
