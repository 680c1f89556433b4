//! The replicated state machine: the open table and the kept outcomes, changed by applying entries and nothing else.
//!
//! `apply` alone judges horizon, skew, limits, list and state. Time never decides by itself: a timer proposes an
//! `Abort`, and the order of the log settles who was first.

mod deciding;
mod keys;
mod outcomes;
mod query;
mod recorded;
mod rules;
mod sessions;
mod settling;
pub(crate) mod snapshot;
mod transaction;
mod transition;
mod watched;

use std::{collections::BTreeMap, sync::Arc};

pub use query::{Order, State, Status};
pub use recorded::Recorded;
pub use rules::Rules;
pub use transaction::{Branch, OpenTransaction, Phase};
pub use watched::{Step, Transition};

use keys::Keys;
use outcomes::Outcomes;
use sessions::Sessions;
use transaction::{fit, list_digest, unproven};
use transition::{Door, Event, Fit, Ruling, Standing, rule};

use crate::{
    Answer, BranchId, BranchNumber, ClusterId, Command, Entry, Key, ListedBranch, LogTime, NewBranch, Outcome, Reason,
    ReasonCode, Refusal, ResourceName, Secret, SessionRef, Xid,
};

/// The state that all nodes share.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    at: LogTime,
    index: u64,
    cluster: Option<ClusterId>,
    secret: Option<Secret>,
    rules: Rules,
    open: BTreeMap<Xid, Arc<OpenTransaction>>,
    in_doubt: u64,
    outcomes: Outcomes,
    keys: Keys,
    sessions: Sessions,
    /// Unsettled branches of open transactions, by resource; none that is zero.
    by_resource: BTreeMap<ResourceName, u64>,
    /// Steps that the entry which is being applied has made so far; empty between entries.
    told: Vec<Transition>,
}

/// What applying one entry came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// One for each command, in order.
    pub answers: Vec<Answer>,
    /// What a leader has to act upon, in order.
    pub changes: Vec<Change>,
    /// What whoever watches is told, in order.
    pub transitions: Vec<Transition>,
}

