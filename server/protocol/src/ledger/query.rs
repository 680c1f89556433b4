//! What can be read from the ledger. An outcome always comes out as a [`Recorded`].

use std::sync::Arc;

use super::{
    Ledger, OpenTransaction, Phase, Recorded, Rules,
    transition::{Door, Event, Ruling, Standing, rule},
};
use crate::{
    BranchId, BranchNumber, ClusterId, Credential, Key, ListedBranch, LogTime, Outcome, Reason, SessionRef, Vote, Xid,
};

/// A transaction's state as clients know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Active,
    Voting,
    Delegated,
    Decided,
    Ended,
    Expired,
    Unknown,
}

/// All that is known of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status<'a> {
    pub xid: Xid,
    pub state: State,
    pub outcome: Option<Recorded<Outcome>>,
    pub reason: Option<&'a Reason>,
    /// Only while it is in the open table.
    pub transaction: Option<&'a OpenTransaction>,
}

/// What a branch that asks has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing is known yet that it could act upon.
    Wait,
    Commit(Recorded<Outcome>),
    /// The transaction was aborted, or committed without this branch.
    Rollback(Recorded<Outcome>),
    /// Too old to be known, or not in the closed list: it can never commit.
    RollbackUnlisted,
}

impl Ledger {
    /// The log time of the last applied entry.
    #[must_use]
    pub fn at(&self) -> LogTime {
        self.at
    }

    /// The index of the last applied entry; 0 before the first.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The cluster's id, once it is founded.
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// The rules it was founded with; the default ones before.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// An unknown xid born before this can never commit.
    #[must_use]
    pub fn horizon(&self) -> LogTime {
        let rules = &self.rules;
        self.at.minus(rules.retention_ms).minus(rules.max_lifetime_ms)
    }

    /// What participants may forget behind: the horizon, held back by the oldest transaction that is not decided or has a
    /// branch that has yet to acknowledge its outcome. That branch is told again, and must still know what it did.
    #[must_use]
    pub fn settled_horizon(&self) -> LogTime {
        let horizon = self.horizon();
        let born_before = self.open.iter().take_while(|(xid, _)| xid.birth() < horizon);
        let mut unsettled = born_before.filter(|(_, transaction)| {
            !matches!(transaction.phase, Phase::Decided { .. }) || transaction.unsettled().next().is_some()
        });
        unsettled.next().map_or(horizon, |(xid, _)| xid.birth())
    }

    /// What a branch shows when it speaks for itself; none before the cluster is founded.
    #[must_use]
    pub fn credential(&self, branch: BranchId) -> Option<Credential> {
        self.secret.map(|secret| secret.credential(branch))
    }

    /// Whether this is the branch's own credential.
    #[must_use]
    pub fn admits(&self, branch: BranchId, credential: &Credential) -> bool {
        self.secret.is_some_and(|secret| secret.admits(branch, credential))
    }

    /// Undecided and unsettled transactions, by xid.
    pub fn open(&self) -> impl DoubleEndedIterator<Item = (Xid, &OpenTransaction)> {
        self.open.iter().map(|(xid, transaction)| (*xid, transaction.as_ref()))
    }

