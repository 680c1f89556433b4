//! The tables' statements.
//!
//! A branch is locked by inserting its row, which a twin waits for, and then locking whatever row there is. The stamp is
//! guarded by a lock on its table: it costs no write, and what is read after it stays true to the end. It is taken before
//! the transaction's first snapshot, and preparing a statement takes one, so that is done before.
//!
//! The horizon must be read after the branch was locked: whoever dropped a row of it before has told his horizon by then.
//! At READ COMMITTED each statement sees what is there. Above, all see what was there at the first, so the row is inserted
//! before, in a transaction of its own: if it is changed or dropped after the snapshot, to lock it fails with 40001.

use std::{fmt, sync::Arc};

use deadpool_postgres::{Pool, Transaction};
use futures_util::future::{try_join3, try_join5};
use tokio_postgres::{Error, IsolationLevel, Row as SqlRow, Statement, types::ToSql};
use verdict_protocol::{BranchId, ClusterId, LogTime, Reason, Xid};

use super::{
    super::{check::check, lease::Lease},
    Handler, OpenError, SCHEMA, TableOptions,
    errors::{no_connection, trouble},
};
use crate::{
    participant::{Fence, Purpose, Stamp},
    resource::{
        Reservation,
        table::{
            Call, ENDED_EARLY, Finish, PURGE, Row, Stamped, UNKNOWN, claim, code,
            engine::{Rows, Run, Step, Store, Trouble, commits, perform},
            judge_settings, record, signed, unsigned,
        },
    },
};

/// Under which a commit is not durable, or does not happen at all.
const SETTINGS: [&str; 5] = ["version", "primary", "fsync", "full_page_writes", "synchronous_commit"];

pub(super) struct PostgresStore {
    pool: Pool,
    handler: Arc<dyn Handler>,
    isolation: IsolationLevel,
    sql: Statements,
}

/// With the schema's name in each: a session may have been moved to another one.
struct Statements {
    share_stamp: String,
    own_stamp: String,
    stamp: String,
    set_stamp: String,
    insert: String,
    lock: String,
    horizon: String,
    save: String,
    raise_horizon: String,
    purge: String,
    in_doubt: String,
}

impl Statements {
    fn of(schema: &str) -> Self {
        Self {
            share_stamp: format!("LOCK TABLE {schema}.verdict_stamp IN ROW SHARE MODE"),
            own_stamp: format!("LOCK TABLE {schema}.verdict_stamp IN EXCLUSIVE MODE"),
            stamp: format!("SELECT format, cluster, incarnation FROM {schema}.verdict_stamp WHERE id = 1"),
            set_stamp: format!("UPDATE {schema}.verdict_stamp SET cluster = $1, incarnation = $2 WHERE id = 1"),
            insert: format!(
                "INSERT INTO {schema}.verdict_branch (xid, number, state, payload, keep_until_ms) \
                 VALUES ($1, $2, {UNKNOWN}, '', 0) ON CONFLICT DO NOTHING"
            ),
            lock: format!(
                "SELECT state, payload, reason, source_code, retryable, pg_current_xact_id()::text \
                 FROM {schema}.verdict_branch WHERE xid = $1 AND number = $2 FOR UPDATE"
            ),
            horizon: format!("SELECT horizon_ms FROM {schema}.verdict_horizon WHERE id = 1"),
            save: format!(
                "UPDATE {schema}.verdict_branch SET state = $3, payload = $4, reason = $5, source_code = $6, \
                 retryable = $7, keep_until_ms = $8 WHERE xid = $1 AND number = $2 AND pg_current_xact_id()::text = $9"
            ),
            raise_horizon: format!(
                "UPDATE {schema}.verdict_horizon SET horizon_ms = $1 WHERE id = 1 AND horizon_ms < $1"
            ),
            purge: format!(
                "DELETE FROM {schema}.verdict_branch branch USING (SELECT xid, number FROM {schema}.verdict_branch \
                 WHERE xid < $1 AND state <> 0 AND keep_until_ms < $2 ORDER BY xid, number LIMIT $3 \
                 FOR UPDATE SKIP LOCKED) old WHERE branch.xid = old.xid AND branch.number = old.number"
            ),
            in_doubt: format!(
                "SELECT xid, number FROM {schema}.verdict_branch WHERE state = 0 ORDER BY xid, number LIMIT $1"
            ),
        }
    }
}

