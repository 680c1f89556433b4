//! Only the registered branch votes for itself: a vote with another branch's credential is never taken.

use super::Evidence;
use crate::history::What;

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let taken = evidence.events.iter().filter_map(|event| match &event.what {
        What::Forged { branch, taken: true } => Some(format!("{} at {:?} voted for {branch}", event.who, event.at)),
        _ => None,
    });
    taken.collect()
}
