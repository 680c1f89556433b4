//! Where the seeded bugs sit: wrappers around what goes into and comes out of the product, and around participants and
//! clients.

use std::rc::Rc;

use verdict_protocol::{
    Change, Command, Effect, Entry, Event, Instance, Ledger, Order, Outcome, Phase, Reason, ReasonCode, Refusal, Reply,
    Resolution, Settlement, State, Vote, Word,
};

use crate::{
    bugs::Bug,
    hears::{Asked, of_token},
    participant::Disk,
    scenario::BRANCHES,
    world::{World, index_of, new_branch, promise, session_name, xid},
};

impl Bug {
    /// Wraps what the coordinator hears.
    pub fn event(self, event: Event) -> Event {
        match event {
            Event::NotAsked { branch, .. } if self == Self::M9 => {
                Event::Voted { branch, vote: Vote::Prepared, reason: None }
            }
            Event::NotTold { branch, .. } if self == Self::M24 => {
                Event::Acknowledged { branch, settlement: Settlement::Done }
            }
            other => other,
        }
    }

    /// Wraps what the ledger is given.
    pub fn entry(self, entry: &Rc<Entry>, ledger: &Ledger) -> Rc<Entry> {
        let mut commands = Vec::new();
        for command in &entry.commands {
            self.command(command, ledger, &mut commands);
        }
        if commands == entry.commands { Rc::clone(entry) } else { Rc::new(Entry { at: entry.at, commands }) }
    }

    fn command(self, command: &Command, ledger: &Ledger, into: &mut Vec<Command>) {
        let nothing = Command::Settled { items: Vec::new() };
        let mut changed = command.clone();
        match (self, &mut changed) {
            (Self::M22 | Self::M45, Command::Prepare { session, .. } | Command::Begin { session, .. })
            | (Self::SessionForgotten, Command::Begin { session, .. }) => *session = None,
            (Self::M25, Command::Settled { items }) => {
                let all = items.iter().flat_map(|item| {
                    let open = ledger.transaction(item.branch.xid).into_iter();
                    let numbers = open.flat_map(|open| open.unsettled().map(|(number, _)| number));
                    numbers.map(|number| {
                        let mut item = item.clone();
                        item.branch.number = number;
                        item
                    })
                });
                *items = all.collect();
            }
            (Self::M26, Command::PresumeAbort { xid }) => {
                changed = Command::Abort { xid: *xid, reason: Reason::new(ReasonCode::Presumed, "") };
            }
            (Self::M42, Command::Enlist { .. }) => changed = nothing,
            (Self::VoteCreates, Command::Vote { branch, .. }) if ledger.status(branch.xid).state == State::Unknown => {
                let branches = vec![new_branch(branch.number)];
                into.push(Command::Enlist { xid: branch.xid, branches, timeout_ms: 100 });
            }
            (Self::RefusalIgnored, Command::Vote { branch, vote: Vote::Refused, .. }) => {
                let open = ledger.transaction(branch.xid);
                if open.and_then(|open| open.branches.get(&branch.number)).is_some_and(|known| known.vote.is_some()) {
                    changed = nothing;
                }
            }
            (Self::Forged, Command::Prepare { branches, .. }) => {
                let brought = branches.iter_mut().filter_map(|listed| listed.vote.as_mut());
                brought.for_each(|brought| brought.proven = true);
            }
            (Self::KeyForgotten, Command::Begin { key, .. }) => *key = None,
            (Self::SessionAbortsVotes, Command::OpenSession { .. }) => {
                let voting = ledger.open().filter(|(_, open)| matches!(open.phase, Phase::Voting { .. }));
                into.extend(voting.map(|(xid, _)| {
                    let reason = Reason::new(ReasonCode::Fenced, "");
                    Command::Abort { xid, reason }
                }));
            }
            (Self::NonceIgnored, Command::OpenSession { name, instance })
                if ledger.session(name, *instance).is_some() =>
            {
                *instance = Instance([9; 16]);
            }
            (Self::Unforced, Command::Resolve { force, .. } | Command::Forget { force, .. }) => *force = true,
            _ => {}
        }
        into.push(changed);
    }

    /// Wraps what the coordinator is told of an entry.
    pub fn changes(self, entry: &Entry, mut changes: Vec<Change>) -> Vec<Change> {
        if self == Self::M41 && entry.commands.iter().any(|command| matches!(command, Command::Prepare { .. })) {
            changes.retain(|change| !matches!(change, Change::Decided { .. }));
        }
        changes
    }

