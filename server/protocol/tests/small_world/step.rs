//! All that can happen in a state, and what each does.

use std::rc::Rc;

use verdict_protocol::{
    Command, Conclusion, Coordinator, Effect, Event, Order, Outcome, Reason, ReasonCode, Reply, Report, Request,
    SettledItem, Settlement, Token, Vote,
};

use crate::{
    action::{Action, say_reply},
    participant::Disk,
    world::{
        BRANCHES, GRACE_MS, Line, OldLeader, PATIENCE, Proposal, START, World, branch_id, index_of, new_branch, xid,
    },
};

const ENLIST: Token = Token(1);
const ROLLBACK: Token = Token(2);
const COMMIT: Token = Token(3);
const QUESTION: Token = Token(4);

impl World {
    /// Everything that can happen now. Deliveries that change nothing are among it.
    pub fn actions(&self, into: &mut Vec<Action>) {
        into.clear();
        let (left, scenario) = (&self.left, &self.scenario);
        for node in (0..2).filter(|node| self.leads(*node)) {
            let state = &self.nodes[node];
            if !scenario.enlists.is_empty() && !self.client.enlist_sent {
                into.push(Action::Enlist(node));
            }
            let may_commit = scenario.enlists.is_empty() || self.client.enlisted;
            if may_commit && usize::from(self.client.commits_sent) < scenario.commits.len() {
                into.push(Action::Commit(node));
            }
            if left.rollbacks > 0 {
                into.push(Action::Rollback(node));
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
                if left.interruptions > 0
                    && self.leads(node)
                    && item.proposer.is_some_and(|(proposer, _)| proposer == node)
                {
                    into.push(Action::Interrupt(node, place));
                }
            }
            if node != self.leader {
                into.push(Action::Deposed(node));
            }
            if left.wakes > 0 && state.wake_at.is_some() {
                into.push(Action::Wake(node));
            }
        }
        if left.elections > 0 {
            into.push(Action::Elect(1 - self.leader));
        }
        for branch in 0..BRANCHES {
            self.branch_actions(branch, into);
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
    }

    /// The world after `action`, or the sentence that it breaks.
    pub fn after(&self, action: Action) -> Result<World, String> {
        let mut world = self.clone();
        world.act(action)?;
        world.seal(Some(self));
        Ok(world)
    }

    pub fn act(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Enlist(node) => {
                self.client.enlist_sent = true;
                let branches = self.scenario.enlists.iter().map(|number| new_branch(*number)).collect();
                self.request(node, ENLIST, Request::Enlist { xid: xid(), branches, timeout_ms: 100 })
            }
            Action::Commit(node) => {
                let attempt = self.scenario.commits[usize::from(self.client.commits_sent)];
                self.client.commits_sent += 1;
                let vote_timeout_ms = self.scenario.vote_timeout_ms;
                let request = Request::Commit {
                    xid: xid(),
                    branches: Self::listed(attempt),
                    vote_timeout_ms,
                    delegate: attempt.delegate,
                    session: None,
                };
                self.request(node, COMMIT, request)
            }
            Action::Rollback(node) => {
                self.left.rollbacks -= 1;
                let reason = Reason::new(ReasonCode::Rollback, "");
                self.request(node, ROLLBACK, Request::Rollback { xid: xid(), reason })
            }
            Action::Append(place) => {
                let leader = self.leader;
                let Proposal { id, commands } = self.node(leader).proposals.remove(place);
                self.append(Some((leader, id)), Rc::unwrap_or_clone(commands));
                Ok(())
            }
            Action::Lose(node, place) => {
                self.left.interruptions -= 1;
                let proposal = self.node(node).proposals.remove(place).id;
                self.handle(node, Event::Interrupted { proposal })
            }
            Action::Interrupt(node, place) => {
                self.left.interruptions -= 1;
                let (_, proposal) = self.log.items[place].proposer.expect("only proposals are interrupted");
                self.handle(node, Event::Interrupted { proposal })
            }
            Action::Apply(node) => {
                let (changes, answer) = self.apply_next(node)?;
                self.handle(node, Event::Applied { changes })?;
                match answer {
                    Some((proposal, answers)) => self.handle(node, Event::Answered { proposal, answers }),
                    None => Ok(()),
                }
            }
            Action::Flush => self.flush(),
            Action::Prepare(node, branch, vote) => self.prepare(branch, vote).map(|()| {
                if !self.listens(node) {
                    return;
                }
                let line = &mut self.net[node][branch];
                match vote {
                    Vote::Prepared => line.voted_prepared = true,
                    Vote::ReadOnly => line.voted_read_only = true,
                    Vote::Refused => line.voted_refused = true,
                }
            }),
            Action::Voted(node, branch, vote) => {
                self.handle(node, Event::Voted { branch: branch_id(branch), vote, reason: None })
            }
            Action::NotAsked(node, branch) => {
                self.left.unreachable -= 1;
                self.handle(node, Event::NotAsked { branch: branch_id(branch), error: String::new() })
            }
            Action::Conclude { node, branch, fence, committed } => self.conclude(branch, fence, committed).map(|()| {
                if self.listens(node) {
                    let line = &mut self.net[node][branch];
                    if committed { line.said_committed = true } else { line.said_fenced = true }
                }
            }),
            Action::Concluded(node, branch, committed) => {
                let conclusion = if committed { Conclusion::Committed } else { Conclusion::Fenced(None) };
                self.handle(node, Event::Concluded { branch: branch_id(branch), conclusion })
            }
            Action::Tell(node, branch, outcome) => {
                self.take(branch, outcome)?;
                self.net[node][branch].acknowledged |= self.listens(node);
                Ok(())
            }
            Action::Acknowledged(node, branch) => {
                self.handle(node, Event::Acknowledged { branch: branch_id(branch), settlement: Settlement::Done })
            }
            Action::NotTold(node, branch) => {
                self.left.unreachable -= 1;
                self.handle(node, Event::NotTold { branch: branch_id(branch), error: String::new() })
            }
            Action::Wake(node) => {
                self.left.wakes -= 1;
                self.wake(node)
            }
            Action::Elect(node) => {
                self.left.elections -= 1;
                self.elect(node)
            }
            Action::Deposed(node) => self.depose(node),
            Action::Restart(branch) => {
                self.left.restarts -= 1;
                self.disks[branch] = self.disks[branch].restart();
                Ok(())
            }
            Action::Inquire(branch) => {
                self.left.inquiries -= 1;
                self.inquire(branch)
            }
            Action::Ordered(branch, outcome) => self.take(branch, outcome),
            Action::Push(branch) => {
                self.left.pushes -= 1;
                let answers = self.disks[branch].prepare(self.scenario.tempers[branch]);
                let vote = answers.first().map_or(Vote::Refused, |(vote, _)| *vote);
                self.prepare(branch, vote)?;
                let request = Request::Vote { branch: branch_id(branch), vote, reason: None };
                self.request(self.leader, QUESTION, request)
            }
        }
    }

