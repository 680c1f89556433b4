//! The one table of what each command does to a transaction in each state. Every pair has an answer.

use crate::{BranchNumber, Outcome, Refusal, Vote};

/// Where a transaction stands when a command for it is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Never heard of, and new work for it is judged by the door.
    Unknown(Door),
    Active,
    Voting,
    /// One branch decides, and nothing else does.
    Delegated,
    /// The outcome is fixed; branches are still being settled.
    Decided(Outcome),
    /// Only the outcome is kept.
    Ended(Outcome),
}

/// Whether an unknown xid may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    Open,
    /// Born before the horizon: it may have been decided and forgotten.
    Expired,
    /// Born too far ahead of log time.
    Skewed {
        ahead_ms: u64,
        allowed_ms: u64,
    },
    /// As many transactions are open as may be.
    Full {
        limit: u64,
    },
}

/// A command, reduced to what the table needs to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Begin,
    Enlist(Fit),
    Prepare(Fit),
    /// `known`: the branch is registered or listed. `earlier`: the vote it gave before.
    Vote {
        vote: Vote,
        known: bool,
        earlier: Option<Vote>,
    },
    Abort,
    PresumeAbort,
    Settle,
    /// `known`: it is the branch that decides.
    Conclude {
        committed: bool,
        known: bool,
    },
}

/// How the branches of a command fit to what is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// All are known, and the same: a repeat. For Prepare: the list is the one that was closed.
    Same,
    /// Some are new, none contradicts.
    New,
    /// A number stands for another branch already. For Prepare: the list was closed with others.
    Contradicts,
    /// More branches than a transaction may have.
    TooMany { limit: u64 },
    /// At one resource as many branches are unsettled as may be.
    NoRoom { limit: u64 },
    /// A vote comes with it for a branch that its sender cannot speak for.
    Unproven { number: BranchNumber },
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ruling {
    /// Open the transaction if it is unknown and register the command's branches.
    Register,
    /// Open it if it is unknown, register the branches, close the list and count votes.
    Close,
    /// Record the vote and count.
    Record,
    /// Decide ABORTED.
    Abort,
    /// Decide ABORTED, and answer with the refusal: a client that brought votes must find it recorded.
    AbortAndRefuse(Refusal),
    /// Mark branches as settled.
    Settle,
    /// Decide as the branch did.
    Conclude,
    /// The branch voted after the decision: it must hear the outcome (again).
    TellAgain,
    /// The branch promised, and refuses after COMMITTED: tell people.
    Report,
    /// It had its effect already, or can have none any more.
    Repeat,
    Refuse(Refusal),
}