/// What a call needs, on one connection.
struct Prepared {
    stamp: Statement,
    insert: Statement,
    lock: Statement,
    horizon: Statement,
    save: Statement,
}

impl Statements {
    async fn prepare(&self, lease: &Lease) -> Result<Prepared, Error> {
        let (stamp, insert, lock, horizon, save) = try_join5(
            lease.prepare(&self.stamp),
            lease.prepare(&self.insert),
            lease.prepare(&self.lock),
            lease.prepare(&self.horizon),
            lease.prepare(&self.save),
        )
        .await?;
        Ok(Prepared { stamp, insert, lock, horizon, save })
    }
}

impl Prepared {
    /// It need not be durable: the transaction that needs it comes after it in the log.
    async fn insert_before(&self, lease: &Lease, branch: BranchId) -> Result<(), Error> {
        let (xid, number) = (&branch.xid.as_bytes()[..], i64::from(branch.number));
        let key: [&(dyn ToSql + Sync); 2] = [&xid, &number];
        try_join3(
            lease.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = off"),
            lease.execute(&self.insert, &key),
            lease.batch_execute("COMMIT"),
        )
        .await
        .map(drop)
    }
}

impl PostgresStore {
    pub(super) async fn open(pool: Pool, handler: Arc<dyn Handler>, options: TableOptions) -> Result<Self, OpenError> {
        let TableOptions { cluster, isolation, .. } = options;
        let mut lease = Lease::take(&pool).await.map_err(OpenError::connect)?;
        judge_settings(check(&lease).await.map_err(OpenError::connect)?, &SETTINGS)?;
        let transaction = lease.begin(IsolationLevel::ReadCommitted).await.map_err(OpenError::connect)?;
        let schema = create(&transaction).await.map_err(OpenError::schema)?;
        let sql = Statements::of(&schema);
        let found = claim_stamp(&transaction, &sql).await.map_err(OpenError::schema)?;
        if let Some(cluster) = claim(found, cluster)? {
            let claimed = Fence { cluster: Some(cluster), ..found.fence };
            save_stamp(&transaction, &sql, &claimed).await.map_err(OpenError::schema)?;
        }
        transaction.commit().await.map_err(OpenError::schema)?;
        lease.set_clean(true);
        Ok(Self { pool, handler, isolation, sql })
    }

    async fn take(&self) -> Result<Lease, Trouble> {
        Lease::take(&self.pool).await.map_err(no_connection)
    }
}

/// Creates the tables unless they are there: one who may not create tables can still use them. Returns their schema.
async fn create(transaction: &Transaction<'_>) -> Result<String, Error> {
    // Two that create the same tables at the same time hinder each other otherwise.
    transaction.batch_execute("SELECT pg_advisory_xact_lock(hashtextextended('verdict_branch', 0))").await?;
    let missing = "SELECT bool_or(to_regclass(name) IS NULL) FROM unnest(ARRAY['verdict_branch', 'verdict_stamp', \
                   'verdict_horizon']) AS tables (name)";
    if transaction.query_one(missing, &[]).await?.get(0) {
        transaction.batch_execute(SCHEMA).await?;
    }
    let schema = "SELECT quote_ident(nspname) FROM pg_class JOIN pg_namespace space ON space.oid = relnamespace \
                  WHERE pg_class.oid = to_regclass('verdict_branch')";
    Ok(transaction.query_one(schema, &[]).await?.get(0))
}

/// Waits until no transaction is under way that has read the stamp, and keeps others from reading it.
async fn claim_stamp(transaction: &Transaction<'_>, sql: &Statements) -> Result<Stamped, Error> {
    transaction.batch_execute(&sql.own_stamp).await?;
    let row = transaction.query_one(&sql.stamp, &[]).await?;
    Ok(Stamped { format: row.get(0), fence: read_fence(&row)? })
}