    /// Whether an answer to this node may ever matter.
    fn listens(&self, node: usize) -> bool {
        node == self.leader || self.leads(node) || self.left.elections > 0
    }

    fn request(&mut self, node: usize, token: Token, request: Request) -> Result<(), String> {
        self.handle(node, Event::Request { token, request })
    }

    pub fn inquire(&mut self, branch: usize) -> Result<(), String> {
        let request = Request::Inquire { branch: branch_id(branch), held_ms: GRACE_MS };
        self.request(self.leader, QUESTION, request)
    }

    pub fn wake(&mut self, node: usize) -> Result<(), String> {
        let state = self.node(node);
        let at = state.wake_at.take().expect("a node wakes when it asked for it");
        state.now = state.now.max(at);
        self.handle(node, Event::Wake)
    }

    pub fn depose(&mut self, node: usize) -> Result<(), String> {
        let state = self.node(node);
        state.proposals.clear();
        state.settled = [false; BRANCHES];
        state.wake_at = None;
        self.handle(node, Event::Deposed)
    }

    /// A node leads: an entry of its own term is applied, and all before it.
    fn elect(&mut self, node: usize) -> Result<(), String> {
        if self.leads(node) {
            self.depose(node)?;
        }
        if self.scenario.old_leader == OldLeader::Crashes {
            self.crash(self.leader)?;
        }
        self.leader = node;
        self.append(None, Vec::new());
        self.catch_up(node)?;
        let state = self.node(node);
        state.now = state.now.max(state.ledger.at());
        self.handle(node, Event::Lead)
    }