    /// Those of them that come after `xid`.
    pub fn open_after(&self, xid: Option<Xid>) -> impl Iterator<Item = (Xid, &OpenTransaction)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = xid.map_or(Unbounded, Excluded);
        self.open.range((from, Unbounded)).map(|(xid, transaction)| (*xid, transaction.as_ref()))
    }

    #[must_use]
    pub fn transaction(&self, xid: Xid) -> Option<&OpenTransaction> {
        self.open.get(&xid).map(Arc::as_ref)
    }

    #[must_use]
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Open transactions with a branch in doubt.
    #[must_use]
    pub fn in_doubt_count(&self) -> u64 {
        self.in_doubt
    }

    /// Outcomes that are kept.
    #[must_use]
    pub fn outcome_count(&self) -> usize {
        self.outcomes.len()
    }

    /// The outcome, if it is decided and still kept.
    #[must_use]
    pub fn outcome(&self, xid: Xid) -> Option<Recorded<Outcome>> {
        match self.transaction(xid).map(|transaction| &transaction.phase) {
            Some(Phase::Decided { outcome, index, .. }) => Some(Recorded::new(*outcome, *index)),
            Some(Phase::Active { .. } | Phase::Voting { .. } | Phase::Delegated { .. }) => None,
            None => {
                let record = self.outcomes.get(xid, &self.rules)?;
                Some(Recorded::new(record.outcome, record.index))
            }
        }
    }

    #[must_use]
    pub fn status(&self, xid: Xid) -> Status<'_> {
        let state = match self.standing(xid) {
            Standing::Unknown(Door::Expired) => State::Expired,
            Standing::Unknown(Door::Open | Door::Skewed { .. } | Door::Full { .. }) => State::Unknown,
            Standing::Active => State::Active,
            Standing::Voting => State::Voting,
            Standing::Delegated => State::Delegated,
            Standing::Decided(_) => State::Decided,
            Standing::Ended(_) => State::Ended,
        };
        let transaction = self.transaction(xid);
        let reason = match transaction.map(|transaction| &transaction.phase) {
            Some(Phase::Decided { reason, .. }) => reason.as_ref(),
            Some(Phase::Active { .. } | Phase::Voting { .. } | Phase::Delegated { .. }) => None,
            None => self.outcomes.get(xid, &self.rules).and_then(|record| record.reason.as_deref()),
        };
        Status { xid, state, outcome: self.outcome(xid), reason, transaction }
    }

    /// What a branch has to do: COMMIT only if the transaction is COMMITTED and this branch stands in its list with
    /// PREPARED.
    #[must_use]
    pub fn order(&self, branch: BranchId) -> Order {
        if let Some(recorded) = self.outcome(branch.xid) {
            return match recorded.value() {
                Outcome::Committed if self.promised(branch) => Order::Commit(recorded),
                Outcome::Committed | Outcome::Aborted => Order::Rollback(recorded),
            };
        }
        match self.standing(branch.xid) {
            Standing::Unknown(Door::Expired) => Order::RollbackUnlisted,
            Standing::Voting | Standing::Delegated if !self.lists(branch) => Order::RollbackUnlisted,
            Standing::Unknown(Door::Open | Door::Skewed { .. } | Door::Full { .. })
            | Standing::Active
            | Standing::Voting
            | Standing::Delegated
            | Standing::Decided(_)
            | Standing::Ended(_) => Order::Wait,
        }
    }

    /// Who works under a key, or has committed under it, and where in the log he did.
    #[must_use]
    pub fn key_holder(&self, key: &Key) -> Option<(Xid, Option<Recorded<Outcome>>)> {
        let (xid, index) = self.keys.holder(key)?;
        Some((xid, index.map(|index| Recorded::new(Outcome::Committed, index))))
    }

    /// Idempotency keys that are kept.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// Whether a Prepare with these branches would close the list if it were applied now. Only a hint: `apply` judges.
    #[must_use]
    pub fn would_close(
        &self,
        xid: Xid,
        branches: &[ListedBranch],
        delegate: Option<BranchNumber>,
        session: Option<&SessionRef>,
    ) -> bool {
        let fit = self.prepare_fit(xid, branches, delegate);
        self.cluster.is_some()
            && self.is_current(session)
            && rule(self.standing(xid), Event::Prepare(fit)) == Ruling::Close
    }

    /// Whether the branch voted PREPARED and has not acknowledged an outcome.
    #[must_use]
    pub fn is_in_doubt(&self, branch: BranchId) -> bool {
        self.transaction(branch.xid)
            .and_then(|transaction| transaction.branches.get(&branch.number))
            .is_some_and(|branch| branch.settlement.is_none() && branch.vote == Some(Vote::Prepared))
    }

    /// Whether the branch's PREPARED counted towards the decision.
    fn promised(&self, branch: BranchId) -> bool {
        match self.transaction(branch.xid) {
            Some(transaction) => {
                transaction.branches.get(&branch.number).is_some_and(|branch| branch.vote == Some(Vote::Prepared))
            }
            None => self
                .outcomes
                .get(branch.xid, &self.rules)
                .is_some_and(|record| record.prepared.contains(&branch.number)),
        }
    }

    fn lists(&self, branch: BranchId) -> bool {
        self.transaction(branch.xid).is_some_and(|transaction| {
            !matches!(transaction.phase, Phase::Active { .. }) && transaction.branches.contains_key(&branch.number)
        })
    }
}
