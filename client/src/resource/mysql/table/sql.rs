//! The tables' statements, as text: several in one packet, of which the server runs none after one that fails.
//!
//! A branch is locked by inserting its row, or by updating it to what it is: a twin waits there, and no gap is locked. The
//! stamp is read with a lock that others share and its writers wait for. The horizon is the first that is read without a
//! lock, so the transaction's snapshot is younger than the branch's lock, at any isolation: whoever dropped a row of it
//! before has told his horizon. The savepoint is gone if the transaction has ended by the time it is released.

use mysql_async::{Result, Row as SqlRow, Transaction, prelude::Queryable};
use verdict_protocol::{BranchId, ClusterId, LogTime, Reason, Xid};

use super::super::name::hex;
use crate::{
    participant::Fence,
    resource::table::{PURGE, Row, Stamped, UNKNOWN, code, record, signed, unsigned},
};

/// The tables' database, quoted: a session may have been moved to another one.
#[derive(Clone, Debug)]
pub(super) struct Tables(String);

/// What was read when a branch was locked.
pub(super) struct Locked {
    pub(super) fence: Fence,
    /// None if nothing is known of the branch.
    pub(super) row: Option<Row>,
}

/// Not as this program writes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Damaged;

const SAVEPOINT: &str = "verdict_work";

impl Tables {
    pub(super) fn of(database: &str) -> Self {
        Self(format!("`{}`", database.replace('`', "``")))
    }

    /// The schema, with the database's name.
    pub(super) fn create(&self) -> String {
        super::SCHEMA.replace("verdict_", &format!("{}.verdict_", self.0))
    }

    /// Fails if one of the tables is missing.
    pub(super) fn look(&self) -> String {
        let Self(database) = self;
        format!("SELECT 1 FROM {database}.verdict_branch, {database}.verdict_stamp, {database}.verdict_horizon LIMIT 0")
    }

    pub(super) async fn lock(
        &self,
        transaction: &mut Transaction<'_>,
        branch: BranchId,
    ) -> Result<std::result::Result<Locked, Damaged>> {
        let (Self(database), key, number) = (self, key(branch), branch.number);
        let statements = format!(
            "SELECT cluster, incarnation FROM {database}.verdict_stamp WHERE id = 1 LOCK IN SHARE MODE; \
             INSERT INTO {database}.verdict_branch (xid, number, state, payload, keep_until_ms) \
             VALUES (X'{}', {number}, {UNKNOWN}, '', 0) ON DUPLICATE KEY UPDATE number = {number}; \
             SELECT state, payload, reason, source_code, retryable FROM {database}.verdict_branch WHERE {key} FOR UPDATE; \
             SELECT horizon_ms FROM {database}.verdict_horizon WHERE id = 1; \
             SAVEPOINT {SAVEPOINT}",
            hex(branch.xid.as_bytes())
        );
        let mut results = transaction.query_iter(statements).await?;
        let stamp: Vec<SqlRow> = results.collect().await?;
        drop(results.collect::<SqlRow>().await?);
        let row: Vec<SqlRow> = results.collect().await?;
        let horizon: Vec<SqlRow> = results.collect().await?;
        results.drop_result().await?;
        Ok(read(&stamp, &row, &horizon).ok_or(Damaged))
    }

    /// Writes the row of a branch that was locked in the same transaction. False if there is none.
    pub(super) async fn save(
        &self,
        transaction: &mut Transaction<'_>,
        branch: BranchId,
        Row { record, payload, reason }: &Row,
        keep_until: LogTime,
    ) -> Result<bool> {
        let (Self(database), key) = (self, key(branch));
        let text = |text: fn(&Reason) -> &str| match reason {
            Some(reason) => format!("CONVERT(X'{}' USING utf8mb4)", hex(text(reason))),
            None => "NULL".to_owned(),
        };
        let retryable = reason.as_ref().map_or("NULL", |reason| if reason.retryable { "TRUE" } else { "FALSE" });
        let (reason, source_code) = (text(|reason| &reason.text), text(|reason| &reason.source_code));
        let statements = format!(
            "RELEASE SAVEPOINT {SAVEPOINT}; \
             UPDATE {database}.verdict_branch SET state = {}, payload = X'{}', reason = {reason}, \
             source_code = {source_code}, retryable = {retryable}, keep_until_ms = {} WHERE {key}",
            code(*record),
            hex(payload),
            signed(keep_until.as_millis()),
        );
        transaction.query_drop(statements).await?;
        Ok(transaction.affected_rows() == 1)
    }

    /// Waits until no transaction is under way that has read the stamp, and keeps others from reading it.
    pub(super) async fn own_stamp(&self, transaction: &mut Transaction<'_>) -> Result<Option<Stamped>> {
        let Self(database) = self;
        let look = format!("SELECT cluster, incarnation, format FROM {database}.verdict_stamp WHERE id = 1 FOR UPDATE");
        let row: Option<SqlRow> = transaction.query_first(look).await?;
        Ok(row.and_then(|row| Some(Stamped { fence: read_fence(&row)?, format: get(&row, 2)? })))
    }

