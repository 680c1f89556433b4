//! Seeded bugs: for each rule of the protocol one way to break it. Numbers as in the list of mutations.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// The decision is told before it is in the log.
    M5,
    /// A new leader leaves out the last participant.
    M6,
    /// Decides with one vote missing: it is made up when the list is closed.
    M7,
    /// A deadline counts as NO: time decides, and not the order of the log.
    M8,
    /// A participant that can't be reached counts as YES.
    M9,
    /// A YES that comes after ABORTED is taken.
    M10,
    /// Whoever enlists after the list is closed is told that he is in it.
    M11,
    /// A rollback before prepare leaves no tombstone.
    M13,
    /// A session's epoch is ignored.
    M22,
    /// Any error counts as an acknowledgement.
    M24,
    /// A transaction is over as soon as one branch has acknowledged.
    M25,
    /// A presumption aborts what has begun meanwhile.
    M26,
    /// A list decides only by a vote, not when Prepare comes last.
    M41,
    /// What was enlisted is not part of the list.
    M42,
    /// A branch that is not in the list hears COMMITTED.
    M43,
    /// The answer to a presumption is what was proposed.
    M44,
    /// A session is judged only at the door.
    M45,
    /// A client rolls back what it has prepared when it gets no answer.
    M46,
    /// A branch that nobody knows there votes READ_ONLY.
    M47,
    /// A client that asks behind the horizon hears ABORTED.
    M48,
    /// Abort is accepted after the decision was delegated.
    M50,
    /// The branch that decides is asked before the log says that it does.
    M51,
    /// The last resource is asked before all others have voted.
    M52,
    /// A session is opened while its predecessor's transaction is voting.
    M57,
    /// A vote is acknowledged before it is in the log.
    VoteToldEarly,
    /// A registration is acknowledged before it is in the log.
    EnlistToldEarly,
    /// A vote creates its transaction.
    VoteCreates,
    /// REFUSED after another vote is ignored.
    RefusalIgnored,
    /// A client's word is taken for a branch that it does not speak for.
    Forged,
    /// What a client has prepared is left to it for ever.
    SettledByItsClient,
    /// The fence leaves no row: the branch that decides commits later.
    FenceForgotten,
    /// The right to work under a key is not kept.
    KeyForgotten,
    /// A key stays with an attempt that was aborted.
    KeyKept,
    /// What was begun in a session is not aborted when another instance opens it.
    SessionForgotten,
    /// Opening a session aborts what was voting.
    SessionAbortsVotes,
    /// The same instance gets another epoch each time it asks.
    NonceIgnored,
    /// A late "end transaction" ends the client's next one (s27).
    EndsTheNext,
    /// An operator's word needs no force.
    Unforced,
}

impl Bug {
    /// How many there are.
    pub const COUNT: usize = Self::Unforced as usize;
}
