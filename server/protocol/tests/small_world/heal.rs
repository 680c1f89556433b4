//! I5: from any state, once nothing fails any more, everything is decided and settled; and the coordinator keeps nothing.

use std::collections::HashMap;

use verdict_protocol::{Event, Held, Outcome, Settlement, Vote};

use crate::{
    action::Action,
    participant::Disk,
    scenario::{BRANCHES, CLIENTS, Left},
    world::{Line, Orders, World},
};

/// Rounds that healing may take: each delivers everything and lets one timer come due.
const ROUNDS: usize = 40;

/// What becomes of the messages that are under way when the world begins to heal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnderWay {
    /// All arrive, those of a deposed leader too.
    Arrives,
    /// None does, and whoever waits for an answer learns that it will not come.
    IsLost,
}

/// Worlds on their way to health, by digest, and what they come to: ways that meet are gone once.
pub type Healed = HashMap<u64, [Option<Outcome>; CLIENTS]>;

/// Lets the world heal, and checks that everything is settled in it. Returns each transaction's outcome.
pub fn heal(world: &World, under_way: UnderWay, healed: &mut Healed) -> Result<[Option<Outcome>; CLIENTS], String> {
    let mut world = world.clone();
    world.left = Left::default();
    let follower = 1 - world.leader;
    if world.leads(follower) {
        world.depose(follower)?;
    }
    if under_way == UnderWay::IsLost {
        world.lose_all()?;
    }
    let mut way = Vec::new();
    for _ in 0..ROUNDS {
        world.settle_log()?;
        world.seal(None);
        let digest = world.digest();
        if let Some(outcomes) = healed.get(&digest).copied() {
            healed.extend(way.into_iter().map(|digest| (digest, outcomes)));
            return Ok(outcomes);
        }
        way.push(digest);
        if world.is_at_rest() {
            break;
        }
        for branch in 0..BRANCHES {
            world.deliver_all(branch)?;
            if world.disks[branch] == Disk::Prepared {
                world.inquire(branch)?;
            }
        }
        world.settle_log()?;
        let leader = world.leader;
        if world.nodes[leader].wake_at.is_some() {
            world.wake(leader)?;
        }
    }
    world.check_healed()?;
    let outcomes = std::array::from_fn(|client| world.outcome(client));
    healed.extend(way.into_iter().map(|digest| (digest, outcomes)));
    Ok(outcomes)
}

impl World {
    fn check_healed(&self) -> Result<(), String> {
        let node = &self.nodes[self.leader];
        for (index, disk) in self.disks.iter().enumerate() {
            let (id, outcome) = (self.branch_id(index), self.outcome_of(index));
            let number = id.number;
            if *disk == Disk::Prepared {
                return Err(format!("I5: branch {number} stays in doubt, the log says {outcome:?}"));
            }
            if self.log.oracle.may_commit(id.xid, number) != (*disk == Disk::Committed) {
                return Err(format!("I1: branch {number} came to {disk:?}, the log says {outcome:?}"));
            }
            let history = self.log.oracle.of(id.xid);
            let is_listed = history.is_some_and(|history| history.registered.contains_key(&number));
            if is_listed && *disk == Disk::Working && !self.took_abort[index] {
                return Err(format!("I5: branch {number} is enlisted and is never told, the log says {outcome:?}"));
            }
        }
        if let Some((xid, open)) = node.ledger.open().next() {
            let left: Vec<_> = open.unsettled().map(|(number, _)| number).collect();
            return Err(format!("I5: {xid} is never settled: branches {left:?} are left of it, {:?}", open.phase));
        }
        if node.coordinator.held() != Held::default() {
            return Err(format!("I18: everything has ended, and the leader still keeps {:?}", node.coordinator.held()));
        }
        Ok(())
    }

    fn is_at_rest(&self) -> bool {
        let node = &self.nodes[self.leader];
        node.ledger.open_count() == 0
            && !self.disks.contains(&Disk::Prepared)
            && node.coordinator.held() == Held::default()
    }

    fn lose_all(&mut self) -> Result<(), String> {
        self.net = [[Line::default(); BRANCHES]; 2];
        self.orders = [Orders::default(); BRANCHES];
        for branch in 0..BRANCHES {
            self.not_asked(self.leader, branch)?;
            self.not_told(self.leader, branch)?;
        }
        Ok(())
    }

    /// Everything that the leader has proposed gets into the log and is applied.
    fn settle_log(&mut self) -> Result<(), String> {
        let leader = self.leader;
        loop {
            if self.nodes[leader].applied < self.log.items.len() {
                self.act(Action::Apply(leader))?;
            } else if !self.nodes[leader].proposals.is_empty() {
                self.act(Action::Append(0))?;
            } else if self.nodes[leader].settled.contains(&true) {
                self.flush()?;
            } else {
                return Ok(());
            }
        }
    }

    /// Everything under way to or from a participant arrives, late messages of a deposed leader included.
    fn deliver_all(&mut self, branch: usize) -> Result<(), String> {
        for node in 0..2 {
            if self.net[node][branch].ask
                && let Some((vote, _)) = self.answers(branch).first()
            {
                self.act(Action::Prepare(node, branch, *vote))?;
            }
            for (on, fence) in [(self.net[node][branch].delegate, false), (self.net[node][branch].fence, true)] {
                let answers = self.disks[branch].conclude(self.scenario.tempers[branch], fence);
                if let Some((committed, _)) = answers.first().filter(|_| on) {
                    self.act(Action::Conclude { node, branch, fence, committed: *committed })?;
                }
            }
            for (on, committed) in
                [(self.net[node][branch].said_committed, true), (self.net[node][branch].said_fenced, false)]
            {
                if on {
                    self.act(Action::Concluded(node, branch, committed))?;
                }
            }
            let line = self.net[node][branch];
            let votes = [
                (line.voted_refused, Vote::Refused),
                (line.voted_read_only, Vote::ReadOnly),
                (line.voted_prepared, Vote::Prepared),
            ];
            let id = self.branch_id(branch);
            for (_, vote) in votes.into_iter().filter(|(on, _)| *on) {
                self.handle(node, Event::Voted { branch: id, vote, reason: None })?;
            }
            let tells = [(line.tell_commit, Outcome::Committed), (line.tell_abort, Outcome::Aborted)];
            for (_, outcome) in tells.into_iter().filter(|(on, _)| *on) {
                self.act(Action::Tell(node, branch, outcome))?;
            }
            if self.net[node][branch].acknowledged {
                self.handle(node, Event::Acknowledged { branch: id, settlement: Settlement::Done })?;
            }
        }
        let orders = self.orders[branch];
        let answers = [(orders.commit, Outcome::Committed), (orders.rollback, Outcome::Aborted)];
        answers.into_iter().filter(|(on, _)| *on).try_for_each(|(_, outcome)| self.ordered(branch, outcome))
    }
}