fn read_fence(row: &SqlRow) -> Result<Fence, Error> {
    let cluster = row.try_get::<_, Option<&[u8]>>(1)?.and_then(|bytes| bytes.try_into().ok()).map(ClusterId);
    Ok(Fence { cluster, incarnation: unsigned(row.try_get(2)?), ..Fence::default() })
}

async fn save_stamp(transaction: &Transaction<'_>, sql: &Statements, fence: &Fence) -> Result<(), Error> {
    let cluster = fence.cluster.map(|cluster| cluster.0.to_vec());
    transaction.execute(&sql.set_stamp, &[&cluster, &signed(fence.incarnation)]).await?;
    Ok(())
}

#[tonic::async_trait]
impl Store for PostgresStore {
    async fn once<C: Call>(&self, call: &C, run: Run) -> Result<(Step<C::Answer>, Fence), Trouble> {
        let mut lease = self.take().await?;
        let (result, ended) = {
            let prepared = self.sql.prepare(&lease).await.map_err(no_work)?;
            let inserts = matches!(self.isolation, IsolationLevel::ReadUncommitted | IsolationLevel::ReadCommitted);
            if !inserts {
                prepared.insert_before(&lease, call.branch()).await.map_err(no_work)?;
            }
            let database = lease.begin(self.isolation).await.map_err(no_work)?;
            let (handler, share_stamp) = (&*self.handler, &*self.sql.share_stamp);
            let mut rows = Open { database, handler, share_stamp, prepared, inserts, number: String::new() };
            let result = perform(&mut rows, call, run).await;
            let ended = if commits(&result) { rows.database.commit().await } else { rows.database.rollback().await };
            (result, ended)
        };
        match lease.came_to(ended) {
            Err(error) if commits(&result) => Err(trouble(error)),
            // If it could not be rolled back, the connection is closed, and with it the transaction ends.
            Ok(()) | Err(_) => result,
        }
    }

    async fn raise(&self, stamp: &Stamp) -> Result<(), Trouble> {
        let mut lease = self.take().await?;
        let transaction = lease.begin(IsolationLevel::ReadCommitted).await.map_err(trouble)?;
        let mut fence = claim_stamp(&transaction, &self.sql).await.map_err(trouble)?.fence;
        // Another may have been quicker.
        if fence.admit(stamp, Purpose::Outcome)? {
            save_stamp(&transaction, &self.sql, &fence).await.map_err(trouble)?;
        }
        transaction.commit().await.map_err(trouble)?;
        lease.set_clean(true);
        Ok(())
    }

    async fn purge(&self, horizon: LogTime) -> Result<usize, Trouble> {
        let lease = self.take().await?;
        let at = signed(horizon.as_millis());
        let purged = async {
            // Each is a transaction of its own: the horizon is durable before anything is dropped.
            lease.execute(&self.sql.raise_horizon, &[&at]).await?;
            let born_at_horizon = &horizon.as_millis().to_be_bytes()[2..];
            lease.execute(&self.sql.purge, &[&born_at_horizon, &at, &signed(PURGE as u64)]).await
        };
        let purged = purged.await;
        Ok(usize::try_from(lease.came_to(purged).map_err(trouble)?).unwrap_or(usize::MAX))
    }

    async fn in_doubt(&self, limit: usize) -> Result<Vec<BranchId>, Trouble> {
        let lease = self.take().await?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = lease.query(&self.sql.in_doubt, &[&limit]).await;
        let rows = lease.came_to(rows).map_err(trouble)?;
        let branch = |row: &SqlRow| {
            let xid = Xid::from_slice(row.get(0)).ok()?;
            Some(BranchId { xid, number: u32::try_from(row.get::<_, i64>(1)).ok()? })
        };
        rows.iter().map(branch).collect::<Option<_>>().ok_or_else(|| Trouble::unavailable(DAMAGED))
    }
}

const DAMAGED: &str = "a row of verdict_branch is not one of this program's: restore it";

/// A transaction that is open, and its number since the branch was locked.
struct Open<'a> {
    database: Transaction<'a>,
    handler: &'a dyn Handler,
    share_stamp: &'a str,
    prepared: Prepared,
    /// Whether the branch's row is inserted here.
    inserts: bool,
    number: String,
}

