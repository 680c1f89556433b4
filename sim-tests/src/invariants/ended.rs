//! A branch is counted as settled only once it has acknowledged its outcome, and a transaction is said to have ended only
//! once every branch that may be held has. A branch that decided needs no outcome.

use std::{collections::BTreeMap, time::Duration};

use verdict_protocol::{BranchId, Vote};

use super::Evidence;
use crate::history::What;

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut acknowledged: BTreeMap<BranchId, Duration> = BTreeMap::new();
    for event in &evidence.events {
        if let What::Settled { branch, .. } | What::Concluded { branch, .. } = &event.what {
            acknowledged.entry(*branch).or_insert(event.at);
        }
    }
    let by = |branch: &BranchId, at: Duration| acknowledged.get(branch).is_some_and(|done| *done <= at);
    let mut wrong = Vec::new();
    for (index, branch) in &evidence.oracle.settled {
        let Some(at) = evidence.settled_at.get(index) else { continue };
        if !by(branch, *at) {
            wrong
                .push(format!("entry {index}, applied at {at:?}, counts {branch} as settled: it had not acknowledged"));
        }
    }
    for event in &evidence.events {
        let What::SaidEnded { xid } = &event.what else { continue };
        let Some(case) = evidence.oracle.cases.get(xid) else { continue };
        let held = case.branches.iter().filter(|(_, (_, vote))| matches!(vote, None | Some(Vote::Prepared)));
        let early =
            held.map(|(number, _)| BranchId { xid: *xid, number: *number }).find(|branch| !by(branch, event.at));
        if let Some(branch) = early {
            wrong.push(format!("{} at {:?} heard that {xid} has ended, and {branch} has not", event.who, event.at));
        }
    }
    wrong
}
