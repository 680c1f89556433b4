//! Where everything meets: the ledger, the coordinator's rules, and whoever waits for an answer, under one lock.
//!
//! Whatever happens (a call, an applied entry, a participant's answer, a timer) takes the lock, asks the coordinator
//! what to do, and hands the effects on before it lets go: nothing in here awaits, so a caller that goes away leaves
//! no work half done.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};
use tracing::{error, warn};
use verdict_client::participant::{OnePhase, Prepare, Settle, Stamp};
use verdict_protocol::{
    Answer, BranchId, ClusterId, Command, Coordinator, Effect, Event, Ledger, LogClock, LogTime, Patience, ProposalId,
    Reply, Report, Request, ResourceName, Rules, Secret, SettledItem, Settlement, Token,
};
use verdict_raft_log::NodeId;

use crate::{outbound::Outbound, walls::Walls};

/// There is no restore yet: every cluster is in its first incarnation.
pub(crate) const INCARNATION: u64 = 1;

/// Settlements that ride along with one entry.
const SETTLED_AT_A_TIME: usize = 1_000;

/// The ledger and what is done about it.
#[derive(Debug)]
pub(crate) struct Engine {
    core: Mutex<Core>,
    /// Requests without an answer at a time; see [`Engine::request`].
    most_waiting: usize,
    outbound: Outbound,
    walls: Arc<Walls>,
    /// Something is to be proposed.
    pub(crate) proposals: Notify,
    /// The time of the next wake has changed.
    pub(crate) alarm: Notify,
    /// Another node leads, or this one, or none; or what is led is founded.
    pub(crate) leadership: Notify,
}

#[derive(Debug)]
struct Core {
    ledger: Ledger,
    coordinator: Coordinator,
    clock: LogClock,
    /// Where the monotonic clock's readings count from.
    origin: Instant,
    leader: Option<NodeId>,
    term: u64,
    waiting: BTreeMap<Token, oneshot::Sender<Reply>>,
    last_token: u64,
    queue: Vec<Proposal>,
    /// By branch: an acknowledgement that is repeated while it waits takes no more room.
    later: BTreeMap<BranchId, Settlement>,
    wake_at: Option<LogTime>,
}

/// Commands that want to be in one entry, and whose answers they are.
#[derive(Debug)]
pub(crate) struct Proposal {
    pub(crate) id: ProposalId,
    pub(crate) commands: Vec<Command>,
}

/// What goes into the next entry.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) proposals: Vec<Proposal>,
    pub(crate) later: Vec<SettledItem>,
}

impl Engine {
    pub(crate) fn new(patience: Patience, outbound: Outbound, walls: Arc<Walls>, most_waiting: usize) -> Self {
        let core = Core {
            ledger: Ledger::new(),
            coordinator: Coordinator::new(patience),
            clock: LogClock::start(LogTime::default(), 0, &mut []),
            origin: Instant::now(),
            leader: None,
            term: 0,
            waiting: BTreeMap::new(),
            last_token: 0,
            queue: Vec::new(),
            later: BTreeMap::new(),
            wake_at: None,
        };
        Self {
            core: Mutex::new(core),
            most_waiting,
            outbound,
            walls,
            proposals: Notify::new(),
            alarm: Notify::new(),
            leadership: Notify::new(),
        }
    }

    /// Asks for something and waits for the answer; none if too many wait already. Dropping the future gives up the
    /// answer, not the request, which keeps its place until it is answered.
    ///
    /// What brings a transaction to its end (votes, inquiries, rollbacks) has as much room again as new work has.
    pub(crate) async fn request(self: &Arc<Self>, request: Request) -> Option<Reply> {
        let most = match request {
            Request::Begin { .. } | Request::Enlist { .. } | Request::Commit { .. } | Request::OpenSession { .. } => {
                self.most_waiting
            }
            Request::Rollback { .. }
            | Request::Vote { .. }
            | Request::ReportSettled { .. }
            | Request::Inquire { .. }
            | Request::Resolve { .. }
            | Request::Forget { .. } => 2 * self.most_waiting,
        };
        let (sender, receiver) = oneshot::channel();
        {
            let mut core = self.lock();
            if core.waiting.len() >= most {
                return None;
            }
            core.last_token += 1;
            let token = Token(core.last_token);
            core.waiting.insert(token, sender);
            self.handle_locked(&mut core, Event::Request { token, request });
        }
        // The sender is gone only when the node stops.
        Some(receiver.await.unwrap_or(Reply::Interrupted))
    }

