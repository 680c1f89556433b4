//! The seams of Verdict's processes, watched: the leader's links, the nodes' disks, the participants' rows.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::time::timeout;
use tonic::Request;
use verdict_client::{
    Clock as _,
    participant::{NotAnswered, OnePhase, Prepare, ResourceManager, Settle, Settled, Voted},
    resource::memory::MemoryManager,
};
use verdict_proto::peer::v1::{Message, peer_server::Peer as _};
use verdict_protocol::{BranchId, Conclusion, Outcome, ResourceName, Xid};
use verdict_raft_log::{
    LinkError, MessageKind, NodeId, PeerLink,
    files::{Disk, DiskFile, testing::Mount},
};
use verdict_server::{Links, Participants};

use super::{CLUSTER, NO, Nothing, PARTICIPANTS, TrueClock, World};
use crate::{
    classic::{row::Row, seen::What, wire::carry},
    logs,
};

/// A node's links: over the wire, and counted.
#[derive(Clone, Debug)]
pub(super) struct WatchedLinks {
    pub node: u64,
    pub world: Arc<World>,
}

impl Links for WatchedLinks {
    fn stream(&self, _: &ResourceName, plain: Arc<dyn ResourceManager>) -> Arc<dyn ResourceManager> {
        plain
    }

    fn participants(&self, resources: &BTreeMap<ResourceName, String>) -> Result<Participants, String> {
        let wrap = |name: &ResourceName| {
            let row = PARTICIPANTS.into_iter().position(|known| known == name.as_str());
            let row = row.ok_or_else(|| format!("there is no participant {name}"))?;
            let link = WatchedParticipant { world: Arc::clone(&self.world), row };
            Ok((name.clone(), Arc::new(link) as Arc<dyn ResourceManager>))
        };
        resources.keys().map(wrap).collect()
    }

    fn peers(&self, _: NodeId, _: Arc<dyn PeerLink>) -> Arc<dyn PeerLink> {
        Arc::new(self.clone())
    }
}

impl PeerLink for WatchedLinks {
    fn call(
        &self,
        to: NodeId,
        kind: MessageKind,
        body: Bytes,
        within: Duration,
    ) -> BoxFuture<'_, Result<Bytes, LinkError>> {
        Box::pin(async move {
            let (cluster, wall_ms) = (Bytes::from_static(CLUSTER.as_bytes()), TrueClock.now().as_millis());
            let message = Message { cluster, from: self.node, to: to.0, kind: kind.into(), body, wall_ms };
            let (world, seen) = (Arc::clone(&self.world), self.world.seen.clone());
            seen.add(What::PeerMessage);
            let begin = move || {
                let (machine, services) = world.services().get(&to.0)?.clone();
                Some((machine, async move { services.peer().call(Request::new(message)).await }))
            };
            let carried = carry(&self.world.wire, begin, move || seen.add(What::PeerMessage));
            match timeout(within, carried).await {
                Err(_) => Err(LinkError::TimedOut),
                Ok(None) => Err(LinkError::Unreachable("nobody is there".to_owned())),
                Ok(Some(Err(status))) => Err(LinkError::Unreachable(status.to_string())),
                Ok(Some(Ok(answer))) => Ok(answer.into_inner().body),
            }
        })
    }
}

/// A node's end of a link to a participant.
#[derive(Debug)]
struct WatchedParticipant {
    world: Arc<World>,
    row: usize,
}

impl WatchedParticipant {
    async fn carry<A, F>(
        &self,
        what: What,
        work: impl FnOnce(Arc<WatchedRow>) -> F + Send + 'static,
    ) -> Result<A, NotAnswered>
    where
        A: Send + 'static,
        F: Future<Output = Result<A, NotAnswered>> + Send + 'static,
    {
        let seen = self.world.seen.clone();
        seen.add(what);
        seen.add(What::Message);
        let (machine, manager) = self.world.participants[self.row].clone();
        let begin = move || Some((machine, work(manager)));
        let answer = carry(&self.world.wire, begin, move || seen.add(What::Message)).await;
        answer.unwrap_or_else(|| Err(NotAnswered::unavailable("nobody is there")))
    }

    fn acknowledged(&self, answer: Result<Settled, NotAnswered>) -> Result<Settled, NotAnswered> {
        if answer.is_ok() {
            self.world.seen.add(What::Acknowledged);
        }
        answer
    }
}

#[tonic::async_trait]
impl ResourceManager for WatchedParticipant {
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        self.world.asks.notify_waiters();
        let answer = self.carry(What::Asks, |to| async move { to.prepare(request).await }).await;
        if answer.is_ok() {
            self.world.votes.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered> {
        let told = What::Tells(Outcome::Committed);
        self.acknowledged(self.carry(told, |to| async move { to.commit(request).await }).await)
    }

    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        let told = What::Tells(Outcome::Aborted);
        self.acknowledged(self.carry(told, |to| async move { to.rollback(request).await }).await)
    }

    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        self.carry(What::Asks, |to| async move { to.commit_one_phase(request).await }).await
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        self.world.participants[self.row].1.recover(limit).await
    }
}

/// A participant: its contract in memory, its row and its disk as the classic coordinator's participants have them.
#[derive(Debug)]
pub(super) struct WatchedRow {
    pub row: Row<Xid>,
    pub manager: MemoryManager<Nothing>,
}

#[tonic::async_trait]
impl ResourceManager for WatchedRow {
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        self.row.prepare(request.branch.xid, request.payload != NO.as_bytes()).await;
        self.manager.prepare(request).await
    }

    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.row.settle(request.branch.xid).await;
        self.manager.commit(request).await
    }

    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.row.settle(request.branch.xid).await;
        self.manager.rollback(request).await
    }

    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        self.manager.commit_one_phase(request).await
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        self.manager.recover(limit).await
    }
}

/// A node's disk.
#[derive(Clone, Debug)]
pub(super) struct WatchedDisk {
    pub mount: Mount,
    pub node: u64,
    pub world: Arc<World>,
}

#[derive(Debug)]
struct WatchedFile {
    file: Box<dyn DiskFile>,
    disk: WatchedDisk,
    is_log: bool,
}

impl WatchedDisk {
    fn watch(&self, file: Box<dyn DiskFile>, name: &str) -> Box<dyn DiskFile> {
        Box::new(WatchedFile { file, disk: self.clone(), is_log: logs::is_segment(name) })
    }
}

impl Disk for WatchedDisk {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.watch(self.mount.create(name)?, name))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.watch(self.mount.open(name)?, name))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.mount.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.mount.rename(from, to)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.mount.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.mount.sync_dir()
    }
}

impl DiskFile for WatchedFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, bytes)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()?;
        let WatchedDisk { node, world, .. } = &self.disk;
        world.seen.add(What::NodeForced);
        // The first of the log after the last vote came is the one that decides.
        let leads = world.leader.load(Ordering::Relaxed) == *node;
        if leads && self.is_log && world.votes.load(Ordering::Relaxed) == PARTICIPANTS.len() {
            world.decided.notify_waiters();
        }
        Ok(())
    }

    fn write_zeros(&mut self, from: u64, to: u64) -> io::Result<()> {
        self.file.write_zeros(from, to)
    }
}
