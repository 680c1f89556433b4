//! I3: COMMITTED only if every registered branch's YES stands earlier in the log.
//!
//! The oracle replays the log by the design's rules; every word about an outcome must be its word.

use verdict_protocol::{Outcome, Vote};

use super::Evidence;
use crate::history::What;

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let cases = &evidence.oracle.cases;
    let mut wrong = Vec::new();
    for told in evidence.told() {
        let (xid, who, outcome) = (told.xid, &told.who, told.outcome);
        match cases.get(&xid).and_then(|case| case.outcome) {
            // A branch that is too old to be known hears ROLLBACK.
            None if outcome == Outcome::Aborted && told.index.is_none() && evidence.may_be_forgotten(xid) => {}
            None => wrong.push(format!("{xid}: {who} heard {outcome}, and the log does not decide it")),
            Some(sentence) => {
                let elsewhere = told.index.is_some_and(|index| index != sentence.index);
                if sentence.outcome != outcome || elsewhere {
                    wrong.push(format!(
                        "{xid}: {who} heard {outcome} of entry {:?}, the log says {sentence:?}",
                        told.index
                    ));
                }
            }
        }
    }
    for event in &evidence.events {
        let What::OutcomeCame { branch, outcome: Outcome::Committed, .. } = &event.what else { continue };
        let listed = cases.get(&branch.xid).and_then(|case| case.branches.get(&branch.number));
        if listed.is_none_or(|(_, vote)| *vote != Some(Vote::Prepared)) {
            wrong.push(format!("{} was told to commit {branch}, whose promise is not in the log", event.who));
        }
    }
    wrong
}
