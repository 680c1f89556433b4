//! What a node wants done, and what clients and branches are told. Every answer is held against the log.

use std::rc::Rc;

use verdict_protocol::{Effect, Event, Order, Outcome, Refusal, Reply, Report, Token};

use crate::{
    action::say_reply,
    digest::digest_of,
    participant::Disk,
    scenario::BRANCHES,
    world::{Proposal, World, index_of, key, session_name, xid},
};

/// What was asked. Of a client, or, for the last three, of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Open,
    Begin,
    Enlist,
    Commit,
    Rollback,
    Word,
    Report,
    Question,
    Push,
    Register,
}

const ASKED: [Asked; 10] = [
    Asked::Open,
    Asked::Begin,
    Asked::Enlist,
    Asked::Commit,
    Asked::Rollback,
    Asked::Word,
    Asked::Report,
    Asked::Question,
    Asked::Push,
    Asked::Register,
];

/// The token of a client's or branch's question.
pub fn token(asked: Asked, who: usize) -> Token {
    let place = ASKED.iter().position(|other| *other == asked).expect("it is in the table");
    Token((place * BRANCHES + who) as u64)
}

pub fn of_token(Token(token): Token) -> (Asked, usize) {
    let token = usize::try_from(token).expect("a small number");
    (ASKED[token / BRANCHES], token % BRANCHES)
}

impl World {
    pub fn handle(&mut self, node: usize, event: Event) -> Result<(), String> {
        let bug = self.scenario.bug;
        let leads_anew = event == Event::Lead && self.log.items.len() > 1;
        let state = self.node(node);
        let mut effects = state.coordinator.handle(state.now, bug.event(event), &state.ledger);
        bug.effects(leads_anew, self, node, &mut effects)?;
        effects.into_iter().try_for_each(|effect| self.carry_out(node, effect))
    }

