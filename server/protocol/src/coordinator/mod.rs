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
mod message;
mod work;

use std::collections::{BTreeMap, BTreeSet};

pub use message::{Effect, Event, ProposalId, Reply, Report, Request, Token};

use work::{Call, Work};

use crate::{
    Answer, BranchId, BranchNumber, Change, Command, Ledger, ListedBranch, LogTime, Order, Outcome, Phase, Reason,
    ReasonCode, Recorded, SettledItem, Settlement, State, Vote, Xid,
};

/// How long an acknowledged settlement may stay out of the log before the branch is told again, in milliseconds.
const SETTLED_LATE_MS: u64 = 5_000;
/// How long a proposed decision may stay out of the log before it is proposed again, in milliseconds.
const PROPOSE_AGAIN_MS: u64 = 1_000;

/// Bounds of the coordinator's own.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// What a new leader leaves a voting transaction at least, in milliseconds.
    pub least_vote_ms: u64,
    /// How long an unknown branch must have been held before its transaction is presumed aborted, in milliseconds.
    /// Above the largest vote timeout.
    pub grace_ms: u64,
}

/// The rules of the leading node.
#[derive(Debug)]
pub struct Coordinator {
    patience: Patience,
    leads: bool,
    works: BTreeMap<Xid, Work>,
    /// `None` for the transaction as a whole.
    timers: BTreeSet<(LogTime, Xid, Option<BranchNumber>)>,
    armed: Option<LogTime>,
    pending: BTreeMap<ProposalId, Pending>,
    last_proposal: u64,
}

