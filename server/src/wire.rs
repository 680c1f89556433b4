//! Between the wire's messages and what the engine takes and gives.

use verdict_client::wire::{FromWire as _, ToWire as _, WireError};
use verdict_proto::v1;
use verdict_protocol::{
    Blocker, Branch, BranchId, BranchNumber, Brought, Coordinator, Credential, Instance, Key, Ledger, ListedBranch,
    LogTime, NewBranch, OpenTransaction, Order, Outcome, Reason, Recorded, Resolution, ResourceName, Rules,
    SessionName, SessionRef, Settlement, State, Step, Transition, Vote, Word, Xid,
};

use crate::engine::Engine;

/// What a request may not be; the text says which field, and what it may be.
pub(crate) type Invalid = String;

pub(crate) fn xid(wire: &[u8]) -> Result<Xid, Invalid> {
    Xid::from_slice(wire).map_err(|error| error.to_string())
}

pub(crate) fn branch_id(wire: Option<v1::BranchId>) -> Result<BranchId, Invalid> {
    BranchId::from_wire(wire).map_err(|error| error.to_string())
}

pub(crate) fn vote(vote: i32, reason: Option<v1::Reason>) -> Result<(Vote, Option<Reason>), Invalid> {
    let voted = || Ok((Vote::from_wire(vote)?, reason.map(Reason::from_wire).transpose()?));
    voted().map_err(|error: WireError| error.to_string())
}

pub(crate) fn new_branches(
    wire: Vec<v1::Branch>,
    knows: impl Fn(&ResourceName) -> bool,
) -> Result<Vec<NewBranch>, Invalid> {
    listed_branches(wire, knows, |_, _| false)?
        .into_iter()
        .map(|listed| match listed.vote {
            None => Ok(listed.branch),
            Some(_) => Err(format!("branch {} brings a vote: votes go with Commit or Vote", listed.branch.number)),
        })
        .collect()
}

/// Whether the bytes are this branch's credential.
pub(crate) fn admits(engine: &Engine, branch: BranchId, credential: &[u8]) -> bool {
    let credential = Credential::from_slice(credential);
    credential.is_some_and(|credential| engine.read(|ledger, _| ledger.admits(branch, &credential)))
}

pub(crate) fn settlement(wire: i32) -> Result<Settlement, Invalid> {
    Settlement::from_wire(wire).map_err(|error| error.to_string())
}

/// `admits`: whether the bytes are the credential of the branch of that number.
pub(crate) fn listed_branches(
    wire: Vec<v1::Branch>,
    knows: impl Fn(&ResourceName) -> bool,
    admits: impl Fn(BranchNumber, &[u8]) -> bool,
) -> Result<Vec<ListedBranch>, Invalid> {
    wire.into_iter()
        .map(|branch| {
            let (number, credential) = (branch.number, branch.credential.clone());
            let branch =
                verdict_client::Branch::from_wire(branch).map_err(|error| format!("branch {number}: {error}"))?;
            if branch.payload.len() > Rules::MAX_PAYLOAD {
                let (len, most) = (branch.payload.len(), Rules::MAX_PAYLOAD);
                return Err(format!("branch {number}: the payload has {len} bytes, at most {most} are taken"));
            }
            if !knows(&branch.resource) {
                let resource = branch.resource;
                return Err(format!("branch {number}: no resource {resource} is configured: see [resources]"));
            }
            let vote = branch.vote.map(|voted| {
                let proven = admits(number, &credential);
                Brought { vote: voted.vote, reason: voted.reason, proven }
            });
            Ok(ListedBranch { branch: NewBranch { number, resource: branch.resource, payload: branch.payload }, vote })
        })
        .collect()
}

pub(crate) fn key(wire: String) -> Result<Option<Key>, Invalid> {
    if wire.is_empty() { Ok(None) } else { Key::try_from(wire).map(Some).map_err(|error| format!("key: {error}")) }
}

pub(crate) fn session(wire: Option<v1::SessionRef>) -> Result<Option<SessionRef>, Invalid> {
    let parse = |v1::SessionRef { name, epoch }| {
        let name = SessionName::try_from(name).map_err(|error| format!("session: {error}"))?;
        Ok(SessionRef { name, epoch })
    };
    wire.map(parse).transpose()
}

