//! Why a call has no answer, and the one table that judges gRPC errors.

use std::{fmt, time::Duration};

use thiserror::Error;
use tonic::{Code, Status};
use verdict_proto::v1::error_detail;

use crate::wire;

/// Why a call did not get what it asked for.
#[derive(Debug, Error)]
pub enum CallError {
    /// Nobody answered within the deadline. Whether the call took effect is not known: make the same call again, or
    /// look the transaction up; and until then touch nothing that belongs to it.
    #[error("unknown: no answer within {waited:?} and {attempts} attempts; the last, to {node}, ended with: {}", last.message())]
    Unknown {
        waited: Duration,
        attempts: u32,
        /// Whom the last attempt was sent to.
        node: String,
        last: Box<Status>,
    },
    /// The cluster refuses this call, now and whenever it is repeated ([`RefusalCode::Overloaded`] apart).
    #[error("{code}: {text}")]
    Refused {
        code: RefusalCode,
        /// What was wrong and what to do.
        text: String,
    },
}

impl CallError {
    /// The refusal's code, if it is one.
    #[must_use]
    pub fn code(&self) -> Option<RefusalCode> {
        match self {
            Self::Unknown { .. } => None,
            Self::Refused { code, .. } => Some(*code),
        }
    }
}

/// Why the cluster refuses a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefusalCode {
    /// The transaction will not commit from now on; whether it did is no longer kept.
    Expired,
    /// The client's clock is too far ahead.
    Skewed,
    /// The list of branches is closed.
    Closed,
    /// The transaction has other branches than these. Look it up for its outcome.
    Mismatch,
    /// No room for new work before the deadline. This call was not logged; an earlier one of the same transaction
    /// still stands.
    Overloaded,
    Invalid,
    UnknownTransaction,
    UnknownBranch,
    UnknownResource,
    /// Not every branch has promised, or the transaction is not decided.
    Undecided,
    /// It can break atomicity: say that you force it.
    NeedsForce,
    /// Another instance has opened the session since, or it was never opened: stop working under it.
    Fenced,
    /// Somebody else enlisted the branch: this is not its credential.
    Forbidden,
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "EXPIRED",
            Self::Skewed => "SKEWED",
            Self::Closed => "CLOSED",
            Self::Mismatch => "MISMATCH",
            Self::Overloaded => "OVERLOADED",
            Self::Invalid => "INVALID",
            Self::UnknownTransaction => "UNKNOWN_TRANSACTION",
            Self::UnknownBranch => "UNKNOWN_BRANCH",
            Self::UnknownResource => "UNKNOWN_RESOURCE",
            Self::Undecided => "UNDECIDED",
            Self::NeedsForce => "NEEDS_FORCE",
            Self::Fenced => "FENCED",
            Self::Forbidden => "FORBIDDEN",
        })
    }
}

/// What a gRPC error means to a caller who may send the same call again.
#[derive(Debug)]
pub(super) enum Judgement {
    Refused(RefusalCode),
    /// Nothing was logged, there is no room: again, not before this.
    Overloaded {
        retry_after: Duration,
    },
    /// Not the leader, nothing was logged: again, at the leader if it is named.
    NotLeader {
        leader: Option<String>,
        retry_after: Duration,
    },
    /// May or may not have been logged: again.
    Unanswered {
        leader: Option<String>,
        retry_after: Duration,
    },
}

pub(super) fn judge(status: &Status) -> Judgement {
    use error_detail::Code as Detail;

    let detail = wire::detail(status).unwrap_or_default();
    let retry_after = Duration::from_millis(detail.retry_after_ms);
    let leader = Some(detail.leader_address.clone()).filter(|address| !address.is_empty());
    match detail.code() {
        Detail::Expired => Judgement::Refused(RefusalCode::Expired),
        Detail::Skewed => Judgement::Refused(RefusalCode::Skewed),
        Detail::Closed => Judgement::Refused(RefusalCode::Closed),
        Detail::Mismatch => Judgement::Refused(RefusalCode::Mismatch),
        Detail::Invalid => Judgement::Refused(RefusalCode::Invalid),
        Detail::UnknownTransaction => Judgement::Refused(RefusalCode::UnknownTransaction),
        Detail::UnknownBranch => Judgement::Refused(RefusalCode::UnknownBranch),
        Detail::UnknownResource => Judgement::Refused(RefusalCode::UnknownResource),
        Detail::Undecided => Judgement::Refused(RefusalCode::Undecided),
        Detail::NeedsForce => Judgement::Refused(RefusalCode::NeedsForce),
        Detail::Fenced => Judgement::Refused(RefusalCode::Fenced),
        Detail::Forbidden => Judgement::Refused(RefusalCode::Forbidden),
        Detail::Overloaded => Judgement::Overloaded { retry_after },
        Detail::NotLeader => Judgement::NotLeader { leader, retry_after },
        Detail::Interrupted | Detail::Storage => Judgement::Unanswered { leader, retry_after },
        // No word of Verdict's: the transport, or something in between.
        // The message is larger than a node reads: it never gets smaller.
        Detail::Unspecified if status.code() == Code::OutOfRange => Judgement::Refused(RefusalCode::Invalid),
        Detail::Unspecified if status.code() == Code::ResourceExhausted => Judgement::Overloaded { retry_after },
        Detail::Unspecified => Judgement::Unanswered { leader, retry_after },
    }
}
