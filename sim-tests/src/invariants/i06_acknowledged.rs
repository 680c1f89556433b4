//! I6: an acknowledged decision or registration survives the loss of any minority, unsynced data included.
//!
//! At the moment of the first acknowledgement to anybody, the entry that it speaks of is synced on a majority of disks,
//! or lies behind a snapshot there. At the end, what was acknowledged stands in the log that the nodes agree on.
//! (Decisions: I3.)

use std::{collections::BTreeMap, time::Duration};

use verdict_protocol::BranchId;

use super::Evidence;
use crate::history::{Answer, Ask, What};

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut wrong = Vec::new();
    // The entry of which something was told first, and when.
    let mut told: BTreeMap<u64, (Duration, String)> = BTreeMap::new();
    let mut tells = |index: u64, at: Duration, what: String| {
        told.entry(index).or_insert((at, what));
    };
    for event in &evidence.events {
        let who = event.who;
        match &event.what {
            What::Answered { xid, ask: Ask::Enlist(number), answer: Answer::Done, .. } => {
                let branch = BranchId { xid: *xid, number: *number };
                let registered = evidence.oracle.cases.get(xid).and_then(|case| case.registered.get(number));
                match registered {
                    Some(index) => tells(*index, event.at, format!("{who} was told that {branch} is registered")),
                    None => wrong.push(format!("{who} was told that branch {branch} is registered, and it is not")),
                }
            }
            What::Answered { xid, answer: Answer::Decided { outcome, index, .. }, .. } => {
                tells(*index, event.at, format!("{who} was told that {xid} is {outcome}"));
            }
            What::OutcomeCame { branch, outcome, .. } if !evidence.has_no_part(*branch, *outcome) => {
                let sentence = evidence.oracle.cases.get(&branch.xid).and_then(|case| case.outcome);
                if let Some(sentence) = sentence {
                    tells(sentence.index, event.at, format!("{who} was told that {branch} is {outcome}"));
                }
            }
            _ => {}
        }
    }
    for (index, (at, what)) in told {
        let disks = evidence.durability.disks(index, at);
        if (disks.len() as u64) * 2 <= evidence.plan.nodes {
            wrong.push(format!("{what} at {at:?}, and entry {index} was synced on {disks:?} only"));
        }
    }
    wrong
}
