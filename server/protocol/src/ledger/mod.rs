//! The replicated state machine: the open table and the kept outcomes, changed by applying entries and nothing else.
//!
//! `apply` alone judges horizon, skew, limits, list and state. Time never decides by itself: a timer proposes an
//! `Abort`, and the order of the log settles who was first.

mod outcomes;
mod query;
mod recorded;
mod rules;
pub(crate) mod snapshot;
mod transaction;
mod transition;

use std::{collections::BTreeMap, sync::Arc};

pub use query::{Order, State, Status};
pub use recorded::Recorded;
pub use rules::Rules;
pub use transaction::{Branch, OpenTransaction, Phase};

use outcomes::{OutcomeRecord, Outcomes};
use transaction::{fit, list_digest};
use transition::{Door, Event, Fit, Ruling, Standing, rule};

use crate::{
    Answer, BranchId, BranchNumber, ClusterId, Command, Entry, ListedBranch, LogTime, NewBranch, Outcome, Reason,
    ReasonCode, Refusal, SettledItem, Vote, Xid,
};

/// The state that all nodes share.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    at: LogTime,
    index: u64,
    cluster: Option<ClusterId>,
    rules: Rules,
    open: BTreeMap<Xid, Arc<OpenTransaction>>,
    in_doubt: u64,
    outcomes: Outcomes,
}

/// What applying one entry came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// One for each command, in order.
    pub answers: Vec<Answer>,
    /// What a leader has to act upon, in order.
    pub changes: Vec<Change>,
}

/// Something that a leader has to act upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Begun: aborted if it is not asked to commit by then.
    Opened { xid: Xid, expires_at: LogTime },
    /// The list is closed, and some have not voted.
    Closed { xid: Xid, deadline: LogTime },
    /// The outcome is fixed.
    Decided { xid: Xid, outcome: Recorded<Outcome> },
    /// A branch voted PREPARED after the decision: it must hear the outcome.
    TellAgain { branch: BranchId },
    /// A branch broke its promise. For people: nothing in the protocol can mend it.
    PromiseBroken { branch: BranchId },
    /// A branch acknowledged its outcome.
    Settled { branch: BranchId },
    /// Nothing is left to do for it.
    Ended { xid: Xid },
}

impl Ledger {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies the entry at `index` of the log. Entries must come in the order of the log, each once.
    pub fn apply(&mut self, index: u64, entry: &Entry) -> Applied {
        debug_assert!(index > self.index, "entries are applied in order: {index} after {}", self.index);
        self.index = index;
        self.at = self.at.max(entry.at);
        let mut applied = Applied::default();
        for command in &entry.commands {
            let answer = self.apply_command(command, &mut applied.changes);
            applied.answers.push(answer);
        }
        self.outcomes.forget_before(self.horizon(), &self.rules);
        applied
    }

