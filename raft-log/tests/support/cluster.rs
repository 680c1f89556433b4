//! Three replicas in this process, each on a disk of its own.

use std::sync::Arc;

use bytes::Bytes;
use verdict_raft_log::files::testing::SimDisk;
use verdict_raft_log::files::{Disk, RealDisk, Spawn};
use verdict_raft_log::{NodeId, Options, Position, ProposeError, ReadError, Replica, StartError};

use super::{Book, Net, disconnect, leader, options, status_where, try_join};

pub const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

/// Where a node keeps its files.
pub enum Stored {
    Really(tempfile::TempDir),
    Simulated(SimDisk),
}

pub struct Cluster {
    pub net: Arc<Net>,
    pub stores: Vec<Stored>,
    pub books: Vec<Book>,
    pub replicas: Vec<Replica>,
    change: fn(&mut Options),
}

impl Cluster {
    pub async fn on_real_disks(change: fn(&mut Options)) -> Self {
        Self::start(change, || Stored::Really(tempfile::tempdir().unwrap())).await
    }

    pub async fn on_simulated_disks(change: fn(&mut Options)) -> Self {
        Self::start(change, || Stored::Simulated(SimDisk::new())).await
    }

    async fn start(change: fn(&mut Options), store: fn() -> Stored) -> Self {
        let net = Arc::new(Net::default());
        let stores: Vec<_> = NODES.iter().map(|_| store()).collect();
        let mut cluster = Self { net, stores, books: vec![Book::default(); 3], replicas: Vec::new(), change };
        for at in 0..3 {
            let replica = cluster.launch(at).await;
            cluster.replicas.push(replica);
        }
        cluster
    }

    async fn launch(&mut self, at: usize) -> Replica {
        self.try_launch(at).await.unwrap()
    }

    async fn try_launch(&mut self, at: usize) -> Result<Replica, StartError> {
        let mut options = options(NODES[at], &NODES);
        (self.change)(&mut options);
        let disk: Arc<dyn Disk> = match &self.stores[at] {
            Stored::Really(dir) => Arc::new(RealDisk::open(dir.path()).unwrap()),
            Stored::Simulated(disk) => Arc::new(disk.mount()),
        };
        self.books[at] = Book::default();
        try_join(&self.net, options, disk, Spawn::Thread, self.books[at].clone()).await
    }

    pub async fn stop(&mut self, node: NodeId) -> usize {
        let at = self.at(node);
        disconnect(&self.net, node);
        self.replicas[at].clone().stop().await;
        at
    }

    pub async fn restart(&mut self, node: NodeId) {
        let at = self.at(node);
        self.replicas[at] = self.launch(at).await;
    }

    pub async fn try_restart(&mut self, node: NodeId) -> Result<(), StartError> {
        let at = self.at(node);
        self.replicas[at] = self.try_launch(at).await?;
        Ok(())
    }

    pub fn at(&self, node: NodeId) -> usize {
        NODES.iter().position(|id| *id == node).unwrap()
    }

    pub fn others(&self, node: NodeId) -> Vec<Replica> {
        self.replicas.iter().filter(|replica| replica.status().node != node).cloned().collect()
    }

    /// Proposes on whoever leads until it is applied.
    pub async fn write(&self, replicas: &[Replica], what: &str) {
        loop {
            let replica = leader(replicas).await;
            match replica.propose(Bytes::from(what.to_owned())).await {
                Ok(_) => return,
                Err(ProposeError::NotLeader { .. }) => {}
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }

    /// Reads on this node until a leader could confirm that it leads.
    pub async fn read(&self, replica: &Replica) -> Position {
        loop {
            match replica.read_barrier().await {
                Ok(at) => return at,
                Err(ReadError::NotLeader { .. }) => drop(leader(&self.replicas).await),
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn entries(&self, node: NodeId) -> Vec<Bytes> {
        self.books[self.at(node)].applied.lock().unwrap().iter().map(|(_, entry)| entry.clone()).collect()
    }

    /// Waits until all nodes have applied the same.
    pub async fn settle(&self) {
        let last = self.read(&leader(&self.replicas).await).await.index;
        for replica in &self.replicas {
            status_where(replica, "the last entry", |s| s.applied.is_some_and(|at| at.index >= last)).await;
        }
        for node in &NODES[1..] {
            assert_eq!(self.entries(*node), self.entries(NODES[0]));
        }
    }

    pub async fn end(self) {
        for replica in self.replicas {
            replica.stop().await;
        }
    }
}
