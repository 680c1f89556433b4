//! A ledger with a log of its own, and short words for what goes into it.

use verdict_protocol::{
    Answer, BranchId, Brought, Change, ClusterId, Command, Coordinator, Effect, Entry, Event, Key, Ledger,
    ListedBranch, LogTime, NewBranch, Outcome, Patience, ProposalId, Reason, ReasonCode, Recorded, Reply, Request,
    Rules, Secret, SettledItem, Settlement, Token, Vote, Word, Xid,
};

pub(crate) const START_MS: u64 = 1_700_000_000_000;
pub(crate) const PREPARED: Vote = Vote::Prepared;
pub(crate) const READ_ONLY: Vote = Vote::ReadOnly;
pub(crate) const REFUSED: Vote = Vote::Refused;

/// Ten seconds of outcomes and ten of life, in buckets of one second; a second of skew.
pub(crate) const RULES: Rules = Rules {
    retention_ms: 10_000,
    max_lifetime_ms: 10_000,
    longest_lifetime_ms: 60_000,
    max_skew_ms: 1_000,
    bucket_ms: 1_000,
    max_open: 1_000,
    max_branches: 4,
    max_open_per_resource: 1_000,
    key_retention_ms: 120_000,
    max_keys: 1_000,
    max_sessions: 100,
};

/// So many milliseconds after the start.
pub(crate) fn at(ms: u64) -> LogTime {
    LogTime::from_millis(START_MS + ms)
}

pub(crate) fn born(ms: u64, n: u64) -> Xid {
    Xid::new(at(ms), 1, n)
}

pub(crate) fn xid(n: u64) -> Xid {
    born(0, n)
}

pub(crate) fn branch(xid: Xid, number: u32) -> BranchId {
    BranchId { xid, number }
}

pub(crate) fn new(number: u32) -> NewBranch {
    NewBranch { number, resource: "seats".try_into().unwrap(), payload: vec![1, 2, 3].into() }
}

pub(crate) fn listed(numbers: &[u32]) -> Vec<ListedBranch> {
    numbers.iter().map(|number| ListedBranch { branch: new(*number), vote: None }).collect()
}

pub(crate) fn voted(votes: &[(u32, Vote)]) -> Vec<ListedBranch> {
    votes.iter().map(|(number, vote)| ListedBranch { branch: new(*number), vote: Some(brought(*vote)) }).collect()
}

pub(crate) fn brought(vote: Vote) -> Brought {
    Brought { vote, reason: None, proven: true }
}

pub(crate) fn enlist(xid: Xid, numbers: &[u32]) -> Command {
    Command::Enlist { xid, branches: numbers.iter().map(|number| new(*number)).collect(), timeout_ms: 5_000 }
}

pub(crate) fn prepare(xid: Xid, branches: Vec<ListedBranch>) -> Command {
    Command::Prepare { xid, branches, vote_timeout_ms: 2_000, delegate: None, session: None }
}

pub(crate) fn vote(xid: Xid, number: u32, vote: Vote) -> Command {
    Command::Vote { branch: branch(xid, number), vote, reason: None }
}

pub(crate) fn abort(xid: Xid) -> Command {
    Command::Abort { xid, reason: Reason::new(ReasonCode::Rollback, "the client gave up") }
}

pub(crate) fn key(text: &str) -> Key {
    text.to_owned().try_into().unwrap()
}

pub(crate) fn word() -> Word {
    Word { who: "ada".to_owned(), why: "the database is gone".to_owned() }
}

pub(crate) fn settled(xid: Xid, number: u32) -> Command {
    Command::Settled { items: vec![SettledItem { branch: branch(xid, number), settlement: Settlement::Done }] }
}

/// A ledger, and the log that it has applied.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) ledger: Ledger,
    pub(crate) index: u64,
    pub(crate) now: LogTime,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self::with(RULES)
    }

    pub(crate) fn with(rules: Rules) -> Self {
        let mut log = Self { ledger: Ledger::new(), index: 0, now: at(0) };
        assert_eq!(log.apply(Command::Found { cluster: ClusterId([7; 16]), secret: Secret([9; 32]), rules }), Ok(()));
        log
    }

    /// Log time goes on to so many milliseconds after the start.
    pub(crate) fn clock(&mut self, ms: u64) {
        self.now = at(ms);
        self.apply_all(Vec::new());
    }

    pub(crate) fn apply_all(&mut self, commands: Vec<Command>) -> (Vec<Answer>, Vec<Change>) {
        self.index += 1;
        let applied = self.ledger.apply(self.index, &Entry { at: self.now, commands });
        (applied.answers, applied.changes)
    }

    /// What the ledger answers.
    pub(crate) fn apply(&mut self, command: Command) -> Answer {
        self.apply_all(vec![command]).0.remove(0)
    }

    /// What has to be acted upon.
    pub(crate) fn changes(&mut self, command: Command) -> Vec<Change> {
        self.apply_all(vec![command]).1
    }

    /// Applies what must be taken.
    pub(crate) fn ok(&mut self, command: Command) {
        assert_eq!(self.apply(command.clone()), Ok(()), "{command:?}");
    }

    pub(crate) fn outcome(&self, xid: Xid) -> Option<Outcome> {
        self.ledger.outcome(xid).map(|outcome| outcome.value())
    }

    pub(crate) fn sections(&self) -> Vec<(String, bytes::Bytes)> {
        self.ledger.freeze().sections().into_iter().map(|(id, body)| (id, body())).collect()
    }
}

