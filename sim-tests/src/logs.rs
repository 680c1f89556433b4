//! The replicated log, followed as the nodes write it to their disks, and read without Raft.
//!
//! ```text
//!   write ─▶ what a node has in its log ── it says: applied up to INDEX of TERM ─▶ settled, the same on all nodes
//! ```
//!
//! A second reader of the files' format, apart from the product's own. An entry that was not settled may be written
//! over; once one node has applied it, no node may ever have applied another one at its index.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use verdict_raft_log::{Position, files::testing::SimDisk};

use crate::history::now;

/// A settled entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    pub term: u64,
    /// None for Raft's own entries.
    pub command: Option<Bytes>,
}

/// The one log that all nodes agree on, by index.
pub type Settled = BTreeMap<u64, Logged>;

/// What nodes have written. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Journal(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// What each node has in its log and has not applied yet.
    written: BTreeMap<u64, BTreeMap<u64, Bytes>>,
    settled: BTreeMap<u64, (u64, Bytes)>,
    /// When the first node had applied it.
    settled_at: BTreeMap<u64, Duration>,
    wrong: Vec<String>,
}

/// Of a batch: `"vbat" │ version 2 │ kind 1 │ 0 │ log 8 │ number 8 │ first 8 │ count 4 │ payload 4 │ synced 8 │ mask 8 │ …`
const BATCH: usize = 64;
/// Of a record: `checksum 4 │ version 2 │ 0 2 │ index 8 │ length 4`
const RECORD: usize = 20;
/// Of an entry: `version 1 │ kind 1 │ term 8 │ leader 8`
const ENTRY: usize = 18;
const RECORDS: u8 = 1;
const COMMAND: u8 = 1;

/// Whether a file of this name bears records of the log. It is made under a longer name than it is opened by.
#[must_use]
pub fn is_segment(name: &str) -> bool {
    name.starts_with("log-") && name.contains(".seg")
}

impl Journal {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node wrote this into a file of its log.
    pub fn wrote(&self, node: u64, bytes: &[u8]) {
        let Some((first, bodies)) = read(bytes) else { return };
        let mut inner = self.lock();
        let log = inner.written.entry(node).or_default();
        drop(log.split_off(&first));
        // The log goes on behind a snapshot: what lies before it was never settled here.
        if log.last_key_value().is_some_and(|(last, _)| last + 1 < first) {
            log.clear();
        }
        log.extend((first..).zip(bodies));
    }

    /// A node has applied everything up to here, or has it by a snapshot.
    pub fn applied(&self, node: u64, up_to: Position) {
        let mut inner = self.lock();
        let Inner { written, settled, settled_at, wrong } = &mut *inner;
        let Some(log) = written.get_mut(&node) else { return };
        let has = log.get(&up_to.index).and_then(term);
        let rest = log.split_off(&(up_to.index + 1));
        if has != Some(up_to.term) {
            // It came by a snapshot: what was written before may be something that was never settled.
            *log = rest;
            return;
        }
        for (index, body) in std::mem::replace(log, rest) {
            match settled.get(&index) {
                Some((other, known)) if *known != body => {
                    let (one, two) = (describe(known), describe(&body));
                    wrong.push(format!("at {index} node {other} applied {one}, node {node} applied {two}"));
                }
                Some(_) => {}
                None => {
                    settled.insert(index, (node, body));
                    settled_at.insert(index, now());
                }
            }
        }
    }

    /// When the first node had applied an entry, by its index.
    #[must_use]
    pub fn settled_at(&self) -> BTreeMap<u64, Duration> {
        self.lock().settled_at.clone()
    }

    /// The log that the nodes agree on, and where they do not.
    #[must_use]
    pub fn settled(&self) -> (Settled, Vec<String>) {
        let inner = self.lock();
        let mut wrong = inner.wrong.clone();
        let mut log = Settled::new();
        let next = inner.settled.last_key_value().map_or(0, |(last, _)| last + 1);
        for index in 0..next {
            match inner.settled.get(&index).map(|(_, body)| logged(body)) {
                Some(Some(logged)) => drop(log.insert(index, logged)),
                Some(None) => wrong.push(format!("the entry at {index} has no header")),
                None => wrong.push(format!("nobody has written the entry at {index}")),
            }
        }
        (log, wrong)
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(bytes.get(at..at + N)?);
    Some(u64::from_le_bytes(wide))
}

/// The records of a batch and the index of the first; none for what only says where records go on.
fn read(bytes: &[u8]) -> Option<(u64, Vec<Bytes>)> {
    if !bytes.starts_with(b"vbat") {
        return None;
    }
    let first = number::<8>(bytes, 24)?;
    if bytes.get(6) != Some(&RECORDS) {
        return Some((first, Vec::new()));
    }
    let (count, mask) = (number::<4>(bytes, 32)?, number::<8>(bytes, 48)?.to_le_bytes());
    let unmasked: Vec<u8> = bytes[BATCH..].iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
    let mut rest = Bytes::from(unmasked);
    let mut bodies = Vec::new();
    for _ in 0..count {
        let length = usize::try_from(number::<4>(&rest, 16)?).ok()?;
        if rest.len() < RECORD + length {
            return None;
        }
        bodies.push(rest.slice(RECORD..RECORD + length));
        rest = rest.slice(RECORD + length..);
    }
    Some((first, bodies))
}

fn term(entry: &Bytes) -> Option<u64> {
    number::<8>(entry, 2)
}

fn describe(entry: &Bytes) -> String {
    format!("{} bytes of term {:?}", entry.len(), term(entry).unwrap_or_default())
}

fn logged(entry: &Bytes) -> Option<Logged> {
    let term = term(entry)?;
    (entry.len() >= ENTRY).then(|| Logged { term, command: (entry[1] == COMMAND).then(|| entry.slice(ENTRY..)) })
}

/// Sections of snapshots on all disks: an id names its content for ever, on every node.
#[must_use]
pub fn sections(disks: &BTreeMap<u64, SimDisk>) -> Vec<String> {
    let mut known: BTreeMap<String, (u64, String)> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (node, disk) in disks {
        for (name, _) in disk.sizes() {
            let section = name.strip_prefix("section-").and_then(|name| name.strip_suffix(".sec"));
            // <id>-<checksum>-<length>
            let Some((rest, length)) = section.and_then(|section| section.rsplit_once('-')) else { continue };
            let Some((id, checksum)) = rest.rsplit_once('-') else { continue };
            let content = format!("checksum {checksum}, length {length}");
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
