//! I1: all nodes, participants and client answers agree on one outcome for a transaction.

use std::collections::BTreeMap;

use super::{Evidence, Told};

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut first: BTreeMap<_, Told> = BTreeMap::new();
    let mut wrong = Vec::new();
    for told in evidence.told() {
        match first.get(&told.xid) {
            Some(before) if before.outcome != told.outcome => wrong.push(format!(
                "{}: {} heard {}, {} heard {}",
                told.xid, before.who, before.outcome, told.who, told.outcome
            )),
            Some(_) => {}
            None => {
                first.insert(told.xid, told);
            }
        }
    }
    wrong
}