    fn apply_command(&mut self, command: &Command, changes: &mut Vec<Change>) -> Answer {
        if self.cluster.is_none() && !matches!(command, Command::Found { .. }) {
            return Err(Refusal::NotFounded);
        }
        match command {
            Command::Found { cluster, rules } => self.found(*cluster, *rules),
            Command::Begin { xid, timeout_ms } => match rule(self.standing(*xid), Event::Begin) {
                Ruling::Register => {
                    self.register(*xid, &[], *timeout_ms, changes);
                    Ok(())
                }
                other => self.carry_out(*xid, other, changes),
            },
            Command::Enlist { xid, branches, timeout_ms } => {
                let fit = fit(self.transaction(*xid), branches.iter(), &self.rules);
                match rule(self.standing(*xid), Event::Enlist(fit)) {
                    Ruling::Register => {
                        self.register(*xid, branches, *timeout_ms, changes);
                        Ok(())
                    }
                    other => self.carry_out(*xid, other, changes),
                }
            }
            Command::Prepare { xid, branches, vote_timeout_ms } => {
                let list = list_digest(branches);
                match rule(self.standing(*xid), Event::Prepare(self.prepare_fit(*xid, branches, list))) {
                    Ruling::Close => {
                        self.close(*xid, branches, list, *vote_timeout_ms, changes);
                        Ok(())
                    }
                    Ruling::AbortAndRefuse(refusal) => {
                        self.refuse_list(*xid, &refusal, changes);
                        Err(refusal)
                    }
                    other => self.carry_out(*xid, other, changes),
                }
            }
            Command::Vote { branch, vote, reason } => self.vote(*branch, *vote, reason.as_ref(), changes),
            Command::Abort { xid, reason } => match rule(self.standing(*xid), Event::Abort) {
                Ruling::Abort => {
                    self.decide(*xid, Outcome::Aborted, Some(reason.clone()), changes);
                    Ok(())
                }
                other => self.carry_out(*xid, other, changes),
            },
            Command::PresumeAbort { xid } => match rule(self.standing(*xid), Event::PresumeAbort) {
                Ruling::Abort => {
                    let reason = Reason::new(ReasonCode::Presumed, "a branch asked and nobody had heard of it");
                    self.decide(*xid, Outcome::Aborted, Some(reason), changes);
                    Ok(())
                }
                other => self.carry_out(*xid, other, changes),
            },
            Command::Settled { items } => {
                for item in items {
                    if rule(self.standing(item.branch.xid), Event::Settle) == Ruling::Settle {
                        self.settle(item, changes);
                    }
                }
                Ok(())
            }
        }
    }

    /// The rulings that need nothing of the command.
    fn carry_out(&mut self, xid: Xid, ruling: Ruling, changes: &mut Vec<Change>) -> Answer {
        match ruling {
            Ruling::Refuse(refusal) => Err(refusal),
            Ruling::Repeat => Ok(()),
            Ruling::Register
            | Ruling::Close
            | Ruling::Record
            | Ruling::Abort
            | Ruling::AbortAndRefuse(_)
            | Ruling::Settle
            | Ruling::TellAgain
            | Ruling::Report => unreachable!("{xid}: {ruling:?} is ruled only where it is handled, {changes:?}"),
        }
    }

    fn prepare_fit(&self, xid: Xid, branches: &[ListedBranch], list: u64) -> Fit {
        match self.closed_list(xid) {
            Some(closed) if closed == list => Fit::Same,
            Some(_) => Fit::Contradicts,
            None => fit(self.transaction(xid), branches.iter().map(|listed| &listed.branch), &self.rules),
        }
    }

    fn found(&mut self, cluster: ClusterId, rules: Rules) -> Answer {
        if self.cluster.is_none() {
            self.cluster = Some(cluster);
            self.rules = Rules { bucket_ms: rules.bucket_ms.max(1), ..rules };
        }
        Ok(())
    }

    fn register(&mut self, xid: Xid, branches: &[NewBranch], timeout_ms: u64, changes: &mut Vec<Change>) {
        let (at, max_lifetime_ms) = (self.at, self.rules.max_lifetime_ms);
        let open = self.open.entry(xid).or_insert_with(|| {
            let expires_at = at.plus(timeout_ms.min(max_lifetime_ms));
            changes.push(Change::Opened { xid, expires_at });
            Arc::new(OpenTransaction::new(at, expires_at))
        });
        let transaction = Arc::make_mut(open);
        for branch in branches {
            transaction.register(branch);
        }
    }

    fn close(
        &mut self,
        xid: Xid,
        branches: &[ListedBranch],
        list: u64,
        vote_timeout_ms: u64,
        changes: &mut Vec<Change>,
    ) {
        let at = self.at;
        let deadline = at.plus(vote_timeout_ms.min(self.rules.max_lifetime_ms));
        let open = self.open.entry(xid).or_insert_with(|| Arc::new(OpenTransaction::new(at, deadline)));
        let transaction = Arc::make_mut(open);
        let before = transaction.is_in_doubt();
        transaction.phase = Phase::Voting { deadline, list };
        for listed in branches {
            transaction.register(&listed.branch);
            let branch = transaction.branches.get_mut(&listed.branch.number).expect("it was just registered");
            match (&listed.vote, branch.vote) {
                (Some((vote, reason)), None) | (Some((vote @ Vote::Refused, reason)), Some(_)) => {
                    if branch.vote.replace(*vote) == Some(Vote::Prepared) {
                        changes.push(Change::PromiseBroken { branch: BranchId { xid, number: listed.branch.number } });
                    }
                    branch.reason.clone_from(reason);
                }
                (None, _) | (Some((Vote::Prepared | Vote::ReadOnly, _)), Some(_)) => {}
            }
        }
        self.count_in_doubt(xid, before);
        if !self.tally(xid, changes) {
            changes.push(Change::Closed { xid, deadline });
        }
    }

