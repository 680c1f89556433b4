//! What each action does.

use std::rc::Rc;

use verdict_protocol::{
    Command, Conclusion, Event, Instance, Reason, ReasonCode, Request, Resolution, Settlement, Vote, Word,
};

use crate::{
    action::{Action, Call},
    hears::{Asked, token},
    participant::Disk,
    world::{AGED, GRACE_MS, Proposal, World, key, new_branch, resource, session_name, xid},
};

impl World {
    /// The world after `action`, or the sentence that it breaks.
    pub fn after(&self, action: Action) -> Result<World, String> {
        let mut world = self.clone();
        world.step(action)?;
        world.seal(Some(self));
        Ok(world)
    }

    /// Does it. Nobody can tell when a leader applies what it has appended, unless it may be deposed or interrupted in
    /// between: if not, it applies it at once.
    pub fn step(&mut self, action: Action) -> Result<(), String> {
        self.act(action)?;
        let leader = self.leader;
        let unseen = self.left.elections == 0 && self.left.interruptions == 0;
        while unseen && self.leads(leader) && self.nodes[leader].applied < self.log.items.len() {
            self.act(Action::Apply(leader))?;
        }
        Ok(())
    }

    pub fn act(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Client(call, node, client) => self.call(call, node, client),
            Action::Register(node, branch) => {
                self.left.registers -= 1;
                let id = self.branch_id(branch);
                let branches = vec![new_branch(id.number)];
                let request = Request::Enlist { xid: id.xid, branches, timeout_ms: 100 };
                self.request(node, Asked::Register, branch, request)
            }
            Action::Append(place) => {
                let leader = self.leader;
                let Proposal { id, commands, .. } = self.node(leader).proposals.remove(place);
                self.append(Some((leader, id)), Rc::unwrap_or_clone(commands))
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
                let entry = Rc::clone(&self.log.items[self.nodes[node].applied].entry);
                let (changes, answer) = self.apply_next(node)?;
                let is_mine = answer.is_some();
                self.handle(node, Event::Applied { changes })?;
                if let Some((proposal, answers)) = answer {
                    self.handle(node, Event::Answered { proposal, answers })?;
                }
                self.scenario.bug.applied(self, node, &entry, is_mine)
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
                self.handle(node, Event::Voted { branch: self.branch_id(branch), vote, reason: None })
            }
            Action::NotAsked(node, branch) => {
                self.left.unreachable -= 1;
                self.not_asked(node, branch)
            }
            Action::Conclude { node, branch, fence, committed } => self.conclude(branch, fence, committed).map(|()| {
                if self.listens(node) {
                    let line = &mut self.net[node][branch];
                    if committed { line.said_committed = true } else { line.said_fenced = true }
                }
            }),
            Action::Concluded(node, branch, committed) => {
                let conclusion = if committed { Conclusion::Committed } else { Conclusion::Fenced(None) };
                self.handle(node, Event::Concluded { branch: self.branch_id(branch), conclusion })
            }
            Action::Tell(node, branch, outcome) => {
                self.take(branch, outcome)?;
                self.net[node][branch].acknowledged |= self.listens(node);
                Ok(())
            }
            Action::Acknowledged(node, branch) => {
                self.handle(node, Event::Acknowledged { branch: self.branch_id(branch), settlement: Settlement::Done })
            }
            Action::NotTold(node, branch) => {
                self.left.unreachable -= 1;
                self.not_told(node, branch)
            }
            Action::Wake(node) => {
                self.left.wakes -= 1;
                self.wake(node)
            }
            Action::Reached(node) => {
                self.left.comes -= 1;
                self.handle(node, Event::Reached { resource: resource() })
            }
            Action::Age => {
                self.left.ages -= 1;
                let leader = self.leader;
                self.node(leader).now = AGED;
                Ok(())
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
            Action::Ordered(branch, outcome) => self.ordered(branch, outcome),
            Action::Push(branch) => {
                self.left.pushes -= 1;
                let vote = self.answers(branch).first().map_or(Vote::Refused, |(vote, _)| *vote);
                self.prepare(branch, vote)?;
                let request = Request::Vote { branch: self.branch_id(branch), vote, reason: None };
                self.request(self.leader, Asked::Push, branch, request)
            }
        }
    }