    fn crash(&mut self, node: usize) -> Result<(), String> {
        self.catch_up(node)?;
        let state = self.node(node);
        state.coordinator = Coordinator::new(PATIENCE);
        (state.now, state.wake_at) = (START, None);
        state.proposals.clear();
        state.settled = [false; BRANCHES];
        if self.left.elections == 0 {
            // Nobody is there to hear these any more.
            self.net[node].iter_mut().for_each(Line::forget_answers);
        }
        Ok(())
    }

    pub fn flush(&mut self) -> Result<(), String> {
        let mut items = Vec::new();
        for branch in self.take_unsettled() {
            if !matches!(self.disks[branch], Disk::Committed | Disk::RolledBack) && !self.took_abort[branch] {
                return Err(format!("I5: branch {} counts as settled, but is {:?}", branch + 1, self.disks[branch]));
            }
            items.push(SettledItem { branch: branch_id(branch), settlement: Settlement::Done });
        }
        if !items.is_empty() {
            self.append(None, vec![Command::Settled { items }]);
        }
        Ok(())
    }

    /// The acknowledgements at the leader that its ledger does not have: it need not propose the others.
    fn take_unsettled(&mut self) -> Vec<usize> {
        let settled = std::mem::take(&mut self.node(self.leader).settled);
        let open = self.nodes[self.leader].ledger.transaction(xid());
        let is_new = |branch: &usize| {
            let record = open.and_then(|open| open.branches.get(&branch_id(*branch).number));
            settled[*branch] && record.is_some_and(|record| record.settlement.is_none())
        };
        (0..BRANCHES).filter(is_new).collect()
    }

    pub fn prepare(&mut self, branch: usize, vote: Vote) -> Result<(), String> {
        let answers = self.disks[branch].prepare(self.scenario.tempers[branch]);
        let Some((_, after)) = answers.into_iter().find(|(answer, _)| *answer == vote) else { return Ok(()) };
        if after == Disk::Prepared && self.took_abort[branch] {
            return Err(format!("I9: branch {} prepares after it was told ABORTED", branch + 1));
        }
        self.disks[branch] = after;
        Ok(())
    }

    /// A participant takes the decision.
    pub fn conclude(&mut self, branch: usize, fence: bool, committed: bool) -> Result<(), String> {
        let answers = self.disks[branch].conclude(self.scenario.tempers[branch], fence);
        let Some((_, after)) = answers.into_iter().find(|(answer, _)| *answer == committed) else { return Ok(()) };
        let (number, decided) = (branch_id(branch).number, self.outcome());
        let delegated = self.log.oracle.of(xid()).is_some_and(|history| history.delegated);
        if committed && (!delegated || decided == Some(Outcome::Aborted)) {
            return Err(format!("I3: branch {number} commits; delegated to it: {delegated}, the log says {decided:?}"));
        }
        if !committed && decided == Some(Outcome::Committed) {
            return Err(format!("I1: branch {number} fences itself, but the log says {decided:?}"));
        }
        self.disks[branch] = after;
        Ok(())
    }

