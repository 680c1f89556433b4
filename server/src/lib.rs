//! A node of Verdict: the replicated ledger, the coordinator that acts upon it, and the gRPC services in front.
//!
//! ```text
//!   clients ──▶ rpc ──▶ Engine ──▶ proposer ──▶ replicated log ──▶ Machine ──▶ ledger
//!                         ▲  │                                                   │ changes
//!                         │  └──▶ participants, at endpoints or by streams       │
//!                         └────────────── coordinator's rules ◀─────────────────┘
//! ```
//!
//! The library runs unchanged in simulation: time, chance, disk and links come in through [`Seams`]. What a process
//! needs besides (configuration files, signals, health, reflection) is the binary's.

mod databases;
mod engine;
mod leadership;
mod machine;
mod node;
mod options;
mod outbound;
mod peers;
mod proposer;
mod recent;
mod rpc;
mod seams;
mod streams;
mod tasks;
mod walls;
mod wire;

pub use node::{Node, StartError};
pub use options::{DatabaseOptions, LogOptions, Options, OptionsError, Reach, WatchOptions};
pub use peers::MAX_MESSAGE;
pub use rpc::Services;
pub use seams::{Databases, GrpcLinks, Links, Participants, Seams};
