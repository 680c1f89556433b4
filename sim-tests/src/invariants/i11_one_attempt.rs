//! I11, of keys: of all attempts that were given the right to work under one key, at most one commits.

use std::collections::BTreeMap;

use verdict_protocol::{Outcome, Xid};

use super::Evidence;
use crate::history::What;

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut committed: BTreeMap<&str, Xid> = BTreeMap::new();
    let mut wrong = Vec::new();
    for event in &evidence.events {
        let What::KeyGranted { key, xid } = &event.what else { continue };
        let outcome = evidence.oracle.cases.get(xid).and_then(|case| case.outcome);
        if outcome.is_some_and(|sentence| sentence.outcome == Outcome::Committed)
            && let Some(other) = committed.insert(key, *xid)
            && other != *xid
        {
            wrong.push(format!("{key:?}: {other} and {xid} have both committed"));
        }
    }
    wrong
}
