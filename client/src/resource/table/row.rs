//! What a branch table keeps of one branch.

use bytes::Bytes;
use verdict_protocol::Reason;

use crate::participant::rules::Record;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::resource) struct Row {
    pub(in crate::resource) record: Record,
    /// What confirm or cancel will need; empty in all other states.
    pub(in crate::resource) payload: Bytes,
    /// Why it was refused.
    pub(in crate::resource) reason: Option<Reason>,
}

impl Row {
    /// Without a payload or a reason.
    pub(super) fn bare(record: Record) -> Self {
        Self { record, payload: Bytes::new(), reason: None }
    }
}

/// What stands in the column `state`.
pub(in crate::resource) fn code(record: Record) -> i16 {
    match record {
        Record::Prepared => 0,
        Record::ReadOnly => 1,
        Record::Refused => 2,
        Record::Committed => 3,
        Record::RolledBack => 4,
    }
}

/// Stands in the column `state` while the local transaction that came first works on the branch: it locks the branch for
/// all that come later. Others see it only if a handler ended that transaction.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(in crate::resource) const UNKNOWN: i16 = 5;

/// None for a code of no record's.
pub(in crate::resource) fn record(code: i64) -> Option<Record> {
    match code {
        0 => Some(Record::Prepared),
        1 => Some(Record::ReadOnly),
        2 => Some(Record::Refused),
        3 => Some(Record::Committed),
        4 => Some(Record::RolledBack),
        _ => None,
    }
}

/// SQL's integers are signed; times and incarnations stay far below the limit.
pub(in crate::resource) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(in crate::resource) fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
