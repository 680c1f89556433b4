//! What became of transactions that were decided, kept until nobody can ask again.
//!
//! Outcomes lie in buckets of log time. A bucket's number is taken from the later of the decision and the birth of
//! the xid, so that (1) a bucket once behind log time is *sealed*: nothing is added to it ever again, and every later
//! snapshot shares it; (2) once a bucket is behind the horizon, so are all xids in it, and it goes as a whole: a
//! forgotten xid is always an expired one and can never begin again.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{BranchNumber, LogTime, Outcome, Reason, Rules, Xid};

/// What is kept of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OutcomeRecord {
    pub outcome: Outcome,
    pub reason: Option<Box<Reason>>,
    /// Where in the log it was decided.
    pub index: u64,
    /// The digest of the closed list; 0 if there was none.
    pub list: u64,
    /// The branches that voted PREPARED: only these may ever hear COMMIT.
    pub prepared: Box<[BranchNumber]>,
    /// The other branches that were registered or listed.
    pub others: Box<[BranchNumber]>,
}

impl OutcomeRecord {
    pub(super) fn names(&self, number: BranchNumber) -> bool {
        self.prepared.contains(&number) || self.others.contains(&number)
    }
}

pub(super) type Bucket = BTreeMap<Xid, OutcomeRecord>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcomes {
    pub(super) buckets: BTreeMap<u64, Arc<Bucket>>,
}

impl Outcomes {
    pub(super) fn get(&self, xid: Xid, rules: &Rules) -> Option<&OutcomeRecord> {
        // No outcome lies in a bucket before its xid's birth, and most lie right there.
        let first = xid.birth().as_millis() / rules.bucket_ms;
        self.buckets.range(first..).find_map(|(_, bucket)| bucket.get(&xid))
    }

    pub(super) fn insert(&mut self, xid: Xid, at: LogTime, record: OutcomeRecord, rules: &Rules) {
        let number = at.max(xid.birth()).as_millis() / rules.bucket_ms;
        Arc::make_mut(self.buckets.entry(number).or_default()).insert(xid, record);
    }

    /// Drops what lies wholly behind the horizon.
    pub(super) fn forget_before(&mut self, horizon: LogTime, rules: &Rules) {
        let first_kept = horizon.as_millis() / rules.bucket_ms;
        while let Some(entry) = self.buckets.first_entry() {
            if *entry.key() >= first_kept {
                break;
            }
            entry.remove();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.buckets.values().map(|bucket| bucket.len()).sum()
    }
}
