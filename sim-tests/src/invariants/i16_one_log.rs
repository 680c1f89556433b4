//! I16, of Raft's own: one leader a term; entries of the same index, term and leader are the same on all nodes (log matching);
//! who leads has everything that was settled before (leader completeness); what two nodes have applied at one index is
//! the same entry, and nothing in between is missing (state machine safety).
//!
//! All but the first are looked at whenever a node writes an entry, applies one, or begins to lead.

use std::collections::BTreeMap;

use super::Evidence;
use crate::history::What;

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut wrong = evidence.log.clone();
    let mut leaders = BTreeMap::new();
    for event in &evidence.events {
        let What::Leads { term } = event.what else { continue };
        let leader = leaders.entry(term).or_insert(event.who);
        if *leader != event.who {
            wrong.push(format!("{leader} and {} lead in term {term}", event.who));
        }
    }
    wrong
}
