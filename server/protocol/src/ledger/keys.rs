//! Which transaction works under an idempotency key, or has committed under it.
//!
//! The key of an undecided transaction is kept with it. That of a committed one lies in a bucket of the log time of its
//! decision until its longest retry has come; like a bucket of outcomes it never changes once it is behind log time.
//! An aborted one leaves its key free.

use std::{collections::BTreeMap, sync::Arc};

use crate::{Key, LogTime, Outcome, Rules, Xid};

/// A key's bucket is so many times as wide as an outcome's: few are looked through.
pub(super) const WIDER: u64 = 60;

/// Who has committed under each key, and at which index of the log.
pub(super) type Bucket = BTreeMap<Key, (Xid, u64)>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) open: BTreeMap<Key, Xid>,
    pub(super) committed: BTreeMap<u64, Arc<Bucket>>,
}

impl Keys {
    /// The transaction that works under the key or has committed, and where in the log it did.
    pub(super) fn holder(&self, key: &Key) -> Option<(Xid, Option<u64>)> {
        let committed = || self.committed.values().rev().find_map(|bucket| bucket.get(key).copied());
        match self.open.get(key) {
            Some(xid) => Some((*xid, None)),
            None => committed().map(|(xid, index)| (xid, Some(index))),
        }
    }

    pub(super) fn decided(&mut self, key: &Key, outcome: Outcome, at: LogTime, index: u64, rules: &Rules) {
        let Some(xid) = self.open.remove(key) else { return };
        if outcome == Outcome::Committed {
            let bucket = self.committed.entry(number(at, rules)).or_default();
            Arc::make_mut(bucket).insert(key.clone(), (xid, index));
        }
    }

    /// Drops what no retry can ask for any more.
    pub(super) fn forget_before(&mut self, horizon: LogTime, rules: &Rules) {
        let first_kept = number(horizon, rules);
        while let Some(entry) = self.committed.first_entry() {
            if *entry.key() >= first_kept {
                break;
            }
            entry.remove();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.open.len() + self.committed.values().map(|bucket| bucket.len()).sum::<usize>()
    }
}

fn number(at: LogTime, rules: &Rules) -> u64 {
    at.as_millis() / width_ms(rules)
}

pub(super) fn width_ms(rules: &Rules) -> u64 {
    rules.bucket_ms.saturating_mul(WIDER)
}
