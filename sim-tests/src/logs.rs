//! The replicated log as it lies on the nodes' disks at the end, read without Raft.
//!
//! Purged records are read too: a purge frees whole files only, and no run fills one. Of each node's records only those
//! count that its machine had applied: they are settled, and must be the same everywhere.

use std::{
    collections::BTreeMap,
    sync::Arc,
};

use bytes::Bytes;
use verdict_raft_log::files::{Disk, Log, LogOptions, testing::SimDisk};

use crate::history::{Event, What};

/// A settled entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    pub term: u64,
    /// None for Raft's own entries.
    pub command: Option<Bytes>,
}

/// The one log that all nodes agree on, by index.
pub type Settled = BTreeMap<u64, Logged>;

const HEADER: usize = 18;
const NORMAL: u8 = 1;

/// Reads what a node has, up to what it had applied.
///
/// # Errors
/// A sentence, if the files are not readable.
pub fn of_node(disk: &SimDisk, node: u64, applied: u64) -> Result<BTreeMap<u64, Bytes>, String> {
    let copy = SimDisk::new();
    for (name, _) in disk.sizes().iter().filter(|(name, _)| name.starts_with("log-") && name.ends_with(".seg")) {
        copy.put_file(name, &disk.file(name).unwrap_or_default());
    }
    // The marks say from where on records count: a new log's say from the beginning.
    let fresh = SimDisk::new();
    let options = LogOptions { id: node, ..LogOptions::default() };
    let said = |what: &str, error: &dyn std::error::Error| format!("the log of node {node} {what}: {error}");
    drop(Log::open(Arc::new(fresh.mount()) as Arc<dyn Disk>, options.clone()).map_err(|e| said("is not made", &e))?);
    for (name, _) in fresh.sizes().iter().filter(|(name, _)| name.starts_with("log-marks")) {
        copy.put_file(name, &fresh.file(name).unwrap_or_default());
    }
    let (log, _) = Log::open(Arc::new(copy.mount()), options).map_err(|e| said("does not open", &e))?;
    let records = log.read(0..applied + 1, usize::MAX).map_err(|e| said("is not readable", &e))?;
    Ok(records.into_iter().map(|record| (record.index, record.body)).collect())
}

/// Puts the nodes' logs together; tells where they contradict each other.
pub fn merge(nodes: &BTreeMap<u64, BTreeMap<u64, Bytes>>) -> (Settled, Vec<String>) {
    let mut all: BTreeMap<u64, (u64, &Bytes)> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (node, records) in nodes {
        for (index, body) in records {
            match all.get(index) {
                Some((other, known)) if *known != body => {
                    wrong.push(format!("nodes {other} and {node} applied different entries at {index}"));
                }
                Some(_) => {}
                None => {
                    all.insert(*index, (*node, body));
                }
            }
        }
    }
    let mut settled = Settled::new();
    let last = all.keys().next_back().copied().unwrap_or(0);
    for index in 0..=last {
        match all.get(&index).map(|(_, body)| decode(body)) {
            Some(Some(logged)) => {
                settled.insert(index, logged);
            }
            Some(None) => wrong.push(format!("the entry at {index} has no header")),
            None => wrong.push(format!("no node has the entry at {index}")),
        }
    }
    (settled, wrong)
}

/// `version 1 │ kind 1 │ term 8 │ leader 8 │ payload`, little endian.
fn decode(record: &Bytes) -> Option<Logged> {
    let header = record.get(..HEADER)?;
    let term = u64::from_le_bytes(header[2..10].try_into().ok()?);
    Some(Logged { term, command: (header[1] == NORMAL).then(|| record.slice(HEADER..)) })
}

/// Sections of snapshots on all disks: an id names its content for ever, on every node.
pub fn sections(disks: &BTreeMap<u64, SimDisk>) -> Vec<String> {
    let mut known: BTreeMap<String, (u64, String)> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (node, disk) in disks {
        for (name, _) in disk.sizes() {
            let Some(section) = name.strip_prefix("section-").and_then(|name| name.strip_suffix(".sec")) else { continue };
            // <id>-<checksum>-<length>
            let mut parts = section.rsplitn(3, '-');
            let (length, checksum, id) = (parts.next(), parts.next(), parts.next().unwrap_or_default());
            let content = format!("{checksum:?} {length:?}");
            match known.get(id) {
                Some((other, there)) if *there != content => {
                    wrong.push(format!("section {id} differs between nodes {other} ({there}) and {node} ({content})"));
                }
                Some(_) => {}
                None => {
                    known.insert(id.to_owned(), (*node, content));
                }
            }
        }
    }
    wrong
}

/// Nodes that said that their logs are damaged.
pub fn damaged(events: &[Event]) -> impl Iterator<Item = &Event> {
    events.iter().filter(|event| matches!(event.what, What::NotStarted(_)))
}
