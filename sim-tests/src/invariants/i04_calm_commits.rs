//! I4: without faults and with every vote YES, the transaction commits.
//!
//! In a seed without faults nothing is aborted but by a bank's refusal, by its client or one that takes over its session,
//! by an operator, or for want of a client; clients whose clock is beyond what is allowed apart.

use super::Evidence;
use crate::history::{Answer, What};

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    if !evidence.plan.is_calm() {
        return Vec::new();
    }
    let fine = ["REFUSED", "ROLLBACK", "TIMEOUT", "SKEWED", "PRESUMED", "FENCED", "OPERATOR"];
    let answers = evidence.events.iter().filter_map(|event| match &event.what {
        What::Answered { xid, answer: Answer::Decided { reason, .. }, .. } => Some((xid, reason)),
        _ => None,
    });
    let bad = answers.filter(|(_, reason)| !reason.is_empty() && !fine.iter().any(|fine| reason.starts_with(fine)));
    bad.map(|(xid, reason)| format!("{xid} was aborted without a fault: {reason}")).collect()
}
