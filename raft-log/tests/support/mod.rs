//! A cluster in one process: replicas, links in memory that can be cut, and a machine that remembers all it applied.

#![allow(
    dead_code,
    unreachable_pub,
    missing_debug_implementations,
    clippy::unwrap_used,
    reason = "shared by several test files, each of which uses a part"
)]

#[cfg(not(madsim))]
pub mod cluster;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use verdict_raft_log::files::{Disk, Spawn};
use verdict_raft_log::{
    DecodeError, LinkError, Machine, MessageKind, NodeId, Options, PeerLink, Position, Replica, Section, StartError,
    Status,
};

/// What a machine has applied, oldest first.
pub type Applied = Vec<(Position, Bytes)>;

/// A machine that remembers all it applied. Its sections: sealed ones of 50 entries each, and an open one.
#[derive(Clone, Default)]
pub struct Book {
    pub applied: Arc<Mutex<Applied>>,
    pub thaws: Arc<Mutex<u64>>,
}

const PAGE: usize = 50;

impl Machine for Book {
    type Frozen = Applied;
    type Thawed = Applied;

    fn apply(&mut self, at: Position, entry: Bytes) -> Bytes {
        let mut applied = self.applied.lock().unwrap();
        if let Some((last, _)) = applied.last() {
            assert!(last.index < at.index, "{at} was applied after {last}");
        }
        applied.push((at, entry));
        Bytes::from(applied.len().to_string())
    }

    fn freeze(&mut self) -> Applied {
        self.applied.lock().unwrap().clone()
    }

    fn encode(frozen: Applied) -> Vec<Section> {
        let pages = frozen.chunks(PAGE).map(|page| {
            let page = page.to_vec();
            let last = page.last().unwrap().0.index;
            let sealed = page.len() == PAGE;
            let id = if sealed { format!("sealed-{last}") } else { format!("open-{last}") };
            Section::new(id, move || {
                let rows: Vec<(Position, Vec<u8>)> = page.into_iter().map(|(at, entry)| (at, entry.to_vec())).collect();
                postcard::to_allocvec(&rows).unwrap().into()
            })
        });
        pages.collect()
    }

    fn decode(sections: Vec<(String, Bytes)>) -> Result<Applied, DecodeError> {
        let mut all = Vec::new();
        for (id, body) in sections {
            let rows: Vec<(Position, Vec<u8>)> =
                postcard::from_bytes(&body).map_err(|e| DecodeError::caused_by(format!("section {id}"), e))?;
            all.extend(rows.into_iter().map(|(at, entry)| (at, Bytes::from(entry))));
        }
        Ok(all)
    }

    fn thaw(&mut self, thawed: Applied) {
        *self.thaws.lock().unwrap() += 1;
        *self.applied.lock().unwrap() = thawed;
    }
}

/// Runs work where a node lives.
pub type Place = Arc<dyn Fn(BoxFuture<'static, ()>) + Send + Sync>;

/// The network of a cluster.
#[derive(Default)]
pub struct Net {
    replicas: Mutex<BTreeMap<NodeId, Replica>>,
    cut: Mutex<BTreeSet<(NodeId, NodeId)>>,
    /// How many messages were sent, by sender, receiver and kind.
    pub sent: Mutex<BTreeMap<(NodeId, NodeId, u32), u64>>,
    /// Pieces of sections, as they were sent.
    pub pieces: Mutex<Vec<Bytes>>,
    /// How many of the next messages of each kind are lost.
    pub lose: Mutex<BTreeMap<u32, u64>>,
    /// How long a message is under way, each time.
    pub delay: Mutex<Option<fn() -> Duration>>,
    /// Where a node's answers are worked out; with the asker if it is not said.
    pub places: Mutex<BTreeMap<NodeId, Place>>,
}

impl Net {
    /// No message passes between this node and the others.
    pub fn isolate(&self, node: NodeId, nodes: &[NodeId]) {
        let mut cut = self.cut.lock().unwrap();
        for other in nodes.iter().filter(|other| **other != node) {
            cut.extend([(node, *other), (*other, node)]);
        }
    }

    pub fn heal(&self) {
        self.cut.lock().unwrap().clear();
    }

    /// How many messages of a kind a node sent.
    pub fn sent_by(&self, from: NodeId, kind: MessageKind) -> u64 {
        let sent = self.sent.lock().unwrap();
        let those = sent.iter().filter(|((sender, _, k), _)| *sender == from && *k == u32::from(kind));
        those.map(|(_, count)| count).sum()
    }

    /// Whether something that happens so many times in a hundred happens now. Never, where links are not delayed.
    fn chance(&self, percent: u64) -> bool {
        let delay = *self.delay.lock().unwrap();
        delay.is_some_and(|delay| delay().as_nanos() % 100 < u128::from(percent))
    }

    fn loses(&self, kind: MessageKind) -> bool {
        let mut lose = self.lose.lock().unwrap();
        let left = lose.get_mut(&kind.into()).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    }

    fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.cut.lock().unwrap().contains(&(from, to))
    }
}

