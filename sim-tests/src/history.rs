//! Who did what, and when: everything that the checks are made from, and its hash.
//!
//! A call without an answer is *unknown*, never failed: the history has its question and no answer.

use std::{
    fmt::{self, Write as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use madsim::time::TimeHandle;
use verdict_protocol::{BranchId, Outcome, Settlement, State, Vote, Xid};

use crate::{
    chance::Fnv,
    plan::{Fault, Place},
};

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ask {
    Begin,
    Enlist(u32),
    Commit,
    Rollback,
    Get,
    /// An operator's.
    Resolve(Outcome),
    Forget,
}

/// What a client is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Decided { outcome: Outcome, index: u64, reason: String },
    Undecided(State),
    Done,
    Unknown,
    Refused(String),
}

/// What a branch did to the books of its bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Reserved,
    Confirmed,
    Cancelled,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A client has a new transaction: its branches with bank, account and change.
    Ordered {
        xid: Xid,
        branches: Vec<(u32, usize, String)>,
    },
    Asked {
        call: u64,
        xid: Xid,
        ask: Ask,
    },
    Answered {
        call: u64,
        xid: Xid,
        ask: Ask,
        answer: Answer,
    },
    /// A participant's stream was taken by a node.
    Attached {
        node: u64,
    },
    /// A participant was asked to prepare, by a leader of `term`.
    PrepareCame {
        branch: BranchId,
        term: u64,
    },
    Voted {
        branch: BranchId,
        vote: Vote,
    },
    /// A participant heard an outcome, spoken in `term`.
    OutcomeCame {
        branch: BranchId,
        outcome: Outcome,
        term: u64,
    },
    Settled {
        branch: BranchId,
        outcome: Outcome,
        settlement: Settlement,
    },
    /// A participant that was given the decision, or fenced, has answered.
    Concluded {
        branch: BranchId,
        fence: bool,
        committed: bool,
    },
    /// A client has the right to work under a key.
    KeyGranted {
        key: String,
        xid: Xid,
    },
    /// A client has opened a session.
    SessionOpened {
        name: String,
        epoch: u64,
    },
    /// A client told a branch the outcome that it drives itself.
    Drove {
        branch: BranchId,
    },
    /// An agent ended what an application had left prepared in its database.
    LeftBehind {
        branch: BranchId,
    },
    /// A branch could not be ended: the session that prepared it is connected.
    InSession {
        branch: BranchId,
    },
    /// Somebody voted for a branch that is not his: what came of it.
    Forged {
        branch: BranchId,
        taken: bool,
    },
    NotAnswered {
        branch: BranchId,
        error: String,
    },
    /// A client was told that nothing is left to do for a transaction.
    SaidEnded {
        xid: Xid,
    },
    Effect {
        branch: BranchId,
        effect: Effect,
    },
    /// Somebody who had waited until the transaction had ended looked into the lists: how often it stood in that of
    /// each branch.
    ListsRead {
        xid: Xid,
        seen: Vec<(u32, usize)>,
    },
    Started,
    NotStarted(String),
    Leads {
        term: u64,
    },
    /// The replica acknowledges nothing more.
    Stopped(String),
    /// A batch that was being written when the power went was cut off.
    TornTail {
        file: String,
        bytes: u64,
    },
    SnapshotCame,
    /// A node's log no longer begins where it did.
    Purged {
        up_to: u64,
    },
    /// A write or a sync of the log's or the ballot's files failed.
    DiskFailed {
        file: String,
        error: String,
    },
    /// And nevertheless this was done or said.
    AfterDiskFailed(String),
    /// Somebody wanted a seat that was promised to another.
    Conflict {
        branch: BranchId,
    },
    /// A process that had stood still goes on; `deposed` if it led, and now another does. So many branches were in
    /// doubt.
    Resumed {
        deposed: bool,
        prepared: usize,
    },
    /// An append went out after messages that were to be sent later.
    Overtaken,
    /// A peer gave back something that was damaged here.
    Fetched,
    /// By the world: `prepared` branches were in doubt at that moment.
    Killed {
        power: bool,
        led: bool,
        prepared: usize,
    },
    /// By a fault's task: it begins to strike, and its consequences are mended.
    Strikes(Fault),
    Passes(Fault),
    /// Nothing strikes any more, and nothing new is begun.
    FaultsEnd,
    Fault(String),
    Note(String),
}

/// Something that happened, by whom and when.
#[derive(Clone, Debug)]
pub struct Event {
    /// Simulated time since the beginning.
    pub at: Duration,
    pub who: Place,
    pub what: What,
}

/// What has happened so far. Clones are the same history.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    events: Vec<Event>,
    hash: Fnv,
    lines: u64,
    /// Keeps notes of single messages too, which otherwise only count for the hash.
    wordy: bool,
    calls: u64,
}

impl History {
    #[must_use]
    pub fn new(wordy: bool) -> Self {
        Self(Arc::new(Mutex::new(Inner { wordy, ..Inner::default() })))
    }

    pub fn record(&self, who: Place, what: What) {
        let event = Event { at: now(), who, what };
        let mut inner = self.inner();
        inner.feed(format_args!("{event}"));
        inner.events.push(event);
    }