    /// Records ABORTED for a list that may not begin: whoever prepared a branch of it finds that when he asks.
    fn refuse_list(&mut self, xid: Xid, refusal: &Refusal, changes: &mut Vec<Change>) {
        let code = match refusal {
            Refusal::Skewed { .. } => ReasonCode::Skewed,
            Refusal::Limit { .. }
            | Refusal::Closed
            | Refusal::Mismatch
            | Refusal::Expired
            | Refusal::UnknownTransaction
            | Refusal::UnknownBranch
            | Refusal::NotFounded => ReasonCode::Limit,
        };
        self.decide(xid, Outcome::Aborted, Some(Reason::new(code, refusal.to_string())), changes);
    }

    fn vote(&mut self, id: BranchId, vote: Vote, reason: Option<&Reason>, changes: &mut Vec<Change>) -> Answer {
        let (known, earlier) = match self.transaction(id.xid) {
            Some(transaction) => {
                let branch = transaction.branches.get(&id.number);
                (branch.is_some(), branch.and_then(|branch| branch.vote))
            }
            None => {
                let record = self.outcomes.get(id.xid, &self.rules);
                let prepared = record.is_some_and(|record| record.prepared.contains(&id.number));
                (prepared, prepared.then_some(Vote::Prepared))
            }
        };
        let event = Event::Vote { vote, known, earlier };
        match rule(self.standing(id.xid), event) {
            Ruling::Record => {
                let open = self.open.get_mut(&id.xid).expect("a vote is recorded only in the open table");
                let transaction = Arc::make_mut(open);
                let before = transaction.is_in_doubt();
                let branch = transaction.branches.get_mut(&id.number).expect("only a known branch's vote is recorded");
                if vote == Vote::Refused && branch.vote == Some(Vote::Prepared) {
                    changes.push(Change::PromiseBroken { branch: id });
                }
                branch.vote = Some(vote);
                branch.reason = reason.cloned();
                self.count_in_doubt(id.xid, before);
                self.tally(id.xid, changes);
                Ok(())
            }
            Ruling::TellAgain => {
                // Who has acknowledged its outcome keeps it: the vote was only late.
                let settled = self.transaction(id.xid).and_then(|open| open.branches.get(&id.number)?.settlement);
                if settled.is_none() {
                    changes.push(Change::TellAgain { branch: id });
                }
                Ok(())
            }
            Ruling::Report => {
                changes.push(Change::PromiseBroken { branch: id });
                Ok(())
            }
            other => self.carry_out(id.xid, other, changes),
        }
    }

    /// Decides if the votes do. A refusal aborts at once; COMMITTED takes a closed list that has voted in full.
    fn tally(&mut self, xid: Xid, changes: &mut Vec<Change>) -> bool {
        let Some(transaction) = self.transaction(xid) else { return false };
        let refused = transaction.branches.iter().find(|(_, branch)| branch.vote == Some(Vote::Refused));
        if let Some((number, branch)) = refused {
            let reason = branch.reason.clone().unwrap_or_else(|| {
                Reason::new(ReasonCode::Refused, format!("branch {number} ({}) refused", branch.resource))
            });
            self.decide(xid, Outcome::Aborted, Some(reason), changes);
            return true;
        }
        let complete = matches!(transaction.phase, Phase::Voting { .. })
            && transaction.branches.values().all(|branch| branch.vote.is_some());
        if complete {
            self.decide(xid, Outcome::Committed, None, changes);
        }
        complete
    }

