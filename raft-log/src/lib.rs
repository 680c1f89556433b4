//! A replicated durable log of somebody else's commands.
//!
//! ```text
//!   propose ──► Replica ──► Raft ──► log files (this node)      ──┐
//!                            └─────► PeerLink ──► other replicas ─┤ a majority has it on disk
//!                                                                 ▼
//!   answer  ◄────────────────────────────── Machine::apply, in the same order everywhere
//! ```
//!
//! Promise: what [`Replica::propose`] acknowledged is on the disks of a majority, was applied in one order on every
//! replica, and is never lost or altered silently. After a storage failure a replica acknowledges nothing more.
//!
//! Absences: this crate knows bytes and no transactions, opens no sockets (see [`PeerLink`]), and shows no type of the
//! Raft library that it uses.

pub mod files;
mod raft;
mod runtime;

pub use raft::errors::{AnswerError, MembersError, ProposeError, ReadError, StartError, TransferError};
pub use raft::link::{LinkError, MessageKind, PeerLink};
pub use raft::machine::{DecodeError, Machine, Section};
pub use raft::options::Options;
pub use raft::replica::{Applied, Replica};
pub use raft::status::{Member, NodeId, Position, Role, Status};