    /// A participant takes an outcome.
    pub fn take(&mut self, branch: usize, outcome: Outcome) -> Result<(), String> {
        let (number, before, decided) = (branch_id(branch).number, self.disks[branch], self.outcome());
        let after = match outcome {
            Outcome::Committed => {
                if !self.log.oracle.may_commit(xid(), number) {
                    return Err(format!("I1: branch {number} commits, but the log says {decided:?} and not for it"));
                }
                before.commit()
            }
            Outcome::Aborted => {
                let history = self.log.oracle.of(xid());
                let left_out = history.is_some_and(|h| h.closed && !h.registered.contains_key(&number));
                if before == Disk::Prepared && decided != Some(Outcome::Aborted) && !left_out {
                    return Err(format!("I1: branch {number} rolls back, but the log says {decided:?}"));
                }
                self.took_abort[branch] = true;
                before.roll_back().map(|after| self.scenario.bug.rolled_back(before, after))
            }
        };
        let Some(after) = after else {
            return Err(format!("I8: branch {number} is told {outcome}, but is {before:?}"));
        };
        self.disks[branch] = after;
        Ok(())
    }

    pub fn handle(&mut self, node: usize, event: Event) -> Result<(), String> {
        let bug = self.scenario.bug;
        let leads_anew = event == Event::Lead && self.log.items.len() > 1;
        let state = self.node(node);
        let mut effects = state.coordinator.handle(state.now, bug.event(event), &state.ledger);
        bug.effects(leads_anew, branch_id(BRANCHES - 1).number, self, node, &mut effects);
        effects.into_iter().try_for_each(|effect| self.carry_out(node, effect))
    }

    fn carry_out(&mut self, node: usize, effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Propose { proposal, commands } => {
                self.node(node).proposals.push(Proposal { id: proposal, commands: Rc::new(commands) });
            }
            Effect::ProposeLater { item } => self.node(node).settled[index_of(item.branch)] = true,
            Effect::Ask { branch, .. } => {
                self.note(|| format!("asks {}", branch.number));
                self.net[node][index_of(branch)].ask = true;
            }
            Effect::Delegate { branch, fence, .. } => {
                self.note(|| format!("gives the decision to {}, fencing it: {fence}", branch.number));
                let line = &mut self.net[node][index_of(branch)];
                if fence { line.fence = true } else { line.delegate = true }
            }
            Effect::Tell { branch, outcome, .. } => {
                self.note(|| format!("tells {} {}", branch.number, outcome.value()));
                self.check_spoken(outcome.value())?;
                let line = &mut self.net[node][index_of(branch)];
                match outcome.value() {
                    Outcome::Committed => line.tell_commit = true,
                    Outcome::Aborted => line.tell_abort = true,
                }
            }
            Effect::Reply { token, reply } => {
                self.note(|| format!("replies {}", say_reply(&reply)));
                match reply {
                    Reply::Decided { outcome, .. } => self.check_spoken(outcome.value())?,
                    Reply::Done { .. } if token == ENLIST => self.client.enlisted = true,
                    Reply::Order { branch, order } => match order {
                        Order::Commit(_) => self.orders[index_of(branch)].commit = true,
                        Order::Rollback(_) | Order::RollbackUnlisted => self.orders[index_of(branch)].rollback = true,
                        Order::Wait => {}
                    },
                    Reply::Done { .. }
                    | Reply::Session { .. }
                    | Reply::Refused(_)
                    | Reply::Interrupted
                    | Reply::NotLeader => {}
                }
            }
            Effect::WakeAt(at) => self.node(node).wake_at = Some(at),
            Effect::Report(Report::Unlisted { .. }) => {}
            Effect::Report(report) => return Err(format!("a false alarm: {report:?}")),
        }
        Ok(())
    }

    fn check_spoken(&self, outcome: Outcome) -> Result<(), String> {
        let decided = self.outcome();
        if decided == Some(outcome) { Ok(()) } else { Err(format!("I1: {outcome} is told, the log says {decided:?}")) }
    }
}
