//! A power loss on a disk that keeps its word is no damage: a node comes back by itself.

use super::Evidence;
use crate::{history::What, plan::Fault};

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    if evidence.plan.flaw.is_some() || evidence.plan.faults.contains_key(&Fault::BitFlip) {
        return Vec::new();
    }
    let failed = evidence.events.iter().filter_map(|event| match &event.what {
        What::NotStarted(why) if why.contains("damage") => Some(format!("{} at {:?}: {why}", event.who, event.at)),
        _ => None,
    });
    failed.collect()
}
