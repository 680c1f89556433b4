//! From files to a running replica: open, repair, restore, start Raft, make the cluster if there is none.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use openraft::errors::{InitializeError, RaftError};
use openraft::{BasicNode, Config, SnapshotPolicy};
use openraft_rt::watch::WatchReceiver;

use super::applier::{Applier, Progress};
use super::core::{Raft, Running, tell_status};
use super::join::{self, Found};
use super::machine::Machine;
use super::network::Links;
use super::options::Options;
use super::receiver::Receiver;
use super::repair;
use super::replica::Core;
use super::snapshot::Snapshots;
use super::status::status_of;
use super::store::Store;
use crate::files::{Damage, Disk, LogFiles, LogOptions, SnapshotStore, Spawn, StorageError};
use crate::runtime;
use crate::runtime::watch;
use crate::{DecodeError, PeerLink, StartError, Status};

/// The files of a node, as they were found.
pub(crate) struct Opened {
    pub(crate) files: LogFiles,
    pub(crate) snapshots: Snapshots,
    /// What may be gone from the snapshot; the log's own damage is in `files`.
    pub(crate) snapshot_damage: Option<Damage>,
}

pub(crate) async fn start<M: Machine>(
    options: Options,
    disk: Arc<dyn Disk>,
    spawn: Spawn,
    mut machine: M,
    link: Arc<dyn PeerLink>,
) -> Result<Arc<dyn Core>, StartError> {
    options.check()?;
    let storage = |source: io::Error| StartError::Storage { node: options.node, source };
    let mut opened = open(&options, disk).await?;
    if opened.snapshot_damage.is_none() {
        opened.snapshot_damage = opened.snapshots.check().await.map_err(storage)?;
    }
    let opened = repair::if_needed(&options, opened, &*link).await?;
    let snapshots = opened.snapshots;
    let mut store = Store::start(opened.files, spawn).map_err(storage)?;
    let is_new = !options.joins
        && store.ballot().is_none()
        && matches!(join::ask_first(&options, &mut store, &snapshots, &*link).await?, Found::Nothing);

    let mut restored = None;
    if let Some((meta, sections)) = snapshots.current() {
        let thawed = snapshots.load::<M>(&sections).await.map_err(|e| match e.downcast::<DecodeError>() {
            Ok(undecodable) => StartError::Snapshot(undecodable),
            Err(unreadable) => storage(unreadable),
        })?;
        machine.thaw(thawed);
        restored = Some(meta);
    }
    let (tell_progress, progress) = watch::channel(Progress::default());
    let applier = Applier::new(machine, restored, snapshots.clone(), tell_progress);
    let links = Links::<M> {
        node: options.node,
        link: Arc::clone(&link),
        snapshots: snapshots.clone(),
        append_within: options.append_within,
        chunk_bytes: options.chunk_bytes,
        machine: std::marker::PhantomData,
    };
    let config = Arc::new(config(&options).validate().map_err(|e| StartError::Options(e.to_string()))?);
    let raft = Raft::<M>::new(options.node.0, config, links, store.clone(), applier)
        .await
        .map_err(|fatal| StartError::Raft(fatal.to_string()))?;
    if is_new {
        form(&options, &raft).await?;
    }
    let initial = status_of(&raft.metrics().borrow_watched(), progress.borrow_watched().applied);
    let (tell, status) = watch::channel(Status { version: 1, ..initial });
    // Ends with Raft.
    drop(tokio::spawn(tell_status::<M>(raft.clone(), progress.clone(), tell)));
    Ok(Arc::new(Running {
        receiver: Receiver::new(raft.clone(), snapshots.clone(), progress.clone()),
        options,
        raft,
        link,
        store,
        snapshots,
        progress,
        status,
    }))
}

async fn open(options: &Options, disk: Arc<dyn Disk>) -> Result<Opened, StartError> {
    let log = LogOptions { id: options.log_id, segment_bytes: options.segment_bytes };
    let opened = runtime::beside(move || {
        let (snapshots, snapshot_damage) = SnapshotStore::open(Arc::clone(&disk))?;
        let (files, _found) = LogFiles::open(disk, log)?;
        let snapshot_damage = snapshot_damage.or_else(|| files.snapshot_is_gone(&snapshots));
        let snapshots = Snapshots::new(snapshots).map_err(|e| StorageError::Misuse(e.to_string()))?;
        let snapshot_damage = snapshot_damage.or_else(|| too_short(&files, &snapshots));
        Ok::<_, StorageError>(Opened { files, snapshots, snapshot_damage })
    });
    let storage = |source: io::Error| StartError::Storage { node: options.node, source };
    opened.await.map_err(storage)?.map_err(|error| match error.root() {
        StorageError::Newer { .. } => StartError::Newer(error.to_string()),
        StorageError::Damage(damage) => StartError::Damaged(format!(
            "node {} may have given a ballot that it does not remember ({damage}); remove its data directory and \
             start it again while all other members run: it takes everything from them",
            options.node
        )),
        _ => storage(error.into()),
    })
}

/// Says that the snapshot ends before the log begins.
fn too_short(files: &LogFiles, snapshots: &Snapshots) -> Option<Damage> {
    let (purged, (meta, _)) = (files.log.purged()?, snapshots.current()?);
    let end = meta.last_log_id.map_or(0, |last| last.index);
    let what = format!("it ends at record {end}, and the log was purged up to record {}", purged.index);
    (end < purged.index).then(|| Damage::whole("snapshot.manifest", 0, what))
}

fn config(options: &Options) -> Config {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    Config {
        cluster_name: "verdict".to_owned(),
        heartbeat_interval: millis(options.heartbeat),
        election_timeout_min: millis(options.election_min),
        election_timeout_max: millis(options.election_max),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(options.snapshot_every),
        max_in_snapshot_log_to_keep: options.keep_entries,
        // A purge costs a sync; whole files are freed anyway.
        purge_batch_size: (options.keep_entries / 4).max(1),
        // How near a new node must be before it gets a ballot.
        replication_lag_threshold: options.keep_entries,
        enable_pre_vote: Some(true),
        // What is acknowledged is not remembered over a restart, so a leader is elected anew.
        enable_leader_restore: Some(false),
        ..Config::default()
    }
}

/// Makes the cluster. The first member does so at once, each other one if it still knows no cluster a while later: all
/// of them with the same members, so that it does not matter who did, but candidates of equal standing that all begin
/// at once depose each other. If this node stops before it is durable, the log is empty at the next start and this is
/// done again.
async fn form<M: Machine>(options: &Options, raft: &Raft<M>) -> Result<(), StartError> {
    let rank = options.members.keys().take_while(|id| **id != options.node).count();
    let members: BTreeMap<u64, BasicNode> =
        options.members.iter().map(|(id, address)| (id.0, BasicNode::new(address))).collect();
    if rank == 0 {
        return initialize(raft, members).await;
    }
    let patience = options.election_max * 4 * u32::try_from(rank).unwrap_or(u32::MAX);
    let (node, raft) = (options.node, raft.clone());
    // Ends by itself; with a replica that has stopped meanwhile it does nothing.
    drop(tokio::spawn(async move {
        tokio::time::sleep(patience).await;
        if let Err(error) = initialize(&raft, members).await {
            tracing::warn!(%node, %error, "the cluster was not formed from here");
        }
    }));
    Ok(())
}

async fn initialize<M: Machine>(raft: &Raft<M>, members: BTreeMap<u64, BasicNode>) -> Result<(), StartError> {
    match raft.initialize(members).await {
        // Somebody was faster and this node follows already.
        Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
        Err(error) => Err(StartError::Raft(error.to_string())),
    }
}
