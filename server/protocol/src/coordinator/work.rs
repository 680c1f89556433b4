//! What the leader keeps of one open transaction. All of it may be lost.

use std::collections::{BTreeMap, btree_map::Entry};

use bytes::Bytes;

use super::message::{Effect, Token};
use crate::{BranchId, BranchNumber, LogTime, Reason, ResourceName, Vote};

#[derive(Debug, Default)]
pub(super) struct Work {
    /// Clients that wait for the outcome.
    pub(super) waiting: Vec<Token>,
    /// When voting is over, as this leader counts.
    pub(super) deadline: LogTime,
    /// When the transaction as a whole is looked at again.
    pub(super) look_at: Option<LogTime>,
    pub(super) asking: BTreeMap<BranchNumber, Call>,
    pub(super) telling: BTreeMap<BranchNumber, Call>,
    /// Answers to prepare that are not proposed yet.
    pub(super) votes: BTreeMap<BranchNumber, (Vote, Option<Reason>)>,
    pub(super) votes_proposed: bool,
}

/// One participant being asked or told, over as many attempts as it takes.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) in_flight: bool,
    pub(super) attempt: u32,
    pub(super) due: Option<LogTime>,
    pub(super) last_error: Option<String>,
}

impl Call {
    pub(super) fn wait_until(&mut self, due: LogTime) -> LogTime {
        self.in_flight = false;
        self.due = Some(due);
        due
    }
}

impl Work {
    /// Asks the branch to prepare, unless it was asked already.
    pub(super) fn ask(
        &mut self,
        now: LogTime,
        branch: BranchId,
        resource: &ResourceName,
        payload: &Bytes,
        effects: &mut Vec<Effect>,
    ) {
        if let Entry::Vacant(vacant) = self.asking.entry(branch.number) {
            vacant.insert(Call::default());
            self.ask_again(now, branch, resource, payload, effects);
        }
    }

    /// Asks once more, unless an attempt is under way, the vote is there, or the time is over.
    pub(super) fn ask_again(
        &mut self,
        now: LogTime,
        branch: BranchId,
        resource: &ResourceName,
        payload: &Bytes,
        effects: &mut Vec<Effect>,
    ) {
        let within_ms = self.deadline.since(now);
        if within_ms == 0 || self.votes.contains_key(&branch.number) {
            return;
        }
        let Some(call) = self.asking.get_mut(&branch.number) else { return };
        if !std::mem::replace(&mut call.in_flight, true) {
            call.due = None;
            let (resource, payload) = (resource.clone(), payload.clone());
            effects.push(Effect::Ask { branch, resource, payload, within_ms });
        }
    }
}
