//! What whoever watches is told.

use verdict_proto::v1;
use verdict_protocol::{LogTime, Outcome, Reason, ResourceName, Settlement, Xid};

use super::{FromWire, WireError, reason};
use crate::{Step, Transition};

/// A transition with its index and number.
impl FromWire<(u64, u32, v1::Transition)> for Transition {
    fn from_wire((index, number, wire): (u64, u32, v1::Transition)) -> Result<Self, WireError> {
        let resources = wire.resources.into_iter().map(ResourceName::try_from).collect::<Result<_, _>>()?;
        let why: Option<Reason> = reason(wire.reason)?;
        let branch = wire.branch;
        let step = match v1::transition::Step::try_from(wire.step) {
            Ok(v1::transition::Step::Begun) => Step::Begun,
            Ok(v1::transition::Step::Voting) => Step::Voting,
            Ok(v1::transition::Step::Delegated) => Step::Delegated { branch },
            Ok(v1::transition::Step::Decided) => {
                Step::Decided { outcome: Outcome::from_wire(wire.outcome)?, reason: why }
            }
            Ok(v1::transition::Step::Settled) => {
                Step::Settled { branch, settlement: Settlement::from_wire(wire.settlement)? }
            }
            Ok(v1::transition::Step::PromiseBroken) => Step::PromiseBroken { branch },
            Ok(v1::transition::Step::Ended) => Step::Ended,
            Ok(v1::transition::Step::Unspecified) => return Err(WireError::Missing { field: "step" }),
            Err(_) => return Err(WireError::Meaningless { field: "step", value: wire.step }),
        };
        let (xid, at) = (Xid::from_wire(wire.xid)?, LogTime::from_millis(wire.at_ms));
        Ok(Self { index, number, at, xid, resources, step })
    }
}
