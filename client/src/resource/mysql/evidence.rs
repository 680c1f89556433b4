//! The rows that branches write of themselves: which of them were committed, and which session holds one that is not.

use std::time::Duration;

use mysql_async::{Conn, Result, prelude::Queryable};
use verdict_protocol::ClusterId;

use super::name::{XaName, hex};

pub(super) const SCHEMA: &str = include_str!("verdict_branches.sql");

/// How long a row is kept, from its transaction's birth and from its writing, by the database's clock.
const KEEP: Duration = Duration::from_secs(6 * 3600);
/// How many rows a sweep deletes at most: it takes a tenth of a second.
pub(super) const SWEEP_ROWS: usize = 2000;

/// The table of evidence, with its database's name and quoted: an application may have moved its session to another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table(String);

/// The session that prepared a branch, while the branch is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) connection: u64,
    /// How long ago it was prepared.
    pub(super) held: Duration,
    /// Its number is its own only if the server has not been restarted since.
    pub(super) is_of_this_start: bool,
}

/// What a row, or its absence, says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trace {
    Committed,
    NotCommitted,
    /// It may have been swept.
    Gone,
}

impl Table {
    /// None if no database is named for the connection.
    pub(super) fn of(connection: &Conn) -> Option<Self> {
        Some(Self::within(connection.opts().db_name()?))
    }

    fn within(database: &str) -> Self {
        Self(format!("`{}`.verdict_branches", database.replace('`', "``")))
    }

    pub(super) fn database(connection: &Conn) -> Option<&str> {
        connection.opts().db_name()
    }

    /// To be run in the branch, in the session that prepares it.
    pub(super) fn insert(&self, XaName { gtrid, bqual }: &XaName) -> String {
        let Self(table) = self;
        format!("INSERT INTO {table} (gtrid, bqual, connection_id) VALUES (X'{gtrid}', X'{bqual}', CONNECTION_ID())")
    }

    /// Creates it unless it is there: one who may not create tables can still use it.
    pub(super) async fn create(&self, connection: &mut Conn) -> Result<()> {
        const NO_SUCH_TABLE: u16 = 1146;
        let Self(table) = self;
        match connection.query_drop(format!("SELECT 1 FROM {table} LIMIT 0")).await {
            Err(mysql_async::Error::Server(error)) if error.code == NO_SUCH_TABLE => {
                let named = SCHEMA.replacen("verdict_branches (", &format!("{table} ("), 1);
                connection.query_drop(named).await
            }
            asked => asked,
        }
    }

    /// When it was created, in seconds since the epoch.
    pub(super) async fn created(&self, connection: &mut Conn) -> Result<Option<u64>> {
        const LOOK: &str = "SELECT UNIX_TIMESTAMP(CREATE_TIME) FROM information_schema.TABLES \
                            WHERE TABLE_SCHEMA = ? AND TABLE_NAME = 'verdict_branches'";
        let database = Self::database(connection).unwrap_or_default().to_owned();
        connection.exec_first(LOOK, (database,)).await
    }

    /// To be asked once the branch is known not to be prepared.
    pub(super) async fn trace(
        &self,
        connection: &mut Conn,
        XaName { gtrid, bqual }: &XaName,
        birth_ms: u64,
    ) -> Result<Trace> {
        let Self(table) = self;
        let look = format!(
            "SELECT EXISTS(SELECT 1 FROM {table} WHERE gtrid = X'{gtrid}' AND bqual = X'{bqual}'), \
             CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS UNSIGNED)"
        );
        let (committed, now_ms): (bool, u64) = connection.query_first(look).await?.unwrap_or_default();
        Ok(match committed {
            true => Trace::Committed,
            false if birth_ms < now_ms.saturating_sub(millis(KEEP)) => Trace::Gone,
            false => Trace::NotCommitted,
        })
    }

    /// The row of a branch that is prepared can be read uncommitted alone. None if it wrote none.
    pub(super) async fn holder(
        &self,
        connection: &mut Conn,
        XaName { gtrid, bqual }: &XaName,
    ) -> Result<Option<Holder>> {
        let Self(table) = self;
        let look = format!(
            "SELECT connection_id, CAST(GREATEST(0, UNIX_TIMESTAMP(NOW(3)) - UNIX_TIMESTAMP(prepared_at)) * 1000 \
             AS UNSIGNED) FROM {table} WHERE gtrid = X'{gtrid}' AND bqual = X'{bqual}'"
        );
        connection.query_drop("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED").await?;
        let Some((connection_id, held_ms)) = connection.query_first::<(u64, u64), _>(look).await? else {
            return Ok(None);
        };
        let held = Duration::from_millis(held_ms);
        let is_of_this_start = held.as_secs() <= uptime(connection).await?.as_secs();
        Ok(Some(Holder { connection: connection_id, held, is_of_this_start }))
    }

    /// Deletes rows that are too old to be asked for, the oldest first; how many. Those that are prepared it does not
    /// see, so it waits for no lock.
    pub(super) async fn sweep(&self, connection: &mut Conn, cluster: ClusterId) -> Result<usize> {
        let (Self(table), cluster, keep) = (self, hex(cluster.0), millis(KEEP));
        // A name begins with the cluster and, in milliseconds, the transaction's birth.
        let look = format!(
            "SELECT gtrid, bqual FROM {table} WHERE gtrid >= X'{cluster}' AND gtrid < UNHEX(CONCAT('{cluster}', \
             LPAD(HEX(CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS UNSIGNED) - {keep}), 12, '0'))) \
             AND prepared_at < NOW(3) - INTERVAL {} SECOND ORDER BY gtrid, bqual LIMIT {SWEEP_ROWS}",
            KEEP.as_secs()
        );
        let old: Vec<(Vec<u8>, Vec<u8>)> = connection.query(look).await?;
        let keys = old.iter().map(|(gtrid, bqual)| format!("gtrid = X'{}' AND bqual = X'{}'", hex(gtrid), hex(bqual)));
        let keys = keys.collect::<Vec<_>>().join(" OR ");
        if !keys.is_empty() {
            connection.query_drop(format!("DELETE FROM {table} WHERE {keys}")).await?;
        }
        Ok(old.len())
    }
}

/// How long the server has run, in whole seconds.
pub(super) async fn uptime(connection: &mut Conn) -> Result<Duration> {
    let up: Option<(String, u64)> = connection.query_first("SHOW GLOBAL STATUS LIKE 'Uptime'").await?;
    Ok(Duration::from_secs(up.map_or(0, |(_, seconds)| seconds)))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn a_database_may_have_any_name() {
        assert_eq!(Table::within("a`b").0, "`a``b`.verdict_branches");
    }
}
