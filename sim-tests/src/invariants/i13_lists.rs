//! I13, of lists: no reader that waits for settled branches sees half a transaction; each list has what was committed,
//! once.

use std::collections::BTreeMap;

use verdict_protocol::{BranchId, Outcome, Vote, Xid};

use super::Evidence;
use crate::{bank::Deed, history::What};

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut wrong = Vec::new();
    for event in &evidence.events {
        let What::ListsRead { xid, seen } = &event.what else { continue };
        for (number, times) in seen {
            let right = usize::from(took_effect(evidence, BranchId { xid: *xid, number: *number }));
            if *times != right {
                wrong.push(format!(
                    "{} at {:?}: {xid} had ended, and its branch {number} stood {times} times in its list, not {right}",
                    event.who, event.at
                ));
            }
        }
    }
    if evidence.healed.is_ok() {
        wrong.extend(at_the_end(evidence));
    }
    wrong
}

fn took_effect(evidence: &Evidence, branch: BranchId) -> bool {
    let case = evidence.oracle.cases.get(&branch.xid);
    case.is_some_and(|case| {
        case.outcome.is_some_and(|sentence| sentence.outcome == Outcome::Committed)
            && case.branches.get(&branch.number).is_some_and(|(_, vote)| *vote == Some(Vote::Prepared))
    })
}

fn at_the_end(evidence: &Evidence) -> Vec<String> {
    let mut right: BTreeMap<(usize, u32), Vec<Xid>> = BTreeMap::new();
    for (branch, (bank, deed)) in evidence.deeds() {
        if let Deed::Append { list } = deed
            && took_effect(evidence, branch)
        {
            right.entry((bank, list)).or_default().push(branch.xid);
        }
    }
    let mut wrong = Vec::new();
    for (bank, books) in evidence.books.iter().enumerate() {
        for (list, there) in &books.lists {
            let mut there = there.clone();
            there.sort_unstable();
            let mut right = right.remove(&(bank, *list)).unwrap_or_default();
            right.sort_unstable();
            if there != right {
                wrong.push(format!("list {list} of bank {bank} has {there:?}, committed was {right:?}"));
            }
        }
    }
    wrong
}
