//! The life of one branch at a participant, as one total table: what is recorded × what is asked → what to do.
//!
//! ```text
//!              prepare                       commit                  rollback
//!   (none)     reserve, record the vote      HAZARD                  record a tombstone; DONE
//!    behind
//!    horizon   REFUSED                       HAZARD                  DONE
//!   PREPARED   PREPARED                      confirm; DONE           cancel; DONE
//!   READ_ONLY  READ_ONLY                     DONE                    record a tombstone; DONE
//!   REFUSED    REFUSED                       HEURISTIC_ROLLBACK      DONE
//!   COMMITTED  PREPARED                      DONE                    HEURISTIC_COMMIT
//!   ROLLED     REFUSED                       HEURISTIC_ROLLBACK      DONE
//!
//!              commit in one phase           fence
//!   (none)     reserve, confirm; COMMITTED   record a tombstone; FENCED
//!    behind
//!    horizon   FENCED                        FENCED
//!   PREPARED   confirm; COMMITTED            cancel; FENCED
//!   READ_ONLY  record that; COMMITTED        record a tombstone; FENCED
//!   REFUSED    FENCED                        FENCED
//!   COMMITTED  COMMITTED                     COMMITTED
//!   ROLLED     FENCED                        FENCED
//! ```
//!
//! Pure: the storage that a participant keeps its records in does what is said here within one local transaction.

use verdict_protocol::{Conclusion, LogTime, Reason, ReasonCode, Settlement, Xid};

use super::{Settled, Voted};

/// How far the horizon moves, in milliseconds, before the record of a branch that was finished behind it is dropped:
/// its outcome may be told again, and must not meet a participant that has just forgotten it.
pub const LATE_KEEP_MS: u64 = 3_600_000;

/// A finished branch or tombstone may be dropped once the horizon has passed this.
#[must_use]
pub fn keep_until(xid: Xid, horizon: LogTime) -> LogTime {
    if xid.birth() < horizon { horizon.plus(LATE_KEEP_MS) } else { xid.birth() }
}

/// What a participant keeps of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Record {
    Prepared,
    ReadOnly,
    Refused,
    Committed,
    /// Rolled back after a promise, or before one: a tombstone.
    RolledBack,
}

/// What a prepare comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnPrepare {
    /// Nothing is known of it: do the work and record the vote.
    Reserve,
    /// Answer this and change nothing.
    Answer(Voted),
    /// Answer with the reason that was recorded with the refusal.
    RefusedBefore,
}

/// What an outcome comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnSettle {
    /// Run the handler's confirm or cancel, record [`Record::Committed`] or [`Record::RolledBack`], answer DONE.
    Finish,
    /// Record [`Record::RolledBack`] without running anything, answer DONE.
    Tombstone,
    /// Answer this and change nothing.
    Answer(Settled),
}

/// What being given the decision comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnConclude {
    /// Nothing is known of it: do the work, make it effective and record [`Record::Committed`], or record the refusal.
    Work,
    /// It was prepared: run confirm or cancel and record [`Record::Committed`] or [`Record::RolledBack`].
    Finish(Record),
    /// Record this without running anything.
    Record(Record),
    /// Answer this and change nothing.
    Answer(Conclusion),
    /// Answer FENCED with the reason that was recorded with the refusal.
    RefusedBefore,
}

/// `expired`: the transaction was born before the horizon. `fence`: it may not commit any more.
#[must_use]
pub fn on_conclude(record: Option<Record>, expired: bool, fence: bool) -> OnConclude {
    let fenced = |text: &str| OnConclude::Answer(Conclusion::Fenced(Some(Reason::refused(text, "", false))));
    match record {
        None if expired => fenced("the transaction is older than what this participant keeps: it can't be committed"),
        None | Some(Record::ReadOnly) if fence => OnConclude::Record(Record::RolledBack),
        None => OnConclude::Work,
        Some(Record::Prepared) => OnConclude::Finish(if fence { Record::RolledBack } else { Record::Committed }),
        Some(Record::ReadOnly) => OnConclude::Record(Record::Committed),
        Some(Record::Refused) => OnConclude::RefusedBefore,
        Some(Record::Committed) => OnConclude::Answer(Conclusion::Committed),
        Some(Record::RolledBack) => fenced("the branch was rolled back or fenced before"),
    }
}

/// What a branch that ended as `record` says of it.
#[must_use]
pub fn concluded(record: Record) -> Conclusion {
    match record {
        Record::Committed => Conclusion::Committed,
        Record::Prepared | Record::ReadOnly | Record::Refused | Record::RolledBack => {
            Conclusion::Fenced(Some(Reason::refused("it was fenced before it committed", "", true)))
        }
    }
}

/// `expired`: the transaction was born before the horizon.
#[must_use]
pub fn on_prepare(record: Option<Record>, expired: bool) -> OnPrepare {
    let refused = |text: &str| OnPrepare::Answer(Voted::refused(Reason::refused(text, "", false)));
    match record {
        None if expired => refused("the transaction is older than what this participant keeps: it can't be prepared"),
        None => OnPrepare::Reserve,
        Some(Record::Prepared | Record::Committed) => OnPrepare::Answer(Voted::PREPARED),
        Some(Record::ReadOnly) => OnPrepare::Answer(Voted::READ_ONLY),
        Some(Record::Refused) => OnPrepare::RefusedBefore,
        Some(Record::RolledBack) => refused("the branch was rolled back before"),
    }
}

#[must_use]
pub fn on_commit(record: Option<Record>) -> OnSettle {
    let report = |settlement, text: &str| {
        OnSettle::Answer(Settled { settlement, reason: Some(Reason::new(ReasonCode::Refused, text)) })
    };
    match record {
        None => report(
            Settlement::HeuristicHazard,
            "told to commit a branch of which nothing is known here: it was never prepared, or its record is lost",
        ),
        Some(Record::Prepared) => OnSettle::Finish,
        Some(Record::ReadOnly | Record::Committed) => OnSettle::Answer(Settled::DONE),
        Some(Record::Refused) => report(Settlement::HeuristicRollback, "told to commit a branch that had refused"),
        Some(Record::RolledBack) => {
            report(Settlement::HeuristicRollback, "told to commit a branch that was rolled back")
        }
    }
}

/// `expired`: the transaction was born before the horizon, so a late prepare is refused even without a tombstone.
#[must_use]
pub fn on_rollback(record: Option<Record>, expired: bool) -> OnSettle {
    match record {
        None if expired => OnSettle::Answer(Settled::DONE),
        None | Some(Record::ReadOnly) => OnSettle::Tombstone,
        Some(Record::Prepared) => OnSettle::Finish,
        Some(Record::Refused | Record::RolledBack) => OnSettle::Answer(Settled::DONE),
        Some(Record::Committed) => OnSettle::Answer(Settled {
            settlement: Settlement::HeuristicCommit,
            reason: Some(Reason::new(ReasonCode::Refused, "told to roll back a branch that was committed")),
        }),
    }
}
