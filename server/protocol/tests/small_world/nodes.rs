//! What becomes of nodes: they wake, are elected, deposed and crash.

use verdict_protocol::{Command, Coordinator, Event, SettledItem, Settlement};

use crate::{
    participant::Disk,
    scenario::{BRANCHES, OldLeader},
    world::{Line, START, World},
};

impl World {
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
    pub fn elect(&mut self, node: usize) -> Result<(), String> {
        if self.leads(node) {
            self.depose(node)?;
        }
        if self.scenario.old_leader == OldLeader::Crashes {
            self.crash(self.leader)?;
        }
        self.leader = node;
        self.append(None, Vec::new())?;
        self.catch_up(node)?;
        let state = self.node(node);
        state.now = state.now.max(state.ledger.at());
        self.handle(node, Event::Lead)
    }

    fn crash(&mut self, node: usize) -> Result<(), String> {
        self.catch_up(node)?;
        let patience = self.scenario.patience();
        let state = self.node(node);
        state.coordinator = Coordinator::new(patience);
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
            items.push(SettledItem { branch: self.branch_id(branch), settlement: Settlement::Done });
        }
        if !items.is_empty() {
            self.append(None, vec![Command::Settled { items }])?;
        }
        Ok(())
    }

    /// The acknowledgements at the leader that its ledger does not have: it need not propose the others.
    fn take_unsettled(&mut self) -> Vec<usize> {
        let settled = std::mem::take(&mut self.node(self.leader).settled);
        let ledger = &self.nodes[self.leader].ledger;
        let is_new = |branch: &usize| {
            let id = self.branch_id(*branch);
            let record = ledger.transaction(id.xid).and_then(|open| open.branches.get(&id.number));
            settled[*branch] && record.is_some_and(|record| record.settlement.is_none())
        };
        (0..BRANCHES).filter(is_new).collect()
    }
}
