//! The protocol of Verdict as pure functions of what happened: the replicated *ledger*, which alone decides, and the
//! *coordinator's* rules, which say what the leading node does about it.
//!
//! ```text
//!   client calls ─┐                                ┌─▶ propose commands ──▶ replicated log ─┐
//!   votes, acks  ─┼─▶ Coordinator::handle(event) ──┼─▶ ask a branch to prepare              │
//!   clock        ─┘        ▲          reads ▼      ├─▶ tell a branch its outcome            │
//!                          │          Ledger       └─▶ answer a client                      │
//!                          └── changes ◀── Ledger::apply(index, entry) ◀────────────────────┘
//! ```
//!
//! Nothing here awaits, reads a clock, draws a random number or does I/O; there is no floating point and no hash
//! map. Two ledgers that applied the same entries are equal to the byte.

mod command;
mod coordinator;
mod credential;
mod ids;
mod ledger;
mod log_clock;
mod vocabulary;

pub use command::{
    Answer, Brought, Command, Conclusion, DecodeError, Entry, ListedBranch, NewBranch, Refusal, Resolution,
    SettledItem, Word, decode_answers, encode_answers,
};
pub use coordinator::{
    Blocker, Coordinator, Effect, Event, Held, KEEP_EARLY_MS, Patience, ProposalId, Reply, Report, Request, Token,
    backoff::{Backoff, FIRST_RETRY_MS, LONGEST_RETRY_MS},
    voting::{KEEP_VOTES_MS, KEEP_VOTES_OF_ANOTHERS_MS},
};
pub use credential::{Credential, Secret};
pub use ids::{BranchId, BranchNumber, ClusterId, IdError, Instance, Key, ResourceName, SessionName, SessionRef, Xid};
pub use ledger::{
    Applied, Branch, Change, Ledger, OpenTransaction, Order, Phase, Recorded, Rules, State, Status, Step, Transition,
    snapshot::{Frozen, SectionBody, SnapshotError, Thawed},
};
pub use log_clock::LogClock;
pub use vocabulary::{LogTime, Outcome, Reason, ReasonCode, Settlement, Vote};