pub(crate) fn instance(wire: &[u8]) -> Result<Instance, Invalid> {
    wire.try_into().map(Instance).map_err(|_| format!("instance: it is 16 random bytes, this has {}", wire.len()))
}

/// A transaction as the ledger has it, with what its leader knows besides.
pub(crate) fn status(ledger: &Ledger, coordinator: &Coordinator, now: LogTime, xid: Xid) -> v1::TransactionStatus {
    status_as(ledger, coordinator, now, xid, None)
}

/// The same, of a transaction whose outcome is known from elsewhere if it is kept no more.
pub(crate) fn status_as(
    ledger: &Ledger,
    coordinator: &Coordinator,
    now: LogTime,
    xid: Xid,
    known: Option<Recorded<Outcome>>,
) -> v1::TransactionStatus {
    let mut status = ledger.status(xid);
    if let Some(known) = known.filter(|_| status.outcome.is_none()) {
        (status.state, status.outcome) = (State::Ended, Some(known));
    }
    let branches = status.transaction.into_iter().flat_map(|open| &open.branches);
    v1::TransactionStatus {
        xid: xid.to_wire(),
        state: state(status.state).into(),
        outcome: outcome(status.outcome).into(),
        reason: status.reason.cloned().map(verdict_client::wire::ToWire::to_wire),
        branches: branches
            .map(|(number, branch)| {
                branch_status(*number, branch, coordinator.blocker(BranchId { xid, number: *number }), now)
            })
            .collect(),
        log_index: status.outcome.map_or(0, |outcome| outcome.index()),
        age_ms: status.transaction.map_or(0, |open| age_ms(ledger, open)),
        words: status.transaction.into_iter().flat_map(|open| &open.words).map(spoken).collect(),
        credentials: Vec::new(),
    }
}

fn spoken((at, word): &(LogTime, Word)) -> v1::Word {
    v1::Word { at_ms: at.as_millis(), ..word.clone().to_wire() }
}

/// An operator's word: who and why, neither empty nor longer than is kept.
pub(crate) fn word(wire: Option<v1::Word>) -> Result<Word, Invalid> {
    let v1::Word { who, why, .. } = wire.unwrap_or_default();
    for (field, text) in [("word.who", &who), ("word.why", &why)] {
        if text.trim().is_empty() {
            return Err(format!("{field} is empty: say who does this and why; it is kept with the transaction"));
        }
        if text.len() > Word::MAX_TEXT {
            return Err(format!("{field} has {} bytes, at most {} are kept", text.len(), Word::MAX_TEXT));
        }
    }
    Ok(Word { who, why })
}

pub(crate) fn resolution(wire: Option<v1::resolve_request::Resolution>) -> Result<Resolution, Invalid> {
    use v1::resolve_request::Resolution as Wire;
    let parsed = match wire {
        Some(Wire::Outcome(outcome)) => Outcome::from_wire(outcome).map(Resolution::Decide),
        Some(Wire::Branch(v1::BranchSettlement { number, settlement })) => {
            Settlement::from_wire(settlement).map(|settlement| Resolution::Settle { number, settlement })
        }
        None => return Err("resolution is missing: name an outcome, or a branch and how it ended".to_owned()),
    };
    parsed.map_err(|error| error.to_string())
}

pub(crate) fn age_ms(ledger: &Ledger, open: &OpenTransaction) -> u64 {
    ledger.at().since(open.began_at)
}

fn state(state: State) -> v1::State {
    match state {
        State::Active => v1::State::Active,
        State::Voting => v1::State::Voting,
        State::Delegated => v1::State::Delegated,
        State::Decided => v1::State::Decided,
        State::Ended => v1::State::Ended,
        State::Expired => v1::State::Expired,
        State::Unknown => v1::State::Unknown,
    }
}

/// The only way from an outcome to a message: it takes one that stands in the log.
fn outcome(outcome: Option<Recorded<Outcome>>) -> v1::Outcome {
    outcome.map_or(v1::Outcome::Unspecified, |outcome| outcome.value().to_wire())
}

