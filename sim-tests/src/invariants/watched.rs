//! What a watcher is told, outside of the gaps that he is told of, is what the log says: each decision once, in the
//! order of the log, with its outcome; each handing over; and no more than the log says of branches and ends.
//!
//! The oracle and the log do not know of watching; they are read apart from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use verdict_client::{Step, Transition, Watched};
use verdict_protocol::{BranchId, Outcome, Xid};

use super::Evidence;
use crate::watching::Page;

/// Whoever is told of nothing for so long was cut off, or a node that he watches at does not go on.
const BEHIND: Duration = Duration::from_secs(8);

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let pages = &evidence.watched;
    let Some(last) = pages.last() else { return Vec::new() };
    let mut wrong: Vec<String> = pages.iter().filter_map(out_of_order).collect();
    let told = match merged(pages) {
        Ok(told) => told,
        Err(differs) => {
            wrong.push(differs);
            return wrong;
        }
    };
    let gaps = gaps(pages);
    let is_missed = |index: u64| gaps.iter().any(|(first, last)| (*first..=*last).contains(&index));
    let counts = |index: u64| index <= last.seen && !is_missed(index);

    let decided = told.values().filter_map(|one| match one.step {
        Step::Decided { outcome, .. } => Some((one.index, one.xid, outcome)),
        _ => None,
    });
    let decided: Vec<(u64, Xid, Outcome)> = decided.filter(|(index, ..)| counts(*index)).collect();
    let expected: Vec<_> = evidence.oracle.decided.iter().copied().filter(|(index, ..)| counts(*index)).collect();
    wrong.extend(difference("decisions", &decided, &expected));

    let delegated = told.values().filter(|one| matches!(one.step, Step::Delegated { .. }));
    let delegated: Vec<(u64, Xid)> =
        delegated.map(|one| (one.index, one.xid)).filter(|(index, _)| counts(*index)).collect();
    let expected: Vec<_> = evidence.oracle.delegated.iter().copied().filter(|(index, _)| counts(*index)).collect();
    wrong.extend(difference("delegations", &delegated, &expected));

    wrong.extend(made_up(evidence, &told));
    if evidence.plan.is_calm() && evidence.plan.watch_keeps > 10_000 && !gaps.is_empty() {
        wrong.push(format!("nothing went wrong and nothing was forgotten, and there are gaps: {gaps:?}"));
    }
    wrong.extend(behind(evidence, last.seen));
    wrong
}

/// Each page goes forward.
fn out_of_order(page: &Page) -> Option<String> {
    let mut place = (page.after, u32::MAX);
    for told in &page.told {
        let next = match told {
            Watched::Transition(one) => (one.index, one.number),
            Watched::Gap { first, last } if first <= last => (*last, u32::MAX),
            Watched::Gap { .. } | Watched::Mark { .. } => return Some(format!("{told:?} is none")),
        };
        if next <= place {
            return Some(format!("behind {place:?} a watcher was told {told:?}"));
        }
        place = next;
    }
    None
}

/// Everything that was told, by its place. What is told again must be the same.
fn merged(pages: &[Page]) -> Result<BTreeMap<(u64, u32), &Transition>, String> {
    let mut merged: BTreeMap<(u64, u32), &Transition> = BTreeMap::new();
    let told = pages.iter().flat_map(|page| &page.told);
    for one in told.filter_map(|told| match told {
        Watched::Transition(one) => Some(one),
        Watched::Gap { .. } | Watched::Mark { .. } => None,
    }) {
        let known = merged.entry((one.index, one.number)).or_insert(one);
        if *known != one {
            return Err(format!("a watcher was told {known:?}, and then {one:?}"));
        }
    }
    Ok(merged)
}

fn gaps(pages: &[Page]) -> Vec<(u64, u64)> {
    let gap = |told: &Watched| match told {
        Watched::Gap { first, last } => Some((*first, *last)),
        Watched::Transition(_) | Watched::Mark { .. } => None,
    };
    pages.iter().flat_map(|page| &page.told).filter_map(gap).collect()
}

/// The first place at which two sequences differ.
fn difference<T: PartialEq + std::fmt::Debug>(what: &str, told: &[T], expected: &[T]) -> Option<String> {
    let at = (0..told.len().max(expected.len())).find(|at| told.get(*at) != expected.get(*at))?;
    let (told, expected) = (told.get(at), expected.get(at));
    Some(format!("of the {what}, a watcher was told {told:?} where the log has {expected:?}"))
}

/// A branch settles once, when the log says so, or when it has decided; a transaction ends once, and only when decided.
fn made_up(evidence: &Evidence, told: &BTreeMap<(u64, u32), &Transition>) -> Vec<String> {
    let settled: BTreeSet<(u64, BranchId)> = evidence.oracle.settled.iter().copied().collect();
    let (mut branches, mut ended) = (BTreeSet::new(), BTreeSet::new());
    let mut wrong = Vec::new();
    for one in told.values() {
        let case = evidence.oracle.cases.get(&one.xid);
        match &one.step {
            Step::Settled { branch: number, .. } => {
                let branch = BranchId { xid: one.xid, number: *number };
                let decides = case.and_then(|case| case.delegate) == Some(*number);
                if !decides && !settled.contains(&(one.index, branch)) {
                    wrong.push(format!("a watcher was told that {branch} is settled at {}, and it is not", one.index));
                }
                if !branches.insert(branch) {
                    wrong.push(format!("a watcher was told twice that {branch} is settled"));
                }
            }
            Step::Ended => {
                let decided = case.and_then(|case| case.outcome).is_some_and(|outcome| outcome.index <= one.index);
                if !decided || !ended.insert(one.xid) {
                    wrong.push(format!("a watcher was told at {} that {} has ended", one.index, one.xid));
                }
            }
            Step::Begun | Step::Voting | Step::Delegated { .. } | Step::Decided { .. } | Step::PromiseBroken { .. } => {
            }
        }
    }
    wrong
}

/// In the end everybody is up and connected for longer than that.
fn behind(evidence: &Evidence, seen: u64) -> Option<String> {
    let old = |(index, ..): &&(u64, Xid, Outcome)| {
        evidence.settled_at.get(index).is_some_and(|at| *at + BEHIND < evidence.end)
    };
    let (index, ..) = evidence.oracle.decided.iter().rev().find(old)?;
    (seen < *index).then(|| format!("a watcher stands at {seen}, and {index} was decided long ago"))
}
