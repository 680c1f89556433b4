//! I5: from any state, once nothing fails any more, everything is decided and settled; and the coordinator keeps nothing.

use verdict_protocol::{Event, Held, Outcome, Settlement, Vote};

use crate::{
    action::Action,
    participant::Disk,
    world::{BRANCHES, World, branch_id, xid},
};

/// Rounds that healing may take: each delivers everything and lets one timer come due.
const ROUNDS: usize = 40;

/// Lets the world heal, and checks that everything is settled in it. Returns the outcome.
pub fn heal(world: &World) -> Result<Option<Outcome>, String> {
    let mut world = world.clone();
    let follower = 1 - world.leader;
    if world.leads(follower) {
        world.depose(follower)?;
    }
    for _ in 0..ROUNDS {
        world.settle_log()?;
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
    let outcome = world.outcome();
    let node = &world.nodes[world.leader];
    for (index, disk) in world.disks.iter().enumerate() {
        let number = branch_id(index).number;
        if *disk == Disk::Prepared {
            return Err(format!("I5: branch {number} stays in doubt, the log says {outcome:?}"));
        }
        if world.log.oracle.may_commit(xid(), number) != (*disk == Disk::Committed) {
            return Err(format!("I1: branch {number} came to {disk:?}, the log says {outcome:?}"));
        }
    }
    if let Some((_, open)) = node.ledger.open().next() {
        let left: Vec<_> = open.unsettled().map(|(number, _)| number).collect();
        return Err(format!(
            "I5: the transaction is never settled: branches {left:?} are left of it, {:?}",
            open.phase
        ));
    }
    if node.coordinator.held() != Held::default() {
        return Err(format!("I18: everything has ended, and the leader still keeps {:?}", node.coordinator.held()));
    }
    Ok(outcome)
}

impl World {
    fn is_at_rest(&self) -> bool {
        let node = &self.nodes[self.leader];
        node.ledger.open_count() == 0
            && !self.disks.contains(&Disk::Prepared)
            && node.coordinator.held() == Held::default()
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
                && let Some((vote, _)) = self.disks[branch].prepare(self.scenario.tempers[branch]).first()
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
            for (_, vote) in votes.into_iter().filter(|(on, _)| *on) {
                self.handle(node, Event::Voted { branch: branch_id(branch), vote, reason: None })?;
            }
            let tells = [(line.tell_commit, Outcome::Committed), (line.tell_abort, Outcome::Aborted)];
            for (_, outcome) in tells.into_iter().filter(|(on, _)| *on) {
                self.act(Action::Tell(node, branch, outcome))?;
            }
            if self.net[node][branch].acknowledged {
                let settlement = Settlement::Done;
                self.handle(node, Event::Acknowledged { branch: branch_id(branch), settlement })?;
            }
        }
        let orders = self.orders[branch];
        let answers = [(orders.commit, Outcome::Committed), (orders.rollback, Outcome::Aborted)];
        answers.into_iter().filter(|(on, _)| *on).try_for_each(|(_, outcome)| self.take(branch, outcome))
    }
}
