//! Everything that can happen, and how a trace tells it.

use std::fmt;

use verdict_protocol::{Outcome, Reply, Vote};

/// One thing that happens. Nodes are 0 and 1, clients 0 and 1, branches 0 to 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A client does something at a node.
    Client(Call, usize, usize),
    /// A service that was called in the middle of its transaction enlists its branch.
    Register(usize, usize),
    /// The leader's proposal in this place gets into the log.
    Append(usize),
    /// A node's proposal in this place does not get into the log, and its proposer learns that it may not have.
    Lose(usize, usize),
    /// The proposer of the entry in this place of the log is told that nothing is known of it.
    Interrupt(usize, usize),
    Apply(usize),
    /// Acknowledgements get into the log.
    Flush,
    /// The participant answers a node's Prepare.
    Prepare(usize, usize, Vote),
    Voted(usize, usize, Vote),
    NotAsked(usize, usize),
    /// The participant answers a node that gave it the decision, or fenced it; whether it has committed.
    Conclude {
        node: usize,
        branch: usize,
        fence: bool,
        committed: bool,
    },
    Concluded(usize, usize, bool),
    Tell(usize, usize, Outcome),
    Acknowledged(usize, usize),
    NotTold(usize, usize),
    Wake(usize),
    /// The participants come to a leader by themselves.
    Reached(usize),
    /// Log time passes the horizon of all transactions.
    Age,
    Elect(usize),
    Deposed(usize),
    Restart(usize),
    Inquire(usize),
    /// A participant hears the answer to its question.
    Ordered(usize, Outcome),
    Push(usize),
}

/// What a client, or an operator, asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Open,
    Begin,
    Enlist,
    Commit,
    Rollback,
    /// It says how it settled what it had prepared.
    Report,
    /// An operator's, without force.
    Resolve(Outcome),
    Forget,
}

pub fn say_reply(reply: &Reply) -> String {
    match reply {
        Reply::Decided { outcome, .. } => outcome.value().to_string(),
        Reply::Done { .. } => "done".to_owned(),
        Reply::Order { branch, order } => format!("{} {order:?}", branch.number),
        Reply::Session { epoch } => format!("session in epoch {epoch}"),
        Reply::Refused(refusal) => refusal.to_string(),
        Reply::Interrupted => "not known, ask again".to_owned(),
        Reply::NotLeader => "not the leader".to_owned(),
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |node: &usize| ["A", "B"][*node];
        match self {
            Self::Client(call, n, client) => write!(f, "client {} calls {call:?} at {}", client + 1, name(n)),
            Self::Register(n, b) => write!(f, "{} enlists itself at {}", b + 1, name(n)),
            Self::Append(_) => write!(f, "the leader's proposal is appended"),
            Self::Lose(n, _) => write!(f, "{}'s proposal is lost", name(n)),
            Self::Interrupt(n, _) => write!(f, "{} is not told of its entry", name(n)),
            Self::Apply(n) => write!(f, "{} applies an entry", name(n)),
            Self::Flush => write!(f, "acknowledgements are appended"),
            Self::Prepare(n, b, vote) => write!(f, "{} answers {}'s Prepare: {vote:?}", b + 1, name(n)),
            Self::Voted(n, b, vote) => write!(f, "{} hears {vote:?} of {}", name(n), b + 1),
            Self::NotAsked(n, b) => write!(f, "{} can't reach {} to ask", name(n), b + 1),
            Self::Conclude { node, branch, fence, committed } => {
                let (asked, said) =
                    (if *fence { "fence" } else { "question" }, if *committed { "committed" } else { "never" });
                write!(f, "{} answers {}'s {asked}: {said}", branch + 1, name(node))
            }
            Self::Concluded(n, b, committed) => {
                write!(f, "{} hears that {} has committed: {committed}", name(n), b + 1)
            }
            Self::Tell(n, b, outcome) => write!(f, "{} hears {outcome} of {}", b + 1, name(n)),
            Self::Acknowledged(n, b) => write!(f, "{} hears that {} took it", name(n), b + 1),
            Self::NotTold(n, b) => write!(f, "{} can't reach {} to tell", name(n), b + 1),
            Self::Wake(n) => write!(f, "{} wakes", name(n)),
            Self::Reached(n) => write!(f, "the participants come to {}", name(n)),
            Self::Age => write!(f, "the horizon passes everything"),
            Self::Elect(n) => write!(f, "{} is elected", name(n)),
            Self::Deposed(n) => write!(f, "{} learns that it is deposed", name(n)),
            Self::Restart(b) => write!(f, "{} restarts", b + 1),
            Self::Inquire(b) => write!(f, "{} asks what became of it", b + 1),
            Self::Ordered(b, outcome) => write!(f, "{} hears an answer: {outcome}", b + 1),
            Self::Push(b) => write!(f, "{} prepares and pushes its vote", b + 1),
        }
    }
}
