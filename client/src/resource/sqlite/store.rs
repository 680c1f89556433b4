//! The tables, the settings without which a vote is not durable, and the statements.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Row, params, types::Type};
use verdict_protocol::{BranchId, ClusterId, LogTime, Reason, Xid};

use super::{OpenError, TableOptions};
use crate::{
    participant::{Fence, rules},
    resource::table::{self, PURGE, code, record, signed, unsigned},
};

const FORMAT: i64 = 1;

const SCHEMA: &str = include_str!("verdict_branch.sql");

#[derive(Debug)]
pub(super) struct Store {
    pub(super) connection: Connection,
}

/// Fails unless commits on this connection are durable when they return.
///
/// # Errors
/// [`OpenError::Setting`] names the setting; [`OpenError::Schema`] if it can't be read.
pub fn check_settings(connection: &Connection) -> Result<(), OpenError> {
    let unread = |source| OpenError::Schema { path: connection.path().unwrap_or_default().into(), source };
    let journal: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0)).map_err(unread)?;
    if journal != "wal" {
        return Err(OpenError::Setting { setting: "journal_mode", found: journal, wanted: "wal" });
    }
    let synchronous: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0)).map_err(unread)?;
    if synchronous < 2 {
        let found = if synchronous == 0 { "OFF" } else { "NORMAL" };
        return Err(OpenError::Setting { setting: "synchronous", found: found.to_owned(), wanted: "FULL" });
    }
    Ok(())
}

impl Store {
    pub(super) fn open(path: &Path, options: TableOptions) -> Result<Self, OpenError> {
        let unopened = |source| OpenError::Open { path: path.to_owned(), source };
        let unusable = |source| OpenError::Schema { path: path.to_owned(), source };
        let connection = Connection::open(path).map_err(unopened)?;
        connection.busy_timeout(options.busy_timeout).map_err(unopened)?;
        // What they became is read back below. The last two matter on macOS only, where a plain fsync is none.
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA fullfsync = ON; \
                 PRAGMA checkpoint_fullfsync = ON;",
            )
            .map_err(unopened)?;
        check_settings(&connection)?;
        connection.execute_batch(&format!("BEGIN IMMEDIATE; {SCHEMA} COMMIT;")).map_err(unusable)?;
        let found: i64 = connection
            .query_row("SELECT format FROM verdict_stamp WHERE id = 1", [], |row| row.get(0))
            .map_err(unusable)?;
        if found > FORMAT {
            return Err(OpenError::Newer { found, known: FORMAT });
        }
        if let Some(wanted) = options.cluster {
            let mut fence = load_fence(&connection).map_err(unusable)?;
            match fence.cluster {
                Some(found) if found != wanted => return Err(OpenError::Cluster { found, wanted }),
                Some(_) => {}
                None => {
                    fence.cluster = Some(wanted);
                    save_fence(&connection, &fence).map_err(unusable)?;
                }
            }
        }
        Ok(Self { connection })
    }
}

pub(super) fn load_fence(database: &Connection) -> rusqlite::Result<Fence> {
    let mut statement =
        database.prepare_cached("SELECT cluster, incarnation, horizon_ms FROM verdict_stamp WHERE id = 1")?;
    statement.query_row([], |row| {
        Ok(Fence {
            cluster: row.get::<_, Option<[u8; 16]>>(0)?.map(ClusterId),
            incarnation: unsigned(row.get(1)?),
            term: 0,
            horizon: LogTime::from_millis(unsigned(row.get(2)?)),
        })
    })
}

pub(super) fn save_fence(database: &Connection, fence: &Fence) -> rusqlite::Result<()> {
    let mut statement = database
        .prepare_cached("UPDATE verdict_stamp SET cluster = ?1, incarnation = ?2, horizon_ms = ?3 WHERE id = 1")?;
    let cluster = fence.cluster.map(|cluster| cluster.0);
    statement.execute(params![cluster, signed(fence.incarnation), signed(fence.horizon.as_millis())])?;
    Ok(())
}

pub(super) fn load(database: &Connection, branch: BranchId) -> rusqlite::Result<Option<table::Row>> {
    let mut statement = database.prepare_cached(
        "SELECT state, payload, reason, source_code, retryable FROM verdict_branch WHERE xid = ?1 AND number = ?2",
    )?;
    statement.query_row(params![branch.xid.as_bytes(), branch.number], read_branch).optional()
}

fn read_branch(row: &Row<'_>) -> rusqlite::Result<table::Row> {
    let text: Option<String> = row.get(2)?;
    let reason = match text {
        None => None,
        Some(text) => Some(Reason::refused(text, row.get::<_, String>(3)?, row.get(4)?)),
    };
    let state = row.get(0)?;
    let record = record(state).ok_or(rusqlite::Error::IntegralValueOutOfRange(0, state))?;
    Ok(table::Row { record, payload: row.get::<_, Vec<u8>>(1)?.into(), reason })
}

/// Records what became of a branch. The payload is kept only as long as confirm or cancel may need it.
pub(super) fn save(
    database: &Connection,
    branch: BranchId,
    table::Row { record, payload, reason }: &table::Row,
    horizon: LogTime,
) -> rusqlite::Result<()> {
    let mut statement =
        database.prepare_cached("INSERT OR REPLACE INTO verdict_branch VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
    statement.execute(params![
        branch.xid.as_bytes(),
        branch.number,
        code(*record),
        &**payload,
        reason.as_ref().map(|reason| &reason.text),
        reason.as_ref().map(|reason| &reason.source_code),
        reason.as_ref().map(|reason| reason.retryable),
        signed(rules::keep_until(branch.xid, horizon).as_millis()),
    ])?;
    Ok(())
}

pub(super) fn in_doubt(database: &Connection, limit: usize) -> rusqlite::Result<Vec<BranchId>> {
    let mut statement = database
        .prepare_cached("SELECT xid, number FROM verdict_branch WHERE state = 0 ORDER BY xid, number LIMIT ?1")?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = statement.query_map([limit], |row| {
        let xid: Vec<u8> = row.get(0)?;
        let xid = Xid::from_slice(&xid)
            .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Blob, error.into()))?;
        Ok(BranchId { xid, number: row.get(1)? })
    })?;
    rows.collect()
}

/// Drops up to [`PURGE`] finished branches that the horizon has passed; returns how many. Xids sort by birth.
pub(super) fn purge(database: &Connection, horizon: LogTime) -> rusqlite::Result<usize> {
    let mut statement = database.prepare_cached(
        "DELETE FROM verdict_branch WHERE (xid, number) IN (
             SELECT xid, number FROM verdict_branch
             WHERE xid < ?1 AND state <> 0 AND keep_until_ms < ?2 ORDER BY xid, number LIMIT ?3)",
    )?;
    let born_at_horizon = &horizon.as_millis().to_be_bytes()[2..];
    statement.execute(params![born_at_horizon, signed(horizon.as_millis()), signed(PURGE as u64)])
}
