//! The server's errors, and what they mean to a branch.

use mysql_async::{Error, ServerError};
use verdict_protocol::Reason;

use super::super::errors::{DEADLOCK, LOCK_WAIT_TIMEOUT};
use crate::{
    participant::NotAnswered,
    resource::table::{ENDED_EARLY, engine::Trouble},
};

/// A row was written since the transaction's snapshot (MariaDB with `innodb_snapshot_isolation`).
const CHECK_READ: u16 = 1020;
const READ_ONLY: [u16; 2] = [1290, 1836];
/// Also after an implicit commit: the transaction that had the savepoint is over.
const NO_SAVEPOINT: u16 = 1305;
const QUERY_INTERRUPTED: u16 = 1317;
/// MariaDB's `max_statement_time` and MySQL's `max_execution_time`.
const STATEMENT_TIMEOUT: [u16; 2] = [1969, 3024];
/// MySQL's, without an SQLSTATE of its class.
const CHECK_VIOLATED: u16 = 3819;
/// Another has locked it, and it was not to be waited for; MariaDB says [`LOCK_WAIT_TIMEOUT`].
const LOCK_NOWAIT: u16 = 3572;

/// The whole transaction has come to nothing by it, and is to be rolled back.
pub(super) fn trouble(error: Error) -> Trouble {
    let Error::Server(ServerError { code, state, message }) = &error else {
        return unanswered("the connection to the participant's database broke", error);
    };
    let reason = |again| Reason::refused(message, format!("{code} ({state})"), again);
    let refused = state.get(..2).is_some_and(|class| matches!(class, "22" | "23" | "45"));
    match *code {
        DEADLOCK | CHECK_READ => Trouble::Again { reason: reason(true), error: error.into() },
        LOCK_WAIT_TIMEOUT | QUERY_INTERRUPTED => Trouble::No { reason: reason(true), error: error.into() },
        code if STATEMENT_TIMEOUT.contains(&code) => Trouble::No { reason: reason(true), error: error.into() },
        code if refused || code == CHECK_VIOLATED => Trouble::No { reason: reason(false), error: error.into() },
        NO_SAVEPOINT => unanswered(ENDED_EARLY, error),
        code if READ_ONLY.contains(&code) => {
            unanswered("the participant's database takes no writes: name the server that does", error)
        }
        _ => unanswered("the participant's database reported an error", error),
    }
}

/// Whether a lock is held by another, and nothing else is wrong.
pub(super) fn is_locked(error: &Error) -> bool {
    matches!(error, Error::Server(said) if matches!(said.code, LOCK_NOWAIT | LOCK_WAIT_TIMEOUT))
}

pub(super) fn no_connection(error: Error) -> Trouble {
    unanswered("no connection to the participant's database", error)
}

fn unanswered(what: &str, error: Error) -> Trouble {
    Trouble::NotAnswered(NotAnswered::Unavailable { what: what.to_owned(), source: Some(error.into()) })
}
