//! Verdict's SDK: the client, the participant's contract with its conformance suite, and participants we ship.
//!
//! A transaction manager makes one action on several databases and services happen everywhere or nowhere. A client
//! names the branches, asks Verdict to commit, and gets the one outcome:
//!
//! ```no_run
//! use std::time::Duration;
//! use verdict_client::{CallError, Options, Outcome, Verdict};
//!
//! # async fn book() -> Result<(), Box<dyn std::error::Error>> {
//! let verdict = Verdict::new(Options::new(["127.0.0.1:7101", "127.0.0.1:7102", "127.0.0.1:7103"]))?;
//!
//! let mut booking = verdict.transaction();
//! booking.add("seats".try_into()?, "bus 42, seat 7".into())?;
//! booking.add("wallet".try_into()?, "alice, 30.00".into())?;
//! booking.add("tickets".try_into()?, "bus 42, seat 7, alice".into())?;
//!
//! match booking.commit().await {
//!     Ok(decision) if decision.outcome == Outcome::Committed => println!("booked"),
//!     Ok(decision) => println!("not booked: {:?}", decision.reason),
//!     // Nobody answered in time. The booking may have been made: ask again, later or from elsewhere, by its xid.
//!     Err(CallError::Unknown { .. }) => println!("unknown: {:?}", verdict.get(booking.xid()).await?.decision),
//!     Err(refused) => println!("refused: {refused}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Once for an idempotency key, one instance of a program at a time, and one branch that decides:
//!
//! ```no_run
//! use std::time::Duration;
//! use verdict_client::{Begun, Options, Verdict};
//!
//! # async fn book() -> Result<(), Box<dyn std::error::Error>> {
//! # let verdict = Verdict::new(Options::new(["127.0.0.1:7101"]))?;
//! match verdict.begin_once("order 4711", Duration::from_secs(30)).await? {
//!     Begun::Ours(booking) => { /* add branches, commit */ }
//!     Begun::Taken(status) => println!("{} has it: {:?}", status.xid, status.decision),
//! }
//!
//! let session = verdict.open_session("till 3").await?;
//! let mut booking = session.transaction();
//!
//! booking.add("seats".try_into()?, "bus 42, seat 7".into())?;
//! let legacy = booking.add("mainframe".try_into()?, "ticket 9".into())?;
//! booking.decided_by(legacy.number);
//! # Ok(())
//! # }
//! ```
//!
//! A branch whose work the client has done itself, in a session with a database, it may *drive*: commit prepares it there,
//! brings its vote along, and settles it by the recorded outcome. If the client dies, the cluster tells the branch:
//!
//! ```no_run
//! use std::sync::Arc;
//! use verdict_client::{Decision, LocalBranch, Verdict};
//!
//! async fn restock(verdict: &Verdict, session: Arc<dyn LocalBranch>) -> Result<Decision, Box<dyn std::error::Error>> {
//!     let mut order = verdict.transaction();
//!     let stock = order.add("stock".try_into()?, "".into())?;
//!     order.drive(stock.number, session)?;
//!     Ok(order.commit().await?)
//! }
//! ```
//!
//! For a PostgreSQL database that is `resource::postgres` (feature `postgres`).
//!
//! A service becomes a participant by implementing [`participant::ResourceManager`], or, if it has a database of its own,
//! three functions over `resource::sqlite`, `resource::postgres::table` or `resource::mysql::table` (features `sqlite`,
//! `postgres`, `mysql`), and serves it with [`participant::Participants`].
//!
//! | module | holds |
//! |---|---|
//! | crate root | [`Verdict`]: begin, enlist, commit, look up; follows the leader, retries, takes no timeout for an answer |
//! | [`context`] | a transaction that goes along with a call, so that who is called enlists himself |
//! | [`participant`] | the contract, its transition table, the gRPC server with the duty to inquire |
//! | [`conformance`] | checks a participant against the contract |
//! | [`resource`] | participants we ship |
//! | [`wire`] | all conversions between messages and domain types |
//!
//! The crate reads no clock and draws no random number except through [`Clock`] and [`Options::seed`].

mod client;
pub mod conformance;
pub mod context;
pub mod participant;
pub mod resource;
pub mod wire;

pub use client::{
    Backoff, Begun, Branch, BranchStatus, CallError, Clock, ClusterStatus, Decision, Enlisted, ListQuery, LocalBranch,
    NodeStatus, Options, OptionsError, Order, Page, RefusalCode, Session, Step, SystemClock, Transaction,
    TransactionStatus, Transition, Verdict, Watch, WatchQuery, Watched, endpoint,
};
pub use verdict_protocol::{
    BranchId, BranchNumber, ClusterId, Conclusion, Credential, LogTime, Outcome, Reason, ReasonCode, Resolution,
    ResourceName, SessionRef, Settlement, State, Vote, Word, Xid,
};