/// The table: design.md sections 3 and 4.
pub(super) fn rule(standing: Standing, event: Event) -> Ruling {
    use Outcome::{Aborted, Committed};
    use Ruling::{Abort, AbortAndRefuse, Close, Conclude, Record, Refuse, Register, Repeat, Report, Settle, TellAgain};
    use Standing::{Active, Decided, Delegated, Ended, Unknown, Voting};

    match (standing, event) {
        (Unknown(Door::Expired), Event::Settle) => Repeat,
        (Unknown(Door::Expired), _) => Refuse(Refusal::Expired),

        (Unknown(Door::Open), Event::Begin) => Register,
        (Unknown(Door::Open), Event::Enlist(fit)) => match fit {
            Fit::Same | Fit::New => Register,
            Fit::Contradicts => Refuse(Refusal::Mismatch),
            Fit::TooMany { limit } => Refuse(too_many_branches(limit)),
            Fit::NoRoom { limit } => Refuse(no_room(limit)),
            Fit::Unproven { number } => Refuse(Refusal::Forbidden { number }),
        },
        (Unknown(Door::Open) | Active, Event::Prepare(fit)) => match fit {
            Fit::Same | Fit::New => Close,
            Fit::Contradicts => Refuse(Refusal::Mismatch),
            Fit::TooMany { limit } => AbortAndRefuse(too_many_branches(limit)),
            Fit::NoRoom { limit } => AbortAndRefuse(no_room(limit)),
            // Whoever may speak for the branch is not to lose his transaction by it.
            Fit::Unproven { number } => Refuse(Refusal::Forbidden { number }),
        },
        (Unknown(door @ (Door::Skewed { .. } | Door::Full { .. })), Event::Begin | Event::Enlist(_)) => {
            refusal(door).map_or(Register, Refuse)
        }
        (Unknown(door @ (Door::Skewed { .. } | Door::Full { .. })), Event::Prepare(_)) => {
            refusal(door).map_or(Close, AbortAndRefuse)
        }
        (Unknown(Door::Open | Door::Skewed { .. } | Door::Full { .. }), Event::Vote { .. }) => {
            Refuse(Refusal::UnknownTransaction)
        }
        (Unknown(Door::Open | Door::Skewed { .. } | Door::Full { .. }), Event::Abort | Event::PresumeAbort) => Abort,
        (Unknown(Door::Open | Door::Skewed { .. } | Door::Full { .. }), Event::Settle) => Repeat,

        (Active | Voting | Delegated | Decided(_) | Ended(_), Event::Begin) => Repeat,
        (Active, Event::Enlist(fit)) => match fit {
            Fit::Same => Repeat,
            Fit::New => Register,
            Fit::Contradicts => Refuse(Refusal::Mismatch),
            Fit::TooMany { limit } => Refuse(too_many_branches(limit)),
            Fit::NoRoom { limit } => Refuse(no_room(limit)),
            Fit::Unproven { number } => Refuse(Refusal::Forbidden { number }),
        },
        (Voting | Delegated | Decided(_) | Ended(_), Event::Enlist(fit)) => match fit {
            Fit::Same => Repeat,
            Fit::New | Fit::Contradicts | Fit::TooMany { .. } | Fit::NoRoom { .. } | Fit::Unproven { .. } => {
                Refuse(Refusal::Closed)
            }
        },

        (Voting | Delegated | Decided(Committed) | Ended(Committed), Event::Prepare(fit)) => match fit {
            Fit::Same => Repeat,
            Fit::New | Fit::Contradicts | Fit::TooMany { .. } | Fit::NoRoom { .. } | Fit::Unproven { .. } => {
                Refuse(Refusal::Mismatch)
            }
        },
        // ABORTED holds for every list.
        (Decided(Aborted) | Ended(Aborted), Event::Prepare(_)) => Repeat,

        (Active | Voting | Delegated, Event::Vote { known: false, .. }) => Refuse(Refusal::UnknownBranch),
        (Active | Voting, Event::Vote { vote: Vote::Refused, known: true, .. }) => Record,
        (Active | Voting, Event::Vote { vote: Vote::Prepared | Vote::ReadOnly, known: true, earlier }) => match earlier
        {
            None => Record,
            Some(_) => Repeat,
        },
        // The branch that decides may have committed already: a promise that is broken now can only be reported.
        (Delegated, Event::Vote { vote: Vote::Refused, known: true, earlier: Some(Vote::Prepared) }) => Report,
        (Delegated, Event::Vote { known: true, .. }) => Repeat,
        (Decided(_) | Ended(_), Event::Vote { vote: Vote::Prepared, .. }) => TellAgain,
        (Decided(_) | Ended(_), Event::Vote { vote: Vote::ReadOnly, .. }) => Repeat,
        (Decided(Aborted) | Ended(Aborted), Event::Vote { vote: Vote::Refused, .. }) => Repeat,
        // Who voted READ_ONLY and lost its memory of it says REFUSED, and so does who was never listed: no promise.
        (Decided(Committed) | Ended(Committed), Event::Vote { vote: Vote::Refused, earlier, .. }) => match earlier {
            Some(Vote::Prepared) => Report,
            Some(Vote::ReadOnly | Vote::Refused) | None => Repeat,
        },

        (Active | Voting, Event::Abort) => Abort,
        (Delegated | Decided(_) | Ended(_), Event::Abort) => Repeat,
        (Active | Voting | Delegated | Decided(_) | Ended(_), Event::PresumeAbort) => Repeat,

        (Active | Voting | Delegated | Ended(_), Event::Settle) => Repeat,
        (Decided(_), Event::Settle) => Settle,

        (Unknown(Door::Open | Door::Skewed { .. } | Door::Full { .. }), Event::Conclude { .. }) => {
            Refuse(Refusal::UnknownTransaction)
        }
        (Active | Voting, Event::Conclude { .. }) | (Delegated, Event::Conclude { known: false, .. }) => {
            Refuse(Refusal::NotDelegated)
        }
        (Delegated, Event::Conclude { known: true, .. }) => Conclude,
        (Decided(outcome) | Ended(outcome), Event::Conclude { committed, .. }) => {
            // An operator decided over its head, and the other way.
            if committed == (outcome == Committed) { Repeat } else { Report }
        }
    }
}

/// Why the door is shut.
pub(super) fn refusal(door: Door) -> Option<Refusal> {
    match door {
        Door::Open => None,
        Door::Expired => Some(Refusal::Expired),
        Door::Skewed { ahead_ms, allowed_ms } => Some(Refusal::Skewed { ahead_ms, allowed_ms }),
        Door::Full { limit } => Some(Refusal::Limit { what: "open transactions".to_owned(), limit }),
    }
}

fn too_many_branches(limit: u64) -> Refusal {
    Refusal::Limit { what: "branches of one transaction".to_owned(), limit }
}

fn no_room(limit: u64) -> Refusal {
    Refusal::Limit { what: "unsettled branches at one resource".to_owned(), limit }
}

#[cfg(test)]
mod laws;
