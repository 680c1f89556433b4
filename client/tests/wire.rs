//! Messages there and back, and what can't be read.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use bytes::Bytes;
use verdict_client::{
    Branch, BranchId, ClusterId, LogTime, Outcome, Reason, ReasonCode, Settlement, State, TransactionStatus, Vote, Xid,
    participant::{Prepare, Settle, Settled, Stamp, Voted},
    wire::{FromWire, ToWire, WireError},
};
use verdict_proto::v1;

fn there_and_back<T>(value: T)
where
    T: ToWire + FromWire<T::Wire> + Clone + PartialEq + std::fmt::Debug,
{
    assert_eq!(T::from_wire(value.clone().to_wire()), Ok(value));
}

#[test]
fn messages_come_back_as_they_went() {
    let xid = Xid::new(LogTime::from_millis(1_700_000_000_000), 5, 77);
    let branch = BranchId { xid, number: 3 };
    let stamp = Stamp { cluster: ClusterId([9; 16]), incarnation: 2, term: 4, horizon: LogTime::from_millis(8) };
    let (resource, payload) = (verdict_client::ResourceName::try_from("seats").unwrap(), Bytes::from_static(b"7"));
    let reason = Reason::refused("sold out", "SOLD_OUT", true);
    there_and_back(branch);
    there_and_back(Settle { stamp, branch, resource: resource.clone(), payload: payload.clone() });
    let vote_timeout = Duration::from_millis(1500);
    there_and_back(Prepare {
        stamp,
        branch,
        resource: resource.clone(),
        payload: payload.clone(),
        vote_timeout,
        credential: None,
    });
    there_and_back(Voted::PREPARED);
    there_and_back(Voted::refused(reason.clone()));
    there_and_back(Settled { settlement: Settlement::HeuristicMixed, reason: Some(reason.clone()) });
    for vote in [None, Some(Voted::READ_ONLY), Some(Voted::refused(reason))] {
        there_and_back(Branch { number: 1, resource: resource.clone(), payload: payload.clone(), vote });
    }
    for code in [
        ReasonCode::Deadline,
        ReasonCode::Timeout,
        ReasonCode::Rollback,
        ReasonCode::Refused,
        ReasonCode::Skewed,
        ReasonCode::Limit,
        ReasonCode::Presumed,
    ] {
        there_and_back(Reason::new(code, "a sentence"));
    }
}

#[test]
fn enums_keep_their_meaning_and_nothing_is_made_up() {
    for vote in [Vote::Prepared, Vote::ReadOnly, Vote::Refused] {
        assert_eq!(Vote::from_wire(i32::from(vote.to_wire())), Ok(vote));
    }
    for outcome in [Outcome::Committed, Outcome::Aborted] {
        assert_eq!(Outcome::from_wire(i32::from(outcome.to_wire())), Ok(outcome));
    }
    for state in
        [State::Active, State::Voting, State::Delegated, State::Decided, State::Ended, State::Expired, State::Unknown]
    {
        assert_eq!(State::from_wire(i32::from(state.to_wire())), Ok(state));
    }
    assert_eq!(Vote::from_wire(0), Err(WireError::Missing { field: "vote" }));
    assert_eq!(Option::<Vote>::from_wire(0), Ok(None));
    assert_eq!(Vote::from_wire(9), Err(WireError::Meaningless { field: "vote", value: 9 }));
    assert_eq!(Option::<Outcome>::from_wire(3), Err(WireError::Meaningless { field: "outcome", value: 3 }));
}

#[test]
fn an_outcome_with_a_reason_of_a_newer_version_is_still_read() {
    let xid = Xid::new(LogTime::from_millis(1), 0, 1);
    let reason = v1::Reason { code: "NEWS".to_owned(), text: "what nobody knows".to_owned(), ..v1::Reason::default() };
    let wire = v1::TransactionStatus {
        xid: xid.to_wire(),
        state: v1::State::Ended.into(),
        outcome: v1::Outcome::Aborted.into(),
        reason: Some(reason),
        ..v1::TransactionStatus::default()
    };
    let decision = TransactionStatus::from_wire(wire).unwrap().decision.unwrap();
    assert_eq!(decision.outcome, Outcome::Aborted);
    assert_eq!(decision.reason.unwrap().text, "NEWS: what nobody knows");
}

#[test]
fn what_is_missing_is_named() {
    assert_eq!(Prepare::from_wire(v1::PrepareRequest::default()), Err(WireError::Missing { field: "stamp" }));
    let short = v1::Stamp { cluster: Bytes::from_static(b"short"), ..v1::Stamp::default() };
    assert_eq!(Stamp::from_wire(Some(short)), Err(WireError::Cluster(5)));
    assert_eq!(Settled::from_wire(v1::SettleResponse::default()), Err(WireError::Missing { field: "settlement" }));
}
