//! I19: after an fsync or ENOSPC error a node acknowledges nothing more.
//!
//! From the first error of its log's or its ballot's files until it is started again, it syncs neither of them (an
//! acknowledgement to another node needs that), and answers no call that changes something by itself. What is on its
//! way out at that moment, settled by the other disks, still goes out.

use std::{collections::BTreeMap, time::Duration};

use super::Evidence;
use crate::history::What;

/// An answer that leaves so shortly after the error was given before it.
const ON_ITS_WAY: Duration = Duration::from_millis(1);

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut failed = BTreeMap::new();
    let mut wrong = Vec::new();
    for event in &evidence.events {
        match &event.what {
            What::Killed { .. } | What::Started | What::NotStarted(_) => drop(failed.remove(&event.who)),
            What::DiskFailed { error, .. } => {
                failed.entry(event.who).or_insert_with(|| (event.at, error.clone()));
            }
            What::AfterDiskFailed(what) => {
                let Some((since, error)) = failed.get(&event.who) else { continue };
                if event.at.saturating_sub(*since) > ON_ITS_WAY {
                    wrong.push(format!("{} at {:?}, after {error} at {since:?}: {what}", event.who, event.at));
                }
            }
            _ => {}
        }
    }
    wrong
}
