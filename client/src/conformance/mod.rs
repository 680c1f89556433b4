//! Checks a participant against the contract of [`ResourceManager`], one case a rule.
//!
//! ```text
//!   run(make) ── for each Case: make() ─▶ a fresh Subject ─▶ messages, restarts ─▶ Ok, or Failure{case, what}
//! ```
//!
//! A [`Subject`] is the participant and what the suite must know of it: payloads on which it votes one way or another,
//! what a restart is, and what its data say it has reserved and confirmed. A participant passes if all cases do.
//! Nothing here spawns or waits for time, so the suite runs anywhere.

mod deciding;
mod drive;
mod outcomes;
mod promises;
mod trust;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use thiserror::Error;
use verdict_protocol::{ResourceName, Vote};

use self::drive::Driver;
use crate::participant::ResourceManager;

/// A participant under test.
#[tonic::async_trait]
pub trait Subject: Send + Sync {
    /// The participant as it runs now.
    fn manager(&self) -> Arc<dyn ResourceManager>;

    /// Ends it as kill -9 does and starts it again on what was durable.
    async fn restart(&mut self);

    /// The name it goes by.
    fn resource(&self) -> ResourceName;

    /// A payload on which a fresh participant gives this vote, for many branches at once. None if it never does; it
    /// must have one for PREPARED.
    fn payload(&self, vote: Vote) -> Option<Bytes>;

    /// How much is reserved and how much is confirmed, read from the participant's own data; each branch that was
    /// prepared with the payload for PREPARED counts one.
    async fn effects(&mut self) -> Effects;

    /// How many branches it keeps a record of, promises and tombstones included.
    async fn records(&mut self) -> u64;
}

/// What a participant's data say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    pub reserved: u64,
    pub confirmed: u64,
}

/// A case that failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{case}: {what}")]
pub struct Failure {
    pub case: Case,
    /// What was seen and what was expected.
    pub what: String,
}

macro_rules! cases {
    ($($(#[$doc:meta])* $case:ident => $run:path,)*) => {
        /// The rules of the contract.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Case { $($(#[$doc])* $case,)* }

        impl Case {
            pub const ALL: &[Self] = &[$(Self::$case,)*];
        }

        async fn run_case(case: Case, driver: &mut Driver<'_>) -> Result<(), String> {
            match case { $(Case::$case => $run(driver).await,)* }
        }
    };
}

cases! {
    /// Prepare, commit; prepare, rollback: each has its effect, once.
    Plain => outcomes::plain,
    /// Several branches of one transaction are told apart.
    BranchesApart => outcomes::branches_apart,
    /// A second prepare reserves nothing and is answered as the first.
    PrepareTwice => promises::prepare_twice,
    /// PREPARED is there after a restart: recovered, answered again, still to be committed.
    PreparedIsDurable => promises::prepared_is_durable,
    /// REFUSED leaves nothing reserved and stays REFUSED, also after a restart.
    RefusalStands => promises::refusal_stands,
    /// READ_ONLY leaves nothing reserved and is remembered over a restart, or becomes REFUSED.
    ReadOnlyIsRemembered => promises::read_only_is_remembered,
    /// Recover lists what is held prepared, all of it and nothing else, at most as many as it was asked for.
    RecoverListsTheDoubtful => promises::recover_lists_the_doubtful,
    /// Commit again, also after a restart: DONE, and no second effect.
    CommitTwice => outcomes::commit_twice,
    /// Rollback again, also after a restart: DONE, and nothing given back twice.
    RollbackTwice => outcomes::rollback_twice,
    /// A prepare that arrives after its commit reserves nothing, and commits nothing.
    PrepareAfterCommit => promises::prepare_after_commit,
    /// Rollback first: DONE; the prepare that arrives late is REFUSED and reserves nothing.
    RollbackBeforePrepare => outcomes::rollback_before_prepare,
    /// The same with a restart in between: the tombstone is durable.
    TombstoneIsDurable => outcomes::tombstone_is_durable,
    /// Rollback of an unknown branch is DONE.
    UnknownRollback => outcomes::unknown_rollback,
    /// Commit of an unknown branch is HEURISTIC_HAZARD and has no effect.
    UnknownCommit => outcomes::unknown_commit,
    /// Commit of a branch that refused is not acknowledged as done.
    CommitAfterRefusal => outcomes::commit_after_refusal,
    /// Commit after rollback, rollback after commit: reported, and without effect.
    OppositeOutcome => outcomes::opposite_outcome,
    /// An outcome that comes without its payload, as after an inquiry, has its whole effect.
    OutcomeWithoutPayload => outcomes::outcome_without_payload,
    /// Twins of each message at the same time have one effect.
    TwinsAtOnce => outcomes::twins_at_once,
    /// Given the decision, it commits, and a repeat has no second effect, also after a restart.
    OnePhaseCommitsOnce => deciding::commits_once,
    /// Fenced first, it never commits, whatever comes late, also after a restart.
    FenceComesFirst => deciding::fence_comes_first,
    /// Fenced after it has committed, it says so.
    FenceComesLate => deciding::fence_comes_late,
    /// Given the decision, a refusal is FENCED with its reason, and stays so.
    OnePhaseRefusal => deciding::refusal_is_never,
    /// Outcomes that come on top agree with what the branch decided, or are reported.
    OnePhaseAndOutcomes => deciding::outcomes_agree,
    /// Twins of a decision at the same time have one effect.
    OnePhaseTwins => deciding::twins,
    /// An unknown branch born before the horizon is REFUSED, also after a restart and if the message brings an
    /// older horizon.
    BehindTheHorizon => trust::behind_the_horizon,
    /// What is finished, and what was rolled back before it came, is kept until the horizon has passed its birth.
    KeptUntilTheHorizon => trust::kept_until_the_horizon,
    /// A marker of a rollback may be gone once the horizon has passed it; a prepare, a commit and a decision that come
    /// even later have no effect, and no commit of it counts as done.
    ForgottenTombstone => trust::forgotten_tombstone,
    /// What the horizon has long passed is dropped: records don't grow without bound.
    RecordsAreDropped => trust::records_are_dropped,
    /// A branch held prepared survives the horizon, and its repeated outcome is still acknowledged.
    PreparedOutlivesTheHorizon => trust::prepared_outlives_the_horizon,
    /// A message of another cluster is not answered and changes nothing, also after a restart.
    AnotherCluster => trust::another_cluster,
    /// A message of an older incarnation is not answered, whatever its term, also after a restart; one of a newer is,
    /// whatever its term.
    OlderIncarnation => trust::older_incarnation,
    /// A leader that was deposed gets no promise: a prepare of an older term than was seen is not answered.
    PrepareOfAnOldTerm => trust::prepare_of_an_old_term,
    /// Outcomes are taken at any term.
    OutcomeOfAnOldTerm => trust::outcome_of_an_old_term,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Runs one case on a fresh participant.
///
/// # Errors
/// [`Failure`] if the participant breaks the rule.
pub async fn check(case: Case, subject: &mut dyn Subject) -> Result<(), Failure> {
    let mut driver = Driver::new(subject);
    run_case(case, &mut driver).await.map_err(|what| Failure { case, what })
}

/// Runs all cases, each on a fresh participant that `make` makes.
///
/// # Errors
/// Every [`Failure`], in the order of [`Case::ALL`].
pub async fn run<S: Subject>(mut make: impl AsyncFnMut() -> S) -> Result<(), Vec<Failure>> {
    let mut failures = Vec::new();
    for case in Case::ALL {
        let mut subject = make().await;
        failures.extend(check(*case, &mut subject).await.err());
    }
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}
