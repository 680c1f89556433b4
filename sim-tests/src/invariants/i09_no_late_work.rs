//! I9: an ended or forgotten transaction never prepares or applies again.
//!
//! A branch that has taken an outcome reserves nothing any more, however late the request to prepare comes; and one that
//! was rolled back promises nothing. Databases keep no tombstones: there a branch that was rolled back before it was
//! prepared may be prepared later, and is found by the next sweep (I7 counts how long that takes).

use std::collections::BTreeSet;

use verdict_protocol::{Outcome, Vote};

use super::Evidence;
use crate::history::{Effect, What};

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let (mut settled, mut rolled_back) = (BTreeSet::new(), BTreeSet::new());
    let mut wrong = Vec::new();
    for event in &evidence.events {
        match &event.what {
            What::Settled { outcome: Outcome::Aborted, .. } if evidence.plan.is_database(event.who) => {}
            What::Settled { branch, outcome, .. } => {
                settled.insert(*branch);
                if *outcome == Outcome::Aborted {
                    rolled_back.insert(*branch);
                }
            }
            What::Voted { branch, vote } if *vote != Vote::Refused && rolled_back.contains(branch) => {
                wrong.push(format!(
                    "{} at {:?}: {vote:?} of {branch}, which was rolled back before",
                    event.who, event.at
                ));
            }
            What::Effect { branch, effect: Effect::Reserved } if settled.contains(branch) => {
                wrong.push(format!("{} at {:?}: reserved for {branch}, which was settled before", event.who, event.at));
            }
            _ => {}
        }
    }
    wrong
}
