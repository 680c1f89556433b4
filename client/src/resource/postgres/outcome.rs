//! Ending a prepared transaction, and judging one that is not there any more.

use tokio_postgres::{Client, error::SqlState};
use verdict_protocol::{Outcome, Reason, ReasonCode, Settlement};

use super::gid::Gid;
use crate::participant::{NotAnswered, Settled};

/// How a transaction of PostgreSQL's ended, as far as the server still knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Committed,
    Aborted,
    /// It still works, or waits prepared.
    Open,
    /// Nobody knows its number, or it is too long ago.
    Unknown,
}

/// Ends it as the outcome says. `xid8` is its number at the database, as far as it is known.
pub(super) async fn finish(
    client: &Client,
    gid: Gid,
    outcome: Outcome,
    xid8: Option<u64>,
) -> Result<Settled, NotAnswered> {
    let verb = match outcome {
        Outcome::Committed => "COMMIT",
        Outcome::Aborted => "ROLLBACK",
    };
    match client.batch_execute(&format!("{verb} PREPARED '{gid}'")).await {
        Ok(()) => Ok(Settled::DONE),
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_OBJECT) => judge(client, gid, outcome, xid8).await,
        Err(error) => Err(failed(format!("{verb} PREPARED of {gid} failed"), error)),
    }
}

/// It is not prepared: somebody else ended it, or it never was.
async fn judge(client: &Client, gid: Gid, outcome: Outcome, xid8: Option<u64>) -> Result<Settled, NotAnswered> {
    let report = |settlement, text: &str| {
        Ok(Settled { settlement, reason: Some(Reason::new(ReasonCode::Refused, format!("{gid} {text}"))) })
    };
    match (outcome, fate(client, xid8).await?) {
        (Outcome::Committed, Fate::Committed) | (Outcome::Aborted, Fate::Aborted | Fate::Open | Fate::Unknown) => {
            Ok(Settled::DONE)
        }
        (Outcome::Committed, Fate::Aborted) => {
            report(Settlement::HeuristicRollback, "was rolled back by somebody else")
        }
        (Outcome::Aborted, Fate::Committed) => report(Settlement::HeuristicCommit, "was committed by somebody else"),
        (Outcome::Committed, Fate::Unknown) => report(
            Settlement::HeuristicHazard,
            "is not prepared, and how its transaction ended is not known: look at the database",
        ),
        (Outcome::Committed, Fate::Open) => {
            Err(NotAnswered::unavailable(format!("{gid} is not prepared, and its transaction is not over")))
        }
    }
}

async fn fate(client: &Client, xid8: Option<u64>) -> Result<Fate, NotAnswered> {
    let Some(xid8) = xid8 else { return Ok(Fate::Unknown) };
    let asked = client.query_one("SELECT pg_xact_status($1::text::xid8)", &[&xid8.to_string()]).await;
    let status: Option<String> = match asked {
        Ok(row) => row.get(0),
        // The number is of a future that this database, restored, has not come to.
        Err(error) if error.code() == Some(&SqlState::INVALID_PARAMETER_VALUE) => None,
        Err(error) => return Err(failed(format!("how transaction {xid8} ended can't be read"), error)),
    };
    Ok(match status.as_deref() {
        Some("committed") => Fate::Committed,
        Some("aborted") => Fate::Aborted,
        Some("in progress") => Fate::Open,
        _ => Fate::Unknown,
    })
}

/// No answer: it is asked again.
pub(super) fn failed(what: String, error: tokio_postgres::Error) -> NotAnswered {
    let advice = match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            ": let the agent log in as the role that prepared it, or as a superuser"
        }
        _ => "",
    };
    NotAnswered::Unavailable { what: format!("{what}{advice}"), source: Some(Box::new(error)) }
}
