//! How an entry is written, in the log and in messages.
//!
//! ```text
//! version 1 │ kind 1 │ term 8 │ leader 8 │ payload …          little endian; the index is the log's
//! ```

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use openraft::entry::RaftEntry;

use super::types::{Body, Entry, LeaderId, LogId, Members, Payload};

/// The first byte of each record. A node refuses one that is newer than its own.
const VERSION: u8 = 1;
const HEADER: usize = 18;

const BLANK: u8 = 0;
const NORMAL: u8 = 1;
const MEMBERS: u8 = 2;

/// How many bytes [`encode`] makes of it, for an entry that bears a command.
pub(crate) fn size(entry: &Entry) -> usize {
    match &entry.payload {
        Payload::Normal(body) => HEADER + body.0.len(),
        Payload::Blank | Payload::Membership(_) => HEADER + 256,
    }
}

/// Writes an entry without its index.
pub(crate) fn encode(entry: &Entry, into: &mut BytesMut) -> io::Result<()> {
    let kind = match &entry.payload {
        Payload::Blank => BLANK,
        Payload::Normal(_) => NORMAL,
        Payload::Membership(_) => MEMBERS,
    };
    into.put_u8(VERSION);
    into.put_u8(kind);
    into.put_u64_le(entry.log_id.leader_id.term);
    into.put_u64_le(entry.log_id.leader_id.node_id);
    match &entry.payload {
        Payload::Blank => {}
        Payload::Normal(body) => into.put_slice(&body.0),
        Payload::Membership(members) => {
            let encoded = postcard::to_allocvec(members).map_err(io::Error::other)?;
            into.put_slice(&encoded);
        }
    }
    Ok(())
}

/// Reads the entry at `index`. Its payload shares the record's memory.
pub(crate) fn decode(index: u64, record: &Bytes) -> io::Result<Entry> {
    let id = decode_id(index, record)?;
    let body = record.slice(HEADER..);
    let payload = match record[1] {
        BLANK => Payload::Blank,
        NORMAL => Payload::Normal(Body(body)),
        MEMBERS => {
            let members: Members = postcard::from_bytes(&body).map_err(|e| damaged(index, &e.to_string()))?;
            Payload::Membership(members)
        }
        other => return Err(damaged(index, &format!("kind {other} is unknown"))),
    };
    Ok(Entry::new(id, payload))
}

/// Reads who wrote the entry at `index`, and nothing else.
pub(crate) fn decode_id(index: u64, record: &[u8]) -> io::Result<LogId> {
    let Some(header) = record.get(..HEADER) else {
        return Err(damaged(index, "it is shorter than a header"));
    };
    if header[0] != VERSION {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "log entry {index} has format version {}, this node knows {VERSION}; run the version that wrote it",
                header[0]
            ),
        ));
    }
    let number = |from: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&header[from..from + 8]);
        u64::from_le_bytes(bytes)
    };
    Ok(LogId { leader_id: LeaderId { term: number(2), node_id: number(10) }, index })
}

fn damaged(index: u64, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("log entry {index} cannot be read: {what}"))
}
