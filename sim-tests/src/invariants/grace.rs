//! A transaction that nobody knows is presumed aborted only once a branch of it has been held for the grace: until then
//! its client may be on the way with COMMIT.

use std::collections::BTreeMap;

use verdict_protocol::Xid;

use super::Evidence;
use crate::{
    history::{Effect, What},
    world::GRACE,
};

/// Clocks drift by so many hundredths at most.
const DRIFT: u32 = 3;

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut promised: BTreeMap<Xid, std::time::Duration> = BTreeMap::new();
    for event in &evidence.events {
        if let What::Effect { branch, effect: Effect::Reserved } = &event.what {
            promised.entry(branch.xid).or_insert(event.at);
        }
    }
    let mut wrong = Vec::new();
    for (xid, case) in &evidence.oracle.cases {
        let Some(sentence) = case.outcome.filter(|_| case.presumed) else { continue };
        let Some(at) = evidence.settled_at.get(&sentence.index) else { continue };
        match promised.get(xid) {
            Some(since) if *since + GRACE * (100 - DRIFT) / 100 <= *at => {}
            Some(since) => {
                wrong.push(format!("{xid} was presumed aborted at {at:?}, a branch was promised at {since:?}"))
            }
            None => wrong.push(format!("{xid} was presumed aborted at {at:?}, and none of its branches was promised")),
        }
    }
    wrong
}
