//! Every way in which a call is not answered, and its form on the wire. One table.

use thiserror::Error;
use tonic::{Code, Status};
use verdict_client::wire;
use verdict_proto::v1::{ErrorDetail, error_detail::Code as Detail};
use verdict_protocol::Refusal;
use verdict_raft_log::{NodeId, ReadError, TransferError};

/// How long a client waits before it asks again while a leader is being elected, in milliseconds.
const ELECTION_MS: u64 = 100;
/// How long it waits when a limit was reached, in milliseconds.
const OVERLOAD_MS: u64 = 200;

/// Why a call has no answer.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error("no leader is known: ask again, here or at another node")]
    NoLeader,
    #[error("the leader was lost while it worked on this: it may or may not have taken effect; ask again")]
    Interrupted,
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("this node works on {limit} calls already: ask again, or raise limits.calls")]
    TooManyCalls { limit: usize },
    #[error("this node has {limit} watchers already: watch at another, or raise limits.watchers")]
    TooManyWatchers { limit: usize },
    #[error("this node has stopped: {reason}")]
    Stopped { reason: String },
    #[error("{0}")]
    NotTransferred(String),
    /// A stream is for resources that the configuration says are reached so.
    #[error("{0}")]
    NoSuchResource(String),
    #[error("the stream began without a hello, or it came too late: open another")]
    NoHello,
    #[error("this node has {limit} streams already: ask again")]
    TooManyStreams { limit: usize },
    /// What the leader said to a forwarded call.
    #[error("{0}")]
    Forwarded(Status),
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NotLeader { .. } | ReadError::TimedOut => Self::NoLeader,
            ReadError::Stopped { reason } => Self::Stopped { reason },
        }
    }
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::NotLeader { .. } => Self::NoLeader,
            TransferError::Stopped { reason } => Self::Stopped { reason },
            error @ (TransferError::NoSuchNode(_) | TransferError::TimedOut) => Self::NotTransferred(error.to_string()),
        }
    }
}

impl Failure {
    /// Whether the next leader may answer.
    pub(super) fn is_for_want_of_a_leader(&self) -> bool {
        match self {
            Self::NoLeader | Self::Interrupted | Self::Refused(Refusal::NotFounded) => true,
            Self::Forwarded(status) => status.code() == Code::Unavailable,
            Self::Invalid(_)
            | Self::Refused(_)
            | Self::TooManyCalls { .. }
            | Self::TooManyWatchers { .. }
            | Self::Stopped { .. }
            | Self::NotTransferred(_)
            | Self::NoSuchResource(_)
            | Self::NoHello
            | Self::TooManyStreams { .. } => false,
        }
    }

    /// As a gRPC error that names the leader, as far as it is known.
    pub(crate) fn into_status(self, leader: Option<(NodeId, &str)>) -> Status {
        let text = self.to_string();
        let (code, detail, retry_after_ms) = match self {
            Self::NoLeader => (Code::Unavailable, Detail::NotLeader, ELECTION_MS),
            Self::Interrupted => (Code::Unavailable, Detail::Interrupted, 0),
            Self::Invalid(_) => (Code::InvalidArgument, Detail::Invalid, 0),
            Self::Refused(refusal) => refused(&refusal),
            Self::TooManyCalls { .. } | Self::TooManyWatchers { .. } => {
                (Code::ResourceExhausted, Detail::Overloaded, OVERLOAD_MS)
            }
            Self::Stopped { .. } => (Code::Unavailable, Detail::Storage, ELECTION_MS),
            Self::NotTransferred(_) => (Code::FailedPrecondition, Detail::Invalid, 0),
            Self::NoSuchResource(_) => (Code::NotFound, Detail::UnknownResource, 0),
            Self::NoHello => (Code::Unavailable, Detail::Interrupted, 0),
            Self::TooManyStreams { .. } => (Code::ResourceExhausted, Detail::Overloaded, OVERLOAD_MS),
            Self::Forwarded(status) => return status,
        };
        let (leader, leader_address) = leader.unwrap_or((NodeId(0), ""));
        let detail = ErrorDetail {
            code: detail.into(),
            leader: leader.0,
            leader_address: leader_address.to_owned(),
            retry_after_ms,
        };
        wire::status(code, text, &detail)
    }
}

fn refused(refusal: &Refusal) -> (Code, Detail, u64) {
    match refusal {
        Refusal::Closed => (Code::FailedPrecondition, Detail::Closed, 0),
        Refusal::Mismatch => (Code::FailedPrecondition, Detail::Mismatch, 0),
        Refusal::Skewed { .. } => (Code::FailedPrecondition, Detail::Skewed, 0),
        Refusal::Expired => (Code::OutOfRange, Detail::Expired, 0),
        Refusal::Limit { .. } => (Code::ResourceExhausted, Detail::Overloaded, OVERLOAD_MS),
        Refusal::UnknownTransaction => (Code::NotFound, Detail::UnknownTransaction, 0),
        Refusal::UnknownBranch => (Code::NotFound, Detail::UnknownBranch, 0),
        Refusal::NotFounded => (Code::Unavailable, Detail::NotLeader, ELECTION_MS),
        Refusal::Forbidden { .. } => (Code::PermissionDenied, Detail::Forbidden, 0),
        Refusal::Fenced => (Code::FailedPrecondition, Detail::Fenced, 0),
        // Answered with its holder's status before it comes here.
        Refusal::KeyTaken { .. } => (Code::AlreadyExists, Detail::Invalid, 0),
        Refusal::NotDelegated => (Code::FailedPrecondition, Detail::Invalid, 0),
        Refusal::Undecided | Refusal::NotPromised => (Code::FailedPrecondition, Detail::Undecided, 0),
        Refusal::NeedsForce { .. } => (Code::FailedPrecondition, Detail::NeedsForce, 0),
    }
}
