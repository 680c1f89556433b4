//! The link to the other nodes over gRPC: one framed stream for what is frequent, plain calls for what is rare.
//!
//! ```text
//!   call(Append) ── frame id 7 ──▶ ┐ one stream a peer, many frames in flight
//!   call(Append) ── frame id 8 ──▶ ┘
//!        ◀── frame id 8, frame id 7: answered in any order
//! ```
//!
//! A stream that breaks fails every call that waits on it; the next call opens another. Nothing is sent again here:
//! the replicated log does that.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint},
};
use verdict_proto::peer::v1::{ForwardReply, Frame, Message, frame::Body, peer_client::PeerClient};
use verdict_raft_log::{LinkError, MessageKind, NodeId, PeerLink};

use crate::{tasks::Tasks, walls::Walls};

/// Frames that wait for the stream to one peer: more than the log has in flight to it.
const FRAMES: usize = 256;
/// The largest message between nodes, in bytes: an entry's limit with room for its frame.
pub const MAX_MESSAGE: usize = 8 << 20;

/// Links to all other nodes.
#[derive(Debug)]
pub(crate) struct TonicPeers {
    cluster: Bytes,
    own: NodeId,
    peers: BTreeMap<NodeId, Arc<Peer>>,
    walls: Arc<Walls>,
    tasks: Tasks,
}

#[derive(Debug)]
struct Peer {
    node: NodeId,
    client: PeerClient<Channel>,
    stream: Mutex<Option<Stream>>,
    last_id: AtomicU64,
    walls: Arc<Walls>,
}

/// An open stream: frames go in, and whoever waits for an answer is found by the frame's id.
#[derive(Clone, Debug)]
struct Stream {
    frames: mpsc::Sender<Frame>,
    waiting: Arc<Mutex<Option<Waiting>>>,
}

type Waiting = BTreeMap<u64, oneshot::Sender<Result<Bytes, LinkError>>>;

impl TonicPeers {
    /// `endpoint` makes a channel's endpoint of an address.
    pub(crate) fn new(
        cluster: &str,
        own: NodeId,
        nodes: impl IntoIterator<Item = (NodeId, Endpoint)>,
        walls: Arc<Walls>,
        tasks: Tasks,
    ) -> Self {
        let peers = nodes
            .into_iter()
            .filter(|(node, _)| *node != own)
            .map(|(node, endpoint)| {
                let client = PeerClient::new(endpoint.connect_lazy()).max_decoding_message_size(MAX_MESSAGE);
                let (stream, last_id, walls) = (Mutex::default(), AtomicU64::new(0), Arc::clone(&walls));
                (node, Arc::new(Peer { node, client, stream, last_id, walls }))
            })
            .collect();
        Self { cluster: Bytes::copy_from_slice(cluster.as_bytes()), own, peers, walls, tasks }
    }

    /// Brings a client's call to another node.
    ///
    /// # Errors
    /// What tonic says: the call may or may not have reached the node.
    pub(crate) async fn forward(&self, to: NodeId, kind: u32, body: Bytes) -> Result<ForwardReply, Status> {
        let peer = self.peer(to).map_err(|error| Status::unavailable(error.to_string()))?;
        let reply = peer.client.clone().forward(self.message(to, kind, body)).await?.into_inner();
        self.walls.heard(to, reply.wall_ms);
        Ok(reply)
    }

    fn peer(&self, node: NodeId) -> Result<&Arc<Peer>, LinkError> {
        self.peers.get(&node).ok_or_else(|| {
            LinkError::Unreachable(format!(
                "node {node} has no address in this node's configuration: add it to [nodes]"
            ))
        })
    }

    fn message(&self, to: NodeId, kind: u32, body: Bytes) -> Message {
        let (cluster, wall_ms) = (self.cluster.clone(), self.walls.own_ms());
        Message { cluster, from: self.own.0, to: to.0, kind, body, wall_ms }
    }
}