    pub(super) async fn save_stamp(&self, transaction: &mut Transaction<'_>, fence: &Fence) -> Result<()> {
        let Self(database) = self;
        let cluster = fence.cluster.map_or_else(|| "NULL".to_owned(), |cluster| format!("X'{}'", hex(cluster.0)));
        let incarnation = signed(fence.incarnation);
        let set = format!(
            "UPDATE {database}.verdict_stamp SET cluster = {cluster}, incarnation = {incarnation} WHERE id = 1"
        );
        transaction.query_drop(set).await
    }

    /// Fails at once if another does the same.
    pub(super) async fn raise_horizon(&self, transaction: &mut Transaction<'_>, horizon: LogTime) -> Result<()> {
        let (Self(database), horizon) = (self, signed(horizon.as_millis()));
        let raise = format!(
            "SELECT 1 FROM {database}.verdict_horizon WHERE id = 1 FOR UPDATE NOWAIT; \
             UPDATE {database}.verdict_horizon SET horizon_ms = {horizon} WHERE id = 1 AND horizon_ms < {horizon}"
        );
        transaction.query_drop(raise).await
    }

    /// Drops finished branches that the horizon has passed, by their keys, so that no gap is locked; how many.
    pub(super) async fn purge(&self, transaction: &mut Transaction<'_>, horizon: LogTime) -> Result<usize> {
        let Self(database) = self;
        let (born, horizon) = (hex(&horizon.as_millis().to_be_bytes()[2..]), signed(horizon.as_millis()));
        let finished = format!("state <> 0 AND keep_until_ms < {horizon}");
        let look = format!(
            "SELECT xid, number FROM {database}.verdict_branch WHERE xid < X'{born}' AND {finished} \
             ORDER BY xid, number LIMIT {PURGE}"
        );
        let old: Vec<(Vec<u8>, u32)> = transaction.query(look).await?;
        let keys = old.iter().map(|(xid, number)| format!("(xid = X'{}' AND number = {number})", hex(xid)));
        let keys = keys.collect::<Vec<_>>().join(" OR ");
        if !keys.is_empty() {
            transaction
                .query_drop(format!("DELETE FROM {database}.verdict_branch WHERE ({keys}) AND {finished}"))
                .await?;
        }
        Ok(old.len())
    }

    /// None if a row is damaged.
    pub(super) async fn in_doubt(
        &self,
        transaction: &mut Transaction<'_>,
        limit: usize,
    ) -> Result<Option<Vec<BranchId>>> {
        let Self(database) = self;
        let look = format!(
            "SELECT xid, number FROM {database}.verdict_branch WHERE state = 0 ORDER BY xid, number LIMIT {limit}"
        );
        let rows: Vec<(Vec<u8>, u32)> = transaction.query(look).await?;
        let branch = |(xid, number): (Vec<u8>, u32)| Some(BranchId { xid: Xid::from_slice(&xid).ok()?, number });
        Ok(rows.into_iter().map(branch).collect())
    }
}

fn key(branch: BranchId) -> String {
    format!("xid = X'{}' AND number = {}", hex(branch.xid.as_bytes()), branch.number)
}

fn read(stamp: &[SqlRow], row: &[SqlRow], horizon: &[SqlRow]) -> Option<Locked> {
    let mut fence = read_fence(stamp.first()?)?;
    fence.horizon = LogTime::from_millis(unsigned(get(horizon.first()?, 0)?));
    let row = row.first()?;
    let state: i16 = get(row, 0)?;
    if state == UNKNOWN {
        return Some(Locked { fence, row: None });
    }
    let text: Option<String> = get(row, 2)?;
    let source_code: Option<String> = get(row, 3)?;
    let retryable: Option<bool> = get(row, 4)?;
    let reason = text.map(|text| Reason::refused(text, source_code.unwrap_or_default(), retryable.unwrap_or_default()));
    let row = Row { record: record(state.into())?, payload: get::<Vec<u8>>(row, 1)?.into(), reason };
    Some(Locked { fence, row: Some(row) })
}

/// Of the columns cluster and incarnation.
fn read_fence(row: &SqlRow) -> Option<Fence> {
    let cluster = match get::<Option<Vec<u8>>>(row, 0)? {
        Some(cluster) => Some(ClusterId(cluster.try_into().ok()?)),
        None => None,
    };
    Some(Fence { cluster, incarnation: unsigned(get(row, 1)?), ..Fence::default() })
}

fn get<T: mysql_async::prelude::FromValue>(row: &SqlRow, column: usize) -> Option<T> {
    row.get_opt(column)?.ok()
}
