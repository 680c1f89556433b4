//! Giving a node back what its files lost, before Raft starts.
//!
//! ```text
//!   damaged node                                       peers
//!      │── Extent ───────────────────────────────────►│  one of them leads, and a majority confirmed it just now:
//!      │◄── settled index, purged, snapshot ──────────│  all that was ever acknowledged lies at or before that index
//!      │── Section … (what is missing of the snapshot, if the readable part of the log does not reach it)
//!      │── Entries … ────────────────────────────────►│
//!      │   finish: the repair counts, whole; then Raft starts
//! ```
//!
//! Promise: a node that may have forgotten what it acknowledged neither gives a ballot nor leads nor counts for a
//! majority before it has everything that was acknowledged by anybody when the leader was asked. (A node that just
//! went on with a shorter log could elect a leader that lacks acknowledged entries.) Questions change nothing at the
//! peer, so late and repeated ones do no harm. A crash in the middle leaves the log damaged, and it begins anew.

use std::time::Duration;

use futures_util::future::join_all;

use super::core::Running;
use super::machine::Machine;
use super::options::Options;
use super::record;
use super::snapshot::Current;
use super::start::Opened;
use super::store;
use super::types::LogId;
use super::wire::{self, Extent, Fetch, FetchAnswer, OfferedSection};
use crate::files::{LogFiles, Purged, Record, RepairFrom};
use crate::{MessageKind, NodeId, PeerLink, StartError};

/// How much of a section one answer carries.
const SECTION_PIECE: usize = 1 << 20;
/// How long a peer may take for one answer; a leader asks a majority first.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Answers a damaged peer.
pub(crate) async fn serve<M: Machine>(replica: &Running<M>, question: Fetch) -> std::io::Result<FetchAnswer> {
    let store = &replica.store;
    Ok(match question {
        Fetch::Extent => FetchAnswer::Extent(Extent {
            settled: replica.confirm_leadership().await.ok(),
            purged: store.purged(),
            last: store.last().map(|last| last.index),
            snapshot: replica.snapshots.current(),
        }),
        Fetch::Entries { from } => {
            let records = store.raw(from).await?;
            match records.first() {
                Some(first) if first.index == from => {
                    FetchAnswer::Entries(records.into_iter().map(|record| record.body.into()).collect())
                }
                _ => FetchAnswer::Gone,
            }
        }
        Fetch::Section { section, offset } => match replica.snapshots.section(&section).await {
            Ok(body) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(body.len());
                FetchAnswer::Section(body[start..(start + SECTION_PIECE).min(body.len())].to_vec())
            }
            Err(_) => FetchAnswer::Gone,
        },
    })
}

