//! The branch table's transactions.

use std::{fmt, sync::Arc};

use mysql_async::{Error, IsolationLevel, Pool, Transaction, prelude::Queryable};
use verdict_protocol::{BranchId, LogTime};

use super::{
    super::settings::Settings,
    Handler, OpenError, TableOptions,
    errors::{is_locked, no_connection, trouble},
    lease::Lease,
    sql::{Damaged, Locked, Tables},
};
use crate::{
    participant::{Fence, Purpose, Stamp},
    resource::{
        Reservation,
        table::{
            Call, Finish, Row, claim,
            engine::{Rows, Run, Step, Store, Trouble, commits, perform},
            judge_settings,
        },
    },
};

/// Under which a commit is not durable, or does not happen at all.
const SETTINGS: [&str; 5] =
    ["version", "read_only", "innodb_force_recovery", "innodb_flush_log_at_trx_commit", "sync_binlog"];
const NO_SUCH_TABLE: u16 = 1146;

pub(super) struct MysqlStore {
    pool: Pool,
    handler: Arc<dyn Handler>,
    isolation: Option<IsolationLevel>,
    tables: Tables,
}

impl MysqlStore {
    pub(super) async fn open(pool: Pool, handler: Arc<dyn Handler>, options: TableOptions) -> Result<Self, OpenError> {
        let TableOptions { cluster, isolation, .. } = options;
        let mut lease = Lease::take(&pool, None).await.map_err(OpenError::connect)?;
        let settings = Settings::read(lease.connection()).await.map_err(OpenError::connect)?;
        judge_settings(settings.findings(), &SETTINGS)?;
        let database = lease.connection().opts().db_name().ok_or(OpenError::NoDatabase)?;
        let tables = Tables::of(database);
        match lease.connection().query_drop(tables.look()).await {
            // It commits by itself.
            Err(Error::Server(said)) if said.code == NO_SUCH_TABLE => {
                lease.connection().query_drop(tables.create()).await.map_err(OpenError::schema)?;
            }
            looked => looked.map_err(OpenError::schema)?,
        }
        let mut transaction = lease.begin().await.map_err(OpenError::connect)?;
        let found = tables.own_stamp(&mut transaction).await.map_err(OpenError::schema)?;
        let found = found.ok_or(OpenError::Damaged)?;
        if let Some(cluster) = claim(found, cluster)? {
            let claimed = Fence { cluster: Some(cluster), ..found.fence };
            tables.save_stamp(&mut transaction, &claimed).await.map_err(OpenError::schema)?;
        }
        let committed = transaction.commit().await;
        lease.came_to(committed).map_err(OpenError::schema)?;
        Ok(Self { pool, handler, isolation, tables })
    }

    async fn take(&self, isolation: Option<IsolationLevel>) -> Result<Lease, Trouble> {
        Lease::take(&self.pool, isolation).await.map_err(no_connection)
    }

    /// False if another is just about it.
    async fn raise_horizon(&self, horizon: LogTime) -> Result<bool, Trouble> {
        let mut lease = self.take(None).await?;
        let mut transaction = lease.begin().await.map_err(trouble)?;
        let raised = self.tables.raise_horizon(&mut transaction, horizon).await;
        let ended = if raised.is_ok() { transaction.commit().await } else { transaction.rollback().await };
        lease.came_to(ended).map_err(trouble)?;
        match raised {
            Ok(()) => Ok(true),
            Err(error) if is_locked(&error) => Ok(false),
            Err(error) => Err(trouble(error)),
        }
    }
}

#[tonic::async_trait]
impl Store for MysqlStore {
    async fn once<C: Call>(&self, call: &C, run: Run) -> Result<(Step<C::Answer>, Fence), Trouble> {
        let mut lease = self.take(self.isolation).await?;
        let (result, ended) = {
            let database = lease.begin().await.map_err(trouble).map_err(Trouble::without_refusal)?;
            let mut rows = Open { database, handler: &*self.handler, tables: &self.tables };
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
        let mut lease = self.take(None).await?;
        let mut transaction = lease.begin().await.map_err(trouble)?;
        let found = self.tables.own_stamp(&mut transaction).await.map_err(trouble)?;
        let mut fence = found.ok_or_else(damaged)?.fence;
        // Another may have been quicker.
        if fence.admit(stamp, Purpose::Outcome)? {
            self.tables.save_stamp(&mut transaction, &fence).await.map_err(trouble)?;
        }
        let committed = transaction.commit().await;
        lease.came_to(committed).map_err(trouble)
    }

    async fn purge(&self, horizon: LogTime) -> Result<usize, Trouble> {
        if !self.raise_horizon(horizon).await? {
            return Ok(0);
        }
        let mut lease = self.take(Some(IsolationLevel::ReadCommitted)).await?;
        let mut transaction = lease.begin().await.map_err(trouble)?;
        let purged = self.tables.purge(&mut transaction, horizon).await.map_err(trouble)?;
        let committed = transaction.commit().await;
        lease.came_to(committed).map_err(trouble)?;
        Ok(purged)
    }

    async fn in_doubt(&self, limit: usize) -> Result<Vec<BranchId>, Trouble> {
        let mut lease = self.take(Some(IsolationLevel::ReadCommitted)).await?;
        let mut transaction = lease.begin().await.map_err(trouble)?;
        let branches = self.tables.in_doubt(&mut transaction, limit).await.map_err(trouble)?;
        let committed = transaction.commit().await;
        lease.came_to(committed).map_err(trouble)?;
        branches.ok_or_else(damaged)
    }
}

fn damaged() -> Trouble {
    Trouble::unavailable("the branch table is not as this program writes it: restore it")
}

/// A transaction that is open.
struct Open<'a> {
    database: Transaction<'a>,
    handler: &'a dyn Handler,
    tables: &'a Tables,
}

#[tonic::async_trait]
impl Rows for Open<'_> {
    async fn lock(&mut self, branch: BranchId) -> Result<(Fence, Option<Row>), Trouble> {
        match self.tables.lock(&mut self.database, branch).await.map_err(trouble)? {
            Ok(Locked { fence, row }) => Ok((fence, row)),
            Err(Damaged) => Err(damaged()),
        }
    }

    async fn reserve(&mut self, branch: BranchId, payload: &[u8]) -> Result<Reservation, Trouble> {
        self.handler.reserve(&mut self.database, branch, payload).await.map_err(trouble)
    }

    async fn finish(&mut self, finish: Finish, branch: BranchId, payload: &[u8]) -> Result<(), Trouble> {
        let finished = match finish {
            Finish::Confirm => self.handler.confirm(&mut self.database, branch, payload),
            Finish::Cancel => self.handler.cancel(&mut self.database, branch, payload),
        };
        finished.await.map_err(trouble)
    }

    async fn save(&mut self, branch: BranchId, row: &Row, keep_until: LogTime) -> Result<(), Trouble> {
        let saved = self.tables.save(&mut self.database, branch, row, keep_until).await;
        match saved.map_err(trouble).map_err(Trouble::without_refusal)? {
            true => Ok(()),
            false => Err(damaged()),
        }
    }
}

impl fmt::Debug for MysqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlStore").finish_non_exhaustive()
    }
}
