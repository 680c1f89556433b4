//! I10, of sessions: whoever has opened a session finds everything of its predecessors decided.

use super::Evidence;
use crate::history::What;

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut wrong = Vec::new();
    for event in &evidence.events {
        let What::SessionOpened { name, epoch } = &event.what else { continue };
        for (xid, case) in &evidence.oracle.cases {
            let older = case.session.as_ref().is_some_and(|of| of.name.as_str() == name && of.epoch < *epoch);
            // The entry that decides is on a majority of disks before anybody acts upon it.
            let disks = case.outcome.map_or(0, |sentence| evidence.durability.disks(sentence.index, event.at).len());
            if older && disks as u64 * 2 <= evidence.plan.nodes {
                wrong.push(format!(
                    "{} at {:?} has {name:?} in epoch {epoch}, and {xid} of a predecessor was undecided",
                    event.who, event.at
                ));
            }
        }
    }
    wrong
}
