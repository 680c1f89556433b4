//! All that can happen in a state.

use verdict_protocol::{Outcome, Vote};

use crate::{
    action::{Action, Call},
    participant::Disk,
    scenario::{BRANCHES, CLIENTS},
    world::World,
};

impl World {
    /// Everything that can happen now. Deliveries that change nothing are among it.
    pub fn actions(&self, into: &mut Vec<Action>) {
        into.clear();
        let left = &self.left;
        for node in (0..2).filter(|node| self.leads(*node)) {
            let state = &self.nodes[node];
            for client in 0..CLIENTS {
                self.client_actions(node, client, into);
            }
            for place in 0..state.proposals.len() {
                if node == self.leader {
                    into.push(Action::Append(place));
                }
                if left.interruptions > 0 {
                    into.push(Action::Lose(node, place));
                }
            }
            if state.applied < self.log.items.len() {
                into.push(Action::Apply(node));
            } else if node == self.leader && state.settled.contains(&true) {
                into.push(Action::Flush);
            }
            for (place, item) in self.log.items.iter().enumerate().skip(state.applied) {
                if left.interruptions > 0 && item.proposer.is_some_and(|(proposer, _)| proposer == node) {
                    into.push(Action::Interrupt(node, place));
                }
            }
            if node != self.leader {
                into.push(Action::Deposed(node));
            }
            if left.wakes > 0 && state.wake_at.is_some() {
                into.push(Action::Wake(node));
            }
            if left.comes > 0 {
                into.push(Action::Reached(node));
            }
        }
        if left.elections > 0 {
            into.push(Action::Elect(1 - self.leader));
        }
        if left.ages > 0 {
            into.push(Action::Age);
        }
        for branch in 0..BRANCHES {
            self.branch_actions(branch, into);
        }
    }

    fn client_actions(&self, node: usize, client: usize, into: &mut Vec<Action>) {
        let (plan, done, left) = (&self.scenario.clients[client], &self.clients[client], &self.left);
        if plan.commits.is_empty() {
            return;
        }
        let mut may = |call, yes: bool| into.extend(yes.then_some(Action::Client(call, node, client)));
        let has_session = plan.instance.is_none() || done.epoch > 0;
        let has_begun = has_session && (plan.begins == 0 || done.begun);
        let has_enlisted = has_begun && (plan.enlists.is_empty() || done.enlisted);
        may(Call::Open, plan.instance.is_some() && done.opens_sent < plan.opens);
        may(Call::Begin, has_session && !done.begun && done.begins_sent < plan.begins);
        may(Call::Enlist, has_begun && !plan.enlists.is_empty() && !done.enlist_sent);
        may(Call::Commit, has_enlisted && usize::from(done.commits_sent) < plan.commits.len());
        let brought = plan.commits.iter().flat_map(|attempt| attempt.brought);
        let mut disks = brought.map(|number| self.disks[*number as usize - 1]);
        may(Call::Report, left.reports > 0 && disks.any(|disk| matches!(disk, Disk::Committed | Disk::RolledBack)));
        may(Call::Rollback, has_begun && left.rollbacks > 0);
        for word in [Call::Resolve(Outcome::Aborted), Call::Resolve(Outcome::Committed), Call::Forget] {
            may(word, left.words > 0);
        }
    }

    fn branch_actions(&self, branch: usize, into: &mut Vec<Action>) {
        let (left, disk) = (&self.left, self.disks[branch]);
        for node in 0..2 {
            let (line, leads) = (&self.net[node][branch], self.leads(node));
            if line.ask {
                let answers = disk.prepare(self.scenario.tempers[branch]);
                into.extend(answers.into_iter().map(|(vote, _)| Action::Prepare(node, branch, vote)));
            }
            for (on, fence) in [(line.delegate, false), (line.fence, true)] {
                let answers = disk.conclude(self.scenario.tempers[branch], fence).into_iter().filter(|_| on);
                into.extend(answers.map(|(committed, _)| Action::Conclude { node, branch, fence, committed }));
            }
            if leads {
                into.extend(line.said_committed.then_some(Action::Concluded(node, branch, true)));
                into.extend(line.said_fenced.then_some(Action::Concluded(node, branch, false)));
            }
            let votes = [
                (line.voted_prepared, Vote::Prepared),
                (line.voted_read_only, Vote::ReadOnly),
                (line.voted_refused, Vote::Refused),
            ];
            into.extend(
                votes.iter().filter(|(on, _)| *on && leads).map(|(_, vote)| Action::Voted(node, branch, *vote)),
            );
            let tells = [(line.tell_commit, Outcome::Committed), (line.tell_abort, Outcome::Aborted)];
            into.extend(tells.iter().filter(|(on, _)| *on).map(|(_, outcome)| Action::Tell(node, branch, *outcome)));
            if line.acknowledged && leads {
                into.push(Action::Acknowledged(node, branch));
            }
            if left.unreachable > 0 && leads {
                let asked = line.ask || line.delegate || line.fence;
                into.extend(asked.then_some(Action::NotAsked(node, branch)));
                into.extend((line.tell_commit || line.tell_abort).then_some(Action::NotTold(node, branch)));
            }
        }
        let orders = self.orders[branch];
        into.extend(orders.commit.then_some(Action::Ordered(branch, Outcome::Committed)));
        into.extend(orders.rollback.then_some(Action::Ordered(branch, Outcome::Aborted)));
        if left.restarts > 0 && disk.restart() != disk {
            into.push(Action::Restart(branch));
        }
        if left.inquiries > 0 && disk == Disk::Prepared {
            into.push(Action::Inquire(branch));
        }
        if left.pushes > 0 && matches!(disk, Disk::Working | Disk::Prepared) {
            into.push(Action::Push(branch));
        }
        if left.registers > 0 {
            into.extend((0..2).filter(|node| self.leads(*node)).map(|node| Action::Register(node, branch)));
        }
    }
}
