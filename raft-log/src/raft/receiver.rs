//! The receiving side of a snapshot transfer: offer, missing, pieces, offer again, install.
//!
//! What a message means when it comes late, twice or out of order: an offer says all by itself and may come any time;
//! a piece that does not continue what is here is answered with the offset that is wanted; both are weighed by their
//! ballot, so a deposed leader's change nothing that matters. What has been received survives as whole sections.

use openraft::Raft;
use openraft::storage::Snapshot;
use openraft_rt::watch::WatchReceiver;

use super::applier::{Applier, Progress};
use super::machine::Machine;
use super::snapshot::{SnapshotData, Snapshots};
use super::types::{Ballot, TypeConfig};
use super::wire::{Offer, OfferAnswer, OfferedSection, Piece, PieceAnswer};
use crate::runtime::watch::OrderedReceiver;

/// Sections larger than this are refused: they are gathered in memory, as the machine keeps them anyway.
const SECTION_LIMIT: u64 = 1 << 30;

pub(crate) struct Receiver<M: Machine> {
    raft: Raft<TypeConfig, Applier<M>>,
    snapshots: Snapshots,
    progress: OrderedReceiver<Progress>,
    /// One transfer at a time.
    gathering: tokio::sync::Mutex<Gathering>,
}

#[derive(Default)]
struct Gathering {
    ballot: Option<Ballot>,
    section: Option<(OfferedSection, Vec<u8>)>,
}

/// Why a snapshot message was not answered; the leader begins again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("{0}")]
    Storage(#[from] std::io::Error),
    #[error("a section of {0} bytes is more than the {SECTION_LIMIT} that this node takes")]
    TooLarge(u64),
    #[error("section {0} arrived with a wrong checksum")]
    Corrupt(String),
    #[error("{0}")]
    Stopped(String),
}

impl<M: Machine> Receiver<M> {
    pub(crate) fn new(
        raft: Raft<TypeConfig, Applier<M>>,
        snapshots: Snapshots,
        progress: OrderedReceiver<Progress>,
    ) -> Self {
        Self { raft, snapshots, progress, gathering: tokio::sync::Mutex::default() }
    }

    fn higher_ballot(&self, than: Ballot) -> Option<Ballot> {
        let mine = self.raft.metrics().borrow_watched().vote;
        (mine > than).then_some(mine)
    }

    pub(crate) async fn offered(&self, offer: Offer) -> Result<OfferAnswer, ReceiveError> {
        if let Some(higher) = self.higher_ballot(offer.ballot) {
            return Ok(OfferAnswer::Done(higher));
        }
        let mut gathering = self.gathering.lock().await;
        gathering.section = None;
        let known = offer.meta.last_log_id <= self.progress.borrow_watched().applied;
        let thawed = if known {
            None
        } else {
            let missing = self.snapshots.missing(&offer.sections).await?;
            if !missing.is_empty() {
                return Ok(OfferAnswer::Missing(missing));
            }
            Some(self.snapshots.load::<M>(&offer.sections).await?)
        };
        let snapshot = Snapshot { meta: offer.meta, snapshot: SnapshotData { sections: offer.sections, thawed } };
        let installed = self.raft.install_full_snapshot(offer.ballot, snapshot).await;
        installed.map(|answer| OfferAnswer::Done(answer.vote)).map_err(|e| ReceiveError::Stopped(e.to_string()))
    }

    pub(crate) async fn piece(&self, piece: Piece) -> Result<PieceAnswer, ReceiveError> {
        if piece.section.length > SECTION_LIMIT {
            return Err(ReceiveError::TooLarge(piece.section.length));
        }
        let mut gathering = self.gathering.lock().await;
        if gathering.ballot.is_some_and(|ballot| ballot > piece.ballot) {
            return Ok(PieceAnswer { next: 0 });
        }
        gathering.ballot = Some(piece.ballot);
        if self.snapshots.has(&piece.section).await? {
            return Ok(PieceAnswer { next: piece.section.length });
        }
        let (section, mut body) = match gathering.section.take() {
            Some((section, body)) if section == piece.section => (section, body),
            _ => (piece.section, Vec::new()),
        };
        let have = body.len() as u64;
        if piece.offset == have && have + piece.bytes.len() as u64 <= section.length {
            body.extend_from_slice(&piece.bytes);
        }
        let next = body.len() as u64;
        if next < section.length {
            gathering.section = Some((section, body));
            return Ok(PieceAnswer { next });
        }
        if crc32c::crc32c(&body) != section.checksum {
            return Err(ReceiveError::Corrupt(section.id));
        }
        self.snapshots.stage(&section, body.into()).await?;
        Ok(PieceAnswer { next })
    }
}
