//! Seeded bugs, each a wrapper around what goes into or comes out of the product. Numbers as in the list of mutations.

use verdict_protocol::{Command, Effect, Event, Order, Outcome, Reply, Resolution, Settlement, Vote, Word};

use crate::{
    participant::Disk,
    world::{BRANCHES, World, promise},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// The decision is told before it is in the log.
    M5,
    /// A new leader leaves out the last participant.
    M6,
    /// Decides with one vote missing: it is made up when the list is closed.
    M7,
    /// A participant that can't be reached counts as YES.
    M9,
    /// A rollback before prepare leaves no tombstone.
    M13,
    /// Any error counts as an acknowledgement.
    M24,
    /// A branch that is not in the list hears COMMITTED.
    M43,
    /// Abort is accepted after the decision was delegated.
    M50,
    /// The branch that decides is asked before the log says that it does.
    M51,
    /// The last resource is asked before all others have voted.
    M52,
}

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

    /// Wraps what the coordinator wants done. `leads_now`: it has just begun to lead.
    pub fn effects(self, leads_now: bool, last: u32, world: &mut World, node: usize, effects: &mut Vec<Effect>) {
        match self {
            Self::None | Self::M9 | Self::M13 | Self::M24 => {}
            Self::M5 => {
                for effect in effects {
                    let Effect::Propose { commands, .. } = effect else { continue };
                    let yes = |command: &Command| matches!(command, Command::Vote { vote: Vote::Prepared, .. });
                    if commands.iter().all(yes) {
                        world.net[node].iter_mut().for_each(|line| line.tell_commit = true);
                    }
                }
            }
            Self::M6 => effects.retain(|effect| match effect {
                Effect::Ask { branch, .. } | Effect::Tell { branch, .. } => !(leads_now && branch.number == last),
                _ => true,
            }),
            Self::M7 => {
                for effect in effects {
                    let Effect::Propose { commands, .. } = effect else { continue };
                    let Some(Command::Prepare { branches, .. }) = commands.first_mut() else { continue };
                    let missing = branches.last_mut();
                    missing.into_iter().for_each(|listed| listed.vote = Some(promise()));
                }
            }
            Self::M50 => {
                for effect in effects {
                    let Effect::Propose { commands, .. } = effect else { continue };
                    let [Command::Abort { xid, .. }] = commands[..] else { continue };
                    let word = Word { who: String::new(), why: String::new() };
                    let resolution = Resolution::Decide(Outcome::Aborted);
                    *commands = vec![Command::Resolve { xid, resolution, word, force: true }];
                }
            }
            Self::M51 => {
                for effect in effects {
                    let Effect::Propose { commands, .. } = effect else { continue };
                    if let [Command::Prepare { delegate: Some(number), .. }] = commands[..] {
                        world.net[node][number as usize - 1].delegate = true;
                    }
                }
            }
            Self::M52 => {
                for effect in effects {
                    if matches!(effect, Effect::Ask { .. }) {
                        world.net[node][BRANCHES - 1].delegate = true;
                    }
                }
            }
            Self::M43 => {
                for effect in effects {
                    let Effect::Reply { reply: Reply::Order { order, .. }, .. } = effect else { continue };
                    if let Order::Rollback(outcome) = *order
                        && outcome.value() == Outcome::Committed
                    {
                        *order = Order::Commit(outcome);
                    }
                }
            }
        }
    }

    /// Wraps a participant that rolls back.
    pub fn rolled_back(self, before: Disk, after: Disk) -> Disk {
        if self == Self::M13 && before == Disk::Working { before } else { after }
    }
}