    /// Something frequent that only the hash and a reader of the whole trace care for.
    pub fn note(&self, who: Place, text: fmt::Arguments<'_>) {
        let at = now();
        let mut inner = self.inner();
        inner.feed(format_args!("{}{text}", Head { at, who }));
        if inner.wordy {
            inner.events.push(Event { at, who, what: What::Note(text.to_string()) });
        }
    }

    /// A number for a call.
    pub fn call(&self) -> u64 {
        let mut inner = self.inner();
        inner.calls += 1;
        inner.calls
    }

    /// The hash of everything so far, and how many lines it covers.
    #[must_use]
    pub fn hash(&self) -> (u64, u64) {
        let inner = self.inner();
        (inner.hash.value(), inner.lines)
    }

    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.inner().events.clone()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn feed(&mut self, line: fmt::Arguments<'_>) {
        writeln!(self.hash, "{line}").expect("a hash takes any text");
        self.lines += 1;
    }
}

/// Simulated time since the beginning.
#[must_use]
pub fn now() -> Duration {
    TimeHandle::current().elapsed()
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Node(node) => format!("node-{node}"),
            Self::Bank(bank) => format!("bank-{bank}"),
            Self::Client(client) => format!("client-{client}"),
            Self::Admin => "admin".to_owned(),
        };
        f.pad(&name)
    }
}

/// How each line begins.
struct Head {
    at: Duration,
    who: Place,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, who } = self;
        write!(f, "{:>5}.{:09} {who:<8} ", at.as_secs(), at.subsec_nanos())
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, who, what } = self;
        write!(f, "{}{what}", Head { at: *at, who: *who })
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ordered { xid, branches } => write!(f, "orders {xid} {branches:?}"),
            Self::Asked { call, xid, ask } => write!(f, "asks #{call} {ask:?} {xid}"),
            Self::Answered { call, xid, ask, answer } => write!(f, "hears #{call} {ask:?} {xid}: {answer:?}"),
            Self::Attached { node } => write!(f, "is attached to node {node}"),
            Self::PrepareCame { branch, term } => write!(f, "is asked to prepare {branch} by term {term}"),
            Self::Voted { branch, vote } => write!(f, "votes {vote:?} for {branch}"),
            Self::OutcomeCame { branch, outcome, term } => write!(f, "is told {outcome} of {branch} by term {term}"),
            Self::Settled { branch, outcome, settlement } => write!(f, "settled {branch} {outcome}: {settlement:?}"),
            Self::Concluded { branch, fence, committed } => {
                let (asked, said) = (
                    if *fence { "fenced" } else { "given the decision" },
                    if *committed { "committed" } else { "never" },
                );
                write!(f, "is {asked} for {branch}: {said}")
            }
            Self::Drove { branch } => write!(f, "settles {branch} itself"),
            Self::LeftBehind { branch } => write!(f, "ends {branch}, which was left behind"),
            Self::InSession { branch } => write!(f, "can't end {branch}: its session is connected"),
            Self::Forged { branch, taken } => write!(f, "votes for {branch}, which is not his; taken: {taken}"),
            Self::KeyGranted { key, xid } => write!(f, "works under key {key:?} as {xid}"),
            Self::SessionOpened { name, epoch } => write!(f, "has opened {name:?} in epoch {epoch}"),
            Self::NotAnswered { branch, error } => write!(f, "has no answer for {branch}: {error}"),
            Self::Effect { branch, effect } => write!(f, "{effect:?} {branch}"),
            Self::ListsRead { xid, seen } => write!(f, "finds {xid} in lists: {seen:?}"),
            Self::Started => f.write_str("started"),
            Self::NotStarted(why) => write!(f, "did not start: {why}"),
            Self::Leads { term } => write!(f, "leads in term {term}"),
            Self::Stopped(why) => write!(f, "acknowledges nothing more: {why}"),
            Self::TornTail { file, bytes } => write!(f, "cut a torn tail of {bytes} bytes in {file}"),
            Self::Overtaken => f.write_str("sends an append that others have overtaken"),
            Self::Purged { up_to } => write!(f, "purged its log up to {up_to}"),
            Self::DiskFailed { file, error } => write!(f, "{file}: {error}"),
            Self::AfterDiskFailed(what) => write!(f, "although its disk had failed, {what}"),
            Self::Conflict { branch } => write!(f, "refuses {branch} a seat that is promised"),
            Self::Resumed { deposed, prepared } => {
                write!(f, "goes on{}, {prepared} branches in doubt", if *deposed { ", deposed" } else { "" })
            }
            Self::SnapshotCame => f.write_str("was sent a snapshot"),
            Self::Fetched => f.write_str("fetched from a peer what its disk had lost"),
            Self::Killed { power, led, prepared } => {
                let how = if *power { "loses its power" } else { "is killed" };
                let led = if *led { ", leading" } else { "" };
                write!(f, "{how}{led}, {prepared} branches in doubt")
            }
            Self::Strikes(fault) => write!(f, "FAULT {fault} strikes"),
            Self::Passes(fault) => write!(f, "FAULT {fault} has passed"),
            Self::FaultsEnd => f.write_str("FAULT no more, and nothing new is begun"),
            Self::Fault(fault) => write!(f, "FAULT {fault}"),
            Self::SaidEnded { xid } => write!(f, "is told that {xid} has ended"),
            Self::Note(text) => f.write_str(text),
        }
    }
}
