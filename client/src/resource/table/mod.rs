//! What the branch tables of all databases share: which row a call leaves behind, and, where calls run side by side, how
//! one is carried through its local transaction.
//!
//! ```text
//!   Call ── plan(row) ─▶ Plan ─┬─ Answer: nothing changes
//!                              ├─ Finish: confirm or cancel, write the row
//!                              └─ Reserve ─▶ the service's word ─▶ Work: write the row, or undo and write it
//! ```
//!
//! [`call`] and [`row`] are pure. [`engine`] runs a database's [`engine::Store`].

mod call;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) mod engine;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod open;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod perform;
mod row;

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use self::open::OpenError;
pub(super) use self::{
    call::{Call, Finish, Plan, Settling, Work},
    row::{Row, code, record, signed, unsigned},
};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) use self::{
    open::{Stamped, claim, judge_settings},
    row::UNKNOWN,
};

/// The horizon moves with the clock; what it has passed is looked for again when it has moved so far, in milliseconds.
pub(super) const PURGE_EVERY_MS: u64 = 1000;

/// How many finished branches are dropped at a time, so that none waits long for it.
pub(super) const PURGE: usize = 256;

pub(super) const ENDED_EARLY: &str = "the local transaction ended early: a handler must neither begin nor end one";

pub(super) const TOO_LATE: &str = "waited for the database until the vote was of no use any more";
