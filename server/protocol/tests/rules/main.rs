//! The rules of the ledger and of the coordinator, one test each, and their properties over random histories.
//!
//! A test's name is the rule; `mN` is the seeded bug that it would catch, `sN` the scenario of a public report.

#![allow(unreachable_pub, reason = "the oracle is shared with another test")]
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod brought;
mod build;
mod codec;
mod coordinator_commit;
mod coordinator_faults;
mod delegation;
mod keys;
mod lists;
mod operators;
#[path = "../oracle/mod.rs"]
mod oracle;
mod properties;
mod sessions;
mod snapshots;
mod time;
mod votes;
mod watched;
