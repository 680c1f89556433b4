//! Seeded bugs: each a wrapper around a public seam. The checks must find every one of them.
//!
//! The numbers are those of the list of mutations that the checks are measured by.

use std::fmt;

/// A seeded bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flaw {
    /// M1: the disk says that a Raft ballot is synced, and does nothing. A power loss gives it a second time.
    BallotNotSynced,
    /// M2: the disk says that the log is synced, and does nothing.
    LogNotSynced,
    /// M3: the disk reports a sync when it is asked for, and does it when the next one is.
    FlushEarly,
    /// M7: a link says PREPARED for a participant that was never asked.
    VoteInvented,
    /// M9: a participant that does not answer in time is taken to have said PREPARED.
    TimeoutIsYes,
    /// M12: the effect of a commit is not idempotent: a repeat has it again.
    CommitTwice,
    /// M13: a rollback before prepare leaves no tombstone.
    NoTombstone,
    /// M21: a client that was started again uses its xids again.
    XidReused,
    /// M36: an fsync error is not told.
    SyncErrorIgnored,
    /// M46: a client that prepared branches itself rolls them back when a commit has no answer.
    ClientRollsBack,
}

impl Flaw {
    pub const ALL: [Self; 10] = [
        Self::BallotNotSynced,
        Self::LogNotSynced,
        Self::FlushEarly,
        Self::VoteInvented,
        Self::TimeoutIsYes,
        Self::CommitTwice,
        Self::NoTombstone,
        Self::XidReused,
        Self::SyncErrorIgnored,
        Self::ClientRollsBack,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BallotNotSynced => "m1-ballot-not-synced",
            Self::LogNotSynced => "m2-log-not-synced",
            Self::FlushEarly => "m3-flush-early",
            Self::VoteInvented => "m7-vote-invented",
            Self::TimeoutIsYes => "m9-timeout-is-yes",
            Self::CommitTwice => "m12-commit-twice",
            Self::NoTombstone => "m13-no-tombstone",
            Self::XidReused => "m21-xid-reused",
            Self::SyncErrorIgnored => "m36-sync-error-ignored",
            Self::ClientRollsBack => "m46-client-rolls-back",
        }
    }

    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|flaw| flaw.name() == name)
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