impl PeerLink for TonicPeers {
    fn call(
        &self,
        to: NodeId,
        kind: MessageKind,
        body: Bytes,
        within: Duration,
    ) -> BoxFuture<'_, Result<Bytes, LinkError>> {
        Box::pin(async move {
            let peer = self.peer(to)?;
            let message = self.message(to, kind.into(), body);
            let answer = async {
                if kind.is_frequent() { peer.frame(message, &self.tasks).await } else { peer.plain(message).await }
            };
            timeout(within, answer).await.map_err(|_| LinkError::TimedOut)?
        })
    }
}

impl Peer {
    async fn plain(&self, message: Message) -> Result<Bytes, LinkError> {
        let answer = self.client.clone().call(message).await.map_err(|status| refused(&status))?.into_inner();
        self.walls.heard(self.node, answer.wall_ms);
        Ok(answer.body)
    }

    async fn frame(self: &Arc<Self>, message: Message, tasks: &Tasks) -> Result<Bytes, LinkError> {
        let stream = self.open(tasks);
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        match &mut *stream.waiting.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(waiting) => waiting.insert(id, sender),
            None => return Err(LinkError::Unreachable("the stream has broken".to_owned())),
        };
        let given_up = Forgotten { stream: &stream, id };
        stream
            .frames
            .send(Frame { id, body: Some(Body::Message(message)) })
            .await
            .map_err(|_| LinkError::Unreachable("the stream has broken".to_owned()))?;
        let answer = answer.await.unwrap_or_else(|_| Err(LinkError::Unreachable("the stream has broken".to_owned())));
        drop(given_up);
        answer
    }

    /// The open stream, or a new one.
    fn open(self: &Arc<Self>, tasks: &Tasks) -> Stream {
        let mut open = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = open.as_ref() {
            return stream.clone();
        }
        let (frames, receiver) = mpsc::channel(FRAMES);
        let stream = Stream { frames, waiting: Arc::new(Mutex::new(Some(Waiting::new()))) };
        *open = Some(stream.clone());
        let (peer, opened) = (Arc::clone(self), stream.clone());
        tasks.spawn(async move {
            let broken = match peer.client.clone().link(ReceiverStream::new(receiver)).await {
                Ok(answers) => peer.read(answers.into_inner(), &opened).await,
                Err(status) => refused(&status),
            };
            *peer.stream.lock().unwrap_or_else(PoisonError::into_inner) = None;
            let waiting = opened.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
            for sender in waiting.into_iter().flat_map(BTreeMap::into_values) {
                drop(sender.send(Err(broken.clone())));
            }
        });
        stream
    }

    /// Hands answers to whoever waits, until the stream breaks; says how.
    async fn read(&self, mut answers: Streaming<Frame>, stream: &Stream) -> LinkError {
        loop {
            let frame = match answers.message().await {
                Ok(Some(frame)) => frame,
                Ok(None) => return LinkError::Unreachable("the peer closed the stream".to_owned()),
                Err(status) => return refused(&status),
            };
            let answer = match frame.body {
                Some(Body::Message(message)) => {
                    self.walls.heard(self.node, message.wall_ms);
                    Ok(message.body)
                }
                Some(Body::Error(why)) => Err(LinkError::Refused(why)),
                None => Err(LinkError::Refused("an empty answer".to_owned())),
            };
            stream.answer(frame.id, answer);
        }
    }
}

impl Stream {
    /// An answer that nobody waits for any more is dropped.
    fn answer(&self, id: u64, answer: Result<Bytes, LinkError>) {
        let sender = match &mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(waiting) => waiting.remove(&id),
            None => None,
        };
        if let Some(sender) = sender {
            drop(sender.send(answer));
        }
    }
}

/// Takes a call that is given up out of those that wait.
struct Forgotten<'a> {
    stream: &'a Stream,
    id: u64,
}

impl Drop for Forgotten<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = &mut *self.stream.waiting.lock().unwrap_or_else(PoisonError::into_inner) {
            waiting.remove(&self.id);
        }
    }
}

fn refused(status: &Status) -> LinkError {
    match status.code() {
        tonic::Code::Unavailable | tonic::Code::Cancelled | tonic::Code::Unknown => {
            LinkError::Unreachable(status.message().to_owned())
        }
        _ => LinkError::Refused(status.message().to_owned()),
    }
}
