//! The bodies of messages between replicas: a format version, then postcard; entries as in the log.

use bytes::{BufMut, Bytes, BytesMut};
use openraft::raft::AppendEntriesRequest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::record;
use super::types::{Ballot, LogId, SnapshotMeta, TypeConfig};

/// The first byte of each body.
const VERSION: u8 = 1;

/// Why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("format version {0} is not known here ({VERSION} is); let both nodes run the same version")]
    Version(u8),
    #[error("it is empty")]
    Empty,
    #[error("{0}")]
    Format(#[from] postcard::Error),
    #[error("{0}")]
    Entry(#[from] std::io::Error),
    #[error("it ends in the middle of entry {0}")]
    Short(u64),
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Bytes, WireError> {
    Ok(postcard::to_extend(message, vec![VERSION])?.into())
}

pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    Ok(postcard::from_bytes(versioned(body)?)?)
}

fn versioned(body: &[u8]) -> Result<&[u8], WireError> {
    match body.split_first() {
        None => Err(WireError::Empty),
        Some((&VERSION, rest)) => Ok(rest),
        Some((&other, _)) => Err(WireError::Version(other)),
    }
}

/// What precedes the entries of an append.
#[derive(Serialize, Deserialize)]
struct AppendHead {
    ballot: Ballot,
    previous: Option<LogId>,
    committed: Option<LogId>,
    first: u64,
    count: u32,
}

pub(crate) fn encode_append(request: &AppendEntriesRequest<TypeConfig>) -> Result<Bytes, WireError> {
    let head = AppendHead {
        ballot: request.vote,
        previous: request.prev_log_id,
        committed: request.leader_commit,
        first: request.entries.first().map_or(0, |entry| entry.log_id.index),
        count: u32::try_from(request.entries.len()).map_err(std::io::Error::other)?,
    };
    let size: usize = request.entries.iter().map(|entry| record::size(entry) + 4).sum();
    let mut body = BytesMut::with_capacity(size + 96);
    body.put_u8(VERSION);
    let mut body = postcard::to_extend(&head, body)?;
    for entry in &request.entries {
        let at = body.len();
        body.put_u32_le(0);
        record::encode(entry, &mut body)?;
        let length = u32::try_from(body.len() - at - 4).map_err(std::io::Error::other)?;
        body[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }
    Ok(body.freeze())
}

pub(crate) fn decode_append(body: &Bytes) -> Result<AppendEntriesRequest<TypeConfig>, WireError> {
    let (head, entries): (AppendHead, &[u8]) = postcard::take_from_bytes(versioned(body)?)?;
    let mut rest = body.slice_ref(entries);
    // At most as many as there are headers in the body, whatever the head says.
    let mut decoded = Vec::with_capacity((head.count as usize).min(rest.len() / 4));
    for index in (head.first..).take(head.count as usize) {
        let Some((length, _)) = rest.split_first_chunk::<4>() else {
            return Err(WireError::Short(index));
        };
        let length = u32::from_le_bytes(*length) as usize;
        if rest.len() < 4 + length {
            return Err(WireError::Short(index));
        }
        let record = rest.slice(4..4 + length);
        rest = rest.slice(4 + length..);
        decoded.push(record::decode(index, &record)?);
    }
    Ok(AppendEntriesRequest {
        vote: head.ballot,
        prev_log_id: head.previous,
        leader_commit: head.committed,
        entries: decoded,
    })
}

/// The leader offers a snapshot: what it contains, in the order in which it is decoded.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) ballot: Ballot,
    pub(crate) meta: SnapshotMeta,
    pub(crate) sections: Vec<OfferedSection>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OfferedSection {
    pub(crate) id: String,
    pub(crate) length: u64,
    pub(crate) checksum: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum OfferAnswer {
    /// Send these, then offer again.
    Missing(Vec<String>),
    /// It is installed, or the receiver knows a higher ballot.
    Done(Ballot),
}

/// A piece of a section that was found missing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub(crate) ballot: Ballot,
    pub(crate) section: OfferedSection,
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

/// From which offset the receiver wants the next piece; the section's length when it is whole and stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PieceAnswer {
    pub(crate) next: u64,
}

/// A follower's question up to which index a read must wait.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ReadIndexAnswer {
    /// `None`: this node could not confirm that it leads.
    pub(crate) at: Option<LogId>,
}

/// A node that lost part of its log asks a peer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Fetch {
    /// How far do you reach?
    Extent,
    /// The entries from here on, as many as fit.
    Entries { from: u64 },
    /// A piece of a section of the snapshot that was named in the extent.
    Section { section: OfferedSection, offset: u64 },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum FetchAnswer {
    Extent(Box<Extent>),
    /// Records from the index that was asked for.
    Entries(Vec<Vec<u8>>),
    Section(Vec<u8>),
    /// What was asked for is not there any more: ask for the extent again.
    Gone,
}

/// What a node can give.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Extent {
    pub(crate) ballot: Option<Ballot>,
    /// Set if a majority has just confirmed that this node leads.
    pub(crate) settled: Option<LogId>,
    pub(crate) purged: Option<LogId>,
    /// The last entry in the log, acknowledged or not.
    pub(crate) last: Option<u64>,
    pub(crate) snapshot: Option<(SnapshotMeta, Vec<OfferedSection>)>,
}
