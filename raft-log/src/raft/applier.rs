//! The apply worker: committed entries into the machine, snapshots out of it and into it.
//!
//! Promise: the machine is touched by nobody else, in index order. What takes long about a snapshot (making, writing,
//! reading and decoding its sections) happens beside this worker; on it happen `freeze`, `thaw` and the replacement
//! of the manifest.

use std::io;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot};
use openraft_rt::watch::WatchSender;

use super::machine::Machine;
use super::snapshot::{SnapshotData, Snapshots};
use super::types::{Body, LogId, Payload, SnapshotMeta, StoredMembers, TypeConfig, position};
use crate::runtime;
use crate::runtime::watch::OrderedSender;

type RaftSnapshot<M> = openraft::type_config::alias::SnapshotOf<TypeConfig, SnapshotData<M>>;

/// Where the machine stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) applied: Option<LogId>,
}

pub(crate) struct Applier<M> {
    /// Nobody ever locks it: it is only there because Raft wants to share references to this.
    machine: Mutex<M>,
    applied: Option<LogId>,
    members: StoredMembers,
    snapshots: Snapshots,
    progress: OrderedSender<Progress>,
}

impl<M: Machine> Applier<M> {
    /// Takes over a machine that stands where the snapshot of `meta` left it, or at the very beginning.
    pub(crate) fn new(
        machine: M,
        meta: Option<SnapshotMeta>,
        snapshots: Snapshots,
        progress: OrderedSender<Progress>,
    ) -> Self {
        let meta = meta.unwrap_or_default();
        let applier = Self {
            machine: Mutex::new(machine),
            applied: meta.last_log_id,
            members: meta.last_membership,
            snapshots,
            progress,
        };
        applier.tell();
        applier
    }

    fn tell(&self) {
        let applied = self.applied;
        self.progress.send_if_different(Progress { applied });
    }

    fn machine(&mut self) -> &mut M {
        self.machine.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn stored(&self) -> Option<RaftSnapshot<M>> {
        let (meta, sections) = self.snapshots.current()?;
        Some(Snapshot { meta, snapshot: SnapshotData { sections, thawed: None } })
    }
}

impl<M: Machine> RaftStateMachine<TypeConfig> for Applier<M> {
    type SnapshotData = SnapshotData<M>;
    type SnapshotBuilder = Builder<M>;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembers), io::Error> {
        Ok((self.applied, self.members.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + Send,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let answer = match entry.payload {
                Payload::Blank => Bytes::new(),
                Payload::Normal(command) => self.machine().apply(position(&entry.log_id), command.0),
                Payload::Membership(members) => {
                    self.members = StoredMembers::new(Some(entry.log_id), members);
                    Bytes::new()
                }
            };
            self.applied = Some(entry.log_id);
            if let Some(responder) = responder {
                responder.send(Body(answer));
            }
        }
        self.tell();
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder<M> {
        let meta = SnapshotMeta { last_log_id: self.applied, last_membership: self.members.clone() };
        Builder { frozen: Mutex::new(Some(self.machine().freeze())), meta, snapshots: self.snapshots.clone() }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, data: SnapshotData<M>) -> Result<(), io::Error> {
        if meta.last_log_id < self.applied {
            // Late: the log has gone on meanwhile, and the state with it.
            return Ok(());
        }
        let thawed = match data.thawed {
            Some(thawed) => {
                self.snapshots.replace(meta.clone(), data.sections).await?;
                thawed
            }
            None => {
                let thawed = self.snapshots.load::<M>(&data.sections).await?;
                if self.snapshots.current().is_none_or(|(current, _)| current != *meta) {
                    self.snapshots.replace(meta.clone(), data.sections).await?;
                }
                thawed
            }
        };
        self.machine().thaw(thawed);
        self.applied = meta.last_log_id;
        self.members = meta.last_membership.clone();
        self.tell();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<RaftSnapshot<M>>, io::Error> {
        Ok(self.stored())
    }
}

/// A state that was frozen, on its way into the snapshot store.
pub(crate) struct Builder<M: Machine> {
    frozen: Mutex<Option<M::Frozen>>,
    meta: SnapshotMeta,
    snapshots: Snapshots,
}

impl<M: Machine> RaftSnapshotBuilder<TypeConfig> for Builder<M> {
    type SnapshotData = SnapshotData<M>;

    async fn build_snapshot(&mut self) -> Result<RaftSnapshot<M>, io::Error> {
        let frozen = self.frozen.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(frozen) = frozen {
            let sections = runtime::beside(move || M::encode(frozen)).await?;
            self.snapshots.build(self.meta.clone(), sections).await?;
        }
        // A newer one may have been installed meanwhile; then that one is the current snapshot.
        let (meta, sections) = self.snapshots.current().ok_or_else(|| io::Error::other("no snapshot is stored"))?;
        Ok(Snapshot { meta, snapshot: SnapshotData { sections, thawed: None } })
    }
}