/// Something that a leader has to act upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Begun: aborted if it is not asked to commit by then.
    Opened { xid: Xid, expires_at: LogTime },
    /// The list is closed, and some have not voted.
    Closed { xid: Xid, deadline: LogTime },
    /// All others have promised: this branch is to be asked for the decision.
    Delegated { xid: Xid },
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
        self.keys.forget_before(self.at.minus(self.rules.key_retention_ms), &self.rules);
        applied.transitions = std::mem::take(&mut self.told);
        applied
    }

    fn apply_command(&mut self, command: &Command, changes: &mut Vec<Change>) -> Answer {
        if self.cluster.is_none() && !matches!(command, Command::Found { .. }) {
            return Err(Refusal::NotFounded);
        }
        match command {
            Command::Found { cluster, secret, rules } => self.found(*cluster, *secret, *rules),
            Command::Begin { xid, timeout_ms, key, session } => {
                self.begin(*xid, *timeout_ms, key.as_ref(), session.as_ref(), changes)
            }
            Command::Enlist { xid, branches, timeout_ms } => {
                let fit = self.fit(*xid, branches.iter());
                match rule(self.standing(*xid), Event::Enlist(fit)) {
                    Ruling::Register => {
                        let timeout_ms = (*timeout_ms).min(self.rules.max_lifetime_ms);
                        self.register(*xid, branches, timeout_ms, changes);
                        Ok(())
                    }
                    other => self.carry_out(*xid, other, changes),
                }
            }
            Command::Prepare { xid, branches, vote_timeout_ms, delegate, session } => {
                match rule(self.standing(*xid), Event::Prepare(self.prepare_fit(*xid, branches, *delegate))) {
                    Ruling::Close => match self.admit(session.as_ref()) {
                        Ok(()) => {
                            self.close(*xid, branches, *vote_timeout_ms, *delegate, changes);
                            self.works_under(*xid, session.as_ref());
                            Ok(())
                        }
                        Err(refusal) => {
                            self.refuse_list(*xid, &refusal, changes);
                            Err(refusal)
                        }
                    },
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
            Command::OpenSession { name, instance } => self.open_session(name, *instance, changes),
            Command::Conclude { branch, conclusion } => self.conclude(*branch, conclusion, changes),
            Command::Resolve { xid, resolution, word, force } => self.resolve(*xid, *resolution, word, *force, changes),
            Command::Forget { xid, word, force } => self.forget(*xid, word, *force, changes),
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
            | Ruling::Conclude
            | Ruling::TellAgain
            | Ruling::Report => unreachable!("{xid}: {ruling:?} is ruled only where it is handled, {changes:?}"),
        }
    }

    fn prepare_fit(&self, xid: Xid, branches: &[ListedBranch], delegate: Option<BranchNumber>) -> Fit {
        let open = self.transaction(xid);
        let is_listed = |number: &BranchNumber| {
            open.is_some_and(|open| open.branches.contains_key(number))
                || branches.iter().any(|listed| listed.branch.number == *number)
        };
        match self.closed_list(xid) {
            Some(closed) if closed == list_digest(branches, delegate) => Fit::Same,
            Some(_) => Fit::Contradicts,
            None if delegate.as_ref().is_some_and(|number| !is_listed(number)) => Fit::Contradicts,
            None => match self.fit(xid, branches.iter().map(|listed| &listed.branch)) {
                fit @ (Fit::Same | Fit::New) => unproven(open, branches).unwrap_or(fit),
                other => other,
            },
        }
    }

    /// How branches fit to what is registered, to each other, and into the room that is left at their resources. Of a
    /// transaction that has ended only the numbers are kept.
    fn fit<'a>(&self, xid: Xid, mut branches: impl Iterator<Item = &'a NewBranch> + Clone) -> Fit {
        let open = self.transaction(xid);
        if open.is_none()
            && let Some(record) = self.outcomes.get(xid, &self.rules)
        {
            return if branches.all(|branch| record.names(branch.number)) { Fit::Same } else { Fit::New };
        }
        match fit(open, branches.clone(), &self.rules) {
            Fit::New => {
                let limit = self.rules.max_open_per_resource;
                let is_full = |branch: &NewBranch| {
                    open.is_none_or(|open| !open.branches.contains_key(&branch.number))
                        && self.by_resource.get(&branch.resource).is_some_and(|count| *count >= limit)
                };
                if branches.any(is_full) { Fit::NoRoom { limit } } else { Fit::New }
            }
            other => other,
        }
    }

    fn begin(
        &mut self,
        xid: Xid,
        timeout_ms: u64,
        key: Option<&Key>,
        session: Option<&SessionRef>,
        changes: &mut Vec<Change>,
    ) -> Answer {
        let holder = key.and_then(|key| self.keys.holder(key)).map(|(holder, _)| holder);
        if let Some(holder) = holder.filter(|holder| *holder != xid) {
            return Err(Refusal::KeyTaken { holder });
        }
        match rule(self.standing(xid), Event::Begin) {
            Ruling::Register => {
                let limit = self.rules.max_keys;
                if key.is_some() && holder.is_none() && self.keys.len() as u64 >= limit {
                    return Err(Refusal::Limit { what: "idempotency keys".to_owned(), limit });
                }
                self.admit(session)?;
                self.register(xid, &[], timeout_ms.min(self.rules.longest_lifetime_ms), changes);
                if let (Some(key), Some(open)) = (key, self.open.get_mut(&xid)) {
                    Arc::make_mut(open).key = Some(key.clone());
                    self.keys.open.insert(key.clone(), xid);
                }
                self.works_under(xid, session);
                Ok(())
            }
            // Whoever began it without the key must not believe that it has it.
            Ruling::Repeat if key.is_some() && holder.is_none() && self.outcome(xid).is_none() => {
                Err(Refusal::Mismatch)
            }
            other => self.carry_out(xid, other, changes),
        }
    }

    fn found(&mut self, cluster: ClusterId, secret: Secret, rules: Rules) -> Answer {
        if self.cluster.is_none() {
            (self.cluster, self.secret) = (Some(cluster), Some(secret));
            self.rules = Rules { bucket_ms: rules.bucket_ms.max(1), ..rules };
        }
        Ok(())
    }

    fn register(&mut self, xid: Xid, branches: &[NewBranch], timeout_ms: u64, changes: &mut Vec<Change>) {
        let at = self.at;
        let begun = !self.open.contains_key(&xid);
        let open = self.open.entry(xid).or_insert_with(|| {
            let expires_at = at.plus(timeout_ms);
            changes.push(Change::Opened { xid, expires_at });
            Arc::new(OpenTransaction::new(at, expires_at))
        });
        let transaction = Arc::make_mut(open);
        for branch in branches {
            transaction.register(branch, &mut self.by_resource);
        }
        if begun {
            self.tells(xid, Step::Begun);
        }
    }

    fn standing(&self, xid: Xid) -> Standing {
        if let Some(transaction) = self.transaction(xid) {
            return match &transaction.phase {
                Phase::Active { .. } => Standing::Active,
                Phase::Voting { .. } => Standing::Voting,
                Phase::Delegated { .. } => Standing::Delegated,
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
            Some(Phase::Voting { list, .. } | Phase::Delegated { list, .. } | Phase::Decided { list, .. }) => {
                Some(*list)
            }
            None => self.outcomes.get(xid, &self.rules).map(|record| record.list),
        }
    }
}
