//! I11: a client's retry of an enlist or commit over a failover names the same transaction and gets the same answer.
//!
//! The first definite answer to each question about a transaction is kept; every later one must be it. (That every
//! outcome is the same: I1, I2.) Refused for want of room or for its clock, a question may be answered otherwise later;
//! so may one about a transaction that is forgotten. Of one that has ended nothing but the outcome is kept: an enlist
//! that is repeated then is CLOSED, whether or not the branch was registered.

use std::{collections::BTreeMap, time::Duration};

use verdict_protocol::Xid;

use super::Evidence;
use crate::history::{Answer, Ask, What};

/// Refusals that are final: the list is closed, or another one.
const FINAL: [&str; 2] = ["CLOSED", "MISMATCH"];

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut first: BTreeMap<_, (bool, String)> = BTreeMap::new();
    let mut wrong = Vec::new();
    for event in &evidence.events {
        let What::Answered { xid, ask, answer, .. } = &event.what else { continue };
        let taken = match answer {
            Answer::Done | Answer::Decided { .. } => true,
            Answer::Refused(code)
                if matches!(ask, Ask::Enlist(_)) && code == "CLOSED" && decided_by(evidence, *xid, event.at) =>
            {
                continue;
            }
            Answer::Refused(code) if FINAL.contains(&code.as_str()) => false,
            Answer::Refused(_) | Answer::Undecided(_) | Answer::Unknown => continue,
        };
        let who = || format!("{} at {:?} heard {answer:?}", event.who, event.at);
        let (before, heard) = first.entry((*xid, *ask)).or_insert_with(|| (taken, who()));
        if *before != taken && !evidence.may_be_forgotten(*xid) {
            wrong.push(format!("{ask:?} of {xid}: {heard}, {}", who()));
        }
    }
    wrong
}

/// Whether a transaction was decided at that time, and so may have ended.
fn decided_by(evidence: &Evidence, xid: Xid, at: Duration) -> bool {
    let sentence = evidence.oracle.cases.get(&xid).and_then(|case| case.outcome);
    sentence.and_then(|sentence| evidence.settled_at.get(&sentence.index)).is_some_and(|decided| *decided <= at)
}
