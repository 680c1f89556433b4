//! I9: an ended or forgotten transaction never prepares or applies again.
//!
//! A branch that has taken an outcome reserves nothing any more, however late the request to prepare comes.

use std::collections::BTreeSet;

use super::Evidence;
use crate::history::{Effect, What};

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut settled = BTreeSet::new();
    let mut wrong = Vec::new();
    for event in &evidence.events {
        match &event.what {
            What::Settled { branch, .. } => drop(settled.insert(*branch)),
            What::Effect { branch, effect: Effect::Reserved } if settled.contains(branch) => {
                wrong.push(format!("{} at {:?}: reserved for {branch}, which was settled before", event.who, event.at));
            }
            _ => {}
        }
    }
    wrong
}
