//! An xid stands for one order: no client gives an id that was used before to something new. (The cluster cannot tell;
//! it would answer the new order with what the old one came to.)

use std::collections::BTreeSet;

use super::Evidence;
use crate::history::What;

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let ordered = evidence.events.iter().filter_map(|event| match &event.what {
        What::Ordered { xid, .. } => Some((event, xid)),
        _ => None,
    });
    let again = ordered.filter(|(_, xid)| !seen.insert(**xid));
    again.map(|(event, xid)| format!("{} at {:?} orders anew under {xid}", event.who, event.at)).collect()
}
