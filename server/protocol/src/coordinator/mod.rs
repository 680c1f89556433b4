//! What the leading node does about the ledger: events in, effects out.
//!
//! The coordinator keeps only what may be lost: who waits, whom it has asked or told, votes that are not proposed
//! yet. All else it reads from the ledger, so a new leader, a restart and a retry run the same code.
//!
//! ```text
//!   Commit ─▶ propose Prepare ─────────────▶ Closed ─┐
//!        └──▶ ask every branch ─▶ votes ─────────────┴─▶ propose the votes, in one entry ─▶ Decided ─┬─▶ reply
//!                                                                                                   └─▶ tell ─▶ Settled
//! ```

pub(crate) mod backoff;
mod delegating;
mod message;
mod sessions;
mod settling;
mod timers;
pub(crate) mod voting;
mod waking;
mod work;

use std::collections::BTreeMap;

pub use message::{Effect, Event, ProposalId, Reply, Report, Request, Token};

use sessions::Opening;
use timers::Timers;
use voting::Closing;
use work::Work;

use crate::{Answer, BranchId, Change, Command, Ledger, LogTime, Order, Outcome, Phase, Refusal, State, Xid};

/// How long what was asked for a list that did not get into the log is kept, in milliseconds: as long as the SDK's clients
/// wait, at most, before they ask again. After that the branches are asked anew.
pub const KEEP_EARLY_MS: u64 = 1_000;

/// Bounds of the coordinator's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Patience {
    /// What a new leader leaves a voting transaction at least, in milliseconds.
    pub least_vote_ms: u64,
    /// How long an unknown branch must have been held before its transaction is presumed aborted, in milliseconds.
    /// Above the largest vote timeout.
    pub grace_ms: u64,
    /// How long a client that brought a branch's vote may take to settle it before the cluster does, in milliseconds.
    pub settle_grace_ms: u64,
}

/// The rules of the leading node.
///
/// Two that are equal, and whose ledgers are, answer every event alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator {
    patience: Patience,
    leads: bool,
    works: BTreeMap<Xid, Work>,
    timers: Timers,
    armed: Option<LogTime>,
    pending: BTreeMap<ProposalId, Pending>,
    openings: Vec<Opening>,
    last_proposal: u64,
}

/// How much a coordinator keeps. All zero once every transaction has ended and every proposal is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Transactions that it has to do with.
    pub works: usize,
    /// Retries, expiries and deadlines that are set.
    pub timers: usize,
    /// Proposals that are not answered.
    pub proposals: usize,
    /// Instances that wait for their predecessors' transactions.
    pub openings: usize,
}

/// What keeps a branch from voting or from being settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocker<'a> {
    /// The participant's last error.
    pub error: &'a str,
    /// Attempts that this leader made in vain.
    pub failed: u32,
    /// When it makes the next; none if one is under way.
    pub again_at: Option<LogTime>,
}

/// What a proposal's answer is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Pending {
    Commit { token: Token, xid: Xid },
    Change { token: Token, xid: Xid },
    Order { token: Token, branch: BranchId },
    Session(Opening),
    Votes { xid: Xid },
    Abort { xid: Xid },
}

impl Coordinator {
    #[must_use]
    pub fn new(patience: Patience) -> Self {
        Self {
            patience,
            leads: false,
            works: BTreeMap::new(),
            timers: Timers::default(),
            armed: None,
            pending: BTreeMap::new(),
            openings: Vec::new(),
            last_proposal: 0,
        }
    }

