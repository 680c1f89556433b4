//! Giving a node back what its files lost, before Raft starts.
//!
//! ```text
//!   damaged node                                       peers
//!      │── Extent ───────────────────────────────────►│  one of them leads, and a majority confirmed it just now
//!      │◄── last index, snapshot ─────────────────────│
//!      │── Section … (what is missing of the snapshot, if the readable part of the log is not the leader's)
//!      │── Entries … ────────────────────────────────►│  up to the end of the leader's log
//!      │   finish: the repair counts, whole; then Raft starts
//! ```
//!
//! Promise: a node that may have forgotten what it acknowledged neither gives a ballot nor leads nor counts for a
//! majority before it has everything that was acknowledged by anybody when the leader was asked. (A node that just
//! went on with a shorter log could elect a leader that lacks acknowledged entries.) It takes the leader's whole log,
//! settled or not: an answer of its own from before may still be on the way and count. A crash in the middle leaves
//! the log damaged, and it begins anew.

use super::fetch::{ANSWER_WITHIN, Leader, NotYet, extents};
use super::options::Options;
use super::record;
use super::start::Opened;
use super::store;
use super::types::LogId;
use crate::files::{LogFiles, Purged, RepairFrom};
use crate::{PeerLink, StartError};

/// Repairs the files if they are damaged; asks again until it works, the disk fails, or the time is over.
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
    let failed = |source| StartError::Storage { node: options.node, source };
    let attempts = async {
        loop {
            match attempt(options, &mut opened, link).await {
                Ok(()) => return Ok(()),
                // What a disk that failed once holds is not known: not in this run.
                Err(NotYet::Storage(source)) => return Err(failed(source)),
                Err(NotYet::Files(error)) => return Err(failed(std::io::Error::other(error))),
                Err(why) => {
                    tracing::warn!(node = %options.node, %why, "the repair is tried again");
                    tokio::time::sleep(options.election_max).await;
                }
            }
        }
    };
    tokio::time::timeout(options.repair_within, attempts).await.unwrap_or_else(|_| {
        Err(StartError::Damaged(format!(
            "node {}: {damage}. No peer could give it back within {:?}: a majority of the other nodes must be running \
             and connected. Start again once it is",
            options.node, options.repair_within
        )))
    })?;
    tracing::info!(node = %options.node, "repaired");
    Ok(opened)
}

async fn attempt(options: &Options, opened: &mut Opened, link: &dyn PeerLink) -> Result<(), NotYet> {
    let leader = Leader::among(extents(options, link, ANSWER_WITHIN).await, link)?;
    let kept = match last_readable(&opened.files)? {
        Some(mine) if opened.snapshot_damage.is_none() && leader.has(mine).await? => Some(mine.index),
        _ => None,
    };
    let from = match kept {
        Some(index) => RepairFrom::After(index),
        None => RepairFrom::Start(match leader.take_snapshot(&opened.snapshots.clone()).await? {
            Some(last) => Some(Purged { index: last.index, mark: store::encode(&last)? }),
            None => None,
        }),
    };
    if opened.files.log.damage().is_none() {
        // Only the snapshot was damaged, and a whole one is here now.
        let reached = if let RepairFrom::Start(Some(purged)) = &from { Some(purged.index) } else { None };
        if reached >= opened.files.log.purged().map(|purged| purged.index) {
            opened.snapshot_damage = None;
            return Ok(());
        }
        // It ends before this node's log begins: the log is taken anew behind it. A crash on the way leaves a snapshot
        // that does not reach the log, which is damage again.
        if let Some(damage) = opened.snapshot_damage.clone() {
            opened.files.log.distrust(damage);
        }
    }
    let mut repair = opened.files.log.repair(from)?;
    while repair.next_index() <= leader.last {
        repair.push(&leader.entries(repair.next_index()).await?)?;
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
