//! What can matter no more is forgotten, so that worlds that go on alike are one.

use crate::{
    participant::Disk,
    scenario::BRANCHES,
    world::{Line, World},
};

impl World {
    pub fn tidy(&mut self) {
        for branch in 0..BRANCHES {
            let (id, disk) = (self.branch_id(branch), self.disks[branch]);
            let is_final = match disk {
                Disk::Committed => true,
                Disk::RolledBack => self.took_abort[branch],
                Disk::Working | Disk::Lost | Disk::Prepared | Disk::ReadOnly => false,
            };
            if disk == Disk::Committed {
                self.orders[branch].commit = false;
            }
            if disk == Disk::RolledBack && is_final {
                self.orders[branch].rollback = false;
            }
            if self.outcome_of(branch).is_none() {
                continue;
            }
            for node in 0..2 {
                // One that does not lead applies the whole log before it does.
                let ledger = if self.leads(node) { &self.nodes[node].ledger } else { &self.log.ledger };
                let knows = ledger.outcome(id.xid).is_some();
                let record = ledger.transaction(id.xid).and_then(|open| open.branches.get(&id.number));
                let is_settled = record.is_none_or(|record| record.settlement.is_some());
                let line = &mut self.net[node][branch];
                if knows {
                    // The coordinator hears no answers of what is decided.
                    (line.voted_prepared, line.voted_read_only, line.voted_refused) = (false, false, false);
                    (line.said_committed, line.said_fenced) = (false, false);
                    if is_final {
                        (line.ask, line.delegate, line.fence) = (false, false, false);
                    }
                }
                let contradicted =
                    (disk == Disk::Committed && line.tell_abort) || (disk == Disk::RolledBack && line.tell_commit);
                if knows && is_final && is_settled && !contradicted {
                    *line = Line::default();
                }
            }
        }
    }
}
