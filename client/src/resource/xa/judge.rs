//! What a database said when a branch was to be ended, and what that means, as one total table:
//!
//! ```text
//!                                told to commit            told to roll back
//!   done                         DONE                      DONE
//!   rolled back by the database  HEURISTIC_ROLLBACK        DONE
//!   its session alone can        asked again               asked again
//!   not prepared, and
//!     committed                  DONE                      HEURISTIC_COMMIT
//!     aborted                    HEURISTIC_ROLLBACK        DONE
//!     its transaction runs       asked again               DONE
//!     no evidence                HEURISTIC_HAZARD          DONE
//! ```
//!
//! "Not prepared" is never an acknowledgement of a commit. Told to roll back it is one: a branch that is prepared after
//! that is found by the next sweep. Pure.

use verdict_protocol::{Outcome, Reason, ReasonCode, Settlement};

use super::{BranchName, Fate, Finished};
use crate::participant::{NotAnswered, Settled};

/// What the branch's evidence is to tell; none if it is clear without.
pub(in crate::resource) fn judge(
    name: BranchName,
    outcome: Outcome,
    finished: Finished,
) -> Option<Result<Settled, NotAnswered>> {
    Some(match (finished, outcome) {
        (Finished::Done, _) | (Finished::RolledBack, Outcome::Aborted) => Ok(Settled::DONE),
        (Finished::RolledBack, Outcome::Committed) => {
            report(Settlement::HeuristicRollback, name, "was prepared, and the database rolled it back by itself")
        }
        (Finished::InSession, _) => Err(NotAnswered::unavailable(format!(
            "{name} can be ended by the session alone that prepared it, until that disconnects"
        ))),
        (Finished::NotPrepared, _) => return None,
    })
}

/// It is not prepared: somebody else ended it, or it never was.
pub(in crate::resource) fn judge_fate(name: BranchName, outcome: Outcome, fate: Fate) -> Result<Settled, NotAnswered> {
    match (fate, outcome) {
        (Fate::Committed, Outcome::Committed) | (Fate::Aborted | Fate::Open | Fate::Unknown, Outcome::Aborted) => {
            Ok(Settled::DONE)
        }
        (Fate::Committed, Outcome::Aborted) => {
            report(Settlement::HeuristicCommit, name, "was committed by somebody else")
        }
        (Fate::Aborted, Outcome::Committed) => {
            report(Settlement::HeuristicRollback, name, "was rolled back by somebody else")
        }
        (Fate::Unknown, Outcome::Committed) => report(
            Settlement::HeuristicHazard,
            name,
            "is not prepared, and how its transaction ended is not known: look at the database",
        ),
        (Fate::Open, Outcome::Committed) => {
            Err(NotAnswered::unavailable(format!("{name} is not prepared, and its transaction is not over")))
        }
    }
}

fn report(settlement: Settlement, name: BranchName, text: &str) -> Result<Settled, NotAnswered> {
    let reason = Some(Reason::new(ReasonCode::Refused, format!("{name} {text}")));
    Ok(Settled { settlement, reason })
}

#[cfg(test)]
mod tests {
    use verdict_protocol::{BranchId, ClusterId, LogTime, Xid};

    use super::*;

    const COMMIT: Outcome = Outcome::Committed;
    const ROLLBACK: Outcome = Outcome::Aborted;

    fn name() -> BranchName {
        let xid = Xid::new(LogTime::from_millis(1_700_000_000_000), 7, 9);
        BranchName { cluster: ClusterId([0xab; 16]), branch: BranchId { xid, number: 1 } }
    }

    /// None: asked again.
    fn settlement(judged: Result<Settled, NotAnswered>) -> Option<Settlement> {
        let settled = judged.ok()?;
        assert_eq!(settled.reason.is_some(), settled.settlement != Settlement::Done, "a report says why");
        Some(settled.settlement)
    }

    #[test]
    fn what_the_database_says_at_once() {
        for (finished, on_commit, on_rollback) in [
            (Finished::Done, Some(Some(Settlement::Done)), Some(Some(Settlement::Done))),
            (Finished::RolledBack, Some(Some(Settlement::HeuristicRollback)), Some(Some(Settlement::Done))),
            (Finished::InSession, Some(None), Some(None)),
            (Finished::NotPrepared, None, None),
        ] {
            assert_eq!(judge(name(), COMMIT, finished).map(settlement), on_commit, "{finished:?}");
            assert_eq!(judge(name(), ROLLBACK, finished).map(settlement), on_rollback, "{finished:?}");
        }
    }

    /// s44
    #[test]
    fn not_prepared_is_judged_by_evidence() {
        for (fate, on_commit, on_rollback) in [
            (Fate::Committed, Some(Settlement::Done), Settlement::HeuristicCommit),
            (Fate::Aborted, Some(Settlement::HeuristicRollback), Settlement::Done),
            (Fate::Open, None, Settlement::Done),
            (Fate::Unknown, Some(Settlement::HeuristicHazard), Settlement::Done),
        ] {
            assert_eq!(settlement(judge_fate(name(), COMMIT, fate)), on_commit, "{fate:?}");
            assert_eq!(settlement(judge_fate(name(), ROLLBACK, fate)), Some(on_rollback), "{fate:?}");
        }
    }
}
