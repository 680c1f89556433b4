//! What may happen in one walk.

use verdict_protocol::Patience;

use crate::{bugs::Bug, participant::Temper, world::GRACE_MS};

pub const BRANCHES: usize = 3;
pub const CLIENTS: usize = 2;

/// One walk's bounds.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub tempers: [Temper; BRANCHES],
    /// Whose transaction each branch is of.
    pub of: [usize; BRANCHES],
    /// One transaction each.
    pub clients: [Plan; CLIENTS],
    pub vote_timeout_ms: u64,
    /// How long the cluster leaves what a client has prepared to that client.
    pub settle_grace_ms: u64,
    pub left: Left,
    pub old_leader: OldLeader,
    pub bug: Bug,
}

impl Scenario {
    pub fn patience(&self) -> Patience {
        Patience { least_vote_ms: 20, grace_ms: GRACE_MS, settle_grace_ms: self.settle_grace_ms }
    }
}

/// What a client does: each step at any time after the one before, at whoever thinks that it leads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Which instance of the session's program it is, if it works in the session that all share.
    pub instance: Option<u8>,
    /// Its tries to open the session.
    pub opens: u8,
    /// Its tries to begin early.
    pub begins: u8,
    /// Whether it begins under the key that all share.
    pub key: bool,
    /// Branches that it enlists before it commits.
    pub enlists: &'static [u32],
    /// Its tries to commit.
    pub commits: &'static [Attempt],
}

/// What becomes of a leader when another is elected. Its messages stay under way in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldLeader {
    /// It crashes, and comes back knowing the log and nothing else.
    Crashes,
    /// It goes on and hears everything, until it learns at any time that it leads no more.
    Lingers,
}

/// One Commit call: the branches listed, and those of them whose PREPARED is brought along.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    pub list: &'static [u32],
    pub brought: &'static [u32],
    /// Branches of others whose PREPARED is made up.
    pub forged: &'static [u32],
    /// The branch that decides.
    pub delegate: Option<u32>,
}

/// How often each of these may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Left {
    pub rollbacks: u8,
    pub elections: u8,
    pub wakes: u8,
    pub unreachable: u8,
    pub restarts: u8,
    pub inquiries: u8,
    /// A proposer is not told what became of its proposal.
    pub interruptions: u8,
    /// A participant prepares by itself and pushes its vote.
    pub pushes: u8,
    /// A participant enlists itself.
    pub registers: u8,
    /// An operator says something.
    pub words: u8,
    /// The horizon passes everything.
    pub ages: u8,
    /// A client says how it settled what it had prepared.
    pub reports: u8,
    /// Participants come to a leader by themselves.
    pub comes: u8,
}

pub const NO_FAULTS: Left = Left {
    rollbacks: 0,
    elections: 0,
    wakes: 0,
    unreachable: 0,
    restarts: 0,
    inquiries: 0,
    interruptions: 0,
    pushes: 0,
    registers: 0,
    words: 0,
    ages: 0,
    reports: 0,
    comes: 0,
};
