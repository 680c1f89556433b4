//! The ledger as sections of bytes: the open table, and each outcome bucket.
//!
//! ```text
//!   section = format version (1 byte) · postcard(...)
//!   "open-at-INDEX"       everything but the outcomes
//!   "bucket-N"            a sealed bucket: the same for ever, written and sent once
//!   "bucket-N-at-INDEX"   a bucket that may still grow
//!   "keys-N", "keys-N-at-INDEX"   the same for the keys of what was committed
//! ```

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use thiserror::Error;

use super::{Ledger, OpenTransaction, Phase, Rules, keys, outcomes::Bucket, sessions::Sessions};
use crate::{ClusterId, LogTime, Secret, Xid};

const VERSION: u8 = 1;
const OPEN: &str = "open-at-";
const BUCKET: &str = "bucket-";
const KEYS: &str = "keys-";

/// Makes a section's bytes when they are needed: a section that a store or a peer has already is never encoded.
pub type SectionBody = Box<dyn FnOnce() -> Bytes + Send>;

/// A copy of the ledger, cheap to make (transactions and buckets are shared until changed), to be encoded elsewhere.
#[derive(Debug)]
pub struct Frozen(Ledger);

/// A decoded snapshot, ready to take the ledger's place.
#[derive(Debug)]
pub struct Thawed(Ledger);

/// A snapshot that is none.
#[derive(Debug, Error)]
pub enum SnapshotError {
    #[error("section {id:?} has format version {found}, this program knows up to {VERSION}: run a newer one")]
    Newer { id: String, found: u8 },
    #[error("section {id:?} is malformed: {source}")]
    Malformed { id: String, source: postcard::Error },
    #[error("section {0:?} has a name that no ledger gives")]
    Name(String),
    #[error("the snapshot has {0} sections of the open table instead of one")]
    Open(usize),
}

#[derive(Serialize, Deserialize)]
struct OpenSection {
    at: LogTime,
    index: u64,
    cluster: Option<ClusterId>,
    secret: Option<Secret>,
    rules: Rules,
    open: BTreeMap<Xid, OpenTransaction>,
    sessions: Sessions,
}

impl Ledger {
    #[must_use]
    pub fn freeze(&self) -> Frozen {
        Frozen(self.clone())
    }

    /// What is kept beside the open table and follows from it.
    fn index_open(&mut self) {
        let (keys, sessions, by_resource) = (&mut self.keys.open, &mut self.sessions, &mut self.by_resource);
        for (xid, open) in &self.open {
            for branch in open.branches.values().filter(|branch| branch.settlement.is_none()) {
                *by_resource.entry(branch.resource.clone()).or_default() += 1;
            }
            if matches!(open.phase, Phase::Decided { .. }) {
                continue;
            }
            if let Some(key) = &open.key {
                keys.insert(key.clone(), *xid);
            }
            if let Some(session) = open.session.as_ref().and_then(|session| sessions.get_mut(&session.name)) {
                session.undecided.insert(*xid);
            }
        }
    }

    /// Takes the snapshot's state in place of its own.
    pub fn thaw(&mut self, thawed: Thawed) {
        *self = thawed.0;
    }
}

impl Frozen {
    /// The sections, each with its name; the same state gives the same names and bytes.
    #[must_use]
    pub fn sections(self) -> Vec<(String, SectionBody)> {
        let ledger = self.0;
        let (at, index, bucket_ms) = (ledger.at, ledger.index, ledger.rules.bucket_ms);
        let mut sections: Vec<(String, SectionBody)> = Vec::new();
        let name = |prefix: &str, number: u64, width_ms: u64| {
            let sealed = number.saturating_add(1).saturating_mul(width_ms) <= at.as_millis();
            if sealed { format!("{prefix}{number}") } else { format!("{prefix}{number}-at-{index}") }
        };
        for (number, bucket) in ledger.outcomes.buckets {
            sections.push((name(BUCKET, number, bucket_ms), Box::new(move || encode(bucket.as_ref()))));
        }
        let width_ms = keys::width_ms(&ledger.rules);
        for (number, bucket) in ledger.keys.committed {
            sections.push((name(KEYS, number, width_ms), Box::new(move || encode(bucket.as_ref()))));
        }
        let (cluster, secret, rules, sessions) = (ledger.cluster, ledger.secret, ledger.rules, ledger.sessions);
        let open = ledger.open;
        let body = move || {
            let open = open.into_iter().map(|(xid, transaction)| (xid, Arc::unwrap_or_clone(transaction))).collect();
            encode(&OpenSection { at, index, cluster, secret, rules, open, sessions })
        };
        sections.push((format!("{OPEN}{index}"), Box::new(body)));
        sections
    }
}

impl Thawed {
    /// Decodes a snapshot.
    ///
    /// # Errors
    /// A [`SnapshotError`] for sections that are malformed, of a newer version, missing or misnamed.
    pub fn decode(sections: Vec<(String, Bytes)>) -> Result<Self, SnapshotError> {
        let mut ledger = Ledger::new();
        let mut open_sections = 0;
        for (id, bytes) in sections {
            if id.starts_with(OPEN) {
                open_sections += 1;
                let section: OpenSection = decode(id, &bytes)?;
                ledger.at = section.at;
                ledger.index = section.index;
                (ledger.cluster, ledger.secret) = (section.cluster, section.secret);
                ledger.rules = section.rules;
                ledger.in_doubt = section.open.values().filter(|open| open.is_in_doubt()).count() as u64;
                ledger.open = section.open.into_iter().map(|(xid, open)| (xid, Arc::new(open))).collect();
                ledger.sessions = section.sessions;
                ledger.index_open();
            } else if let Some(number) = number_of(&id, KEYS) {
                let bucket: keys::Bucket = decode(id, &bytes)?;
                ledger.keys.committed.insert(number, Arc::new(bucket));
            } else if let Some(number) = number_of(&id, BUCKET) {
                let bucket: Bucket = decode(id, &bytes)?;
                ledger.outcomes.buckets.insert(number, Arc::new(bucket));
            } else {
                return Err(SnapshotError::Name(id));
            }
        }
        if open_sections == 1 { Ok(Self(ledger)) } else { Err(SnapshotError::Open(open_sections)) }
    }
}

fn number_of(id: &str, prefix: &str) -> Option<u64> {
    let rest = id.strip_prefix(prefix)?;
    rest.split("-at-").next()?.parse().ok()
}

fn encode(value: &impl Serialize) -> Bytes {
    let mut bytes = vec![VERSION];
    bytes.extend(postcard::to_allocvec(value).expect("a section has no unserializable value"));
    bytes.into()
}

fn decode<T: DeserializeOwned>(id: String, bytes: &[u8]) -> Result<T, SnapshotError> {
    match bytes.split_first() {
        Some((&VERSION, body)) => postcard::from_bytes(body).map_err(|source| SnapshotError::Malformed { id, source }),
        Some((&found, _)) => Err(SnapshotError::Newer { id, found }),
        None => Err(SnapshotError::Malformed { id, source: postcard::Error::DeserializeUnexpectedEnd }),
    }
}
