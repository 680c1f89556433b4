//! The replicated log, followed as the nodes write it to their disks, and read without Raft.
//!
//! ```text
//!   write ─▶ what a node has in its log ── it says: applied up to INDEX of TERM ─▶ settled, the same on all nodes
//! ```
//!
//! A second reader of the files' format, apart from the product's own. An entry that was not settled may be written
//! over; once one node has applied it, no node may ever have applied another one at its index.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use verdict_raft_log::{Position, files::testing::SimDisk};

use crate::{chance::Fnv, history::now};

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
    /// A hash of every entry that any node has written, by index, term and leader: two nodes may be elected in one
    /// term, one after the other, of which only one can settle anything.
    bodies: BTreeMap<(u64, u64, u64), (u64, Fnv)>,
    /// What each node has written into each of its files and not synced.
    unsynced: BTreeMap<(u64, String), Vec<(u64, u64)>>,
    /// When which node had synced it, by index and term.
    synced: BTreeMap<(u64, u64), BTreeMap<u64, Duration>>,
    /// Up to where each node has snapshots, and since when.
    covered: BTreeMap<u64, Vec<(u64, Duration)>>,
    /// The furthest that each node has ever applied.
    furthest: BTreeMap<u64, u64>,
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
    pub fn wrote(&self, node: u64, file: &str, bytes: &[u8]) {
        let Some((first, bodies)) = read(bytes) else { return };
        let mut inner = self.lock();
        inner.keep(node, file, first, &bodies);
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
        let furthest = inner.furthest.entry(node).or_default();
        *furthest = up_to.index.max(*furthest);
        let Inner { written, settled, settled_at, wrong, .. } = &mut *inner;
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

    /// A node has synced this file.
    pub fn synced(&self, node: u64, file: &str) {
        let mut inner = self.lock();
        // What a power loss tore off is counted until it is written anew: that errs for the node.
        for place in inner.unsynced.remove(&(node, segment(file))).unwrap_or_default() {
            inner.synced.entry(place).or_default().entry(node).or_insert_with(now);
        }
    }

    /// A node has a snapshot up to here.
    pub fn covered(&self, node: u64, up_to: u64) {
        let mut inner = self.lock();
        let covered = inner.covered.entry(node).or_default();
        if covered.last().is_none_or(|(last, _)| *last < up_to) {
            covered.push((up_to, now()));
        }
    }

    /// A node leads, with a log that reaches up to `last`. It has all that was settled in terms before its own: one that
    /// was paused as a candidate may still come to lead in a term that is over, and lack what was settled since.
    pub fn leads(&self, node: u64, term: u64, last: u64) {
        let mut inner = self.lock();
        let Inner { written, settled, furthest, wrong, .. } = &mut *inner;
        let from = furthest.get(&node).map_or(0, |index| index + 1);
        let own = written.get(&node);
        let older = |(_, (_, body)): &(&u64, &(u64, Bytes))| self::term(body).is_some_and(|of| of < term);
        for (index, (_, body)) in settled.range(from..).filter(older) {
            if own.and_then(|own| own.get(index)) != Some(body) {
                wrong.push(format!("node {node} leads in term {term} without the settled entry at {index}"));
            }
        }
        let end = settled.iter().rev().find(older).map_or(0, |(index, _)| *index);
        if end > last {
            wrong.push(format!("node {node} leads in term {term} with a log up to {last}; settled is {end}"));
        }
    }

    /// When which entry was synced where.
    #[must_use]
    pub fn durability(&self) -> Durability {
        let inner = self.lock();
        let term = |(index, (_, body)): (&u64, &(u64, Bytes))| Some((*index, term(body)?));
        Durability {
            synced: inner.synced.clone(),
            covered: inner.covered.clone(),
            terms: inner.settled.iter().filter_map(term).collect(),
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

/// When which entry was synced on which disk.
#[derive(Clone, Debug, Default)]
pub struct Durability {
    synced: BTreeMap<(u64, u64), BTreeMap<u64, Duration>>,
    covered: BTreeMap<u64, Vec<(u64, Duration)>>,
    /// Of settled entries.
    terms: BTreeMap<u64, u64>,
}

impl Durability {
    /// The nodes that had synced the settled entry at this index, or had a snapshot with it, at this time.
    #[must_use]
    pub fn disks(&self, index: u64, at: Duration) -> BTreeSet<u64> {
        let place = self.terms.get(&index).map(|term| (index, *term));
        let synced = place.and_then(|place| self.synced.get(&place)).into_iter().flatten();
        let synced = synced.filter(|(_, since)| **since <= at).map(|(node, _)| *node);
        let behind = |all: &[(u64, Duration)]| all.iter().any(|(up_to, since)| *up_to >= index && *since <= at);
        synced.chain(self.covered.iter().filter(|(_, all)| behind(all)).map(|(node, _)| *node)).collect()
    }
}

impl Inner {
    fn keep(&mut self, node: u64, file: &str, first: u64, bodies: &[Bytes]) {
        for ((of, _), places) in &mut self.unsynced {
            if *of == node {
                places.retain(|(index, _)| *index < first);
            }
        }
        let unsynced = self.unsynced.entry((node, segment(file))).or_default();
        for (index, body) in (first..).zip(bodies) {
            let (Some(term), Some(leader)) = (term(body), number::<8>(body, 10)) else { continue };
            unsynced.push((index, term));
            let mut hash = Fnv::new();
            hash.feed(body);
            let (other, known) = self.bodies.entry((index, term, leader)).or_insert((node, hash));
            if *known != hash {
                self.wrong.push(format!(
                    "nodes {other} and {node} have different entries at {index} of term {term} by {leader}"
                ));
            }
        }
    }
}

/// A segment by the name that it is opened by.
fn segment(name: &str) -> String {
    name.split_once(".seg").map_or(name, |(stem, _)| stem).to_owned()
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
