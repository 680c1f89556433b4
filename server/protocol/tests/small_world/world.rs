//! The state of the small world: two nodes, one log, three participants, a client, and a network that forgets nothing.
//!
//! A message that was sent once stays deliverable for ever. Late, lost and repeated messages are thereby all the same
//! thing: an order of deliveries. What the walk must bound (retries of the client, elections, timers, errors,
//! restarts, inquiries) is counted in [`Left`].

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    rc::Rc,
};

use verdict_protocol::{
    BranchId, Brought, ClusterId, Command, Coordinator, Entry, Event, Ledger, ListedBranch, LogTime, NewBranch,
    Outcome, Patience, ProposalId, Rules, Secret, Vote, Xid,
};

use crate::{
    bugs::Bug,
    oracle::Oracle,
    participant::{Disk, Temper},
};

pub const BRANCHES: usize = 3;
pub const GRACE_MS: u64 = 60_000;
pub const PATIENCE: Patience = Patience { least_vote_ms: 20, grace_ms: GRACE_MS, settle_grace_ms: 0 };
pub const START: LogTime = LogTime::from_millis(1_000_000_000);

/// What may happen in one walk.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub tempers: [Temper; BRANCHES],
    /// Branches that the client enlists before it commits.
    pub enlists: &'static [u32],
    /// The client's tries to commit, each sent at any time after the one before, to whoever thinks that it leads.
    pub commits: &'static [Attempt],
    pub vote_timeout_ms: u64,
    pub left: Left,
    pub old_leader: OldLeader,
    pub bug: Bug,
}

/// What becomes of a leader when another is elected. Its messages stay under way in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldLeader {
    /// It crashes, and comes back knowing the log and nothing else.
    Crashes,
    /// It goes on and hears everything, until it learns at any time that it leads no more.
    Lingers,
}

/// One Commit call: the branches listed, and those of them whose PREPARED is brought along.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    pub list: &'static [u32],
    pub brought: &'static [u32],
    /// The branch that decides.
    pub delegate: Option<u32>,
}

/// How often each of these may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Left {
    pub rollbacks: u8,
    pub elections: u8,
    pub wakes: u8,
    pub unreachable: u8,
    pub restarts: u8,
    pub inquiries: u8,
    /// A proposer is not told what became of its proposal.
    pub interruptions: u8,
    /// A participant prepares by itself and pushes its vote.
    pub pushes: u8,
}

/// What was sent between one node and one participant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Line {
    pub ask: bool,
    pub delegate: bool,
    pub fence: bool,
    pub said_committed: bool,
    pub said_fenced: bool,
    pub voted_prepared: bool,
    pub voted_read_only: bool,
    pub voted_refused: bool,
    pub tell_commit: bool,
    pub tell_abort: bool,
    pub acknowledged: bool,
}

impl Line {
    pub fn forget_answers(&mut self) {
        let Self { ask, delegate, fence, tell_commit, tell_abort, .. } = *self;
        *self = Self { ask, delegate, fence, tell_commit, tell_abort, ..Self::default() };
    }
}

/// Answers to a participant's own questions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Orders {
    pub commit: bool,
    pub rollback: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    pub enlist_sent: bool,
    pub enlisted: bool,
    pub commits_sent: u8,
}

