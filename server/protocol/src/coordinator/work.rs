//! What the leader keeps of one open transaction. All of it may be lost.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    backoff::Backoff,
    message::{Effect, Token},
    timers::Timers,
};
use crate::{BranchId, BranchNumber, Conclusion, LogTime, Reason, ResourceName, Vote, Xid};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Work {
    /// Clients that wait for the outcome.
    pub(super) waiting: Vec<Token>,
    /// When voting is over, as this leader counts.
    pub(super) deadline: LogTime,
    /// When the transaction as a whole is looked at again.
    pub(super) look_at: Option<LogTime>,
    pub(super) asking: BTreeMap<BranchNumber, Call>,
    pub(super) telling: BTreeMap<BranchNumber, Call>,
    /// What was asked for a list that is not in the log yet.
    pub(super) early: BTreeMap<BranchNumber, (ResourceName, Bytes)>,
    /// Answers to prepare that are not proposed yet.
    pub(super) votes: BTreeMap<BranchNumber, (Vote, Option<Reason>)>,
    /// What the branch that decides has said.
    pub(super) conclusion: Option<Conclusion>,
    pub(super) votes_proposed: bool,
    /// Whether votes go to the log as they come, instead of once they decide.
    pub(super) slow: bool,
    pub(super) abort_proposed: bool,
}

/// One participant being asked or told, over as many attempts as it takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Call {
    pub(super) in_flight: bool,
    pub(super) attempt: u32,
    /// When its timer comes, if one is set.
    pub(super) due: Option<LogTime>,
    pub(super) last_error: Option<String>,
}

impl Call {
    /// It failed: tries again later.
    pub(super) fn fail(&mut self, now: LogTime, branch: BranchId, error: String, timers: &mut Timers) {
        let delay = Backoff::delay_ms(branch, self.attempt);
        self.attempt = self.attempt.saturating_add(1);
        self.last_error = Some(error);
        self.wait_until(branch, now.plus(delay), timers);
    }

    pub(super) fn wait_until(&mut self, branch: BranchId, due: LogTime, timers: &mut Timers) {
        self.in_flight = false;
        timers.set(branch.xid, Some(branch.number), &mut self.due, due);
    }
}

impl Work {
    /// Asks the branch to prepare, unless an attempt is under way or its turn is set.
    pub(super) fn ask(
        &mut self,
        now: LogTime,
        branch: BranchId,
        resource: &ResourceName,
        payload: &Bytes,
        effects: &mut Vec<Effect>,
    ) {
        // A turn that came before the list was closed was passed over: it has no timer now, and is asked here.
        if self.asking.entry(branch.number).or_default().due.is_none() {
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
            let (resource, payload) = (resource.clone(), payload.clone());
            effects.push(Effect::Ask { branch, resource, payload, within_ms });
        }
    }

    /// Gives up asking, once the outcome is known.
    pub(super) fn stop_asking(&mut self, xid: Xid, timers: &mut Timers) {
        for (number, mut call) in std::mem::take(&mut self.asking) {
            timers.clear(xid, Some(number), &mut call.due);
        }
        self.votes.clear();
        timers.clear(xid, None, &mut self.look_at);
    }

    /// The branch needs to be told no more.
    pub(super) fn told(&mut self, branch: BranchId, timers: &mut Timers) {
        if let Some(mut call) = self.telling.remove(&branch.number) {
            timers.clear(branch.xid, Some(branch.number), &mut call.due);
        }
    }

    /// A timer of its own has come: whoever it was for has none now.
    pub(super) fn timer_came(&mut self, at: LogTime, number: Option<BranchNumber>) {
        let Some(number) = number else {
            self.look_at = None;
            return;
        };
        for call in [self.asking.get_mut(&number), self.telling.get_mut(&number)].into_iter().flatten() {
            if call.due == Some(at) {
                call.due = None;
            }
        }
    }

    /// Leaves no timer behind.
    pub(super) fn clear_timers(&mut self, xid: Xid, timers: &mut Timers) {
        self.stop_asking(xid, timers);
        for (number, mut call) in std::mem::take(&mut self.telling) {
            timers.clear(xid, Some(number), &mut call.due);
        }
    }
}
