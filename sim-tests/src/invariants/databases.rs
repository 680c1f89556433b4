//! Databases that prepare by themselves. What the log counts as settled at one is so: a branch of a committed transaction
//! has been committed there. And others' branches are never touched, whatever they are called.

use std::{collections::BTreeMap, time::Duration};

use verdict_protocol::{BranchId, Outcome, Vote};

use super::Evidence;
use crate::{
    history::{Effect, What},
    plan::Place,
};

pub(super) fn settled(evidence: &Evidence) -> Vec<String> {
    let mut committed: BTreeMap<BranchId, Duration> = BTreeMap::new();
    for event in &evidence.events {
        if let What::Effect { branch, effect: Effect::Confirmed } = &event.what {
            committed.insert(*branch, event.at);
        }
    }
    let deeds = evidence.deeds();
    let mut wrong = Vec::new();
    for (index, branch) in &evidence.oracle.settled {
        let Some(at) = evidence.settled_at.get(index) else { continue };
        let Some(case) = evidence.oracle.cases.get(&branch.xid) else { continue };
        let Some((_, vote)) = case.branches.get(&branch.number) else { continue };
        let to_commit = case.outcome.is_some_and(|sentence| sentence.outcome == Outcome::Committed)
            && *vote == Some(Vote::Prepared);
        let here = deeds.get(branch).is_some_and(|(bank, _)| evidence.plan.is_database(Place::Bank(*bank)));
        if here && to_commit && committed.get(branch).is_none_or(|done| done > at) {
            wrong.push(format!(
                "entry {index}, applied at {at:?}, counts {branch} as committed at its database: it is not"
            ));
        }
    }
    wrong
}

pub(super) fn touched(evidence: &Evidence) -> Vec<String> {
    evidence.touched.clone()
}