    fn call(&mut self, call: Call, node: usize, client: usize) -> Result<(), String> {
        let (xid, plan, session) = (xid(client), self.scenario.clients[client], self.session(client));
        let done = &mut self.clients[client];
        let word = Word { who: String::new(), why: String::new() };
        let (asked, request) = match call {
            Call::Open => {
                done.opens_sent += 1;
                let instance = self.instance(client).unwrap_or(Instance([0; 16]));
                (Asked::Open, Request::OpenSession { name: session_name(), instance })
            }
            Call::Begin => {
                done.begins_sent += 1;
                (Asked::Begin, Request::Begin { xid, timeout_ms: 100, key: plan.key.then(key), session })
            }
            Call::Enlist => {
                done.enlist_sent = true;
                let branches = plan.enlists.iter().map(|number| new_branch(*number)).collect();
                (Asked::Enlist, Request::Enlist { xid, branches, timeout_ms: 100 })
            }
            Call::Commit => {
                let attempt = plan.commits[usize::from(done.commits_sent)];
                done.commits_sent += 1;
                let request = Request::Commit {
                    xid,
                    branches: Self::listed(attempt),
                    vote_timeout_ms: self.scenario.vote_timeout_ms,
                    delegate: attempt.delegate,
                    session,
                };
                (Asked::Commit, request)
            }
            Call::Rollback => {
                self.left.rollbacks -= 1;
                done.rolled_back = true;
                (Asked::Rollback, Request::Rollback { xid, reason: Reason::new(ReasonCode::Rollback, "") })
            }
            Call::Report => {
                self.left.reports -= 1;
                let brought = plan.commits.iter().flat_map(|attempt| attempt.brought);
                let is_settled =
                    |number: &u32| matches!(self.disks[*number as usize - 1], Disk::Committed | Disk::RolledBack);
                let branches = brought.copied().filter(is_settled).map(|number| (number, Settlement::Done)).collect();
                (Asked::Report, Request::ReportSettled { xid, branches })
            }
            Call::Resolve(outcome) => {
                self.left.words -= 1;
                let resolution = Resolution::Decide(outcome);
                (Asked::Word, Request::Resolve { xid, resolution, word, force: false })
            }
            Call::Forget => {
                self.left.words -= 1;
                (Asked::Word, Request::Forget { xid, word, force: false })
            }
        };
        if self.scenario.bug.lets_in(self, node, client) || asked == Asked::Open {
            self.request(node, asked, client, request)
        } else {
            Ok(())
        }
    }

    /// Whether an answer to this node may ever matter.
    fn listens(&self, node: usize) -> bool {
        node == self.leader || self.leads(node) || self.left.elections > 0
    }

    fn request(&mut self, node: usize, asked: Asked, who: usize, request: Request) -> Result<(), String> {
        self.handle(node, Event::Request { token: token(asked, who), request })
    }

    pub fn inquire(&mut self, branch: usize) -> Result<(), String> {
        let request = Request::Inquire { branch: self.branch_id(branch), held_ms: GRACE_MS };
        self.request(self.leader, Asked::Question, branch, request)
    }

    pub fn not_asked(&mut self, node: usize, branch: usize) -> Result<(), String> {
        self.handle(node, Event::NotAsked { branch: self.branch_id(branch), error: String::new() })
    }

    pub fn not_told(&mut self, node: usize, branch: usize) -> Result<(), String> {
        self.handle(node, Event::NotTold { branch: self.branch_id(branch), error: String::new() })
    }
}

pub fn say(command: &Command) -> String {
    match command {
        Command::Found { .. } => "Found".to_owned(),
        Command::Begin { .. } => "Begin".to_owned(),
        Command::Enlist { branches, .. } => {
            format!("Enlist {:?}", branches.iter().map(|branch| branch.number).collect::<Vec<_>>())
        }
        Command::Prepare { branches, delegate, session, .. } => {
            let votes = branches.iter().filter(|listed| listed.vote.is_some()).count();
            let list: Vec<u32> = branches.iter().map(|listed| listed.branch.number).collect();
            let decides = delegate.map_or_else(String::new, |number| format!(", {number} decides"));
            let under = session.as_ref().map_or_else(String::new, |session| format!(", in epoch {}", session.epoch));
            format!("Prepare {list:?} with {votes} votes{decides}{under}")
        }
        Command::Vote { branch, vote, .. } => format!("Vote {} {vote:?}", branch.number),
        Command::Abort { reason, .. } => format!("Abort ({})", reason.code),
        Command::PresumeAbort { .. } => "PresumeAbort".to_owned(),
        Command::Conclude { branch, conclusion } => format!("Conclude {} {conclusion:?}", branch.number),
        Command::Resolve { resolution, .. } => format!("Resolve {resolution:?}"),
        Command::Forget { .. } => "Forget".to_owned(),
        Command::OpenSession { instance, .. } => format!("OpenSession by {}", instance.0[0]),
        Command::Settled { items } => {
            format!("Settled {:?}", items.iter().map(|item| item.branch.number).collect::<Vec<_>>())
        }
    }
}
