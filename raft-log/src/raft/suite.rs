//! openraft's own suite for stores, on the real disk and on the simulated one.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::StorageError;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft_rt::AsyncRuntime;

use super::applier::{Applier, Progress};
use super::machine::{DecodeError, Machine, Section};
use super::snapshot::Snapshots;
use super::store::Store;
use super::types::{Ballot, Entry, LogId, TypeConfig};
use crate::Position;
use crate::files::testing::SimDisk;
use crate::files::{Disk, LogFiles, LogOptions, SnapshotStore, Spawn};
use crate::runtime::{Runtime, watch};

/// A machine that counts. Nothing counted is no section: the suite hands snapshots from one store to another without
/// their sections.
#[derive(Default)]
struct Counter(u64);

impl Machine for Counter {
    type Frozen = u64;
    type Thawed = u64;

    fn apply(&mut self, _at: Position, _entry: Bytes) -> Bytes {
        self.0 += 1;
        Bytes::new()
    }

    fn freeze(&mut self) -> u64 {
        self.0
    }

    fn encode(frozen: u64) -> Vec<Section> {
        if frozen == 0 {
            return Vec::new();
        }
        vec![Section::new(format!("count-{frozen}"), move || frozen.to_le_bytes().to_vec().into())]
    }

    fn decode(sections: Vec<(String, Bytes)>) -> Result<u64, DecodeError> {
        let Some((_, body)) = sections.first() else { return Ok(0) };
        Ok(u64::from_le_bytes(body[..].try_into().map_err(|e| DecodeError::caused_by("its length", e))?))
    }

    fn thaw(&mut self, thawed: u64) {
        self.0 = thawed;
    }
}

/// The store as the suite wants it: it begins some logs at index 1, which Raft never does and the store refuses.
struct FromAnywhere(Store);

impl RaftLogStorage<TypeConfig> for FromAnywhere {
    type LogReader = Store;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        self.0.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> Store {
        self.0.get_log_reader().await
    }

    async fn save_vote(&mut self, ballot: &Ballot) -> Result<(), io::Error> {
        self.0.save_vote(ballot).await
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let first = entries.first().map_or(0, |entry| entry.log_id.index);
        if self.0.is_new_log() && first > 0 {
            self.0.begin_at(first).await?;
        }
        self.0.append(entries, flushed).await
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        self.0.truncate_after(last).await
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        self.0.purge(upto).await
    }
}

fn build(disk: Arc<dyn Disk>, spawn: Spawn) -> (FromAnywhere, Applier<Counter>) {
    let (snapshots, damage) = SnapshotStore::open(Arc::clone(&disk)).unwrap();
    assert_eq!(damage, None);
    let (files, _) = LogFiles::open(disk, LogOptions { id: 1, segment_bytes: 4096 }).unwrap();
    let (tell, _progress) = watch::channel(Progress::default());
    let applier = Applier::new(Counter::default(), None, Snapshots::new(snapshots).unwrap(), tell);
    (FromAnywhere(Store::start(files, spawn).unwrap()), applier)
}

#[cfg(not(madsim))]
struct OnRealDisk;

#[cfg(not(madsim))]
impl StoreBuilder<TypeConfig, FromAnywhere, Applier<Counter>, tempfile::TempDir> for OnRealDisk {
    async fn build(&self) -> Result<(tempfile::TempDir, FromAnywhere, Applier<Counter>), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let (store, applier) = build(Arc::new(crate::files::RealDisk::open(dir.path()).unwrap()), Spawn::Thread);
        Ok((dir, store, applier))
    }
}

#[cfg(not(madsim))]
#[test]
fn passes_on_the_real_disk() {
    Runtime::new(2).block_on(Suite::test_all(OnRealDisk)).unwrap();
}

struct OnSimulatedDisk;

impl StoreBuilder<TypeConfig, FromAnywhere, Applier<Counter>, ()> for OnSimulatedDisk {
    async fn build(&self) -> Result<((), FromAnywhere, Applier<Counter>), StorageError<TypeConfig>> {
        let task = Spawn::Task { write: Duration::ZERO, sync: Duration::ZERO };
        let (store, applier) = build(Arc::new(SimDisk::new().mount()), task);
        Ok(((), store, applier))
    }
}

#[test]
fn passes_on_the_simulated_disk() {
    Runtime::new(2).block_on(Suite::test_all(OnSimulatedDisk)).unwrap();
}