/// What a proposal's answer is for.
#[derive(Debug)]
enum Pending {
    Commit { token: Token, xid: Xid },
    Change { token: Token, xid: Xid },
    Order { token: Token, branch: BranchId },
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
            timers: BTreeSet::new(),
            armed: None,
            pending: BTreeMap::new(),
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
                let due = work.asking.get_mut(&branch.number).map(|call| call.fail(now, branch, error));
                self.arm_branch(branch, due);
            }
            Event::Acknowledged { branch, settlement } => self.acknowledged(now, branch, settlement, &mut effects),
            Event::NotTold { branch, error } => {
                let Some(work) = self.works.get_mut(&branch.xid) else { return effects };
                let due = work.telling.get_mut(&branch.number).map(|call| call.fail(now, branch, error));
                self.arm_branch(branch, due);
            }
            Event::Wake => self.wake(now, ledger, &mut effects),
        }
        let first = self.timers.first().map(|(at, _, _)| *at);
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

    /// Why a branch has not voted or is not settled yet: its participant's last error.
    #[must_use]
    pub fn last_error(&self, branch: BranchId) -> Option<&str> {
        let work = self.works.get(&branch.xid)?;
        let call = work.telling.get(&branch.number).or_else(|| work.asking.get(&branch.number))?;
        call.last_error.as_deref()
    }

    fn lead(&mut self, now: LogTime, ledger: &Ledger, effects: &mut Vec<Effect>) {
        self.leads = true;
        for (xid, transaction) in ledger.open() {
            match &transaction.phase {
                Phase::Active { expires_at } => self.arm(xid, *expires_at),
                Phase::Voting { deadline, .. } => {
                    let deadline = (*deadline).max(now.plus(self.patience.least_vote_ms));
                    self.closed(now, xid, deadline, ledger, effects);
                }
                Phase::Decided { .. } => self.tell_all(xid, ledger, effects),
            }
        }
    }

    fn depose(&mut self, effects: &mut Vec<Effect>) {
        self.leads = false;
        self.timers.clear();
        let waiting = std::mem::take(&mut self.works).into_values().flat_map(|work| work.waiting);
        let pending = std::mem::take(&mut self.pending).into_values().filter_map(|pending| pending.token());
        effects.extend(waiting.chain(pending).map(|token| Effect::Reply { token, reply: Reply::Interrupted }));
    }

    fn request(&mut self, now: LogTime, token: Token, request: Request, ledger: &Ledger, effects: &mut Vec<Effect>) {
        match request {
            Request::Begin { xid, timeout_ms } => {
                self.propose(Pending::Change { token, xid }, vec![Command::Begin { xid, timeout_ms }], effects);
            }
            Request::Enlist { xid, branches, timeout_ms } => {
                let command = Command::Enlist { xid, branches, timeout_ms };
                self.propose(Pending::Change { token, xid }, vec![command], effects);
            }
            Request::Commit { xid, branches, vote_timeout_ms } => {
                if ledger.would_close(xid, &branches) {
                    self.ask_early(now.plus(vote_timeout_ms), now, xid, &branches, ledger, effects);
                }
                let command = Command::Prepare { xid, branches, vote_timeout_ms };
                self.propose(Pending::Commit { token, xid }, vec![command], effects);
            }
            Request::Rollback { xid, reason } => {
                self.propose(Pending::Change { token, xid }, vec![Command::Abort { xid, reason }], effects);
            }
            Request::Vote { branch, vote, reason } => {
                let command = Command::Vote { branch, vote, reason };
                self.propose(Pending::Order { token, branch }, vec![command], effects);
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

    /// Asks the branches before the list is in the log: the append and the prepares take their time side by side.
    fn ask_early(
        &mut self,
        deadline: LogTime,
        now: LogTime,
        xid: Xid,
        branches: &[ListedBranch],
        ledger: &Ledger,
        effects: &mut Vec<Effect>,
    ) {
        let work = self.works.entry(xid).or_default();
        work.deadline = work.deadline.max(deadline);
        let registered = ledger.transaction(xid).into_iter().flat_map(|transaction| transaction.unvoted());
        for (number, branch) in registered {
            work.ask(now, BranchId { xid, number }, &branch.resource, &branch.payload, effects);
        }
        for listed in branches.iter().filter(|listed| listed.vote.is_none()) {
            let id = BranchId { xid, number: listed.branch.number };
            let voted = ledger.transaction(xid).and_then(|transaction| transaction.branches.get(&id.number));
            if voted.is_none_or(|branch| branch.vote.is_none()) {
                work.ask(now, id, &listed.branch.resource, &listed.branch.payload, effects);
            }
        }
    }

    fn applied(&mut self, now: LogTime, change: &Change, ledger: &Ledger, effects: &mut Vec<Effect>) {
        match change {
            Change::Opened { xid, expires_at } => self.arm(*xid, *expires_at),
            Change::Closed { xid, deadline } => self.closed(now, *xid, *deadline, ledger, effects),
            Change::Decided { xid, outcome } => self.decided(*xid, *outcome, ledger, effects),
            Change::TellAgain { branch } => self.tell(*branch, ledger, effects),
            Change::PromiseBroken { branch } => effects.push(Effect::Report(Report::PromiseBroken(*branch))),
            Change::Settled { branch } => {
                if let Some(work) = self.works.get_mut(&branch.xid) {
                    work.telling.remove(&branch.number);
                }
            }
            Change::Ended { xid } => self.end(*xid),
        }
    }

    fn closed(&mut self, now: LogTime, xid: Xid, deadline: LogTime, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let Some(transaction) = ledger.transaction(xid) else { return };
        let work = self.works.entry(xid).or_default();
        work.deadline = deadline;
        for (number, branch) in transaction.unvoted() {
            work.ask(now, BranchId { xid, number }, &branch.resource, &branch.payload, effects);
        }
        self.arm(xid, deadline);
        self.propose_votes(xid, ledger, effects);
    }

    fn decided(&mut self, xid: Xid, outcome: Recorded<Outcome>, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let work = self.works.entry(xid).or_default();
        for token in std::mem::take(&mut work.waiting) {
            effects.push(Effect::Reply { token, reply: Reply::Decided { xid, outcome } });
        }
        work.asking.clear();
        work.votes.clear();
        self.disarm(xid);
        self.tell_all(xid, ledger, effects);
    }

    fn end(&mut self, xid: Xid) {
        self.disarm(xid);
        let Some(work) = self.works.remove(&xid) else { return };
        for (number, call) in work.asking.iter().chain(&work.telling) {
            if let Some(due) = call.due {
                self.timers.remove(&(due, xid, Some(*number)));
            }
        }
    }

    /// Forgets branches that were asked early for a list that did not get into the ledger: they will inquire.
    fn drop_unless_open(&mut self, xid: Xid, ledger: &Ledger) {
        if ledger.transaction(xid).is_none() {
            self.end(xid);
        }
    }

    fn answered(&mut self, proposal: ProposalId, answers: Vec<Answer>, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let Some(pending) = self.pending.remove(&proposal) else { return };
        let refusal = answers.into_iter().find_map(Result::err);
        match (pending, refusal) {
            (Pending::Commit { token, xid }, Some(refusal)) => {
                self.drop_unless_open(xid, ledger);
                effects.push(Effect::Reply { token, reply: Reply::Refused(refusal) });
            }
            (Pending::Change { token, .. }, Some(refusal)) => {
                effects.push(Effect::Reply { token, reply: Reply::Refused(refusal) });
            }
            (Pending::Commit { token, xid }, None) => match ledger.outcome(xid) {
                Some(outcome) => effects.push(Effect::Reply { token, reply: Reply::Decided { xid, outcome } }),
                None => self.works.entry(xid).or_default().waiting.push(token),
            },
            (Pending::Change { token, xid }, None) => {
                effects.push(Effect::Reply { token, reply: Reply::Done { xid } });
            }
            (Pending::Order { token, branch }, Some(refusal)) if ledger.order(branch) == Order::Wait => {
                effects.push(Effect::Reply { token, reply: Reply::Refused(refusal) });
            }
            (Pending::Order { token, branch }, _) => Self::reply_order(token, branch, ledger, effects),
            // A vote that is refused meets a transaction that was decided and has ended meanwhile.
            (Pending::Votes { .. } | Pending::Abort { .. }, _) => {}
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
            Some(Pending::Abort { xid }) => self.arm(xid, now.plus(backoff::FIRST_RETRY_MS)),
            Some(Pending::Commit { token, xid }) => {
                self.drop_unless_open(xid, ledger);
                effects.push(Effect::Reply { token, reply: Reply::Interrupted });
            }
            Some(Pending::Change { token, .. } | Pending::Order { token, .. }) => {
                effects.push(Effect::Reply { token, reply: Reply::Interrupted });
            }
            None => {}
        }
    }

    fn voted(
        &mut self,
        branch: BranchId,
        vote: Vote,
        reason: Option<Reason>,
        ledger: &Ledger,
        effects: &mut Vec<Effect>,
    ) {
        // Without work for it there is nothing to decide: a late answer of a transaction that has ended.
        let Some(work) = self.works.get_mut(&branch.xid) else { return };
        let Some(call) = work.asking.get_mut(&branch.number) else { return };
        call.in_flight = false;
        call.last_error = None;
        let first = *work.votes.get(&branch.number).map_or(&vote, |(first, _)| first);
        if vote == Vote::Refused || first == vote {
            work.votes.insert(branch.number, (vote, reason));
        }
        self.propose_votes(branch.xid, ledger, effects);
    }

    /// Proposes the votes once they decide: all of a full list in one entry, or a refusal at once.
    fn propose_votes(&mut self, xid: Xid, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let Some(transaction) = ledger.transaction(xid) else { return };
        let Some(work) = self.works.get_mut(&xid) else { return };
        if work.votes_proposed || !matches!(transaction.phase, Phase::Voting { .. }) {
            return;
        }
        let of = |number, (vote, reason): &(Vote, Option<Reason>)| Command::Vote {
            branch: BranchId { xid, number },
            vote: *vote,
            reason: reason.clone(),
        };
        let refused = work
            .votes
            .iter()
            .find(|(number, (vote, _))| *vote == Vote::Refused && transaction.branches.contains_key(number));
        let commands: Vec<Command> = match refused {
            Some((number, vote)) => vec![of(*number, vote)],
            None => {
                let complete: Option<Vec<Command>> =
                    transaction.unvoted().map(|(number, _)| Some(of(number, work.votes.get(&number)?))).collect();
                let Some(commands) = complete else { return };
                commands
            }
        };
        work.votes_proposed = true;
        self.propose(Pending::Votes { xid }, commands, effects);
    }

    fn acknowledged(&mut self, now: LogTime, branch: BranchId, settlement: Settlement, effects: &mut Vec<Effect>) {
        let Some(work) = self.works.get_mut(&branch.xid) else { return };
        let Some(call) = work.telling.get_mut(&branch.number) else { return };
        if settlement != Settlement::Done {
            effects.push(Effect::Report(Report::Heuristic { branch, settlement }));
        }
        effects.push(Effect::ProposeLater { item: SettledItem { branch, settlement } });
        call.last_error = None;
        let due = call.wait_until(now.plus(SETTLED_LATE_MS));
        self.arm_branch(branch, Some(due));
    }

    fn tell_all(&mut self, xid: Xid, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let numbers: Vec<BranchNumber> = ledger
            .transaction(xid)
            .into_iter()
            .flat_map(|transaction| transaction.unsettled().map(|(number, _)| number))
            .collect();
        for number in numbers {
            self.tell(BranchId { xid, number }, ledger, effects);
        }
    }

    fn tell(&mut self, branch: BranchId, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let Some(outcome) = ledger.outcome(branch.xid) else { return };
        let Some(record) = ledger.transaction(branch.xid).and_then(|open| open.branches.get(&branch.number)) else {
            return;
        };
        let call = self.works.entry(branch.xid).or_default().telling.entry(branch.number).or_default();
        if !std::mem::replace(&mut call.in_flight, true) {
            let (resource, payload) = (record.resource.clone(), record.payload.clone());
            effects.push(Effect::Tell { branch, resource, payload, outcome });
        }
    }

    fn wake(&mut self, now: LogTime, ledger: &Ledger, effects: &mut Vec<Effect>) {
        self.armed = None;
        while let Some(&(due, xid, number)) = self.timers.first() {
            if due > now {
                break;
            }
            self.timers.pop_first();
            match number {
                Some(number) => self.wake_branch(now, BranchId { xid, number }, ledger, effects),
                None => self.wake_transaction(now, xid, ledger, effects),
            }
        }
    }

    fn wake_branch(&mut self, now: LogTime, branch: BranchId, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let Some(open) = ledger.transaction(branch.xid) else { return };
        let Some(record) = open.branches.get(&branch.number) else { return };
        let Some(work) = self.works.get_mut(&branch.xid) else { return };
        match &open.phase {
            Phase::Active { .. } => {}
            Phase::Voting { .. } => {
                if record.vote.is_none() {
                    work.ask_again(now, branch, &record.resource, &record.payload, effects);
                }
            }
            Phase::Decided { .. } => {
                if record.settlement.is_some() {
                    work.telling.remove(&branch.number);
                } else if work.telling.get(&branch.number).is_some_and(|call| !call.in_flight) {
                    self.tell(branch, ledger, effects);
                }
            }
        }
    }

    fn wake_transaction(&mut self, now: LogTime, xid: Xid, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let Some(transaction) = ledger.transaction(xid) else { return };
        let work = self.works.entry(xid).or_default();
        work.look_at = None;
        let (due, code, text) = match &transaction.phase {
            Phase::Active { expires_at } => {
                (*expires_at, ReasonCode::Timeout, "it was not asked to commit within its timeout".to_owned())
            }
            Phase::Voting { .. } => {
                let silent: Vec<String> = transaction
                    .unvoted()
                    .filter(|(number, _)| !work.votes.contains_key(number))
                    .map(|(number, branch)| format!("{number} ({})", branch.resource))
                    .collect();
                let text = format!("no vote from branch {} before the deadline", silent.join(", "));
                (work.deadline, ReasonCode::Deadline, text)
            }
            Phase::Decided { .. } => return,
        };
        // Votes that are complete but did not get into the log go before the deadline's abort.
        self.propose_votes(xid, ledger, effects);
        let voted = self.works.get(&xid).is_some_and(|work| work.votes_proposed);
        if now < due {
            self.arm(xid, due);
            return;
        }
        if !voted {
            let command = Command::Abort { xid, reason: Reason::new(code, text) };
            self.propose(Pending::Abort { xid }, vec![command], effects);
        }
        self.arm(xid, now.plus(PROPOSE_AGAIN_MS));
    }

    fn propose(&mut self, pending: Pending, commands: Vec<Command>, effects: &mut Vec<Effect>) {
        self.last_proposal += 1;
        let proposal = ProposalId(self.last_proposal);
        self.pending.insert(proposal, pending);
        effects.push(Effect::Propose { proposal, commands });
    }

    fn reply_order(token: Token, branch: BranchId, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let order = ledger.order(branch);
        if order == Order::RollbackUnlisted && ledger.transaction(branch.xid).is_some() {
            effects.push(Effect::Report(Report::Unlisted { xid: branch.xid, number: branch.number }));
        }
        effects.push(Effect::Reply { token, reply: Reply::Order { branch, order } });
    }

    /// Looks at the transaction again at `at`.
    fn arm(&mut self, xid: Xid, at: LogTime) {
        self.disarm(xid);
        self.works.entry(xid).or_default().look_at = Some(at);
        self.timers.insert((at, xid, None));
    }

    fn disarm(&mut self, xid: Xid) {
        if let Some(at) = self.works.get_mut(&xid).and_then(|work| work.look_at.take()) {
            self.timers.remove(&(at, xid, None));
        }
    }

    fn arm_branch(&mut self, branch: BranchId, due: Option<LogTime>) {
        self.timers.extend(due.map(|due| (due, branch.xid, Some(branch.number))));
    }
}

impl Pending {
    fn token(&self) -> Option<Token> {
        match self {
            Self::Commit { token, .. } | Self::Change { token, .. } | Self::Order { token, .. } => Some(*token),
            Self::Votes { .. } | Self::Abort { .. } => None,
        }
    }
}

impl Call {
    fn fail(&mut self, now: LogTime, branch: BranchId, error: String) -> LogTime {
        let delay = backoff::Backoff::delay_ms(branch, self.attempt);
        self.attempt = self.attempt.saturating_add(1);
        self.last_error = Some(error);
        self.wait_until(now.plus(delay))
    }
}
