//! I8: a branch's effect is applied at most once, and never after the opposite outcome.

use std::collections::BTreeMap;

use super::Evidence;
use crate::history::{Effect, What};

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut last: BTreeMap<_, Effect> = BTreeMap::new();
    let mut wrong = Vec::new();
    for event in &evidence.events {
        let What::Effect { branch, effect } = &event.what else { continue };
        let before = last.insert(*branch, *effect);
        let right = matches!(
            (before, effect),
            (None, Effect::Reserved) | (Some(Effect::Reserved), Effect::Confirmed | Effect::Cancelled)
        );
        if !right {
            wrong.push(format!("{} at {:?}: {effect:?} of {branch} after {before:?}", event.who, event.at));
        }
    }
    wrong
}
