//! I6: an acknowledged decision or registration survives the loss of any minority, unsynced data included.
//!
//! Checked at the end: what was acknowledged to anybody stands in the log that the nodes agree on. (Decisions: I3.)

use super::Evidence;
use crate::history::{Answer, Ask, What};

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut wrong = Vec::new();
    for event in &evidence.events {
        let What::Answered { xid, ask: Ask::Enlist(number), answer: Answer::Done, .. } = &event.what else { continue };
        let case = evidence.oracle.cases.get(xid);
        if case.is_none_or(|case| !case.branches.contains_key(number)) {
            wrong.push(format!("{} was told that branch {xid}:{number} is registered, and it is not", event.who));
        }
    }
    wrong
}