fn branch_status(number: u32, branch: &Branch, blocker: Option<Blocker<'_>>, now: LogTime) -> v1::BranchStatus {
    v1::BranchStatus {
        number,
        resource: branch.resource.clone().into(),
        vote: branch.vote.map_or(v1::Vote::Unspecified, |vote| vote.to_wire()).into(),
        reason: branch.reason.clone().map(verdict_client::wire::ToWire::to_wire),
        settlement: branch.settlement.map_or(v1::Settlement::Unspecified, |done| done.to_wire()).into(),
        last_error: blocker.map_or("", |blocker| blocker.error).to_owned(),
        failed_attempts: blocker.map_or(0, |blocker| blocker.failed),
        next_attempt_ms: blocker.and_then(|blocker| blocker.again_at).map_or(0, |at| at.since(now)),
    }
}

/// What a branch has to do, as `stamp` speaks it.
pub(crate) fn order(order: Order, retry_after_ms: u64, stamp: Option<v1::Stamp>) -> v1::BranchOrder {
    use v1::branch_order::Order as Wire;
    let (order, retry_after_ms) = match order {
        Order::Wait => (Wire::Wait, retry_after_ms),
        Order::Commit(_) => (Wire::Commit, 0),
        Order::Rollback(_) | Order::RollbackUnlisted => (Wire::Rollback, 0),
    };
    v1::BranchOrder { order: order.into(), retry_after_ms, stamp }
}

/// Which transitions somebody watches for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    xid: Option<Xid>,
    resource: Option<ResourceName>,
    outcome: Option<Outcome>,
}

impl Wanted {
    pub(crate) fn from_wire(wire: Option<v1::WatchFilter>) -> Result<Self, Invalid> {
        let v1::WatchFilter { xid, resource, outcome } = wire.unwrap_or_default();
        let xid = (!xid.is_empty()).then(|| self::xid(&xid)).transpose()?;
        let resource = (!resource.is_empty()).then(|| ResourceName::try_from(resource)).transpose();
        let resource = resource.map_err(|error| format!("filter.resource: {error}"))?;
        let outcome = Option::<Outcome>::from_wire(outcome).map_err(|error| format!("filter: {error}"))?;
        Ok(Self { xid, resource, outcome })
    }

    pub(crate) fn fits(&self, transition: &Transition) -> bool {
        let decided = match &transition.step {
            Step::Decided { outcome, .. } => Some(outcome.value()),
            Step::Begun
            | Step::Voting
            | Step::Delegated { .. }
            | Step::Settled { .. }
            | Step::PromiseBroken { .. }
            | Step::Ended => None,
        };
        self.xid.is_none_or(|xid| xid == transition.xid)
            && self.resource.as_ref().is_none_or(|resource| transition.resources.contains(resource))
            && self.outcome.is_none_or(|outcome| decided == Some(outcome))
    }
}

pub(crate) fn transition(at: LogTime, transition: &Transition) -> v1::Transition {
    use v1::transition::Step as Wire;
    let mut wire = v1::Transition {
        xid: transition.xid.to_wire(),
        at_ms: at.as_millis(),
        resources: transition.resources.iter().cloned().map(String::from).collect(),
        ..v1::Transition::default()
    };
    let step = match &transition.step {
        Step::Begun => Wire::Begun,
        Step::Voting => Wire::Voting,
        Step::Delegated { branch } => {
            wire.branch = *branch;
            Wire::Delegated
        }
        Step::Decided { outcome: decided, reason } => {
            wire.outcome = outcome(Some(*decided)).into();
            wire.reason = reason.clone().map(verdict_client::wire::ToWire::to_wire);
            Wire::Decided
        }
        Step::Settled { branch, settlement } => {
            (wire.branch, wire.settlement) = (*branch, settlement.to_wire().into());
            Wire::Settled
        }
        Step::PromiseBroken { branch } => {
            wire.branch = *branch;
            Wire::PromiseBroken
        }
        Step::Ended => Wire::Ended,
    };
    wire.set_step(step);
    wire
}