    fn decide(&mut self, xid: Xid, outcome: Outcome, reason: Option<Reason>, changes: &mut Vec<Change>) {
        let index = self.index;
        let list = self.closed_list(xid).unwrap_or(0);
        let mut prepared: Box<[BranchNumber]> = Box::default();
        if let Some(open) = self.open.get_mut(&xid) {
            let transaction = Arc::make_mut(open);
            debug_assert!(!matches!(transaction.phase, Phase::Decided { .. }), "{xid} is decided once");
            transaction.phase = Phase::Decided { outcome, reason: reason.clone(), index, list };
            prepared = transaction
                .branches
                .iter()
                .filter(|(_, branch)| branch.vote == Some(Vote::Prepared))
                .map(|(number, _)| *number)
                .collect();
        }
        let record = OutcomeRecord { outcome, reason: reason.map(Box::new), index, list, prepared };
        self.outcomes.insert(xid, self.at, record, &self.rules);
        changes.push(Change::Decided { xid, outcome: Recorded::new(outcome, index) });
        self.end_if_settled(xid, changes);
    }

    fn settle(&mut self, item: &SettledItem, changes: &mut Vec<Change>) {
        let xid = item.branch.xid;
        let open = self.open.get_mut(&xid).expect("a decided transaction is in the open table");
        let transaction = Arc::make_mut(open);
        let before = transaction.is_in_doubt();
        let Some(branch) = transaction.branches.get_mut(&item.branch.number) else { return };
        if branch.settlement.is_some() {
            return;
        }
        branch.settlement = Some(item.settlement);
        changes.push(Change::Settled { branch: item.branch });
        self.count_in_doubt(xid, before);
        self.end_if_settled(xid, changes);
    }

    /// A transaction with a heuristic settlement stays: an operator has to see it.
    fn end_if_settled(&mut self, xid: Xid, changes: &mut Vec<Change>) {
        let Some(transaction) = self.transaction(xid) else {
            changes.push(Change::Ended { xid });
            return;
        };
        if transaction.unsettled().next().is_none() && !transaction.has_heuristic() {
            self.open.remove(&xid);
            changes.push(Change::Ended { xid });
        }
    }

    fn count_in_doubt(&mut self, xid: Xid, before: bool) {
        let after = self.transaction(xid).is_some_and(OpenTransaction::is_in_doubt);
        match (before, after) {
            (false, true) => self.in_doubt += 1,
            (true, false) => self.in_doubt -= 1,
            (false, false) | (true, true) => {}
        }
    }

    fn standing(&self, xid: Xid) -> Standing {
        if let Some(transaction) = self.transaction(xid) {
            return match &transaction.phase {
                Phase::Active { .. } => Standing::Active,
                Phase::Voting { .. } => Standing::Voting,
                Phase::Decided { outcome, .. } => Standing::Decided(*outcome),
            };
        }
        match self.outcomes.get(xid, &self.rules) {
            Some(record) => Standing::Ended(record.outcome),
            None => Standing::Unknown(self.door(xid)),
        }
    }

    fn door(&self, xid: Xid) -> Door {
        let rules = &self.rules;
        let ahead_ms = xid.birth().since(self.at);
        if xid.birth() < self.horizon() {
            Door::Expired
        } else if ahead_ms > rules.max_skew_ms {
            Door::Skewed { ahead_ms, allowed_ms: rules.max_skew_ms }
        } else if self.open.len() as u64 >= rules.max_open {
            Door::Full { limit: rules.max_open }
        } else {
            Door::Open
        }
    }

    fn closed_list(&self, xid: Xid) -> Option<u64> {
        match self.transaction(xid).map(|transaction| &transaction.phase) {
            Some(Phase::Active { .. }) => None,
            Some(Phase::Voting { list, .. } | Phase::Decided { list, .. }) => Some(*list),
            None => self.outcomes.get(xid, &self.rules).map(|record| record.list),
        }
    }
}