    /// Takes in what happened.
    pub(crate) fn handle(self: &Arc<Self>, event: Event) {
        self.handle_locked(&mut self.lock(), event);
    }

    /// Takes in what applying an entry changes.
    pub(crate) fn apply<T>(self: &Arc<Self>, change: impl FnOnce(&mut Ledger) -> (T, Event)) -> T {
        let mut core = self.lock();
        let founded = core.ledger.cluster().is_some();
        let (result, event) = change(&mut core.ledger);
        self.handle_locked(&mut core, event);
        if core.ledger.cluster().is_some() != founded {
            self.leadership.notify_waiters();
        }
        result
    }

    /// This node leads since `term`, and has applied an entry of its own.
    pub(crate) fn lead(self: &Arc<Self>, term: u64) {
        let mut core = self.lock();
        core.term = term;
        let (last, monotonic) = (core.ledger.at(), core.monotonic_us());
        core.clock = LogClock::start(last, monotonic, &mut self.walls.readings());
        self.handle_locked(&mut core, Event::Lead);
        self.leadership.notify_waiters();
    }

    /// This node leads no more.
    pub(crate) fn deposed(self: &Arc<Self>) {
        let mut core = self.lock();
        core.queue.clear();
        core.later.clear();
        self.handle_locked(&mut core, Event::Deposed);
        core.wake_at = None;
    }

    /// Proposes what founds the cluster, if this node leads one that is not founded. A second time changes nothing.
    ///
    /// Log time starts here, from the clocks that were heard: nobody waits for it yet, so it may still be set.
    pub(crate) fn found(&self, cluster: ClusterId, secret: Secret, rules: Rules) {
        let mut core = self.lock();
        if core.coordinator.leads() && core.ledger.cluster().is_none() {
            let (last, monotonic) = (core.ledger.at(), core.monotonic_us());
            core.clock = LogClock::start(last, monotonic, &mut self.walls.readings());
            // The coordinator's proposals are numbered from 1: the answer to this one is of no interest.
            let commands = vec![Command::Found { cluster, secret, rules }];
            core.queue.push(Proposal { id: ProposalId(0), commands });
            self.proposals.notify_one();
        }
    }

    pub(crate) fn is_founded(&self) -> bool {
        self.lock().ledger.cluster().is_some()
    }

    /// Steers log time towards the majority's clocks.
    pub(crate) fn steer(&self) {
        let mut core = self.lock();
        let monotonic = core.monotonic_us();
        core.clock.steer(monotonic, &mut self.walls.readings());
    }

