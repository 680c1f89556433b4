//! Verdict's production crates in a deterministic simulation: a cluster, participants and clients that break at any
//! moment, and sentences that must hold all the same.
//!
//! ```text
//!   seed ─▶ Plan ─▶ World: three nodes on simulated disks, three banks, clients, links in between
//!                     ▲ faults            │ History: who did what and when, and its hash
//!                     └── workload        ▼
//!                 logs of the nodes ─▶ Oracle ─▶ invariants, one file each ─▶ Report
//! ```
//!
//! The seed is the bug report: the same seed gives the same history, to the byte. Nothing in the product knows of this
//! crate; it takes part through the seams that the product has for time, chance, disk and links. Flaws that the checks
//! must find ([`flaws`]) are wrappers around those seams.
//!
//! Everything here is compiled only with `--cfg madsim`.
#![cfg(madsim)]

pub mod bank;
pub mod chance;
pub mod chart;
pub mod classic;
pub mod dangers;
pub mod faults;
pub mod flaws;
pub mod history;
pub mod invariants;
pub mod logs;
pub mod mutants;
pub mod oracle;
pub mod overrides;
pub mod page;
pub mod plan;
pub mod report;
pub mod run;
pub mod shrink;
pub mod spread;
pub mod swarm;
pub mod vault;
pub mod watching;
pub mod workload;
pub mod world;