    /// After a node has applied an entry.
    pub fn applied(self, world: &mut World, node: usize, entry: &Entry, mine: bool) -> Result<(), String> {
        match (self, &entry.commands[..]) {
            (Self::M57, [Command::OpenSession { name, instance }]) if mine => {
                let Some((epoch, _)) = world.nodes[node].ledger.session(name, *instance) else { return Ok(()) };
                let client = (0..2).find(|client| world.instance(*client) == Some(*instance)).unwrap_or(0);
                world.hears(node, Asked::Open, client, &Reply::Session { epoch })
            }
            (Self::M10, [Command::Vote { branch, vote: Vote::Prepared, .. }]) => {
                if world.nodes[node].ledger.outcome(branch.xid).is_some() {
                    world.net[node][index_of(*branch)].tell_commit = true;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Wraps what the coordinator wants done. `leads_now`: it has just begun to lead.
    pub fn effects(
        self,
        leads_now: bool,
        world: &mut World,
        node: usize,
        effects: &mut Vec<Effect>,
    ) -> Result<(), String> {
        match self {
            Self::M6 => effects.retain(|effect| match effect {
                Effect::Ask { branch, .. } | Effect::Tell { branch, .. } => {
                    !(leads_now && index_of(*branch) == BRANCHES - 1)
                }
                _ => true,
            }),
            Self::SettledByItsClient => effects.retain(|effect| match effect {
                Effect::Tell { branch, .. } => {
                    let open = world.nodes[node].ledger.transaction(branch.xid);
                    !open.and_then(|open| open.branches.get(&branch.number)).is_some_and(|branch| branch.brought)
                }
                _ => true,
            }),
            Self::M52 => {
                if effects.iter().any(|effect| matches!(effect, Effect::Ask { .. })) {
                    world.net[node][BRANCHES - 1].delegate = true;
                }
            }
            _ => {
                for effect in effects {
                    match effect {
                        Effect::Propose { commands, .. } => self.proposes(world, node, commands)?,
                        Effect::Reply { token, reply } => {
                            let (asked, who) = of_token(*token);
                            self.replies(world, asked, who, reply)?;
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    fn proposes(self, world: &mut World, node: usize, commands: &mut Vec<Command>) -> Result<(), String> {
        match (self, &mut commands[..]) {
            (Self::M5, votes) => {
                let yes = |command: &Command| matches!(command, Command::Vote { vote: Vote::Prepared, .. });
                if votes.iter().all(yes) {
                    world.net[node].iter_mut().for_each(|line| line.tell_commit = true);
                }
            }
            (Self::M7, [Command::Prepare { branches, .. }]) => {
                let missing = branches.last_mut();
                missing.into_iter().for_each(|listed| listed.vote = Some(promise()));
            }
            (Self::M8, [Command::Abort { reason, .. }]) if reason.code == ReasonCode::Deadline => {
                world.net[node].iter_mut().for_each(|line| line.tell_abort = true);
            }
            (Self::M44, [Command::PresumeAbort { .. }]) => {
                world.orders.iter_mut().for_each(|orders| orders.rollback = true);
            }
            (Self::M50, [Command::Abort { xid, .. }]) => {
                let word = Word { who: String::new(), why: String::new() };
                let resolution = Resolution::Decide(Outcome::Aborted);
                *commands = vec![Command::Resolve { xid: *xid, resolution, word, force: true }];
            }
            (Self::M51, [Command::Prepare { delegate: Some(number), .. }]) => {
                world.net[node][*number as usize - 1].delegate = true;
            }
            (Self::VoteToldEarly, [Command::Vote { branch, .. }]) => {
                return world.check_vote(index_of(*branch));
            }
            (Self::EnlistToldEarly, [Command::Enlist { xid, branches, .. }]) => {
                let client = usize::from(*xid == self::xid(1));
                return branches.iter().try_for_each(|branch| world.check_listed(client, branch.number));
            }
            (Self::EndsTheNext, [Command::Abort { xid: of, reason }]) if reason.code == ReasonCode::Rollback => {
                *of = xid(1);
            }
            _ => {}
        }
        Ok(())
    }

    fn replies(self, world: &mut World, asked: Asked, who: usize, reply: &mut Reply) -> Result<(), String> {
        match (self, &mut *reply) {
            (Self::M11, Reply::Refused(Refusal::Closed)) if matches!(asked, Asked::Enlist | Asked::Register) => {
                *reply = Reply::Done { xid: xid(who.min(1)) };
            }
            (Self::M43, Reply::Order { order, .. }) => {
                if let Order::Rollback(outcome) = *order
                    && outcome.value() == Outcome::Committed
                {
                    *order = Order::Commit(outcome);
                }
            }
            (Self::M48, Reply::Refused(Refusal::Expired)) if asked == Asked::Commit => {
                return world.check_spoken(who, Outcome::Aborted);
            }
            (Self::KeyKept, Reply::Done { .. }) if asked == Asked::Begin && who == 1 => {
                *reply = Reply::Refused(Refusal::KeyTaken { holder: xid(0) });
            }
            _ => {}
        }
        Ok(())
    }

    /// A session that is judged at the door: whether a call is let in.
    pub fn lets_in(self, world: &World, node: usize, client: usize) -> bool {
        let Some(instance) = world.instance(client).filter(|_| self == Self::M45) else { return true };
        world.nodes[node].ledger.session(&session_name(), instance).is_some()
    }

    /// Wraps a participant that rolls back.
    pub fn rolled_back(self, before: Disk, after: Disk) -> Disk {
        if self == Self::M13 && before == Disk::Working { before } else { after }
    }

    /// Wraps a participant that takes the decision or a fence.
    pub fn concluded(self, fence: bool, before: Disk, after: Disk) -> Disk {
        if self == Self::FenceForgotten && fence && before == Disk::Working { before } else { after }
    }

    /// What a participant answers to Prepare instead.
    pub fn answers(self, disk: Disk) -> Option<Vec<(Vote, Disk)>> {
        (self == Self::M47 && disk == Disk::Lost).then(|| vec![(Vote::ReadOnly, Disk::Lost)])
    }

    pub fn client_gives_up(self) -> bool {
        self == Self::M46
    }
}
