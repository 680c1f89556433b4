//! The state of the small world: two nodes, one log, three participants, two clients, and a network that forgets nothing.
//!
//! A message that was sent once stays deliverable for ever. Late, lost and repeated messages are thereby all the same
//! thing: an order of deliveries. What the walk must bound (retries of the clients, elections, timers, errors,
//! restarts, inquiries) is counted in [`Left`].

use std::{
    hash::{Hash, Hasher},
    rc::Rc,
};

use verdict_protocol::{
    BranchId, Brought, ClusterId, Command, Coordinator, Entry, Event, Instance, Key, Ledger, ListedBranch, LogTime,
    NewBranch, Outcome, Phase, ProposalId, ResourceName, Rules, Secret, SessionName, SessionRef, State, Vote, Xid,
};

use crate::{
    digest::{Digest, digest_of, ledger_digest},
    oracle::Oracle,
    participant::Disk,
    scenario::{Attempt, BRANCHES, CLIENTS, Left, Scenario},
    step::say,
};

pub const GRACE_MS: u64 = 60_000;
pub const START: LogTime = LogTime::from_millis(1_000_000_000);
/// Past the horizon of whatever was born at the start.
pub const AGED: LogTime = LogTime::from_millis(1_000_000_000 + 3 * 3_600_000);

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

/// What a client has done, and been told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    pub opens_sent: u8,
    /// The epoch in which it works; 0 before it was told one.
    pub epoch: u64,
    pub begins_sent: u8,
    pub begun: bool,
    pub enlist_sent: bool,
    pub enlisted: bool,
    pub commits_sent: u8,
    pub rolled_back: bool,
}

