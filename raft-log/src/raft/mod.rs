//! The replica: Raft over the log files, somebody else's state machine, and the links to the peers.
//!
//! ```text
//!   Replica ─► core ─► Raft ─┬─► store     log and ballot ──────────► files
//!                ▲           ├─► applier ─► Machine
//!                │           │      └─────► snapshot   sections ────► files
//!   answer ──────┴─ receiver └─► network ─────────────────────────► PeerLink
//!   start: open, repair, restore, start Raft
//! ```
//!
//! All of Raft's types stay in here: [`types`] has them, [`wire`] and [`record`] turn them into bytes.

mod answer;
mod applier;
mod core;
pub(crate) mod errors;
mod fetch;
mod join;
pub(crate) mod link;
pub(crate) mod machine;
mod members;
mod network;
pub(crate) mod options;
mod receiver;
mod record;
mod repair;
pub(crate) mod replica;
mod snapshot;
mod start;
pub(crate) mod status;
mod store;
#[cfg(test)]
mod suite;
mod types;
mod wire;
