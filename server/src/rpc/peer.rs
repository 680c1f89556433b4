//! What nodes say to each other.

use std::{pin::Pin, sync::Arc};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use tonic::{Request, Response, Status, Streaming};
use verdict_proto::{
    peer::v1::{ForwardReply, Frame, Message, frame::Body, peer_server::Peer},
    v1::{
        BeginRequest, CommitRequest, EnlistRequest, ForgetRequest, GetRequest, InquireRequest, ListRequest,
        OpenSessionRequest, ReportSettledRequest, ResolveRequest, RollbackRequest, TransferLeaderRequest, VoteRequest,
    },
};
use verdict_raft_log::{MessageKind, NodeId};

use super::route::{Call, Front};

/// Frames of one stream that are worked on at a time.
const FRAMES: usize = 64;

#[derive(Debug)]
pub(super) struct Service(pub(super) Arc<Front>);

#[tonic::async_trait]
impl Peer for Service {
    type LinkStream = Pin<Box<dyn Stream<Item = Result<Frame, Status>> + Send>>;

    /// Hands frames to the log in the order of their arrival, and answers each when it is done. A stream whose peer
    /// goes away drops what it was waiting for: the log takes no harm from that.
    async fn link(&self, request: Request<Streaming<Frame>>) -> Result<Response<Self::LinkStream>, Status> {
        let front = Arc::clone(&self.0);
        let frames = stream::unfold(request.into_inner(), |mut frames| async move {
            frames.message().await.transpose().map(|frame| (frame, frames))
        });
        let answers = frames
            .map(move |frame| {
                let front = Arc::clone(&front);
                async move {
                    let Frame { id, body } = frame?;
                    let answer = match body {
                        Some(Body::Message(message)) => front.message(message).await,
                        Some(Body::Error(_)) | None => Err("a frame without a message".to_owned()),
                    };
                    let body = match answer {
                        Ok(message) => Body::Message(message),
                        Err(error) => Body::Error(error),
                    };
                    Ok(Frame { id, body: Some(body) })
                }
            })
            .buffer_unordered(FRAMES);
        Ok(Response::new(Box::pin(answers)))
    }

    async fn call(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        let answer = self.0.message(request.into_inner()).await;
        answer.map(Response::new).map_err(Status::failed_precondition)
    }

    async fn forward(&self, request: Request<Message>) -> Result<Response<ForwardReply>, Status> {
        let message = request.into_inner();
        self.0.admit(&message).map_err(Status::failed_precondition)?;
        let Message { kind, body, .. } = message;
        let front = &self.0;
        let reply = match kind {
            BeginRequest::KIND => front.forwarded::<BeginRequest>(body).await,
            EnlistRequest::KIND => front.forwarded::<EnlistRequest>(body).await,
            CommitRequest::KIND => front.forwarded::<CommitRequest>(body).await,
            RollbackRequest::KIND => front.forwarded::<RollbackRequest>(body).await,
            GetRequest::KIND => front.forwarded::<GetRequest>(body).await,
            ListRequest::KIND => front.forwarded::<ListRequest>(body).await,
            VoteRequest::KIND => front.forwarded::<VoteRequest>(body).await,
            ReportSettledRequest::KIND => front.forwarded::<ReportSettledRequest>(body).await,
            InquireRequest::KIND => front.forwarded::<InquireRequest>(body).await,
            OpenSessionRequest::KIND => front.forwarded::<OpenSessionRequest>(body).await,
            ResolveRequest::KIND => front.forwarded::<ResolveRequest>(body).await,
            ForgetRequest::KIND => front.forwarded::<ForgetRequest>(body).await,
            TransferLeaderRequest::KIND => front.forwarded::<TransferLeaderRequest>(body).await,
            other => {
                return Err(Status::unimplemented(format!(
                    "call kind {other} is of a newer version: update this node"
                )));
            }
        };
        Ok(Response::new(reply))
    }
}

impl Front {
    /// Hands a peer's message to the log.
    async fn message(&self, message: Message) -> Result<Message, String> {
        self.admit(&message)?;
        let Message { from, kind, body, .. } = message;
        let kind_name = MessageKind::try_from(kind).map_err(|error| error.to_string())?;
        let body = self.replica.answer(NodeId(from), kind_name, body).await.map_err(|error| error.to_string())?;
        Ok(Message {
            cluster: Bytes::new(),
            from: self.options.node.0,
            to: from,
            kind,
            body,
            wall_ms: self.walls.own_ms(),
        })
    }

    /// Only nodes of this cluster, and only what is meant for this node.
    fn admit(&self, message: &Message) -> Result<(), String> {
        let (own, node) = (&self.options.cluster, self.options.node);
        if message.cluster != own.as_bytes() {
            let other = String::from_utf8_lossy(&message.cluster);
            return Err(format!("node {node} is of cluster {own:?}, the message came from {other:?}: check [nodes]"));
        }
        if message.to != node.0 {
            return Err(format!("this is node {node}, the message was for node {}: check [nodes]", message.to));
        }
        self.walls.heard(NodeId(message.from), message.wall_ms);
        Ok(())
    }
}
