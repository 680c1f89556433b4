//! Messages that came in: read, handed to whom they concern, answered.

use bytes::Bytes;
use openraft::errors::{Fatal, RaftError};

use super::core::Running;
use super::fetch;
use super::machine::Machine;
use super::wire::{self, ReadIndexAnswer, WireError};
use crate::{AnswerError, MessageKind, NodeId, ReadError};

/// Answers one message. What a late, repeated or reordered one means is Raft's to judge, by its ballot and positions,
/// but for snapshots ([`super::receiver`]) and questions of peers that lost something ([`fetch`]), which say it there.
pub(crate) async fn answer<M: Machine>(
    replica: &Running<M>,
    from: NodeId,
    kind: MessageKind,
    body: Bytes,
) -> Result<Bytes, AnswerError> {
    let unreadable = |e: WireError| AnswerError::Malformed { from, kind, why: e.to_string() };
    let stopped = |fatal: Fatal<_>| AnswerError::Stopped { reason: fatal.to_string() };
    let raft_stopped = |e: RaftError<_>| AnswerError::Stopped { reason: e.to_string() };
    let raft = &replica.raft;
    let encoded = match kind {
        MessageKind::Append => {
            let request = wire::decode_append(&body).map_err(unreadable)?;
            wire::encode(&raft.append_entries(request).await.map_err(raft_stopped)?)
        }
        MessageKind::Ballot => {
            let request = wire::decode(&body).map_err(unreadable)?;
            wire::encode(&raft.vote(request).await.map_err(raft_stopped)?)
        }
        MessageKind::PreBallot => {
            let request = wire::decode(&body).map_err(unreadable)?;
            wire::encode(&raft.pre_vote(request).await.map_err(raft_stopped)?)
        }
        MessageKind::TransferLeader => {
            let request = wire::decode(&body).map_err(unreadable)?;
            wire::encode(&raft.handle_transfer_leader(request).await.map_err(stopped)?)
        }
        MessageKind::OfferSnapshot => {
            let offer = wire::decode(&body).map_err(unreadable)?;
            let answer = replica.receiver.offered(offer).await;
            wire::encode(&answer.map_err(|e| AnswerError::NotNow(e.to_string()))?)
        }
        MessageKind::PutSections => {
            let piece = wire::decode(&body).map_err(unreadable)?;
            let answer = replica.receiver.piece(piece).await;
            wire::encode(&answer.map_err(|e| AnswerError::NotNow(e.to_string()))?)
        }
        MessageKind::Fetch => {
            let question = wire::decode(&body).map_err(unreadable)?;
            let answer = fetch::serve(replica, question).await;
            wire::encode(&answer.map_err(|e| AnswerError::NotNow(e.to_string()))?)
        }
        MessageKind::ReadIndex => match replica.confirm_leadership().await {
            Ok(at) => wire::encode(&ReadIndexAnswer { at: Some(at) }),
            Err(ReadError::Stopped { reason }) => return Err(AnswerError::Stopped { reason }),
            Err(_) => wire::encode(&ReadIndexAnswer { at: None }),
        },
    };
    encoded.map_err(|e| AnswerError::NotNow(format!("the answer could not be written: {e}")))
}
