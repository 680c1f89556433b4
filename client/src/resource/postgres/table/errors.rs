//! PostgreSQL's errors, and what they mean to a branch.

use deadpool_postgres::PoolError;
use tokio_postgres::{Error, error::SqlState};
use verdict_protocol::Reason;

use crate::{participant::NotAnswered, resource::table::engine::Trouble};

/// The whole transaction has come to nothing by it, and is to be rolled back.
pub(super) fn trouble(error: Error) -> Trouble {
    let Some(said) = error.as_db_error() else { return unanswered("the connection to PostgreSQL broke", error) };
    let code = said.code();
    let reason = |again| Reason::refused(said.message(), code.code(), again);
    match code {
        &SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED => {
            Trouble::Again { reason: reason(true), error: error.into() }
        }
        &SqlState::LOCK_NOT_AVAILABLE | &SqlState::QUERY_CANCELED => {
            Trouble::No { reason: reason(true), error: error.into() }
        }
        &SqlState::RAISE_EXCEPTION => Trouble::No { reason: reason(false), error: error.into() },
        code if matches!(&code.code()[..2], "22" | "23") => Trouble::No { reason: reason(false), error: error.into() },
        &SqlState::IN_FAILED_SQL_TRANSACTION => {
            unanswered("the service's code went on after a statement had failed: hand the error on", error)
        }
        &SqlState::DISK_FULL => unanswered("the disk with the participant's database is full: make room", error),
        &SqlState::READ_ONLY_SQL_TRANSACTION => {
            unanswered("the participant's database takes no writes: name the primary", error)
        }
        _ => unanswered("the participant's database reported an error", error),
    }
}

pub(super) fn no_connection(error: PoolError) -> Trouble {
    unanswered("no connection to the participant's database", error)
}

fn unanswered(what: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Trouble {
    Trouble::NotAnswered(NotAnswered::Unavailable { what: what.to_owned(), source: Some(error.into()) })
}
