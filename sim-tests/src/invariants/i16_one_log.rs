//! I16, of Raft's own: what two nodes have applied at one index is the same entry, and nothing in between is missing.

use super::Evidence;

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    evidence.log.clone()
}
