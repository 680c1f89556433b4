//! What the coordinator hears, and what it wants done.

use bytes::Bytes;

use crate::{
    Answer, BranchId, BranchNumber, Change, Command, Conclusion, Instance, Key, ListedBranch, NewBranch, Order,
    Outcome, Reason, Recorded, Refusal, Resolution, ResourceName, SessionName, SessionRef, SettledItem, Settlement,
    Vote, Word, Xid,
};

/// Who asked: made by the shell, given back with the reply, used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Which proposal an answer belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProposalId(pub u64);

/// What a client or a branch asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Begin {
        xid: Xid,
        timeout_ms: u64,
        key: Option<Key>,
        session: Option<SessionRef>,
    },
    Enlist {
        xid: Xid,
        branches: Vec<NewBranch>,
        timeout_ms: u64,
    },
    Commit {
        xid: Xid,
        branches: Vec<ListedBranch>,
        vote_timeout_ms: u64,
        /// The branch that decides once all others have promised.
        delegate: Option<BranchNumber>,
        session: Option<SessionRef>,
    },
    Rollback {
        xid: Xid,
        reason: Reason,
    },
    Vote {
        branch: BranchId,
        vote: Vote,
        reason: Option<Reason>,
    },
    /// Who settled branches himself says how. Not waited for: if it gets lost, they are told once more.
    ReportSettled {
        xid: Xid,
        branches: Vec<(BranchNumber, Settlement)>,
    },
    /// `held_ms`: how long the branch has been held prepared.
    Inquire {
        branch: BranchId,
        held_ms: u64,
    },
    /// Answered when nothing of the instance's predecessors is undecided any more.
    OpenSession {
        name: SessionName,
        instance: Instance,
    },
    /// An operator's.
    Resolve {
        xid: Xid,
        resolution: Resolution,
        word: Word,
        force: bool,
    },
    Forget {
        xid: Xid,
        word: Word,
        force: bool,
    },
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This node leads, and has applied an entry of its own term: all that was decided before is in the ledger.
    Lead,
    /// It leads no more.
    Deposed,
    Request {
        token: Token,
        request: Request,
    },
    /// An entry was applied, whoever proposed it. Comes before the answers to its proposals.
    Applied {
        changes: Vec<Change>,
    },
    /// What applying a proposal's commands answered.
    Answered {
        proposal: ProposalId,
        answers: Vec<Answer>,
    },
    /// Whether the proposal is in the log is not known.
    Interrupted {
        proposal: ProposalId,
    },
    /// A participant's answer to prepare.
    Voted {
        branch: BranchId,
        vote: Vote,
        reason: Option<Reason>,
    },
    /// A participant could not be asked.
    NotAsked {
        branch: BranchId,
        error: String,
    },
    /// The branch that decides has done so.
    Concluded {
        branch: BranchId,
        conclusion: Conclusion,
    },
    /// A participant took its outcome.
    Acknowledged {
        branch: BranchId,
        settlement: Settlement,
    },
    /// A participant could not be told.
    NotTold {
        branch: BranchId,
        error: String,
    },
    /// A participant that could perhaps not be reached has come by itself.
    Reached {
        resource: ResourceName,
    },
    /// A time that was asked for has come.
    Wake,
}

/// Something to be done. Effects may be carried out in any order and side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Propose the commands, all in one entry, and bring the answers.
    Propose {
        proposal: ProposalId,
        commands: Vec<Command>,
    },
    /// Let this ride along with the next entry, or with one of its own before long. Nobody waits for it.
    ProposeLater {
        item: SettledItem,
    },
    /// Ask a branch to prepare.
    Ask {
        branch: BranchId,
        resource: ResourceName,
        payload: Bytes,
        within_ms: u64,
    },
    /// Ask the branch that decides to commit, or, with `fence`, to say whether it has and to make sure that it does not
    /// any more. Its answer is [`Event::Concluded`] or [`Event::NotAsked`].
    Delegate {
        branch: BranchId,
        resource: ResourceName,
        payload: Bytes,
        fence: bool,
    },
    /// Tell a branch its outcome.
    Tell {
        branch: BranchId,
        resource: ResourceName,
        payload: Bytes,
        outcome: Recorded<Outcome>,
    },
    Reply {
        token: Token,
        reply: Reply,
    },
    /// Bring a [`Event::Wake`] at this log time, instead of any asked for before.
    WakeAt(crate::LogTime),
    /// For people.
    Report(Report),
}

/// What whoever asked is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is decided.
    Decided {
        xid: Xid,
        outcome: Recorded<Outcome>,
    },
    /// It took effect, or had done so before: read the transaction's status from the ledger.
    Done {
        xid: Xid,
    },
    /// What a branch has to do.
    Order {
        branch: BranchId,
        order: Order,
    },
    /// The session is open in this epoch.
    Session {
        epoch: u64,
    },
    Refused(Refusal),
    /// Not answered: it may or may not be in the log. Ask again.
    Interrupted,
    NotLeader,
}

/// Something that people should see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A branch refused after it had promised, or after COMMITTED.
    PromiseBroken(BranchId),
    /// A branch was settled by somebody else.
    Heuristic { branch: BranchId, settlement: Settlement },
    /// A branch that is not in the closed list asked or voted.
    Unlisted { xid: Xid, number: BranchNumber },
}