/// One node's end of the network.
pub struct Link {
    pub net: Arc<Net>,
    pub from: NodeId,
}

impl Link {
    async fn carry(&self, to: NodeId, kind: MessageKind, body: Bytes) -> Result<Bytes, LinkError> {
        let delay = *self.net.delay.lock().unwrap();
        let pause = move || async move {
            if let Some(delay) = delay {
                tokio::time::sleep(delay()).await;
            }
        };
        pause().await;
        if self.net.is_cut(self.from, to) {
            return Err(LinkError::Unreachable("cut".to_owned()));
        }
        if self.net.loses(kind) {
            return std::future::pending().await;
        }
        let replica = self.net.replicas.lock().unwrap().get(&to).cloned();
        let replica = replica.ok_or_else(|| LinkError::Unreachable("down".to_owned()))?;
        *self.net.sent.lock().unwrap().entry((self.from, to, kind.into())).or_default() += 1;
        if kind == MessageKind::PutSections {
            self.net.pieces.lock().unwrap().push(body.clone());
        }
        if self.net.chance(5) {
            // The same message once more, later; its answer reaches nobody.
            let (replica, from, body) = (replica.clone(), self.from, body.clone());
            tokio::spawn(async move {
                pause().await;
                drop(replica.answer(from, kind, body).await);
            });
        }
        let place = self.net.places.lock().unwrap().get(&to).cloned();
        let answer = match place {
            None => replica.answer(self.from, kind, body).await,
            Some(place) => {
                let (give, given) = tokio::sync::oneshot::channel();
                let from = self.from;
                place(async move { drop(give.send(replica.answer(from, kind, body).await)) }.boxed());
                given.await.map_err(|_gone| LinkError::TimedOut)?
            }
        };
        let answer = answer.map_err(|e| LinkError::Refused(e.to_string()))?;
        pause().await;
        if self.net.is_cut(to, self.from) {
            return Err(LinkError::TimedOut);
        }
        Ok(answer)
    }
}

impl PeerLink for Link {
    fn call(
        &self,
        to: NodeId,
        kind: MessageKind,
        body: Bytes,
        within: Duration,
    ) -> BoxFuture<'_, Result<Bytes, LinkError>> {
        async move {
            match tokio::time::timeout(within, self.carry(to, kind, body)).await {
                Ok(answer) => answer,
                Err(_) => Err(LinkError::TimedOut),
            }
        }
        .boxed()
    }
}

/// What the tests say about a node.
pub fn options(node: NodeId, nodes: &[NodeId]) -> Options {
    let members = nodes.iter().map(|id| (*id, format!("node-{id}"))).collect();
    Options { segment_bytes: 64 << 10, ..Options::new(node, members) }
}

/// Starts a replica and connects it.
pub async fn join(net: &Arc<Net>, options: Options, disk: Arc<dyn Disk>, spawn: Spawn, book: Book) -> Replica {
    try_join(net, options, disk, spawn, book).await.unwrap()
}

pub async fn try_join(
    net: &Arc<Net>,
    options: Options,
    disk: Arc<dyn Disk>,
    spawn: Spawn,
    book: Book,
) -> Result<Replica, StartError> {
    let node = options.node;
    let link = Arc::new(Link { net: Arc::clone(net), from: node });
    let replica = Replica::start(options, disk, spawn, book, link).await?;
    net.replicas.lock().unwrap().insert(node, replica.clone());
    Ok(replica)
}

/// Nobody reaches this node any more.
pub fn disconnect(net: &Net, node: NodeId) -> Option<Replica> {
    net.replicas.lock().unwrap().remove(&node)
}

/// Waits until the status is as wanted.
pub async fn status_where(replica: &Replica, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
    let mut status = replica.status();
    let reached = async {
        while !wanted(&status) {
            status = replica.status_changed(&status).await;
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(20), reached).await;
    assert!(done.is_ok(), "{what} was not reached; the last status is {:?}", replica.status());
    status
}

/// Waits until one of these replicas leads and has applied an entry of its own.
pub async fn leader(replicas: &[Replica]) -> Replica {
    let each = replicas.iter().map(|replica| {
        Box::pin(async move {
            status_where(replica, "a leader", Status::leads).await;
            replica.clone()
        })
    });
    futures_util::future::select_ok(each.map(|each| each.map(Ok::<_, ()>))).await.unwrap().0
}
