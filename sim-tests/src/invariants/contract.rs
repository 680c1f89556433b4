//! What a bank says of a branch that it does not know: a COMMIT is not done, and once it was told to roll back, it
//! promises nothing.

use super::Evidence;

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    evidence.contract.clone()
}