#[derive(Clone, Debug)]
pub struct Proposal {
    pub id: ProposalId,
    pub commands: Rc<Vec<Command>>,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub ledger: Ledger,
    pub coordinator: Coordinator,
    /// How much of the log it has applied.
    pub applied: usize,
    pub now: LogTime,
    pub wake_at: Option<LogTime>,
    /// Proposed, and not in the log.
    pub proposals: Vec<Proposal>,
    /// Acknowledged settlements that wait for an entry to ride along with.
    pub settled: [bool; BRANCHES],
    digest: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Log {
    pub items: Vec<Item>,
    pub oracle: Oracle,
    digest: u64,
}

#[derive(Clone, Debug)]
pub struct Item {
    pub entry: Rc<Entry>,
    pub proposer: Option<(usize, ProposalId)>,
}

#[derive(Clone, Debug)]
pub struct World {
    pub scenario: Rc<Scenario>,
    pub nodes: [Rc<Node>; 2],
    /// Who can append. The other may not know that it can't.
    pub leader: usize,
    pub log: Rc<Log>,
    pub disks: [Disk; BRANCHES],
    pub took_abort: [bool; BRANCHES],
    pub net: [[Line; BRANCHES]; 2],
    pub orders: [Orders; BRANCHES],
    pub client: Client,
    pub left: Left,
    /// What is worth telling of a step; written only while a trace is printed.
    pub notes: Option<Vec<String>>,
}

pub fn xid() -> Xid {
    Xid::new(START, 1, 42)
}

pub fn branch_id(index: usize) -> BranchId {
    BranchId { xid: xid(), number: u32::try_from(index).expect("three branches") + 1 }
}

pub fn index_of(branch: BranchId) -> usize {
    branch.number as usize - 1
}

pub fn new_branch(number: u32) -> NewBranch {
    NewBranch { number, resource: "db".try_into().expect("a good name"), payload: vec![0].into() }
}

impl World {
    pub fn new(scenario: &Rc<Scenario>) -> Self {
        let node = Rc::new(Node {
            ledger: Ledger::new(),
            coordinator: Coordinator::new(PATIENCE),
            applied: 0,
            now: START,
            wake_at: None,
            proposals: Vec::new(),
            settled: [false; BRANCHES],
            digest: 0,
        });
        let mut disks = [Disk::Working; BRANCHES];
        for number in scenario.commits.iter().flat_map(|attempt| attempt.brought) {
            disks[*number as usize - 1] = Disk::Prepared;
        }
        let mut world = Self {
            scenario: Rc::clone(scenario),
            nodes: [Rc::clone(&node), node],
            leader: 0,
            log: Rc::new(Log::default()),
            disks,
            took_abort: [false; BRANCHES],
            net: [[Line::default(); BRANCHES]; 2],
            orders: [Orders::default(); BRANCHES],
            client: Client::default(),
            left: scenario.left,
            notes: None,
        };
        let (cluster, secret) = (ClusterId([1; 16]), Secret([1; 32]));
        let found = Command::Found { cluster, secret, rules: Rules::default() };
        world.append(None, vec![found]);
        world.catch_up(0).expect("an empty cluster is founded");
        world.handle(0, Event::Lead).expect("nothing to lead yet");
        world.seal(None);
        world
    }

    pub fn node(&mut self, node: usize) -> &mut Node {
        Rc::make_mut(&mut self.nodes[node])
    }

    pub fn leads(&self, node: usize) -> bool {
        self.nodes[node].coordinator.leads()
    }

    /// What the log has decided.
    pub fn outcome(&self) -> Option<Outcome> {
        self.log.oracle.outcome(xid())
    }

    pub fn note(&mut self, note: impl FnOnce() -> String) {
        if let Some(notes) = &mut self.notes {
            notes.push(note());
        }
    }

    pub fn append(&mut self, proposer: Option<(usize, ProposalId)>, commands: Vec<Command>) {
        let at = proposer.map_or(self.nodes[self.leader].now, |(node, _)| self.nodes[node].now);
        let entry = Entry { at, commands };
        let log = Rc::make_mut(&mut self.log);
        let mut hasher = DefaultHasher::new();
        (log.digest, proposer, entry.encode()).hash(&mut hasher);
        log.digest = hasher.finish();
        log.items.push(Item { entry: Rc::new(entry), proposer });
        let item = log.items.last().expect("it was just pushed");
        log.oracle.apply(log.items.len() as u64, &item.entry);
        let (length, entry) = (log.items.len(), Rc::clone(&item.entry));
        self.note(|| format!("log {length}: {}", entry.commands.iter().map(say).collect::<Vec<_>>().join(", ")));
        if let Some(outcome) = self.outcome() {
            self.note(|| format!("decided: {outcome}"));
        }
    }

    /// Applies the rest of the log without acting on it.
    pub fn catch_up(&mut self, node: usize) -> Result<(), String> {
        while self.nodes[node].applied < self.log.items.len() {
            self.apply_next(node)?;
        }
        Ok(())
    }