/// A leading coordinator beside its ledger. What it proposes is applied when a test says so.
#[derive(Debug)]
pub(crate) struct Leader {
    pub(crate) log: Log,
    pub(crate) coordinator: Coordinator,
}

pub(crate) const PATIENCE: Patience = Patience { least_vote_ms: 500, grace_ms: 30_000, settle_grace_ms: 800 };

impl Leader {
    pub(crate) fn new() -> Self {
        Self::of(Log::new()).0
    }

    /// Begins to lead over what a ledger holds, and says what it does at once.
    pub(crate) fn of(log: Log) -> (Self, Vec<Effect>) {
        let mut leader = Self { log, coordinator: Coordinator::new(PATIENCE) };
        let effects = leader.hears(Event::Lead);
        (leader, effects)
    }

    pub(crate) fn hears(&mut self, event: Event) -> Vec<Effect> {
        self.coordinator.handle(self.log.now, event, &self.log.ledger)
    }

    pub(crate) fn asked(&mut self, token: u64, request: Request) -> Vec<Effect> {
        self.hears(Event::Request { token: Token(token), request })
    }

    pub(crate) fn commit(&mut self, token: u64, xid: Xid, branches: Vec<ListedBranch>) -> Vec<Effect> {
        self.asked(token, Request::Commit { xid, branches, vote_timeout_ms: 2_000, delegate: None, session: None })
    }

    pub(crate) fn voted(&mut self, xid: Xid, number: u32, vote: Vote) -> Vec<Effect> {
        self.hears(Event::Voted { branch: branch(xid, number), vote, reason: None })
    }

    pub(crate) fn acknowledged(&mut self, xid: Xid, number: u32) -> Vec<Effect> {
        self.hears(Event::Acknowledged { branch: branch(xid, number), settlement: Settlement::Done })
    }

    /// Applies the proposals among `effects`, in order, and what rides along, and hears of each.
    pub(crate) fn applies(&mut self, effects: &[Effect]) -> Vec<Effect> {
        let mut then = Vec::new();
        for effect in effects {
            match effect {
                Effect::Propose { proposal, commands } => {
                    let (answers, changes) = self.log.apply_all(commands.clone());
                    then.extend(self.hears(Event::Applied { changes }));
                    then.extend(self.hears(Event::Answered { proposal: *proposal, answers }));
                }
                Effect::ProposeLater { item } => {
                    let changes = self.log.changes(Command::Settled { items: vec![item.clone()] });
                    then.extend(self.hears(Event::Applied { changes }));
                }
                _ => {}
            }
        }
        then
    }

    /// Time goes on to so many milliseconds after the start, and it wakes.
    pub(crate) fn wakes(&mut self, ms: u64) -> Vec<Effect> {
        self.log.now = at(ms);
        self.hears(Event::Wake)
    }

    pub(crate) fn outcome(&self, xid: Xid) -> Recorded<Outcome> {
        self.log.ledger.outcome(xid).unwrap()
    }
}

pub(crate) fn ask(xid: Xid, number: u32, within_ms: u64) -> Effect {
    let NewBranch { resource, payload, .. } = new(number);
    Effect::Ask { branch: branch(xid, number), resource, payload, within_ms }
}

pub(crate) fn tell(xid: Xid, number: u32, outcome: Recorded<Outcome>) -> Effect {
    let NewBranch { resource, payload, .. } = new(number);
    Effect::Tell { branch: branch(xid, number), resource, payload, outcome }
}

pub(crate) fn propose(proposal: u64, commands: Vec<Command>) -> Effect {
    Effect::Propose { proposal: ProposalId(proposal), commands }
}

pub(crate) fn later(xid: Xid, number: u32) -> Effect {
    Effect::ProposeLater { item: SettledItem { branch: branch(xid, number), settlement: Settlement::Done } }
}

pub(crate) fn reply(token: u64, reply: Reply) -> Effect {
    Effect::Reply { token: Token(token), reply }
}

pub(crate) fn decided(token: u64, xid: Xid, outcome: Recorded<Outcome>) -> Effect {
    reply(token, Reply::Decided { xid, outcome })
}

/// Without the timers.
pub(crate) fn acts(effects: Vec<Effect>) -> Vec<Effect> {
    effects.into_iter().filter(|effect| !matches!(effect, Effect::WakeAt(_))).collect()
}
