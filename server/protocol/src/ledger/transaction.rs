//! One open transaction: undecided, or decided and not settled everywhere.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::transition::Fit;
use crate::{
    BranchNumber, Key, ListedBranch, LogTime, NewBranch, Outcome, Reason, ResourceName, Rules, SessionRef, Settlement,
    Vote, Word,
};

/// A transaction in the open table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenTransaction {
    pub began_at: LogTime,
    pub phase: Phase,
    pub branches: BTreeMap<BranchNumber, Branch>,
    /// The key that it was begun under.
    pub key: Option<Key>,
    pub session: Option<SessionRef>,
    /// What operators said of it, at most [`OpenTransaction::MOST_WORDS`].
    pub words: Vec<(LogTime, Word)>,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Branches may be enlisted; aborted if it is not asked to commit by then.
    Active { expires_at: LogTime },
    /// The list is closed. `list` is the digest of the Prepare that closed it. The `delegate` does not vote.
    Voting { deadline: LogTime, list: u64, delegate: Option<BranchNumber> },
    /// All others have promised, and this branch decides: nothing else does any more. Past the deadline it is asked to
    /// make sure that it has not committed and never will.
    Delegated { deadline: LogTime, list: u64, delegate: BranchNumber },
    /// The outcome stands in the log at `index`. `list` is the digest of the closed list; 0 if there was none.
    ///
    /// Kept here as well as among the outcomes: those are forgotten in time, and this stays until it is settled.
    Decided { outcome: Outcome, reason: Option<Reason>, index: u64, list: u64 },
}

/// A participant's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    pub resource: ResourceName,
    pub payload: Bytes,
    pub vote: Option<Vote>,
    pub reason: Option<Reason>,
    pub settlement: Option<Settlement>,
    /// Its client prepared it and brought its vote along, and is the first to settle it.
    pub brought: bool,
}

impl Branch {
    /// Whether this branch has to be told an outcome and has not acknowledged it.
    ///
    /// Who voted READ_ONLY or REFUSED is out of phase two; who never voted may have prepared all the same.
    #[must_use]
    pub fn awaits_settling(&self) -> bool {
        self.settlement.is_none() && matches!(self.vote, None | Some(Vote::Prepared))
    }

    /// Whether it promised, and is not known to have been told.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.settlement.is_none() && self.vote == Some(Vote::Prepared)
    }

    fn is(&self, new: &NewBranch) -> bool {
        self.resource == new.resource && self.payload == new.payload
    }
}

impl OpenTransaction {
    /// The most words of operators that are kept.
    pub const MOST_WORDS: usize = 16;

    pub(super) fn new(began_at: LogTime, expires_at: LogTime) -> Self {
        Self {
            began_at,
            phase: Phase::Active { expires_at },
            branches: BTreeMap::new(),
            key: None,
            session: None,
            words: Vec::new(),
        }
    }

    /// Whether a branch that was prepared still waits for its outcome.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.branches.values().any(Branch::is_in_doubt)
    }

    /// Branches to be told the outcome.
    pub fn unsettled(&self) -> impl Iterator<Item = (BranchNumber, &Branch)> {
        self.branches.iter().filter(|(_, branch)| branch.awaits_settling()).map(|(number, branch)| (*number, branch))
    }

    /// Branches whose vote is missing: not the one that decides instead.
    pub fn unvoted(&self) -> impl Iterator<Item = (BranchNumber, &Branch)> {
        let delegate = self.delegate();
        let silent = self.branches.iter().filter(|(_, branch)| branch.vote.is_none());
        silent.filter(move |(number, _)| Some(**number) != delegate).map(|(number, branch)| (*number, branch))
    }

    /// The branch that decides, or will, until it has.
    #[must_use]
    pub fn delegate(&self) -> Option<BranchNumber> {
        match self.phase {
            Phase::Voting { delegate, .. } => delegate,
            Phase::Delegated { delegate, .. } => Some(delegate),
            Phase::Active { .. } | Phase::Decided { .. } => None,
        }
    }

    pub(super) fn has_heuristic(&self) -> bool {
        self.branches.values().any(|branch| !matches!(branch.settlement, None | Some(Settlement::Done)))
    }

    /// Adds a branch, unless it is there, to those that are unsettled at its resource.
    pub(super) fn register(&mut self, new: &NewBranch, by_resource: &mut BTreeMap<ResourceName, u64>) {
        self.branches.entry(new.number).or_insert_with(|| {
            *by_resource.entry(new.resource.clone()).or_default() += 1;
            Branch {
                resource: new.resource.clone(),
                payload: new.payload.clone(),
                vote: None,
                reason: None,
                settlement: None,
                brought: false,
            }
        });
    }
}

/// How `branches` fit to what is registered, and to each other.
pub(super) fn fit<'a>(
    registered: Option<&OpenTransaction>,
    branches: impl Iterator<Item = &'a NewBranch>,
    rules: &Rules,
) -> Fit {
    let mut added: BTreeMap<BranchNumber, &NewBranch> = BTreeMap::new();
    for branch in branches {
        let known = registered.and_then(|transaction| transaction.branches.get(&branch.number));
        match (known, added.get(&branch.number)) {
            (Some(known), _) if known.is(branch) => {}
            (None, Some(earlier)) if *earlier == branch => {}
            (None, None) => {
                added.insert(branch.number, branch);
            }
            (Some(_), _) | (None, Some(_)) => return Fit::Contradicts,
        }
    }
    let total = registered.map_or(0, |transaction| transaction.branches.len()).saturating_add(added.len());
    if total as u64 > rules.max_branches {
        Fit::TooMany { limit: rules.max_branches }
    } else if added.is_empty() {
        Fit::Same
    } else {
        Fit::New
    }
}

/// A vote brought along for a branch that somebody has registered, by a client that cannot show that it was he.
pub(super) fn unproven(registered: Option<&OpenTransaction>, branches: &[ListedBranch]) -> Option<Fit> {
    let registered = registered?;
    let listed = branches.iter().filter(|listed| listed.vote.as_ref().is_some_and(|brought| !brought.proven));
    let mut numbers = listed.map(|listed| listed.branch.number);
    numbers.find(|number| registered.branches.contains_key(number)).map(|number| Fit::Unproven { number })
}

/// Tells one Prepare's list from another's: FNV-1a over its branches and who decides, votes left out.
pub(super) fn list_digest(branches: &[ListedBranch], delegate: Option<BranchNumber>) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let ordered: BTreeMap<BranchNumber, &NewBranch> =
        branches.iter().map(|listed| (listed.branch.number, &listed.branch)).collect();
    let mut digest = OFFSET;
    let mut feed = |bytes: &[u8]| {
        for byte in (bytes.len() as u64).to_be_bytes().iter().chain(bytes) {
            digest = (digest ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
    };
    for (number, branch) in ordered {
        feed(&number.to_be_bytes());
        feed(branch.resource.as_str().as_bytes());
        feed(&branch.payload);
    }
    if let Some(number) = delegate {
        feed(&number.to_be_bytes());
    }
    digest
}
