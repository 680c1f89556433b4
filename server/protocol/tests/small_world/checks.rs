//! Sentences that hold whatever happens.

use verdict_protocol::{Command, Outcome, ReasonCode};

use crate::{
    participant::{Disk, Temper},
    world::{World, xid},
};

impl World {
    /// Only what the log says is told.
    pub fn check_spoken(&self, client: usize, outcome: Outcome) -> Result<(), String> {
        let decided = self.outcome(client);
        if decided == Some(outcome) { Ok(()) } else { Err(format!("I1: {outcome} is told, the log says {decided:?}")) }
    }

    /// A registration that is acknowledged is in the log, and its branch has a part in whatever is decided.
    pub fn check_listed(&self, client: usize, number: u32) -> Result<(), String> {
        let history = self.log.oracle.of(xid(client));
        if history.is_some_and(|history| history.registered.contains_key(&number)) {
            Ok(())
        } else {
            Err(format!("I6: branch {number} is told that it is enlisted, and the log does not say so"))
        }
    }

    /// A vote that is acknowledged is in the log.
    pub fn check_vote(&self, branch: usize) -> Result<(), String> {
        let id = self.branch_id(branch);
        let history = self.log.oracle.of(id.xid);
        let recorded = history.and_then(|history| history.votes.get(&id.number)).is_some_and(|votes| !votes.is_empty());
        if recorded {
            Ok(())
        } else {
            Err(format!("I6: the vote of branch {} is acknowledged, and the log does not have it", id.number))
        }
    }

    /// The last entry has decided.
    pub fn check_decision(&self, client: usize, outcome: Outcome) -> Result<(), String> {
        let Some(history) = self.log.oracle.of(xid(client)) else { return Ok(()) };
        match outcome {
            Outcome::Committed => {
                for number in history.registered.keys() {
                    let index = *number as usize - 1;
                    let keeps = matches!(self.disks[index], Disk::Prepared | Disk::Committed);
                    if self.scenario.tempers[index] != Temper::Reader && !keeps {
                        let disk = self.disks[index];
                        return Err(format!("I3: COMMITTED, and branch {number} has lost its work: {disk:?}"));
                    }
                }
                let told = self.clients.iter().map(|client| client.epoch).max().unwrap_or(0);
                if history.session.as_ref().is_some_and(|session| session.epoch < told) {
                    return Err(format!("I10: client {} commits after its successor was told to work", client + 1));
                }
                let other = self.log.oracle.of(xid(1 - client)).filter(|other| other.key.is_some());
                let other = other.filter(|other| other.key == history.key).and_then(|other| other.outcome);
                match other {
                    Some((Outcome::Committed, _)) => Err("I11: two attempts commit under one key".to_owned()),
                    Some((Outcome::Aborted, _)) | None => Ok(()),
                }
            }
            Outcome::Aborted => {
                let entry = &self.log.items.last().expect("it has just decided").entry;
                let rolls_back = |command: &Command| {
                    matches!(command, Command::Abort { xid: of, reason }
                        if *of == xid(client) && reason.code == ReasonCode::Rollback)
                };
                if entry.commands.iter().any(rolls_back) && !self.clients[client].rolled_back {
                    return Err(format!("I4: client {} is rolled back, and nobody asked for it", client + 1));
                }
                Ok(())
            }
        }
    }
}
