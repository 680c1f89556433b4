//! Asking peers for what this node does not have, and answering those who ask.
//!
//! Questions change nothing at the peer, so late and repeated ones do no harm.

use std::time::Duration;

use futures_util::future::join_all;

use super::core::Running;
use super::machine::Machine;
use super::options::Options;
use super::record;
use super::snapshot::{Current, Snapshots};
use super::types::LogId;
use super::wire::{self, Extent, Fetch, FetchAnswer, OfferedSection};
use crate::files::Record;
use crate::{MessageKind, NodeId, PeerLink};

/// How much of a section one answer carries.
const SECTION_PIECE: usize = 1 << 20;
/// How long a peer may take for one answer; a leader asks a majority first.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Answers a peer.
pub(crate) async fn serve<M: Machine>(replica: &Running<M>, question: Fetch) -> std::io::Result<FetchAnswer> {
    let store = &replica.store;
    Ok(match question {
        Fetch::Extent => {
            // First of all: what this node acknowledged as leader before it was confirmed is in its log now.
            let settled = replica.confirm_leadership().await.ok();
            FetchAnswer::Extent(Box::new(Extent {
                ballot: store.ballot(),
                settled,
                purged: store.purged(),
                last: store.last().map(|last| last.index),
                snapshot: replica.snapshots.current(),
            }))
        }
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

/// Why it did not work out this time.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotYet {
    #[error("no peer could confirm that it leads ({0})")]
    NoLeader(String),
    #[error("node {peer} does not answer: {why}")]
    Lost { peer: NodeId, why: String },
    #[error("node {0} no longer has what it offered")]
    Gone(NodeId),
    #[error("node {0} answered something else than was asked")]
    Confused(NodeId),
    #[error("storing what was fetched: {0}")]
    Storage(#[from] std::io::Error),
    #[error("storing what was fetched: {0}")]
    Files(#[from] crate::files::StorageError),
}

async fn ask(link: &dyn PeerLink, peer: NodeId, question: &Fetch) -> Result<FetchAnswer, NotYet> {
    ask_within(link, peer, question, ANSWER_WITHIN).await
}

async fn ask_within(
    link: &dyn PeerLink,
    peer: NodeId,
    question: &Fetch,
    within: Duration,
) -> Result<FetchAnswer, NotYet> {
    let lost = |why: String| NotYet::Lost { peer, why };
    let body = wire::encode(question).map_err(|e| lost(e.to_string()))?;
    let answer = link.call(peer, MessageKind::Fetch, body, within).await.map_err(|e| lost(e.to_string()))?;
    wire::decode(&answer).map_err(|e| lost(e.to_string()))
}

/// What each of the other members can give, in the order of their ids. Each is waited for so long.
pub(crate) async fn extents(
    options: &Options,
    link: &dyn PeerLink,
    within: Duration,
) -> Vec<(NodeId, Result<Extent, NotYet>)> {
    let peers: Vec<NodeId> = options.members.keys().copied().filter(|id| *id != options.node).collect();
    let answers = join_all(peers.iter().map(|peer| ask_within(link, *peer, &Fetch::Extent, within))).await;
    let extent = |(peer, answer)| match answer {
        Ok(FetchAnswer::Extent(extent)) => (peer, Ok(*extent)),
        Ok(_) => (peer, Err(NotYet::Confused(peer))),
        Err(error) => (peer, Err(error)),
    };
    peers.into_iter().zip(answers).map(extent).collect()
}

/// A peer that leads, confirmed by a majority just now.
pub(crate) struct Leader<'a> {
    link: &'a dyn PeerLink,
    pub(crate) node: NodeId,
    /// The last entry of its log. All that was ever acknowledged, and all that this node ever confirmed to this
    /// leader, lies at or before it.
    pub(crate) last: u64,
    pub(crate) snapshot: Option<Current>,
}

impl<'a> Leader<'a> {
    /// Picks the leader out of the answers.
    pub(crate) fn among(
        extents: Vec<(NodeId, Result<Extent, NotYet>)>,
        link: &'a dyn PeerLink,
    ) -> Result<Self, NotYet> {
        let mut why = Vec::new();
        for (node, extent) in extents {
            match extent {
                Ok(Extent { settled: Some(settled), last, snapshot, .. }) => {
                    return Ok(Self { link, node, last: last.unwrap_or_default().max(settled.index), snapshot });
                }
                Ok(_) => why.push(format!("node {node} does not lead")),
                Err(error) => why.push(error.to_string()),
            }
        }
        Err(NotYet::NoLeader(why.join("; ")))
    }

    /// Entries from here on, at least one, and none behind [`Leader::last`].
    pub(crate) async fn entries(&self, from: u64) -> Result<Vec<Record>, NotYet> {
        let FetchAnswer::Entries(bodies) = ask(self.link, self.node, &Fetch::Entries { from }).await? else {
            return Err(NotYet::Gone(self.node));
        };
        let numbered = (from..=self.last).zip(bodies);
        let records: Vec<Record> = numbered.map(|(index, body)| Record::new(index, body)).collect();
        if records.is_empty() {
            return Err(NotYet::Confused(self.node));
        }
        for record in &records {
            record::decode_id(record.index, &record.body)?;
        }
        Ok(records)
    }

    /// Whether the leader has this entry too.
    pub(crate) async fn has(&self, mine: LogId) -> Result<bool, NotYet> {
        match ask(self.link, self.node, &Fetch::Entries { from: mine.index }).await? {
            FetchAnswer::Entries(theirs) => match theirs.first() {
                Some(theirs) => Ok(record::decode_id(mine.index, theirs)? == mine),
                None => Ok(false),
            },
            _ => Ok(false),
        }
    }

    /// Fetches what is missing of the leader's snapshot and makes it the current one; `None` if it has none.
    pub(crate) async fn take_snapshot(&self, snapshots: &Snapshots) -> Result<Option<LogId>, NotYet> {
        let Some((meta, sections)) = self.snapshot.clone() else { return Ok(None) };
        let missing = snapshots.missing(&sections).await?;
        for section in sections.iter().filter(|section| missing.contains(&section.id)) {
            let body = self.section(section).await?;
            snapshots.stage(section, body.into()).await?;
        }
        let last = meta.last_log_id.ok_or(NotYet::Confused(self.node))?;
        snapshots.replace(meta, sections).await?;
        Ok(Some(last))
    }

    async fn section(&self, section: &OfferedSection) -> Result<Vec<u8>, NotYet> {
        let mut body = Vec::new();
        while (body.len() as u64) < section.length {
            let question = Fetch::Section { section: section.clone(), offset: body.len() as u64 };
            match ask(self.link, self.node, &question).await? {
                FetchAnswer::Section(piece) if !piece.is_empty() => body.extend_from_slice(&piece),
                FetchAnswer::Section(_) => return Err(NotYet::Confused(self.node)),
                _ => return Err(NotYet::Gone(self.node)),
            }
        }
        Ok(body)
    }
}
