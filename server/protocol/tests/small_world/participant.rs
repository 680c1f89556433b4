//! A participant as design.md section 6 wants it: what it has on disk, and what it answers.

use verdict_protocol::Vote;

/// What a participant keeps. Everything but `Working` and `ReadOnly` is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Disk {
    /// The work is done and nothing is promised.
    Working,
    /// It restarted and knows nothing of the branch.
    Lost,
    Prepared,
    ReadOnly,
    Committed,
    /// Rolled back, never prepared, or refused: kept as a tombstone.
    RolledBack,
}

/// What a participant may answer a prepare that it can still refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temper {
    Willing,
    MayRefuse,
    Reader,
}

impl Disk {
    /// The votes that it may give to Prepare as it stands, and what it is after each.
    pub fn prepare(self, temper: Temper) -> Vec<(Vote, Disk)> {
        match self {
            Self::Working => match temper {
                Temper::Willing => vec![(Vote::Prepared, Self::Prepared)],
                Temper::MayRefuse => vec![(Vote::Prepared, Self::Prepared), (Vote::Refused, Self::RolledBack)],
                Temper::Reader => vec![(Vote::ReadOnly, Self::ReadOnly)],
            },
            Self::Prepared => vec![(Vote::Prepared, Self::Prepared)],
            Self::ReadOnly => vec![(Vote::ReadOnly, Self::ReadOnly)],
            // A repeat that comes late: the vote stands, the effect too.
            Self::Committed => vec![(Vote::Prepared, Self::Committed)],
            Self::Lost | Self::RolledBack => vec![(Vote::Refused, Self::RolledBack)],
        }
    }

    /// What it may say when the decision is given to it, and what it is after that. With `fence` it never commits any
    /// more, if it has not.
    pub fn conclude(self, temper: Temper, fence: bool) -> Vec<(bool, Disk)> {
        match self {
            Self::Working if !fence => match temper {
                Temper::Willing => vec![(true, Self::Committed)],
                Temper::MayRefuse | Temper::Reader => vec![(true, Self::Committed), (false, Self::RolledBack)],
            },
            Self::Committed => vec![(true, Self::Committed)],
            Self::Working | Self::Lost | Self::ReadOnly | Self::RolledBack => vec![(false, Self::RolledBack)],
            // It is never asked for a decision after it was asked for a promise.
            Self::Prepared => Vec::new(),
        }
    }

    /// Takes COMMIT; `None` if there was nothing that it could commit.
    pub fn commit(self) -> Option<Disk> {
        match self {
            Self::Prepared | Self::Committed => Some(Self::Committed),
            Self::Working | Self::Lost | Self::ReadOnly | Self::RolledBack => None,
        }
    }

    /// Takes ROLLBACK; `None` if it has committed.
    pub fn roll_back(self) -> Option<Disk> {
        match self {
            Self::Working | Self::Lost | Self::ReadOnly | Self::Prepared | Self::RolledBack => Some(Self::RolledBack),
            Self::Committed => None,
        }
    }

    pub fn restart(self) -> Disk {
        match self {
            Self::Working | Self::ReadOnly => Self::Lost,
            kept @ (Self::Lost | Self::Prepared | Self::Committed | Self::RolledBack) => kept,
        }
    }
}