    /// Applies one entry, and holds what the ledger says against the oracle.
    pub fn apply_next(&mut self, node: usize) -> Result<(Vec<verdict_protocol::Change>, ApplyAnswer), String> {
        let item = self.log.items[self.nodes[node].applied].clone();
        let decided = self.log.oracle.of(xid()).and_then(|history| history.outcome);
        let state = self.node(node);
        state.applied += 1;
        let index = state.applied as u64;
        let applied = state.ledger.apply(index, &item.entry);
        let found = state.ledger.outcome(xid()).map(|outcome| (outcome.value(), outcome.index()));
        let expected = decided.filter(|(_, decided_at)| *decided_at <= index);
        if found != expected {
            return Err(format!("I3: at entry {index} the ledger says {found:?}, its log says {expected:?}"));
        }
        let answer = item.proposer.filter(|(proposer, _)| *proposer == node).map(|(_, id)| (id, applied.answers));
        Ok((applied.changes, answer))
    }

    /// Recomputes the digest of each node that is another than in `before`.
    pub fn seal(&mut self, before: Option<&Self>) {
        for node in 0..2 {
            if before.is_some_and(|before| Rc::ptr_eq(&self.nodes[node], &before.nodes[node])) {
                continue;
            }
            let state = self.node(node);
            let mut hasher = DefaultHasher::new();
            (&state.coordinator, state.applied, state.now, state.wake_at, state.settled).hash(&mut hasher);
            for proposal in &state.proposals {
                (proposal.id, format!("{:?}", proposal.commands)).hash(&mut hasher);
            }
            state.digest = hasher.finish();
        }
    }

    /// Equal for equal worlds. A ledger is not part of it: it is a function of the log and of how much is applied.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.leader, self.nodes[0].digest, self.nodes[1].digest, self.log.digest).hash(&mut hasher);
        (self.disks, self.took_abort, self.net, self.orders, self.client, self.left).hash(&mut hasher);
        hasher.finish()
    }

    pub fn listed(attempt: Attempt) -> Vec<ListedBranch> {
        let vote = |number| attempt.brought.contains(number).then(promise);
        attempt.list.iter().map(|number| ListedBranch { branch: new_branch(*number), vote: vote(number) }).collect()
    }
}

/// A PREPARED that a client brings along.
pub fn promise() -> Brought {
    Brought { vote: Vote::Prepared, reason: None, proven: true }
}

/// The answer to a proposal of the node that applied it.
pub type ApplyAnswer = Option<(ProposalId, Vec<verdict_protocol::Answer>)>;

fn say(command: &Command) -> String {
    match command {
        Command::Found { .. } => "Found".to_owned(),
        Command::Begin { .. } => "Begin".to_owned(),
        Command::Enlist { branches, .. } => {
            format!("Enlist {:?}", branches.iter().map(|branch| branch.number).collect::<Vec<_>>())
        }
        Command::Prepare { branches, delegate, .. } => {
            let votes = branches.iter().filter(|listed| listed.vote.is_some()).count();
            let list: Vec<u32> = branches.iter().map(|listed| listed.branch.number).collect();
            let decides = delegate.map_or_else(String::new, |number| format!(", {number} decides"));
            format!("Prepare {list:?} with {votes} votes{decides}")
        }
        Command::Vote { branch, vote, .. } => format!("Vote {} {vote:?}", branch.number),
        Command::Abort { reason, .. } => format!("Abort ({})", reason.code),
        Command::PresumeAbort { .. } => "PresumeAbort".to_owned(),
        Command::Conclude { branch, conclusion } => format!("Conclude {} {conclusion:?}", branch.number),
        Command::Resolve { resolution, .. } => format!("Resolve {resolution:?}"),
        Command::Forget { .. } => "Forget".to_owned(),
        Command::OpenSession { .. } => "OpenSession".to_owned(),
        Command::Settled { items } => {
            format!("Settled {:?}", items.iter().map(|item| item.branch.number).collect::<Vec<_>>())
        }
    }
}
