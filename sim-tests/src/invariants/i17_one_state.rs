//! I17: replicas at the same applied index have the same state: the sections of their snapshots are the same bytes
//! under the same name.

use super::Evidence;

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    evidence.sections.clone()
}