#[derive(Clone, Debug)]
pub struct Proposal {
    pub id: ProposalId,
    pub commands: Rc<Vec<Command>>,
    pub digest: u64,
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
    ledger_digest: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Log {
    pub items: Vec<Item>,
    pub oracle: Oracle,
    /// What applying all of it comes to.
    pub ledger: Ledger,
    ledger_digest: u64,
    digest: u64,
}

#[derive(Clone, Debug)]
pub struct Item {
    pub entry: Rc<Entry>,
    pub proposer: Option<(usize, ProposalId)>,
    digest: u64,
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
    pub clients: [Client; CLIENTS],
    pub left: Left,
    /// What is worth telling of a step; written only while a trace is printed.
    pub notes: Option<Vec<String>>,
}

pub fn xid(client: usize) -> Xid {
    Xid::new(START, 1, 42 + client as u64)
}

pub fn index_of(branch: BranchId) -> usize {
    branch.number as usize - 1
}

/// The one that all branches are of.
pub fn resource() -> ResourceName {
    "db".try_into().expect("a good name")
}

pub fn new_branch(number: u32) -> NewBranch {
    NewBranch { number, resource: resource(), payload: vec![0].into() }
}

pub fn session_name() -> SessionName {
    "till".to_owned().try_into().expect("a good name")
}

pub fn key() -> Key {
    "order 7".to_owned().try_into().expect("a good key")
}

impl World {
    pub fn new(scenario: &Rc<Scenario>) -> Self {
        let node = Rc::new(Node {
            ledger: Ledger::new(),
            coordinator: Coordinator::new(scenario.patience()),
            applied: 0,
            now: START,
            wake_at: None,
            proposals: Vec::new(),
            settled: [false; BRANCHES],
            digest: 0,
            ledger_digest: 0,
        });
        let mut disks = [Disk::Working; BRANCHES];
        for number in scenario.clients.iter().flat_map(|plan| plan.commits).flat_map(|attempt| attempt.brought) {
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
            clients: [Client::default(); CLIENTS],
            left: scenario.left,
            notes: None,
        };
        let (cluster, secret) = (ClusterId([1; 16]), Secret([1; 32]));
        let found = Command::Found { cluster, secret, rules: Rules::default() };
        world.append(None, vec![found]).expect("it decides nothing");
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

    pub fn branch_id(&self, index: usize) -> BranchId {
        let number = u32::try_from(index).expect("three branches") + 1;
        BranchId { xid: xid(self.scenario.of[index]), number }
    }

    /// What the log has decided.
    pub fn outcome(&self, client: usize) -> Option<Outcome> {
        self.log.oracle.outcome(xid(client))
    }

    /// What the log has decided for the transaction of a branch.
    pub fn outcome_of(&self, branch: usize) -> Option<Outcome> {
        self.outcome(self.scenario.of[branch])
    }

    pub fn session(&self, client: usize) -> Option<SessionRef> {
        self.scenario.clients[client].instance?;
        Some(SessionRef { name: session_name(), epoch: self.clients[client].epoch })
    }

    pub fn instance(&self, client: usize) -> Option<Instance> {
        self.scenario.clients[client].instance.map(|instance| Instance([instance; 16]))
    }

    pub fn note(&mut self, note: impl FnOnce() -> String) {
        if let Some(notes) = &mut self.notes {
            notes.push(note());
        }
    }

    /// Appends an entry, and holds what it decides against what there is.
    pub fn append(&mut self, proposer: Option<(usize, ProposalId)>, commands: Vec<Command>) -> Result<(), String> {
        let at = proposer.map_or(self.nodes[self.leader].now, |(node, _)| self.nodes[node].now);
        let entry = Entry { at, commands };
        let before: Vec<_> = (0..CLIENTS).map(|client| self.outcome(client)).collect();
        let bug = self.scenario.bug;
        let log = Rc::make_mut(&mut self.log);
        let (length, entry) = (log.items.len() + 1, Rc::new(entry));
        let digest = digest_of(&(proposer, entry.encode()));
        log.items.push(Item { entry: Rc::clone(&entry), proposer, digest });
        log.oracle.apply(length as u64, &entry);
        log.ledger.apply(length as u64, &bug.entry(&entry, &log.ledger));
        log.ledger_digest = ledger_digest(&log.ledger);
        log.digest = digest_of(&(log.ledger_digest, log.oracle.digest()));
        self.note(|| format!("log {length}: {}", entry.commands.iter().map(say).collect::<Vec<_>>().join(", ")));
        for (client, before) in before.into_iter().enumerate() {
            if let Some(outcome) = self.outcome(client).filter(|_| before.is_none()) {
                self.note(|| format!("decided: {outcome}"));
                self.check_decision(client, outcome)?;
            }
        }
        Ok(())
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
        let bug = self.scenario.bug;
        let state = self.node(node);
        state.applied += 1;
        let index = state.applied as u64;
        let entry = bug.entry(&item.entry, &state.ledger);
        let applied = state.ledger.apply(index, &entry);
        for client in 0..CLIENTS {
            self.check_ledger(node, client)?;
        }
        // A ledger that has applied all of the log is the log's own.
        let log = Rc::clone(&self.log);
        let state = self.node(node);
        state.ledger_digest =
            if state.applied == log.items.len() { log.ledger_digest } else { ledger_digest(&state.ledger) };
        let changes = bug.changes(&item.entry, applied.changes);
        let answer = item.proposer.filter(|(proposer, _)| *proposer == node).map(|(_, id)| (id, applied.answers));
        Ok((changes, answer))
    }

    /// The ledger says what its log says, or that it is not kept any more.
    fn check_ledger(&self, node: usize, client: usize) -> Result<(), String> {
        let (ledger, xid, index) = (&self.nodes[node].ledger, xid(client), self.nodes[node].applied as u64);
        let history = self.log.oracle.of(xid);
        let found = ledger.outcome(xid).map(|outcome| (outcome.value(), outcome.index()));
        let expected = history.and_then(|history| history.outcome).filter(|(_, decided_at)| *decided_at <= index);
        let status = ledger.status(xid);
        let forgotten = found.is_none() && status.state == State::Expired && xid.birth() < ledger.horizon();
        if found != expected && !forgotten {
            return Err(format!("I3: at entry {index} the ledger says {found:?}, its log says {expected:?}"));
        }
        if index < self.log.items.len() as u64 || forgotten || expected.is_some() {
            return Ok(());
        }
        let open = ledger.transaction(xid);
        let registered: Vec<u32> = open.into_iter().flat_map(|open| open.branches.keys().copied()).collect();
        let says = (
            open.is_some(),
            open.is_some_and(|open| !matches!(open.phase, Phase::Active { .. })),
            open.is_some_and(|open| matches!(open.phase, Phase::Delegated { .. })),
            registered,
        );
        let expected = history.map_or((false, false, false, Vec::new()), |history| {
            (true, history.closed, history.delegated, history.registered.keys().copied().collect())
        });
        if says == expected {
            Ok(())
        } else {
            Err(format!("I3: (open, closed, delegated, list) is {says:?} in the ledger, {expected:?} in its log"))
        }
    }

    /// Forgets what can matter no more, and recomputes the digest of each node that is another than in `before`.
    pub fn seal(&mut self, before: Option<&Self>) {
        self.tidy();
        for node in 0..2 {
            if before.is_some_and(|before| Rc::ptr_eq(&self.nodes[node], &before.nodes[node])) {
                continue;
            }
            let state = self.node(node);
            let mut hasher = Digest::default();
            (&state.coordinator, state.ledger_digest, state.now, state.wake_at, state.settled).hash(&mut hasher);
            for proposal in &state.proposals {
                (proposal.id, proposal.digest).hash(&mut hasher);
            }
            state.digest = hasher.finish();
        }
    }

    /// Equal for worlds that go on alike. Of a log matters what it comes to, and what a node that leads has not applied;
    /// a node that does not lead applies it all before it does.
    pub fn digest(&self) -> u64 {
        let mut hasher = Digest::default();
        (self.leader, self.log.digest).hash(&mut hasher);
        for node in 0..2 {
            let state = &self.nodes[node];
            if !self.leads(node) {
                state.now.hash(&mut hasher);
                continue;
            }
            state.digest.hash(&mut hasher);
            for item in &self.log.items[state.applied..] {
                item.digest.hash(&mut hasher);
            }
        }
        (self.disks, self.took_abort, self.net, self.orders, self.clients, self.left).hash(&mut hasher);
        hasher.finish()
    }

    pub fn listed(attempt: Attempt) -> Vec<ListedBranch> {
        let vote = |number| {
            let forged = attempt.forged.contains(number);
            (forged || attempt.brought.contains(number)).then(|| Brought { proven: !forged, ..promise() })
        };
        attempt.list.iter().map(|number| ListedBranch { branch: new_branch(*number), vote: vote(number) }).collect()
    }
}

/// A PREPARED that a client brings along.
pub fn promise() -> Brought {
    Brought { vote: Vote::Prepared, reason: None, proven: true }
}

/// The answer to a proposal of the node that applied it.
pub type ApplyAnswer = Option<(ProposalId, Vec<verdict_protocol::Answer>)>;
