//! I13: money is neither made nor lost; a committed transaction took effect in all its branches, an aborted one in none.

use std::collections::BTreeMap;

use verdict_protocol::{BranchId, Outcome, Vote};

use super::Evidence;
use crate::{
    bank::Books,
    history::{Effect, What},
    plan::{ACCOUNTS, OPENING},
};

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    if evidence.healed.is_err() {
        // What is not settled is counted by I5.
        return Vec::new();
    }
    let mut wrong = Vec::new();
    let opening = OPENING * i64::from(ACCOUNTS) * evidence.books.len() as i64;
    let now: i64 = evidence.books.iter().map(Books::sum).sum();
    if now != opening {
        wrong.push(format!("the banks had {opening} and have {now}"));
    }
    let held: usize = evidence.books.iter().map(|books| books.promised.len()).sum();
    if held > 0 {
        wrong.push(format!("{held} promises are kept for nobody"));
    }
    let mut last: BTreeMap<BranchId, Effect> = BTreeMap::new();
    for event in &evidence.events {
        if let What::Effect { branch, effect } = &event.what {
            last.insert(*branch, *effect);
        }
    }
    for (xid, case) in &evidence.oracle.cases {
        let Some(sentence) = case.outcome else { continue };
        for (number, (_, vote)) in &case.branches {
            let effect = last.get(&BranchId { xid: *xid, number: *number });
            let right = match (sentence.outcome, vote, effect) {
                (Outcome::Committed, Some(Vote::Prepared), effect) => effect == Some(&Effect::Confirmed),
                (Outcome::Committed, _, effect) => effect.is_none(),
                (Outcome::Aborted, _, effect) => matches!(effect, None | Some(Effect::Cancelled)),
            };
            if !right {
                wrong.push(format!("{xid}:{number} is {} with {vote:?}, and did {effect:?}", sentence.outcome));
            }
        }
    }
    wrong
}