    /// Reads from the ledger and the coordinator as they stand.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Ledger, &Coordinator) -> T) -> T {
        let core = self.lock();
        read(&core.ledger, &core.coordinator)
    }

    /// Changes the ledger as a whole: freezing and thawing.
    pub(crate) fn with_ledger<T>(&self, change: impl FnOnce(&mut Ledger) -> T) -> T {
        change(&mut self.lock().ledger)
    }

    pub(crate) fn leads(&self) -> bool {
        self.lock().coordinator.leads()
    }

    pub(crate) fn leader(&self) -> Option<NodeId> {
        self.lock().leader
    }

    pub(crate) fn set_leader(&self, leader: Option<NodeId>) {
        if mem::replace(&mut self.lock().leader, leader) != leader {
            self.leadership.notify_waiters();
        }
    }

    /// The log time now, as this node counts it.
    pub(crate) fn now(&self) -> LogTime {
        self.lock().now()
    }

    /// What is to be proposed, of about so many bytes, and at which log time. Settlements alone wait for company
    /// unless `alone_too`.
    pub(crate) fn take_batch(&self, bytes: usize, alone_too: bool) -> Option<(LogTime, Batch)> {
        let core = &mut *self.lock();
        if core.queue.is_empty() && (core.later.is_empty() || !alone_too) {
            return None;
        }
        let mut left = bytes;
        let fits = core.queue.iter().take_while(|proposal| {
            let size: usize = proposal.commands.iter().map(Command::size).sum();
            left.checked_sub(size).map(|rest| left = rest).is_some()
        });
        // One that is larger than that goes alone.
        let count = fits.count().max(1).min(core.queue.len());
        let rest = core.queue.split_off(count);
        let proposals = mem::replace(&mut core.queue, rest);
        let mut later = Vec::new();
        while later.len() < SETTLED_AT_A_TIME
            && let Some((branch, settlement)) = core.later.pop_first()
        {
            later.push(SettledItem { branch, settlement });
        }
        Some((core.now(), Batch { proposals, later }))
    }

    /// Whether settlements wait for an entry to ride along with.
    pub(crate) fn has_later(&self) -> bool {
        !self.lock().later.is_empty()
    }

    /// How long until the coordinator wants to be woken; none if it does not.
    pub(crate) fn until_wake(&self) -> Option<Duration> {
        let mut core = self.lock();
        let now = core.now();
        core.wake_at.map(|at| Duration::from_millis(at.since(now)))
    }

    pub(crate) fn wake(self: &Arc<Self>) {
        let mut core = self.lock();
        core.wake_at = None;
        self.handle_locked(&mut core, Event::Wake);
    }

    /// The answers that `apply` gave to the proposals of one entry.
    pub(crate) fn answered(self: &Arc<Self>, proposals: Vec<(ProposalId, usize)>, answers: Vec<Answer>) {
        let mut answers = answers.into_iter();
        let mut core = self.lock();
        for (proposal, commands) in proposals {
            let answers = answers.by_ref().take(commands).collect();
            self.handle_locked(&mut core, Event::Answered { proposal, answers });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle_locked(self: &Arc<Self>, core: &mut Core, event: Event) {
        let now = core.now();
        let Core { coordinator, ledger, .. } = core;
        for effect in coordinator.handle(now, event, ledger) {
            self.carry_out(core, effect);
        }
    }

    fn carry_out(self: &Arc<Self>, core: &mut Core, effect: Effect) {
        match effect {
            Effect::Propose { proposal, commands } => {
                core.queue.push(Proposal { id: proposal, commands });
                self.proposals.notify_one();
            }
            Effect::ProposeLater { item } => {
                core.later.insert(item.branch, item.settlement);
                self.proposals.notify_one();
            }
            Effect::Ask { branch, resource, payload, within_ms } => {
                let Some(stamp) = core.stamp() else { return };
                let credential = core.ledger.credential(branch);
                let vote_timeout = Duration::from_millis(within_ms);
                let request = Prepare { stamp, branch, resource, payload, vote_timeout, credential };
                self.outbound.ask(Arc::clone(self), request);
            }
            Effect::Delegate { branch, resource, payload, fence } => {
                let Some(stamp) = core.stamp() else { return };
                self.outbound.delegate(Arc::clone(self), OnePhase { stamp, branch, resource, payload, fence });
            }
            Effect::Tell { branch, resource, payload, outcome } => {
                let Some(stamp) = core.stamp() else { return };
                self.outbound.tell(Arc::clone(self), Settle { stamp, branch, resource, payload }, outcome);
            }
            Effect::Reply { token, reply } => {
                if let Some(sender) = core.waiting.remove(&token) {
                    // Whoever asked may have gone away.
                    drop(sender.send(reply));
                }
            }
            Effect::WakeAt(at) => {
                core.wake_at = Some(at);
                self.alarm.notify_one();
            }
            Effect::Report(report) => tell_people(&report),
        }
    }

    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.lock().stamp()
    }

    /// Whether a participant of this name can be asked.
    pub(crate) fn knows(&self, resource: &ResourceName) -> bool {
        self.outbound.knows(resource)
    }
}

impl Core {
    fn monotonic_us(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn now(&mut self) -> LogTime {
        let monotonic = self.monotonic_us();
        self.clock.now(monotonic)
    }

    fn stamp(&self) -> Option<Stamp> {
        let cluster = self.ledger.cluster()?;
        // In steps of a bucket: participants clean up whenever it moves.
        let (horizon, step) = (self.ledger.settled_horizon(), self.ledger.rules().bucket_ms);
        let horizon = horizon.minus(horizon.as_millis() % step);
        Some(Stamp { cluster, incarnation: INCARNATION, term: self.term, horizon })
    }
}

fn tell_people(report: &Report) {
    match report {
        Report::PromiseBroken(branch) => {
            error!(%branch, "the participant refused after it had promised: its data may differ from the outcome");
        }
        Report::Heuristic { branch, settlement } => {
            error!(%branch, ?settlement, "the branch was settled by somebody else: compare its data with the outcome");
        }
        Report::Unlisted { xid, number } => {
            warn!(%xid, number, "a branch asked that is not in the list of its transaction: it was told to roll back");
        }
    }
}
