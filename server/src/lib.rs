//! A node of Verdict: the replicated ledger, the coordinator that acts upon it, and the gRPC services in front.
//!
//! ```text
//!   clients ──▶ rpc ──▶ Engine ──▶ proposer ──▶ replicated log ──▶ Machine ──▶ ledger
//!                         ▲  │                                                   │ changes
//!                         │  └──▶ participants (prepare, commit, roll back)      │
//!                         └────────────── coordinator's rules ◀─────────────────┘
//! ```
//!
//! The library runs unchanged in simulation: time, chance, disk and links come in through [`Seams`]. What a process
//! needs besides (configuration files, signals, health, reflection) is the binary's.

mod options;

pub use options::{LogOptions, Options, OptionsError};