    fn carry_out(&mut self, node: usize, effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Propose { proposal, commands } => {
                let digest = digest_of(&format!("{commands:?}"));
                let commands = Rc::new(commands);
                self.node(node).proposals.push(Proposal { id: proposal, commands, digest });
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
                self.check_spoken(self.scenario.of[index_of(branch)], outcome.value())?;
                let line = &mut self.net[node][index_of(branch)];
                match outcome.value() {
                    Outcome::Committed => line.tell_commit = true,
                    Outcome::Aborted => line.tell_abort = true,
                }
            }
            Effect::Reply { token, reply } => {
                self.note(|| format!("replies {}", say_reply(&reply)));
                let (asked, who) = of_token(token);
                self.hears(node, asked, who, &reply)?;
            }
            Effect::WakeAt(at) => self.node(node).wake_at = Some(at),
            Effect::Report(Report::Unlisted { .. }) => {}
            Effect::Report(report) => return Err(format!("a false alarm: {report:?}")),
        }
        Ok(())
    }

    /// A client or a branch is answered.
    pub fn hears(&mut self, node: usize, asked: Asked, who: usize, reply: &Reply) -> Result<(), String> {
        match reply {
            Reply::Decided { outcome, .. } => {
                self.check_spoken(who, outcome.value())?;
                self.client_settles(who, outcome.value());
                Ok(())
            }
            Reply::Done { .. } => self.done(asked, who),
            Reply::Order { branch, order } => {
                let orders = &mut self.orders[index_of(*branch)];
                match order {
                    Order::Commit(_) => orders.commit = true,
                    Order::Rollback(_) | Order::RollbackUnlisted => orders.rollback = true,
                    Order::Wait if asked == Asked::Push => return self.check_vote(who),
                    Order::Wait => {}
                }
                Ok(())
            }
            Reply::Session { epoch } => self.told_epoch(who, *epoch),
            Reply::Refused(refusal) => self.refused(node, asked, who, refusal),
            Reply::Interrupted | Reply::NotLeader => {
                if asked == Asked::Commit && self.scenario.bug.client_gives_up() {
                    return self.client_rolls_back(who);
                }
                Ok(())
            }
        }
    }

    fn done(&mut self, asked: Asked, who: usize) -> Result<(), String> {
        match asked {
            Asked::Enlist => {
                self.clients[who].enlisted = true;
                self.scenario.clients[who].enlists.iter().try_for_each(|number| self.check_listed(who, *number))
            }
            Asked::Register => self.check_listed(self.scenario.of[who], self.branch_id(who).number),
            Asked::Begin => {
                self.clients[who].begun = true;
                let key = self.scenario.clients[who].key.then(key);
                let history = self.log.oracle.of(xid(who));
                if history.is_some_and(|history| history.key == key) {
                    Ok(())
                } else {
                    Err(format!("I6: client {} has begun, and the log does not say so: {history:?}", who + 1))
                }
            }
            Asked::Rollback => {
                let history = self.log.oracle.of(xid(who));
                if history.is_some_and(|history| history.outcome.is_some() || history.delegated) {
                    Ok(())
                } else {
                    Err(format!("I6: client {} has rolled back, and the log does not say so", who + 1))
                }
            }
            Asked::Open | Asked::Commit | Asked::Word | Asked::Report | Asked::Question | Asked::Push => Ok(()),
        }
    }

    fn refused(&mut self, node: usize, asked: Asked, who: usize, refusal: &Refusal) -> Result<(), String> {
        match (asked, refusal) {
            (Asked::Begin, Refusal::KeyTaken { holder }) => {
                let applied = self.nodes[node].applied as u64;
                let history = self.log.oracle.of(*holder);
                let holds = history.is_some_and(|history| {
                    let aborted =
                        history.outcome.filter(|(outcome, at)| *outcome == Outcome::Aborted && *at <= applied);
                    history.key == Some(key()) && aborted.is_none()
                });
                if holds { Ok(()) } else { Err(format!("I11: the key is taken by {holder}, that does not hold it")) }
            }
            // Whoever called this service is told that it takes no part.
            (Asked::Register, _) => {
                let id = self.branch_id(who);
                let history = self.log.oracle.of(id.xid);
                if *refusal == Refusal::Closed && history.is_some_and(|of| of.registered.contains_key(&id.number)) {
                    return Err(format!("I11: branch {} is enlisted, and its repeat is refused", id.number));
                }
                if self.disks[who] == Disk::Working {
                    self.disks[who] = Disk::RolledBack;
                }
                Ok(())
            }
            (Asked::Commit, Refusal::Fenced | Refusal::Skewed { .. } | Refusal::Limit { .. }) => {
                if self.outcome(who) != Some(Outcome::Aborted) {
                    return Err(format!("I6: client {} hears {refusal}, and ABORTED is not recorded", who + 1));
                }
                self.client_rolls_back(who)
            }
            _ => Ok(()),
        }
    }

    fn brought(&self, client: usize) -> Vec<u32> {
        let attempts = self.scenario.clients[client].commits.iter();
        attempts.flat_map(|attempt| attempt.brought).copied().collect()
    }

    /// The client begins to settle what it has prepared itself, unless that is left to the cluster.
    fn client_settles(&mut self, client: usize, outcome: Outcome) {
        for number in self.brought(client).into_iter().filter(|_| self.scenario.settle_grace_ms > 0) {
            let orders = &mut self.orders[number as usize - 1];
            match outcome {
                Outcome::Committed => orders.commit = true,
                Outcome::Aborted => orders.rollback = true,
            }
        }
    }

    /// The client rolls back what it has prepared itself.
    fn client_rolls_back(&mut self, client: usize) -> Result<(), String> {
        self.brought(client).into_iter().try_for_each(|number| self.take(number as usize - 1, Outcome::Aborted))
    }

    /// An instance is told that it may work: nothing of its predecessors may be undecided, now or later.
    fn told_epoch(&mut self, client: usize, epoch: u64) -> Result<(), String> {
        let instance = self.instance(client).ok_or("nobody opened a session")?;
        let place = self.log.oracle.place(&session_name(), instance);
        if place != Some(epoch) {
            return Err(format!("I10: client {} is told epoch {epoch}, in the log it is {place:?}", client + 1));
        }
        self.clients[client].epoch = epoch;
        let waits = self.log.oracle.undecided_before(&session_name(), epoch);
        match waits {
            Some(xid) => Err(format!("I10: epoch {epoch} is told, and {xid} of an earlier one is undecided")),
            None => Ok(()),
        }
    }
}
