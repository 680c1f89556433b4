//! What participants do, and what must be true of it.

use verdict_protocol::{Outcome, Vote};

use crate::{participant::Disk, world::World};

impl World {
    /// What a participant may answer to Prepare, and what it is after that.
    pub fn answers(&self, branch: usize) -> Vec<(Vote, Disk)> {
        let (disk, bug) = (self.disks[branch], self.scenario.bug);
        bug.answers(disk).unwrap_or_else(|| disk.prepare(self.scenario.tempers[branch]))
    }

    pub fn prepare(&mut self, branch: usize, vote: Vote) -> Result<(), String> {
        let answers = self.answers(branch);
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
        let (id, decided) = (self.branch_id(branch), self.outcome_of(branch));
        let number = id.number;
        let delegated = self.log.oracle.of(id.xid).is_some_and(|history| history.delegated);
        if committed && (!delegated || decided == Some(Outcome::Aborted)) {
            return Err(format!("I3: branch {number} commits; delegated to it: {delegated}, the log says {decided:?}"));
        }
        if !committed && decided == Some(Outcome::Committed) {
            return Err(format!("I1: branch {number} fences itself, but the log says {decided:?}"));
        }
        self.disks[branch] = self.scenario.bug.concluded(fence, self.disks[branch], after);
        Ok(())
    }

    /// A participant hears the answer to a question of long ago.
    pub fn ordered(&mut self, branch: usize, outcome: Outcome) -> Result<(), String> {
        let is_over = self.disks[branch] == Disk::Committed && outcome == Outcome::Aborted;
        if is_over && self.log.oracle.is_behind_horizon(self.branch_id(branch).xid) {
            // It was told meanwhile, and asks no more.
            return Ok(());
        }
        self.take(branch, outcome)
    }

    /// A participant takes an outcome.
    pub fn take(&mut self, branch: usize, outcome: Outcome) -> Result<(), String> {
        let (id, before, decided) = (self.branch_id(branch), self.disks[branch], self.outcome_of(branch));
        let number = id.number;
        let after = match outcome {
            Outcome::Committed => {
                if !self.log.oracle.may_commit(id.xid, number) {
                    return Err(format!("I1: branch {number} commits, but the log says {decided:?} and not for it"));
                }
                before.commit()
            }
            Outcome::Aborted => {
                let history = self.log.oracle.of(id.xid);
                let left_out = history.is_some_and(|h| h.closed && !h.registered.contains_key(&number));
                let too_old = history.is_none() && self.log.oracle.is_behind_horizon(id.xid);
                if before == Disk::Prepared && decided != Some(Outcome::Aborted) && !left_out && !too_old {
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
}
