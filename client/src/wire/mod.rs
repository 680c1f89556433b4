//! Between the wire's types and the domain's, in one place, for the client, participants and the server alike.
//!
//! What comes in is parsed once, into types that can't be malformed; a [`WireError`] names the field.

mod participant;
mod watch;

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use thiserror::Error;
use tonic::{Code, Status};
use verdict_proto::v1;
use verdict_protocol::{
    BranchId, ClusterId, Credential, IdError, LogTime, NewBranch, Outcome, Reason, ReasonCode, ResourceName,
    SessionRef, Settlement, State, Vote, Word, Xid,
};

use crate::{
    Branch, BranchStatus, ClusterStatus, Decision, NodeStatus, Order, Page, TransactionStatus,
    participant::{NotAnswered, Stamp, Voted, with_causes},
};

/// Reply metadata: the leader's node id, decimal.
pub const LEADER: &str = "verdict-leader";
/// Reply metadata: where the leader serves clients, `host:port`.
pub const LEADER_ADDRESS: &str = "verdict-leader-address";

/// A message that cannot be what its sender meant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    #[error("{field} is missing")]
    Missing { field: &'static str },
    #[error("{field} has no meaning for {value}")]
    Meaningless { field: &'static str, value: i32 },
    #[error("a cluster id is 16 bytes, this has {0}")]
    Cluster(usize),
    #[error("a credential is {len} bytes, this has {0}", len = Credential::LEN)]
    Credential(usize),
    #[error(transparent)]
    Id(#[from] IdError),
}

impl From<WireError> for Status {
    /// Without details: whoever answers for a cluster adds an [`v1::ErrorDetail`] with [`status`].
    fn from(error: WireError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

/// Becomes a message.
pub trait ToWire {
    type Wire;
    fn to_wire(self) -> Self::Wire;
}

/// Is parsed from a message.
pub trait FromWire<W>: Sized {
    /// # Errors
    /// [`WireError`] names the field that makes no sense.
    fn from_wire(wire: W) -> Result<Self, WireError>;
}

/// A gRPC error with its detail.
#[must_use]
pub fn status(code: Code, text: impl Into<String>, detail: &v1::ErrorDetail) -> Status {
    Status::with_details(code, text, detail.encode_to_vec().into())
}

/// The detail of a gRPC error, if it came from Verdict and not from the transport or something in between.
#[must_use]
pub fn detail(status: &Status) -> Option<v1::ErrorDetail> {
    if status.details().is_empty() {
        return None;
    }
    v1::ErrorDetail::decode(status.details()).ok()
}

fn present<T>(field: &'static str, value: Option<T>) -> Result<T, WireError> {
    value.ok_or(WireError::Missing { field })
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl ToWire for Xid {
    type Wire = Bytes;

    fn to_wire(self) -> Bytes {
        Bytes::copy_from_slice(self.as_bytes())
    }
}

impl FromWire<Bytes> for Xid {
    fn from_wire(wire: Bytes) -> Result<Self, WireError> {
        Ok(Self::from_slice(&wire)?)
    }
}

impl ToWire for BranchId {
    type Wire = v1::BranchId;

    fn to_wire(self) -> v1::BranchId {
        v1::BranchId { xid: self.xid.to_wire(), number: self.number }
    }
}

impl FromWire<v1::BranchId> for BranchId {
    fn from_wire(wire: v1::BranchId) -> Result<Self, WireError> {
        Ok(Self { xid: Xid::from_wire(wire.xid)?, number: wire.number })
    }
}

impl FromWire<Option<v1::BranchId>> for BranchId {
    fn from_wire(wire: Option<v1::BranchId>) -> Result<Self, WireError> {
        Self::from_wire(present("branch", wire)?)
    }
}

/// An enum of the domain and its twin on the wire. On the wire unspecified is none, which the plain type refuses.
macro_rules! twins {
    ($domain:ident, $field:literal, $($case:ident),+) => {
        impl ToWire for $domain {
            type Wire = v1::$domain;

            fn to_wire(self) -> v1::$domain {
                match self {
                    $(Self::$case => v1::$domain::$case,)+
                }
            }
        }

        impl FromWire<i32> for Option<$domain> {
            fn from_wire(wire: i32) -> Result<Self, WireError> {
                match v1::$domain::try_from(wire) {
                    Ok(v1::$domain::Unspecified) => Ok(None),
                    $(Ok(v1::$domain::$case) => Ok(Some($domain::$case)),)+
                    Err(_) => Err(WireError::Meaningless { field: $field, value: wire }),
                }
            }
        }

        impl FromWire<i32> for $domain {
            fn from_wire(wire: i32) -> Result<Self, WireError> {
                present($field, Option::from_wire(wire)?)
            }
        }
    };
}

twins!(Vote, "vote", Prepared, ReadOnly, Refused);
twins!(Outcome, "outcome", Committed, Aborted);
twins!(State, "state", Active, Voting, Delegated, Decided, Ended, Expired, Unknown);
twins!(Settlement, "settlement", Done, HeuristicCommit, HeuristicRollback, HeuristicMixed, HeuristicHazard);

impl ToWire for Reason {
    type Wire = v1::Reason;

    fn to_wire(self) -> v1::Reason {
        v1::Reason {
            code: self.code.to_string(),
            text: self.text,
            source_code: self.source_code,
            retryable: self.retryable,
        }
    }
}

/// Never fails: a code of a newer version becomes REFUSED, with the code in front of the text.
impl FromWire<v1::Reason> for Reason {
    fn from_wire(wire: v1::Reason) -> Result<Self, WireError> {
        let v1::Reason { code, text, source_code, retryable } = wire;
        let known = match code.as_str() {
            "DEADLINE" => Some(ReasonCode::Deadline),
            "TIMEOUT" => Some(ReasonCode::Timeout),
            "ROLLBACK" => Some(ReasonCode::Rollback),
            "REFUSED" | "" => Some(ReasonCode::Refused),
            "SKEWED" => Some(ReasonCode::Skewed),
            "LIMIT" => Some(ReasonCode::Limit),
            "PRESUMED" => Some(ReasonCode::Presumed),
            "OPERATOR" => Some(ReasonCode::Operator),
            "FENCED" => Some(ReasonCode::Fenced),
            _ => None,
        };
        let text = if known.is_some() { text } else { format!("{code}: {text}") };
        Ok(Self { code: known.unwrap_or(ReasonCode::Refused), ..Self::refused(text, source_code, retryable) })
    }
}

fn reason(wire: Option<v1::Reason>) -> Result<Option<Reason>, WireError> {
    wire.map(Reason::from_wire).transpose()
}

impl ToWire for ClusterId {
    type Wire = Bytes;

    fn to_wire(self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }
}

impl FromWire<Bytes> for ClusterId {
    fn from_wire(wire: Bytes) -> Result<Self, WireError> {
        wire.as_ref().try_into().map(Self).map_err(|_| WireError::Cluster(wire.len()))
    }
}

impl From<NotAnswered> for Status {
    fn from(error: NotAnswered) -> Self {
        let text = with_causes(&error);
        match error {
            NotAnswered::Unavailable { .. } => Self::unavailable(text),
            NotAnswered::WrongCluster { .. } | NotAnswered::StaleIncarnation { .. } | NotAnswered::StaleTerm { .. } => {
                Self::failed_precondition(text)
            }
        }
    }
}

impl ToWire for Credential {
    type Wire = Bytes;

    fn to_wire(self) -> Bytes {
        Bytes::copy_from_slice(self.as_bytes())
    }
}

impl FromWire<&[u8]> for Credential {
    fn from_wire(wire: &[u8]) -> Result<Self, WireError> {
        Self::from_slice(wire).ok_or(WireError::Credential(wire.len()))
    }
}

/// None is no bytes.
impl FromWire<&[u8]> for Option<Credential> {
    fn from_wire(wire: &[u8]) -> Result<Self, WireError> {
        if wire.is_empty() { Ok(None) } else { Credential::from_wire(wire).map(Some) }
    }
}

impl ToWire for Branch {
    type Wire = v1::Branch;

    fn to_wire(self) -> v1::Branch {
        let (vote, reason) = match self.vote {
            None => (v1::Vote::Unspecified, None),
            Some(Voted { vote, reason }) => (vote.to_wire(), reason.map(ToWire::to_wire)),
        };
        v1::Branch {
            number: self.number,
            resource: self.resource.into(),
            payload: self.payload,
            vote: vote.into(),
            reason,
            credential: Bytes::new(),
        }
    }
}

impl FromWire<v1::Branch> for Branch {
    fn from_wire(wire: v1::Branch) -> Result<Self, WireError> {
        let reason = reason(wire.reason)?;
        let vote: Option<Vote> = Option::from_wire(wire.vote)?;
        Ok(Self {
            number: wire.number,
            resource: ResourceName::try_from(wire.resource)?,
            payload: wire.payload,
            vote: vote.map(|vote| Voted { vote, reason }),
        })
    }
}

/// A branch as Enlist registers it; a vote has no meaning there.
impl FromWire<v1::Branch> for NewBranch {
    fn from_wire(wire: v1::Branch) -> Result<Self, WireError> {
        let Branch { number, resource, payload, vote } = Branch::from_wire(wire)?;
        match vote {
            None => Ok(Self { number, resource, payload }),
            Some(voted) => Err(WireError::Meaningless {
                field: "the vote of an enlisted branch",
                value: voted.vote.to_wire().into(),
            }),
        }
    }
}

impl FromWire<v1::BranchStatus> for BranchStatus {
    fn from_wire(wire: v1::BranchStatus) -> Result<Self, WireError> {
        Ok(Self {
            number: wire.number,
            resource: ResourceName::try_from(wire.resource)?,
            vote: Option::from_wire(wire.vote)?,
            reason: reason(wire.reason)?,
            settlement: Option::from_wire(wire.settlement)?,
            last_error: wire.last_error,
            failed_attempts: wire.failed_attempts,
            next_attempt: Duration::from_millis(wire.next_attempt_ms),
        })
    }
}

impl ToWire for SessionRef {
    type Wire = v1::SessionRef;

    fn to_wire(self) -> v1::SessionRef {
        v1::SessionRef { name: self.name.into(), epoch: self.epoch }
    }
}

impl ToWire for Word {
    type Wire = v1::Word;

    fn to_wire(self) -> v1::Word {
        v1::Word { who: self.who, why: self.why, at_ms: 0 }
    }
}

impl FromWire<v1::TransactionStatus> for TransactionStatus {
    fn from_wire(wire: v1::TransactionStatus) -> Result<Self, WireError> {
        let xid = Xid::from_wire(wire.xid)?;
        let branches = wire.branches.into_iter().map(BranchStatus::from_wire).collect::<Result<_, _>>()?;
        let outcome: Option<Outcome> = Option::from_wire(wire.outcome)?;
        let reason = reason(wire.reason)?;
        Ok(Self {
            xid,
            state: State::from_wire(wire.state)?,
            decision: outcome.map(|outcome| Decision { xid, outcome, reason, log_index: wire.log_index }),
            branches,
            age: Duration::from_millis(wire.age_ms),
            words: wire
                .words
                .into_iter()
                .map(|word| (LogTime::from_millis(word.at_ms), Word { who: word.who, why: word.why }))
                .collect(),
        })
    }
}

impl FromWire<v1::ListResponse> for Page {
    fn from_wire(wire: v1::ListResponse) -> Result<Self, WireError> {
        let transactions = wire.transactions.into_iter().map(TransactionStatus::from_wire).collect::<Result<_, _>>()?;
        Ok(Self { transactions, more: wire.more })
    }
}

impl FromWire<v1::BranchOrder> for Order {
    fn from_wire(wire: v1::BranchOrder) -> Result<Self, WireError> {
        use v1::branch_order::Order as Wire;
        match Wire::try_from(wire.order) {
            Ok(Wire::Wait) => Ok(Self::Wait { retry_after: Duration::from_millis(wire.retry_after_ms) }),
            Ok(Wire::Commit) => Ok(Self::Commit(Stamp::from_wire(wire.stamp)?)),
            Ok(Wire::Rollback) => Ok(Self::Rollback(Stamp::from_wire(wire.stamp)?)),
            Ok(Wire::Unspecified) => Err(WireError::Missing { field: "order" }),
            Err(_) => Err(WireError::Meaningless { field: "order", value: wire.order }),
        }
    }
}

fn node(v1::NodeStatus { node, address, voter, matched_index }: v1::NodeStatus) -> NodeStatus {
    NodeStatus { node, address, voter, matched_index }
}

impl FromWire<v1::ClusterStatusResponse> for ClusterStatus {
    fn from_wire(wire: v1::ClusterStatusResponse) -> Result<Self, WireError> {
        Ok(Self {
            node: wire.node,
            leader: Some(wire.leader).filter(|leader| *leader != 0),
            term: wire.term,
            // A node that has not heard of its cluster's founding yet sends none.
            cluster: if wire.cluster.is_empty() { None } else { Some(ClusterId::from_wire(wire.cluster)?) },
            incarnation: wire.incarnation,
            nodes: wire.nodes.into_iter().map(node).collect(),
            last_index: wire.last_index,
            applied_index: wire.applied_index,
            log_time: LogTime::from_millis(wire.log_time_ms),
            open_transactions: wire.open_transactions,
            in_doubt: wire.in_doubt,
            ended_transactions: wire.ended_transactions,
        })
    }
}

impl FromWire<v1::RecoverResponse> for Vec<BranchId> {
    fn from_wire(wire: v1::RecoverResponse) -> Result<Self, WireError> {
        wire.prepared.into_iter().map(BranchId::from_wire).collect()
    }
}