/// The row that stood in the way of the insert was dropped before it could be locked.
fn dropped() -> Trouble {
    let what = "the branch's row was dropped just now";
    Trouble::Again { reason: Reason::refused(what, "", true), error: what.into() }
}

fn no_work(error: Error) -> Trouble {
    trouble(error).without_refusal()
}

#[tonic::async_trait]
impl Rows for Open<'_> {
    async fn lock(&mut self, branch: BranchId) -> Result<(Fence, Option<Row>), Trouble> {
        let Self { database, share_stamp, prepared, inserts, number, .. } = self;
        let (xid, n) = (&branch.xid.as_bytes()[..], i64::from(branch.number));
        // They leave in this order, in one go.
        let key: [&(dyn ToSql + Sync); 2] = [&xid, &n];
        let insert = async { if *inserts { database.execute(&prepared.insert, &key).await } else { Ok(0) } };
        let locked = try_join5(
            database.batch_execute(share_stamp),
            database.query_one(&prepared.stamp, &[]),
            insert,
            database.query_opt(&prepared.lock, &key),
            database.query_one(&prepared.horizon, &[]),
        );
        let ((), stamp, _, row, horizon) = locked.await.map_err(trouble)?;
        let mut fence = read_fence(&stamp).map_err(trouble)?;
        fence.horizon = LogTime::from_millis(unsigned(horizon.get(0)));
        let Some(row) = row else { return Err(dropped()) };
        *number = row.try_get(5).map_err(trouble)?;
        Ok((fence, read_row(&row)?))
    }

    async fn reserve(&mut self, branch: BranchId, payload: &[u8]) -> Result<Reservation, Trouble> {
        self.handler.reserve(&self.database, branch, payload).await.map_err(trouble)
    }

    async fn finish(&mut self, finish: Finish, branch: BranchId, payload: &[u8]) -> Result<(), Trouble> {
        let finished = match finish {
            Finish::Confirm => self.handler.confirm(&self.database, branch, payload),
            Finish::Cancel => self.handler.cancel(&self.database, branch, payload),
        };
        finished.await.map_err(trouble)
    }

    async fn save(&mut self, branch: BranchId, row: &Row, keep_until: LogTime) -> Result<(), Trouble> {
        let (xid, number) = (&branch.xid.as_bytes()[..], i64::from(branch.number));
        let text = row.reason.as_ref().map(|reason| without_nul(&reason.text));
        let source_code = row.reason.as_ref().map(|reason| without_nul(&reason.source_code));
        let retryable = row.reason.as_ref().map(|reason| reason.retryable);
        let (state, keep_until) = (code(row.record), signed(keep_until.as_millis()));
        let values: [&(dyn ToSql + Sync); 9] =
            [&xid, &number, &state, &&*row.payload, &text, &source_code, &retryable, &keep_until, &self.number];
        let saved = self.database.execute(&self.prepared.save, &values).await;
        match saved.map_err(trouble).map_err(Trouble::without_refusal)? {
            1 => Ok(()),
            _ => Err(Trouble::unavailable(ENDED_EARLY)),
        }
    }
}

fn read_row(row: &SqlRow) -> Result<Option<Row>, Trouble> {
    let state: i16 = row.try_get(0).map_err(trouble)?;
    if state == UNKNOWN {
        return Ok(None);
    }
    let record = record(state.into()).ok_or_else(|| Trouble::unavailable(DAMAGED))?;
    let payload = row.try_get::<_, &[u8]>(1).map_err(trouble)?.to_vec().into();
    let text: Option<String> = row.try_get(2).map_err(trouble)?;
    let source_code: Option<String> = row.try_get(3).map_err(trouble)?;
    let retryable: Option<bool> = row.try_get(4).map_err(trouble)?;
    let reason = text.map(|text| Reason::refused(text, source_code.unwrap_or_default(), retryable.unwrap_or_default()));
    Ok(Some(Row { record, payload, reason }))
}

/// PostgreSQL's texts can't hold that character.
fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}
