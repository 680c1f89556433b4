//! Participants we ship, one file a kind of storage; databases that prepare by themselves share [`xa`], branch tables their
//! rows.

pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod table;
pub mod xa;

use verdict_protocol::Reason;

/// What a service's own code says when it is asked to reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// Reserved: it can be confirmed and cancelled from now on.
    Reserved,
    /// There is nothing to change: the branch is out of phase two.
    ReadOnly,
    /// No. What the handler changed before it said so is undone.
    Refused(Reason),
}