    /// Takes in what happened at `now`, in the leader's log time, and returns what to do about it.
    ///
    /// `ledger` is the ledger as it stands, with everything applied that `event` tells of.
    pub fn handle(&mut self, now: LogTime, event: Event, ledger: &Ledger) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Lead => self.lead(now, ledger, &mut effects),
            Event::Deposed => self.depose(&mut effects),
            Event::Request { token, .. } if !self.leads => {
                effects.push(Effect::Reply { token, reply: Reply::NotLeader });
            }
            _ if !self.leads => {}
            Event::Request { token, request } => self.request(now, token, request, ledger, &mut effects),
            Event::Applied { changes } => {
                for change in changes {
                    self.applied(now, &change, ledger, &mut effects);
                }
            }
            Event::Answered { proposal, answers } => self.answered(proposal, answers, ledger, &mut effects),
            Event::Interrupted { proposal } => self.interrupted(now, proposal, ledger, &mut effects),
            Event::Voted { branch, vote, reason } => self.voted(branch, vote, reason, ledger, &mut effects),
            Event::NotAsked { branch, error } => {
                let Some(work) = self.works.get_mut(&branch.xid) else { return effects };
                if let Some(call) = work.asking.get_mut(&branch.number) {
                    call.fail(now, branch, error, &mut self.timers);
                }
            }
            Event::Acknowledged { branch, settlement } => {
                self.acknowledged(now, branch, settlement, ledger, &mut effects)
            }
            Event::NotTold { branch, error } => {
                let Some(work) = self.works.get_mut(&branch.xid) else { return effects };
                if let Some(call) = work.telling.get_mut(&branch.number) {
                    call.fail(now, branch, error, &mut self.timers);
                }
            }
            Event::Concluded { branch, conclusion } => self.concluded(branch, conclusion, ledger, &mut effects),
            Event::Reached { resource } => self.reached(now, &resource, ledger, &mut effects),
            Event::Wake => self.wake(now, ledger, &mut effects),
        }
        let first = self.timers.first();
        if first != self.armed {
            self.armed = first;
            effects.extend(first.map(Effect::WakeAt));
        }
        effects
    }

    /// Whether it acts: it leads and has seen all that was decided before.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// What it keeps now: a gauge.
    #[must_use]
    pub fn held(&self) -> Held {
        Held {
            works: self.works.len(),
            timers: self.timers.len(),
            proposals: self.pending.len(),
            openings: self.openings.len(),
        }
    }

    /// Why a branch has not voted or is not settled yet; none if no attempt has failed.
    #[must_use]
    pub fn blocker(&self, branch: BranchId) -> Option<Blocker<'_>> {
        let work = self.works.get(&branch.xid)?;
        let call = work.telling.get(&branch.number).or_else(|| work.asking.get(&branch.number))?;
        let error = call.last_error.as_deref()?;
        Some(Blocker { error, failed: call.attempt, again_at: call.due.filter(|_| !call.in_flight) })
    }

    fn lead(&mut self, now: LogTime, ledger: &Ledger, effects: &mut Vec<Effect>) {
        self.leads = true;
        for (xid, transaction) in ledger.open() {
            match &transaction.phase {
                Phase::Active { expires_at } => self.arm(xid, *expires_at),
                Phase::Voting { deadline, .. } => {
                    let deadline = (*deadline).max(now.plus(self.patience.least_vote_ms));
                    self.closed(now, xid, deadline, ledger, effects);
                    // It has outlived one leader, and may outlive this one.
                    self.arm(xid, deadline.min(now.plus(voting::KEEP_VOTES_OF_ANOTHERS_MS)));
                }
                Phase::Delegated { .. } => self.ask_delegate(now, xid, ledger, effects),
                Phase::Decided { .. } => self.tell_all(now, xid, ledger, effects),
            }
        }
    }

    fn depose(&mut self, effects: &mut Vec<Effect>) {
        self.leads = false;
        self.timers.clear_all();
        let waiting = std::mem::take(&mut self.works).into_values().flat_map(|work| work.waiting);
        let pending = std::mem::take(&mut self.pending).into_values().filter_map(|pending| pending.token());
        let opening = std::mem::take(&mut self.openings).into_iter().map(|opening| opening.token);
        effects.extend(
            waiting.chain(pending).chain(opening).map(|token| Effect::Reply { token, reply: Reply::Interrupted }),
        );
    }

    fn request(&mut self, now: LogTime, token: Token, request: Request, ledger: &Ledger, effects: &mut Vec<Effect>) {
        match request {
            Request::Begin { xid, timeout_ms, key, session } => {
                let command = Command::Begin { xid, timeout_ms, key, session };
                self.propose(Pending::Change { token, xid }, vec![command], effects);
            }
            Request::Enlist { xid, branches, timeout_ms } => {
                let command = Command::Enlist { xid, branches, timeout_ms };
                self.propose(Pending::Change { token, xid }, vec![command], effects);
            }
            Request::Commit { xid, branches, vote_timeout_ms, delegate, session } => {
                if ledger.would_close(xid, &branches, delegate, session.as_ref()) {
                    let deadline = now.plus(vote_timeout_ms);
                    let closing = Closing { branches: &branches, delegate, deadline };
                    self.ask_early(now, xid, &closing, ledger, effects);
                }
                let command = Command::Prepare { xid, branches, vote_timeout_ms, delegate, session };
                self.propose(Pending::Commit { token, xid }, vec![command], effects);
            }
            Request::Rollback { xid, reason } => {
                self.propose(Pending::Change { token, xid }, vec![Command::Abort { xid, reason }], effects);
            }
            Request::Vote { branch, vote, reason } => {
                let command = Command::Vote { branch, vote, reason };
                self.propose(Pending::Order { token, branch }, vec![command], effects);
            }
            Request::OpenSession { name, instance } => {
                let command = Command::OpenSession { name: name.clone(), instance };
                self.propose(Pending::Session(Opening { token, name, instance }), vec![command], effects);
            }
            Request::Resolve { xid, resolution, word, force } => {
                let command = Command::Resolve { xid, resolution, word, force };
                self.propose(Pending::Change { token, xid }, vec![command], effects);
            }
            Request::Forget { xid, word, force } => {
                self.propose(Pending::Change { token, xid }, vec![Command::Forget { xid, word, force }], effects);
            }
            Request::ReportSettled { xid, branches } => {
                let reply = match ledger.status(xid).state {
                    State::Decided | State::Ended => Reply::Done { xid },
                    State::Active | State::Voting | State::Delegated => Reply::Refused(Refusal::Undecided),
                    State::Unknown => Reply::Refused(Refusal::UnknownTransaction),
                    State::Expired => Reply::Refused(Refusal::Expired),
                };
                for (number, settlement) in branches {
                    self.acknowledged(now, BranchId { xid, number }, settlement, ledger, effects);
                }
                effects.push(Effect::Reply { token, reply });
            }
            Request::Inquire { branch, held_ms } => {
                let order = ledger.order(branch);
                let unknown = ledger.status(branch.xid).state == State::Unknown;
                if order == Order::Wait && unknown && held_ms >= self.patience.grace_ms {
                    let command = Command::PresumeAbort { xid: branch.xid };
                    self.propose(Pending::Order { token, branch }, vec![command], effects);
                } else {
                    Self::reply_order(token, branch, ledger, effects);
                }
            }
        }
    }

    fn applied(&mut self, now: LogTime, change: &Change, ledger: &Ledger, effects: &mut Vec<Effect>) {
        match change {
            Change::Opened { xid, expires_at } => self.arm(*xid, *expires_at),
            Change::Closed { xid, deadline } => self.closed(now, *xid, *deadline, ledger, effects),
            Change::Delegated { xid } => self.ask_delegate(now, *xid, ledger, effects),
            Change::Decided { xid, outcome } => {
                self.decided(now, *xid, *outcome, ledger, effects);
                self.answer_openings(ledger, effects);
            }
            Change::TellAgain { branch } => self.tell(*branch, ledger, effects),
            Change::PromiseBroken { branch } => effects.push(Effect::Report(Report::PromiseBroken(*branch))),
            Change::Settled { branch } => {
                if let Some(work) = self.works.get_mut(&branch.xid) {
                    work.told(*branch, &mut self.timers);
                }
            }
            Change::Ended { xid } => self.end(*xid),
        }
    }

    fn end(&mut self, xid: Xid) {
        if let Some(mut work) = self.works.remove(&xid) {
            work.clear_timers(xid, &mut self.timers);
        }
    }

    fn answered(&mut self, proposal: ProposalId, answers: Vec<Answer>, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let Some(pending) = self.pending.remove(&proposal) else { return };
        if let Pending::Commit { xid, .. } = pending {
            self.release_early(xid, ledger, effects);
        }
        let refusal = answers.into_iter().find_map(Result::err);
        match (pending, refusal) {
            (Pending::Commit { token, xid }, Some(refusal)) => {
                // Forgets what was asked for a list that is none.
                if ledger.transaction(xid).is_none() {
                    self.end(xid);
                }
                effects.push(Effect::Reply { token, reply: Reply::Refused(refusal) });
            }
            (Pending::Change { token, .. } | Pending::Session(Opening { token, .. }), Some(refusal)) => {
                effects.push(Effect::Reply { token, reply: Reply::Refused(refusal) });
            }
            (Pending::Commit { token, xid }, None) => match ledger.outcome(xid) {
                Some(outcome) => effects.push(Effect::Reply { token, reply: Reply::Decided { xid, outcome } }),
                None if ledger.transaction(xid).is_some() => self.works.entry(xid).or_default().waiting.push(token),
                None => effects.push(Effect::Reply { token, reply: Reply::Refused(Refusal::Expired) }),
            },
            (Pending::Session(opening), None) => {
                self.openings.push(opening);
                self.answer_openings(ledger, effects);
            }
            (Pending::Change { token, xid }, None) => {
                effects.push(Effect::Reply { token, reply: Reply::Done { xid } });
            }
            // What was refused is not recorded, and must not be taken for it: "wait" would be an acknowledgement.
            (Pending::Order { token, branch }, Some(refusal)) if ledger.order(branch) == Order::Wait => {
                effects.push(Effect::Reply { token, reply: Reply::Refused(refusal) });
            }
            (Pending::Order { token, branch }, _) => {
                Self::reply_order(token, branch, ledger, effects);
                // The branch's own vote may have been the last that was missing.
                self.propose_votes(branch.xid, ledger, effects);
            }
            // A vote that is refused meets a transaction that was decided and has ended meanwhile.
            (Pending::Votes { xid }, _) => self.votes_in_log(xid, ledger, effects),
            (Pending::Abort { xid }, _) => {
                if let Some(work) = self.works.get_mut(&xid) {
                    work.abort_proposed = false;
                }
            }
        }
    }

    fn interrupted(&mut self, now: LogTime, proposal: ProposalId, ledger: &Ledger, effects: &mut Vec<Effect>) {
        match self.pending.remove(&proposal) {
            Some(Pending::Votes { xid }) => {
                if let Some(work) = self.works.get_mut(&xid) {
                    work.votes_proposed = false;
                    self.arm(xid, now.plus(backoff::FIRST_RETRY_MS));
                }
            }
            Some(Pending::Abort { xid }) if ledger.transaction(xid).is_some() => {
                self.works.entry(xid).or_default().abort_proposed = false;
                self.arm(xid, now.plus(backoff::FIRST_RETRY_MS));
            }
            Some(Pending::Commit { token, xid }) => {
                // The client asks again, and is to find what the branches have answered.
                if self.works.contains_key(&xid) && ledger.transaction(xid).is_none() {
                    self.arm(xid, now.plus(KEEP_EARLY_MS));
                }
                effects.push(Effect::Reply { token, reply: Reply::Interrupted });
            }
            Some(
                Pending::Change { token, .. } | Pending::Order { token, .. } | Pending::Session(Opening { token, .. }),
            ) => {
                effects.push(Effect::Reply { token, reply: Reply::Interrupted });
            }
            Some(Pending::Abort { .. }) | None => {}
        }
    }

    fn propose(&mut self, pending: Pending, commands: Vec<Command>, effects: &mut Vec<Effect>) {
        self.last_proposal += 1;
        let proposal = ProposalId(self.last_proposal);
        self.pending.insert(proposal, pending);
        effects.push(Effect::Propose { proposal, commands });
    }

    fn reply_order(token: Token, branch: BranchId, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let order = ledger.order(branch);
        if Self::is_unlisted(branch, order, ledger) {
            effects.push(Effect::Report(Report::Unlisted { xid: branch.xid, number: branch.number }));
        }
        effects.push(Effect::Reply { token, reply: Reply::Order { branch, order } });
    }

    /// Whether a branch without a part in it asked. A transaction that has ended tells a branch that voted READ_ONLY
    /// no more from a stranger; such a one has no reason to ask.
    fn is_unlisted(branch: BranchId, order: Order, ledger: &Ledger) -> bool {
        let open = ledger.transaction(branch.xid);
        match order {
            Order::Wait | Order::Commit(_) => false,
            Order::RollbackUnlisted => open.is_some(),
            Order::Rollback(outcome) => {
                outcome.value() == Outcome::Committed
                    && open.is_none_or(|open| !open.branches.contains_key(&branch.number))
            }
        }
    }
}

impl Pending {
    fn token(&self) -> Option<Token> {
        match self {
            Self::Commit { token, .. }
            | Self::Change { token, .. }
            | Self::Order { token, .. }
            | Self::Session(Opening { token, .. }) => Some(*token),
            Self::Votes { .. } | Self::Abort { .. } => None,
        }
    }
}
