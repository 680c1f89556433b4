//! I10: a deposed leader changes nothing.
//!
//! Terms in the settled log never go back: nothing that an older leader appended comes after what a newer one did. A
//! bank that has promised something to a newer leader promises nothing more to an older one, as long as it lives.

use std::collections::BTreeMap;

use super::Evidence;
use crate::history::{Effect, What};

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut newest = (0, 0);
    for (index, term) in &evidence.terms {
        if *term < newest.1 {
            wrong.push(format!("entry {index} is of term {term}, entry {} before it of term {}", newest.0, newest.1));
        }
        newest = (*index, newest.1.max(*term));
    }
    let mut seen: BTreeMap<_, u64> = BTreeMap::new();
    // Who asked for the promise, without those who were refused; the newest of them is the one who gets it.
    let mut asked: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    for event in &evidence.events {
        match &event.what {
            What::Killed { .. } | What::Started => drop(seen.remove(&event.who)),
            What::PrepareCame { branch, term } => asked.entry((event.who, *branch)).or_default().push(*term),
            // The one who was refused is the oldest of them.
            What::NotAnswered { branch, .. } => {
                let terms = asked.entry((event.who, *branch)).or_default();
                let oldest = terms.iter().enumerate().min_by_key(|(_, term)| **term).map(|(at, _)| at);
                oldest.map(|at| terms.remove(at));
            }
            What::Effect { branch, effect: Effect::Reserved } => {
                let asked = asked.get(&(event.who, *branch)).and_then(|terms| terms.iter().max());
                let (Some(term), seen) = (asked, seen.entry(event.who).or_default()) else { continue };
                if term < seen {
                    wrong.push(format!(
                        "{} at {:?} promised {branch} to the leader of term {term}, after one of term {seen}",
                        event.who, event.at
                    ));
                }
                *seen = *term.max(seen);
            }
            _ => {}
        }
    }
    wrong
}
