//! What Verdict and participants say to each other.

use std::time::Duration;

use verdict_proto::v1;
use verdict_protocol::{BranchId, ClusterId, Conclusion, LogTime, ResourceName, Settlement, Vote};

use super::{FromWire, ToWire, WireError, millis, present, reason};
use crate::participant::{OnePhase, Prepare, Settle, Settled, Stamp, Voted};

impl ToWire for Stamp {
    type Wire = v1::Stamp;

    fn to_wire(self) -> v1::Stamp {
        v1::Stamp {
            cluster: self.cluster.to_wire(),
            incarnation: self.incarnation,
            term: self.term,
            horizon_ms: self.horizon.as_millis(),
        }
    }
}

impl FromWire<Option<v1::Stamp>> for Stamp {
    fn from_wire(wire: Option<v1::Stamp>) -> Result<Self, WireError> {
        let v1::Stamp { cluster, incarnation, term, horizon_ms } = present("stamp", wire)?;
        Ok(Self {
            cluster: ClusterId::from_wire(cluster)?,
            incarnation,
            term,
            horizon: LogTime::from_millis(horizon_ms),
        })
    }
}

impl ToWire for Prepare {
    type Wire = v1::PrepareRequest;

    fn to_wire(self) -> v1::PrepareRequest {
        v1::PrepareRequest {
            stamp: Some(self.stamp.to_wire()),
            branch: Some(self.branch.to_wire()),
            resource: self.resource.into(),
            payload: self.payload,
            vote_timeout_ms: millis(self.vote_timeout),
            credential: self.credential.map(ToWire::to_wire).unwrap_or_default(),
        }
    }
}

impl FromWire<v1::PrepareRequest> for Prepare {
    fn from_wire(wire: v1::PrepareRequest) -> Result<Self, WireError> {
        Ok(Self {
            stamp: Stamp::from_wire(wire.stamp)?,
            branch: BranchId::from_wire(wire.branch)?,
            resource: ResourceName::try_from(wire.resource)?,
            payload: wire.payload,
            vote_timeout: Duration::from_millis(wire.vote_timeout_ms),
            credential: Option::from_wire(wire.credential.as_ref())?,
        })
    }
}

impl ToWire for Settle {
    type Wire = v1::SettleRequest;

    fn to_wire(self) -> v1::SettleRequest {
        v1::SettleRequest {
            stamp: Some(self.stamp.to_wire()),
            branch: Some(self.branch.to_wire()),
            resource: self.resource.into(),
            payload: self.payload,
        }
    }
}

impl FromWire<v1::SettleRequest> for Settle {
    fn from_wire(wire: v1::SettleRequest) -> Result<Self, WireError> {
        Ok(Self {
            stamp: Stamp::from_wire(wire.stamp)?,
            branch: BranchId::from_wire(wire.branch)?,
            resource: ResourceName::try_from(wire.resource)?,
            payload: wire.payload,
        })
    }
}

impl ToWire for OnePhase {
    type Wire = v1::OnePhaseRequest;

    fn to_wire(self) -> v1::OnePhaseRequest {
        v1::OnePhaseRequest {
            stamp: Some(self.stamp.to_wire()),
            branch: Some(self.branch.to_wire()),
            resource: self.resource.into(),
            payload: self.payload,
            fence: self.fence,
        }
    }
}

impl FromWire<v1::OnePhaseRequest> for OnePhase {
    fn from_wire(wire: v1::OnePhaseRequest) -> Result<Self, WireError> {
        Ok(Self {
            stamp: Stamp::from_wire(wire.stamp)?,
            branch: BranchId::from_wire(wire.branch)?,
            resource: ResourceName::try_from(wire.resource)?,
            payload: wire.payload,
            fence: wire.fence,
        })
    }
}

impl ToWire for Conclusion {
    type Wire = v1::OnePhaseResponse;

    fn to_wire(self) -> v1::OnePhaseResponse {
        use v1::one_phase_response::Conclusion as Wire;
        let (conclusion, reason) = match self {
            Self::Committed => (Wire::Committed, None),
            Self::Fenced(reason) => (Wire::Fenced, reason),
        };
        v1::OnePhaseResponse { conclusion: conclusion.into(), reason: reason.map(ToWire::to_wire) }
    }
}

impl FromWire<v1::OnePhaseResponse> for Conclusion {
    fn from_wire(wire: v1::OnePhaseResponse) -> Result<Self, WireError> {
        use v1::one_phase_response::Conclusion as Wire;
        match Wire::try_from(wire.conclusion) {
            Ok(Wire::Committed) => Ok(Self::Committed),
            Ok(Wire::Fenced) => Ok(Self::Fenced(reason(wire.reason)?)),
            Ok(Wire::Unspecified) => Err(WireError::Missing { field: "conclusion" }),
            Err(_) => Err(WireError::Meaningless { field: "conclusion", value: wire.conclusion }),
        }
    }
}

impl ToWire for Voted {
    type Wire = v1::PrepareResponse;

    fn to_wire(self) -> v1::PrepareResponse {
        v1::PrepareResponse { vote: self.vote.to_wire().into(), reason: self.reason.map(ToWire::to_wire) }
    }
}

impl FromWire<v1::PrepareResponse> for Voted {
    fn from_wire(wire: v1::PrepareResponse) -> Result<Self, WireError> {
        Ok(Self { vote: Vote::from_wire(wire.vote)?, reason: reason(wire.reason)? })
    }
}

impl ToWire for Settled {
    type Wire = v1::SettleResponse;

    fn to_wire(self) -> v1::SettleResponse {
        v1::SettleResponse { settlement: self.settlement.to_wire().into(), reason: self.reason.map(ToWire::to_wire) }
    }
}

impl FromWire<v1::SettleResponse> for Settled {
    fn from_wire(wire: v1::SettleResponse) -> Result<Self, WireError> {
        Ok(Self { settlement: Settlement::from_wire(wire.settlement)?, reason: reason(wire.reason)? })
    }
}