/// Why a repair did not work out this time.
#[derive(Debug, thiserror::Error)]
enum NotYet {
    #[error("no peer could confirm that it leads ({0})")]
    NoLeader(String),
    #[error("node {peer} stopped answering: {why}")]
    Lost { peer: NodeId, why: String },
    #[error("node {0} no longer has what it offered")]
    Gone(NodeId),
    #[error("node {0} answered something else than was asked")]
    Confused(NodeId),
    #[error("the snapshot of node {0} ends before this node's log begins; let it take a newer one")]
    Older(NodeId),
    #[error("writing what was fetched")]
    Storage(#[from] std::io::Error),
    #[error("writing what was fetched")]
    Files(#[from] crate::files::StorageError),
}

/// Repairs the files if they are damaged; asks again until it works or the time is over.
pub(crate) async fn if_needed(
    options: &Options,
    mut opened: Opened,
    link: &dyn PeerLink,
) -> Result<Opened, StartError> {
    let damage = match (opened.files.log.damage(), &opened.snapshot_damage) {
        (None, None) => return Ok(opened),
        (Some(damage), _) | (None, Some(damage)) => damage.to_string(),
    };
    tracing::warn!(node = %options.node, %damage, "acknowledged entries may be gone; fetching them before joining");
    let attempts = async {
        loop {
            match attempt(options, &mut opened, link).await {
                Ok(()) => return,
                Err(why) => tracing::warn!(node = %options.node, %why, "the repair is tried again"),
            }
            tokio::time::sleep(options.election_max).await;
        }
    };
    let repaired = tokio::time::timeout(options.repair_within, attempts).await;
    if repaired.is_err() {
        return Err(StartError::Damaged(format!(
            "node {}: {damage}. No peer could give it back within {:?}: a majority of the other nodes must be running \
             and connected. Start again once it is",
            options.node, options.repair_within
        )));
    }
    tracing::info!(node = %options.node, "repaired");
    Ok(opened)
}

async fn ask(link: &dyn PeerLink, peer: NodeId, question: &Fetch) -> Result<FetchAnswer, NotYet> {
    let lost = |why: String| NotYet::Lost { peer, why };
    let body = wire::encode(question).map_err(|e| lost(e.to_string()))?;
    let answer = link.call(peer, MessageKind::Fetch, body, ANSWER_WITHIN).await.map_err(|e| lost(e.to_string()))?;
    wire::decode(&answer).map_err(|e| lost(e.to_string()))
}

/// A peer that leads, with what it can give.
async fn find_leader(options: &Options, link: &dyn PeerLink) -> Result<(NodeId, Extent, LogId), NotYet> {
    let peers: Vec<NodeId> = options.members.keys().copied().filter(|id| *id != options.node).collect();
    let answers = join_all(peers.iter().map(|peer| ask(link, *peer, &Fetch::Extent))).await;
    let mut why = Vec::new();
    for (peer, answer) in peers.into_iter().zip(answers) {
        match answer {
            Ok(FetchAnswer::Extent(extent)) => match extent.settled {
                Some(settled) => return Ok((peer, extent, settled)),
                None => why.push(format!("node {peer} does not lead")),
            },
            Ok(_) => why.push(NotYet::Confused(peer).to_string()),
            Err(error) => why.push(error.to_string()),
        }
    }
    Err(NotYet::NoLeader(why.join("; ")))
}

async fn attempt(options: &Options, opened: &mut Opened, link: &dyn PeerLink) -> Result<(), NotYet> {
    let (leader, extent, settled) = find_leader(options, link).await?;
    let kept = match last_readable(&opened.files)? {
        Some(mine) if opened.snapshot_damage.is_none() => common(mine, link, leader).await?,
        _ => None,
    };
    let from = match kept {
        Some(index) => RepairFrom::After(index),
        None => RepairFrom::Start(match extent.snapshot {
            Some(snapshot) => Some(fetch_snapshot(opened, link, leader, snapshot).await?),
            None => None,
        }),
    };
    if opened.files.log.damage().is_none() {
        // Only the snapshot was damaged, and a whole one is here now. The log must not begin after its end.
        let reached = if let RepairFrom::Start(Some(purged)) = &from { Some(purged.index) } else { None };
        if reached < opened.files.log.purged().map(|purged| purged.index) {
            return Err(NotYet::Older(leader));
        }
        opened.snapshot_damage = None;
        return Ok(());
    }
    let mut repair = opened.files.log.repair(from)?;
    while repair.next_index() <= settled.index {
        let from = repair.next_index();
        let FetchAnswer::Entries(bodies) = ask(link, leader, &Fetch::Entries { from }).await? else {
            return Err(NotYet::Gone(leader));
        };
        if bodies.is_empty() {
            return Err(NotYet::Confused(leader));
        }
        let records: Vec<Record> = (from..)
            .zip(bodies)
            .take_while(|(index, _)| *index <= settled.index)
            .map(|(i, b)| Record::new(i, b))
            .collect();
        for record in &records {
            record::decode_id(record.index, &record.body)?;
        }
        repair.push(&records)?;
    }
    // Whatever else was lost was acknowledged by nobody: a majority confirmed it, and this node is not needed for one.
    repair.finish_settled()?;
    opened.snapshot_damage = None;
    Ok(())
}

fn last_readable(files: &LogFiles) -> Result<Option<LogId>, NotYet> {
    let records = files.log.records();
    let Some(last) = records.end.checked_sub(1).filter(|last| records.contains(last)) else {
        return Ok(None);
    };
    let read = files.log.read(last..last + 1, usize::MAX)?;
    Ok(read.first().map(|record| record::decode_id(last, &record.body)).transpose()?)
}

/// The last readable entry, if the leader has the same one.
async fn common(mine: LogId, link: &dyn PeerLink, leader: NodeId) -> Result<Option<u64>, NotYet> {
    let FetchAnswer::Entries(theirs) = ask(link, leader, &Fetch::Entries { from: mine.index }).await? else {
        return Ok(None);
    };
    let same = match theirs.first() {
        Some(theirs) => record::decode_id(mine.index, theirs)? == mine,
        None => false,
    };
    Ok(same.then_some(mine.index))
}

/// Fetches what is missing of the leader's snapshot and makes it the current one.
async fn fetch_snapshot(
    opened: &mut Opened,
    link: &dyn PeerLink,
    leader: NodeId,
    (meta, sections): Current,
) -> Result<Purged, NotYet> {
    let snapshots = opened.snapshots.clone();
    let missing = snapshots.missing(&sections).await?;
    for section in sections.iter().filter(|section| missing.contains(&section.id)) {
        let body = fetch_section(link, leader, section).await?;
        snapshots.stage(section, body.into()).await?;
    }
    let last = meta.last_log_id.ok_or(NotYet::Confused(leader))?;
    snapshots.replace(meta, sections).await?;
    Ok(Purged { index: last.index, mark: store::encode(&last)? })
}

async fn fetch_section(link: &dyn PeerLink, leader: NodeId, section: &OfferedSection) -> Result<Vec<u8>, NotYet> {
    let mut body = Vec::new();
    while (body.len() as u64) < section.length {
        let question = Fetch::Section { section: section.clone(), offset: body.len() as u64 };
        match ask(link, leader, &question).await? {
            FetchAnswer::Section(piece) if !piece.is_empty() => body.extend_from_slice(&piece),
            FetchAnswer::Section(_) => return Err(NotYet::Confused(leader)),
            _ => return Err(NotYet::Gone(leader)),
        }
    }
    Ok(body)
}
