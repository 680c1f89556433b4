//! What whoever watches is told: made where the ledger changes, and the same on every node for an entry, whatever each
//! was thawed from. So one can go on watching anywhere from an index.

use std::{mem::size_of, sync::Arc};

use super::{Ledger, Recorded};
use crate::{BranchId, BranchNumber, Outcome, Reason, ResourceName, Settlement, Xid};

/// A step that a transaction took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    pub xid: Xid,
    /// Where its branches are as far as they are known by now, in order and each once; of a step of one branch, where
    /// that one is.
    pub resources: Arc<[ResourceName]>,
    pub step: Step,
}

/// What happened to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Registered, before it was asked to commit. One that is first heard of by its commit has no such step.
    Begun,
    /// The list is closed, and some have not voted. A list that comes with all votes is decided at once.
    Voting,
    /// All others have promised, and this branch decides.
    Delegated {
        branch: BranchNumber,
    },
    Decided {
        outcome: Recorded<Outcome>,
        reason: Option<Reason>,
    },
    /// A branch has ended. One that refused or changed nothing has no such step.
    Settled {
        branch: BranchNumber,
        settlement: Settlement,
    },
    /// A branch refused after it had promised.
    PromiseBroken {
        branch: BranchNumber,
    },
    /// Every branch is settled, or an operator has seen what is not.
    Ended,
}

impl Transition {
    /// About how many bytes it takes in memory.
    #[must_use]
    pub fn size(&self) -> usize {
        let resources: usize = self.resources.iter().map(|name| size_of::<ResourceName>() + name.as_str().len()).sum();
        let reason = match &self.step {
            Step::Decided { reason: Some(reason), .. } => reason.text.len() + reason.source_code.len(),
            Step::Decided { reason: None, .. }
            | Step::Begun
            | Step::Voting
            | Step::Delegated { .. }
            | Step::Settled { .. }
            | Step::PromiseBroken { .. }
            | Step::Ended => 0,
        };
        size_of::<Self>() + resources + reason
    }
}

impl Ledger {
    /// A transaction has taken a step.
    pub(super) fn tells(&mut self, xid: Xid, step: Step) {
        let branches = self.transaction(xid).into_iter().flat_map(|open| open.branches.values());
        let mut resources: Vec<ResourceName> = branches.map(|branch| branch.resource.clone()).collect();
        resources.sort_unstable();
        resources.dedup();
        self.told.push(Transition { xid, resources: resources.into(), step });
    }

    /// A branch has. Of one that is not in the open table any more it is not known where it is.
    pub(super) fn tells_of(&mut self, branch: BranchId, step: Step) {
        let known = self.transaction(branch.xid).and_then(|open| open.branches.get(&branch.number));
        let resources = known.map(|branch| branch.resource.clone()).into_iter().collect();
        self.told.push(Transition { xid: branch.xid, resources, step });
    }
}
