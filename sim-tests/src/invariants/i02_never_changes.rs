//! I2: a decided outcome never changes; forgotten, it is answered with EXPIRED, never with the opposite.
//!
//! That it stays the same is seen by where it stands in the log: every answer names the same entry. Told to be expired
//! is only what may be forgotten.

use std::collections::BTreeMap;

use verdict_protocol::State;

use super::Evidence;
use crate::history::Answer;

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut first = BTreeMap::new();
    let mut wrong = Vec::new();
    for told in evidence.told() {
        let Some(index) = told.index else { continue };
        let (before, who) = first.entry(told.xid).or_insert_with(|| (index, told.who.clone()));
        if *before != index {
            wrong.push(format!("{}: {who} heard of entry {before}, {} of entry {index}", told.xid, told.who));
        }
    }
    for (xid, answer) in &evidence.finals {
        let expired = matches!(answer, Answer::Undecided(State::Expired));
        if expired && !evidence.may_be_forgotten(*xid) {
            wrong.push(format!("{xid} is told to be expired, and is not"));
        }
    }
    wrong
}
