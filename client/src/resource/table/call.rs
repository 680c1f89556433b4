//! What each call comes to, given the branch's row: [`rules`] as rows to write and answers to give. Pure.

use bytes::Bytes;
use verdict_protocol::{BranchId, Conclusion, Outcome, Reason};

use super::row::Row;
use crate::{
    participant::{
        OnePhase, Prepare, Purpose, Settle, Settled, Stamp, Voted,
        rules::{self, OnConclude, OnPrepare, OnSettle, Record},
    },
    resource::Reservation,
};

/// A call about one branch.
pub(in crate::resource) trait Call: Send + Sync {
    type Answer: Send;
    const PURPOSE: Purpose;

    fn branch(&self) -> BranchId;

    fn stamp(&self) -> &Stamp;

    /// `known`: the branch's row. `expired`: its transaction was born before the horizon.
    fn plan(&self, known: Option<Row>, expired: bool) -> Plan<Self::Answer>;
}

/// What is to be done within one local transaction.
#[derive(Debug)]
pub(in crate::resource) enum Plan<A> {
    /// Nothing is to be changed.
    Answer(A),
    /// Run the service's code, if any, on the payload that was kept; write the row; answer.
    Finish { run: Option<(Finish, Bytes)>, row: Row, answer: A },
    /// Nothing is known of the branch: have its payload reserved; the service's word makes the [`Work`].
    Reserve { payload: Bytes, then: fn(Bytes, Reservation) -> Work<A> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::resource) enum Finish {
    Confirm,
    Cancel,
}

/// What the service's word comes to.
#[derive(Debug)]
pub(in crate::resource) struct Work<A> {
    /// Whether what the service has changed is to be undone first.
    pub(in crate::resource) undo: bool,
    /// Whether the payload is to be confirmed at once.
    pub(in crate::resource) confirm: bool,
    pub(in crate::resource) row: Row,
    pub(in crate::resource) answer: A,
}

/// Carries an outcome to a branch.
#[derive(Clone, Debug)]
pub(in crate::resource) struct Settling {
    pub(in crate::resource) request: Settle,
    pub(in crate::resource) outcome: Outcome,
}

impl Call for Prepare {
    type Answer = Voted;
    const PURPOSE: Purpose = Purpose::Promise;

    fn branch(&self) -> BranchId {
        self.branch
    }

    fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    fn plan(&self, known: Option<Row>, expired: bool) -> Plan<Voted> {
        match rules::on_prepare(known.as_ref().map(|known| known.record), expired) {
            OnPrepare::Answer(voted) => Plan::Answer(voted),
            OnPrepare::RefusedBefore => {
                let reason = known.and_then(|known| known.reason);
                let reason = reason.unwrap_or_else(|| Reason::refused("refused before", "", false));
                Plan::Answer(Voted::refused(reason))
            }
            OnPrepare::Reserve => Plan::Reserve { payload: self.payload.clone(), then: prepared },
        }
    }
}

fn prepared(payload: Bytes, said: Reservation) -> Work<Voted> {
    let (row, answer) = match said {
        Reservation::Reserved => (Row { payload, ..Row::bare(Record::Prepared) }, Voted::PREPARED),
        Reservation::ReadOnly => (Row::bare(Record::ReadOnly), Voted::READ_ONLY),
        Reservation::Refused(reason) => {
            let reason = refusal(reason);
            (Row { reason: Some(reason.clone()), ..Row::bare(Record::Refused) }, Voted::refused(reason))
        }
    };
    Work { undo: row.record != Record::Prepared, confirm: false, row, answer }
}

impl Call for Settling {
    type Answer = Settled;
    const PURPOSE: Purpose = Purpose::Outcome;

    fn branch(&self) -> BranchId {
        self.request.branch
    }

    fn stamp(&self) -> &Stamp {
        &self.request.stamp
    }

    fn plan(&self, known: Option<Row>, expired: bool) -> Plan<Settled> {
        let record = known.as_ref().map(|known| known.record);
        let (step, finish, ended) = match self.outcome {
            Outcome::Committed => (rules::on_commit(record), Finish::Confirm, Record::Committed),
            Outcome::Aborted => (rules::on_rollback(record, expired), Finish::Cancel, Record::RolledBack),
        };
        let run = match step {
            OnSettle::Answer(settled) => return Plan::Answer(settled),
            OnSettle::Tombstone => None,
            OnSettle::Finish => known.map(|known| (finish, known.payload)),
        };
        Plan::Finish { run, row: Row::bare(ended), answer: Settled::DONE }
    }
}

impl Call for OnePhase {
    type Answer = Conclusion;
    const PURPOSE: Purpose = Purpose::Outcome;

    fn branch(&self) -> BranchId {
        self.branch
    }

    fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    fn plan(&self, known: Option<Row>, expired: bool) -> Plan<Conclusion> {
        let (run, record) = match rules::on_conclude(known.as_ref().map(|known| known.record), expired, self.fence) {
            OnConclude::Answer(conclusion) => return Plan::Answer(conclusion),
            OnConclude::RefusedBefore => {
                return Plan::Answer(Conclusion::Fenced(known.and_then(|known| known.reason)));
            }
            OnConclude::Work => return Plan::Reserve { payload: self.payload.clone(), then: concluded },
            OnConclude::Record(record) => (None, record),
            OnConclude::Finish(record) => {
                let finish = if record == Record::Committed { Finish::Confirm } else { Finish::Cancel };
                (known.map(|known| (finish, known.payload)), record)
            }
        };
        Plan::Finish { run, row: Row::bare(record), answer: rules::concluded(record) }
    }
}

fn concluded(_: Bytes, said: Reservation) -> Work<Conclusion> {
    let committed = Row::bare(Record::Committed);
    match said {
        Reservation::Reserved => Work { undo: false, confirm: true, row: committed, answer: Conclusion::Committed },
        Reservation::ReadOnly => Work { undo: false, confirm: false, row: committed, answer: Conclusion::Committed },
        Reservation::Refused(reason) => {
            let reason = Some(refusal(reason));
            let row = Row { reason: reason.clone(), ..Row::bare(Record::Refused) };
            Work { undo: true, confirm: false, row, answer: Conclusion::Fenced(reason) }
        }
    }
}

/// As it is kept and replicated, whatever a service has put into it.
fn refusal(reason: Reason) -> Reason {
    Reason::refused(reason.text, reason.source_code, reason.retryable)
}
