//! A node without a memory: either its cluster is new, or its files were removed.
//!
//! Every node that ever took part has a ballot on its disk. One that has none asks the other members whether they know
//! a cluster already. If they do, it was here before, as far as anybody can tell, and may have acknowledged entries
//! and given ballots that it does not remember: it takes the leader's whole log, and as its own ballot the highest
//! that any of the others knows, before it takes part. (A candidate keeps its own ballot before it asks for others',
//! so a ballot that was given and forgotten is known to the one it was given to; hence all must answer.)
//!
//! Known limit: a node that reaches nobody who knows the cluster takes it for a new one. So a node whose files were
//! removed is started while all others run.
//!
//! The ballot is stored last, so a crash in the middle leaves a node that still has none and begins anew.

use std::time::Duration;

use super::fetch::{ANSWER_WITHIN, Leader, NotYet, extents};
use super::options::Options;
use super::snapshot::Snapshots;
use super::store::Store;
use super::types::Ballot;
use super::wire::Extent;
use crate::{NodeId, PeerLink, StartError};

/// How long each of the others is waited for before the cluster is taken for a new one.
const FIRST_WORD: Duration = Duration::from_secs(1);

/// What the others say.
pub(crate) enum Found {
    /// Nobody knows of a cluster.
    Nothing,
    /// There is one, and this node now has what it needs to take part.
    Cluster,
}

/// Asks the other members, and catches up with the cluster if there is one.
pub(crate) async fn ask_first(
    options: &Options,
    store: &mut Store,
    snapshots: &Snapshots,
    link: &dyn PeerLink,
) -> Result<Found, StartError> {
    let unfinished =
        store.purged().is_some() || store.last().is_some_and(|last| last.index > 0) || snapshots.current().is_some();
    if !unfinished {
        let first = extents(options, link, FIRST_WORD).await;
        if !first.iter().any(|(_, extent)| extent.as_ref().is_ok_and(knows_a_cluster)) {
            return Ok(Found::Nothing);
        }
    }
    tracing::info!(node = %options.node, "there is a cluster already and this node remembers nothing; catching up");
    let attempts = async {
        while let Err(why) = attempt(options, store, snapshots, link).await {
            tracing::warn!(node = %options.node, %why, "catching up is tried again");
            tokio::time::sleep(options.election_max).await;
        }
    };
    if tokio::time::timeout(options.repair_within, attempts).await.is_err() {
        return Err(StartError::Damaged(format!(
            "node {} has no data, and its cluster exists: it may have acknowledged what it does not remember. Not all \
             other members answered within {:?} with a leader among them; start it again once \
             all of them run",
            options.node, options.repair_within
        )));
    }
    Ok(Found::Cluster)
}

/// More than the first entry, which each node makes by itself.
fn knows_a_cluster(extent: &Extent) -> bool {
    extent.settled.is_some() || extent.purged.is_some() || extent.last.is_some_and(|last| last > 0)
}

fn highest_ballot(extents: &[(NodeId, Result<Extent, NotYet>)]) -> Result<Option<Ballot>, NotYet> {
    let mut highest: Option<Ballot> = None;
    for (peer, extent) in extents {
        match extent {
            Ok(extent) if extent.ballot > highest => highest = extent.ballot,
            Ok(_) => {}
            Err(error) => return Err(NotYet::Lost { peer: *peer, why: error.to_string() }),
        }
    }
    Ok(highest)
}

async fn attempt(
    options: &Options,
    store: &mut Store,
    snapshots: &Snapshots,
    link: &dyn PeerLink,
) -> Result<(), NotYet> {
    let extents = extents(options, link, ANSWER_WITHIN).await;
    let ballot = highest_ballot(&extents)?;
    let leader = Leader::among(extents, link)?;
    let continues = match store.last() {
        Some(mine) => leader.has(mine).await?,
        None => false,
    };
    if !continues {
        store.begin_anew().await?;
        if let Some(last) = leader.take_snapshot(snapshots).await? {
            store.begin_after(last).await?;
        }
    }
    loop {
        let next = store.last().map_or(0, |last| last.index + 1);
        if next > leader.last {
            break;
        }
        store.append_raw(leader.entries(next).await?).await?;
    }
    if let Some(ballot) = ballot {
        // Not as one who follows or leads already: whoever leads says so again.
        store.keep_ballot(Ballot { committed: false, ..ballot }).await?;
    }
    Ok(())
}
