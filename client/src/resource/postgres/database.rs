//! PostgreSQL's statements behind [`XaDatabase`].

use std::{fmt, time::Duration};

use deadpool::managed::HookResult;
use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use thiserror::Error;
use tokio::time::timeout;
use tokio_postgres::{
    Client, Config, NoTls, SimpleQueryMessage, SimpleQueryRow,
    config::{Host, SslMode},
    error::SqlState,
};
use verdict_protocol::{ClusterId, Outcome, ResourceName};

use super::{
    check::check,
    evidence::{Evidence, with_epoch},
    gid::{Gid, branch_of, prefix},
    lease::Lease,
};
use crate::{
    participant::NotAnswered,
    resource::xa::{BranchName, Fate, Finding, Finished, Held, Identity, XaDatabase},
};

/// The timeline that is written now. Fails at a standby.
pub(super) const TIMELINE: &str = "('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int8";

/// A database as its agent uses it. Clones share the pool.
#[derive(Clone)]
pub struct Database {
    resource: ResourceName,
    pool: Pool,
}

/// How long one question may take, with the connection that it may need first.
pub(super) const WITHIN: Duration = Duration::from_secs(5);
/// How many connections in a row may turn out to have died in the pool.
pub(super) const DEAD_CONNECTIONS: usize = 8;
/// A connection that was used so lately is taken to work.
const FRESH: Duration = Duration::from_secs(1);

/// Why a connection string can't be used. The string is not shown: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DsnError {
    #[error(
        "is no connection string of PostgreSQL: write host=… user=… dbname=… or postgres://user:password@host:port/database"
    )]
    Syntax,
    #[error("names no {0}")]
    Missing(&'static str),
    #[error("asks for TLS, which this version does not speak to databases: leave sslmode out")]
    Tls,
    #[error("gets a pool of no connections: one at least is needed")]
    NoConnections,
}

impl Database {
    /// The database that the pool leads to. No connection is made yet.
    #[must_use]
    pub fn new(resource: ResourceName, pool: Pool) -> Self {
        Self { resource, pool }
    }

    /// The database of a connection string, with a [`pool`] of its own.
    ///
    /// # Errors
    /// [`DsnError`]
    pub fn at(resource: ResourceName, dsn: &str, connections: usize) -> Result<Self, DsnError> {
        Ok(Self::new(resource, pool(dsn, connections)?))
    }

    /// Asks in one round, outside of any transaction block.
    async fn ask<T>(
        &self,
        what: impl Fn() -> String,
        ask: impl AsyncFnOnce(&Lease) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, NotAnswered> {
        let resource = &self.resource;
        let asked = timeout(WITHIN, async {
            let lease = Lease::take(&self.pool).await.map_err(|error| NotAnswered::Unavailable {
                what: format!("{resource}: no connection to PostgreSQL"),
                source: Some(Box::new(error)),
            })?;
            let result = ask(&lease).await;
            lease.came_to(result).map_err(|error| failed(format!("{resource}: {}", what()), error))
        });
        asked.await.unwrap_or_else(|_| {
            Err(NotAnswered::unavailable(format!("{resource}: {}: no answer within {WITHIN:?}", what())))
        })
    }
}

/// The hosts of a connection string that are reached over a network, or over this machine's.
///
/// # Errors
/// [`DsnError::Syntax`]
pub fn hosts(dsn: &str) -> Result<Vec<String>, DsnError> {
    let config: Config = dsn.trim().parse().map_err(|_| DsnError::Syntax)?;
    let named = config.get_hosts().iter().filter_map(|host| match host {
        Host::Tcp(name) => Some(name.clone()),
        Host::Unix(_) => None,
    });
    Ok(named.chain(config.get_hostaddrs().iter().map(ToString::to_string)).collect())
}

/// A pool of at most so many connections. None is made yet; those that wait there are asked for a sign of life before they
/// are used. A connection is waited for, and made, for five seconds at most.
///
/// # Errors
/// [`DsnError`]
pub fn pool(dsn: &str, connections: usize) -> Result<Pool, DsnError> {
    let mut config: Config = dsn.trim().parse().map_err(|_| DsnError::Syntax)?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err(DsnError::Missing("host"));
    }
    if config.get_user().is_none() {
        return Err(DsnError::Missing("user"));
    }
    if config.get_dbname().is_none() {
        return Err(DsnError::Missing("dbname"));
    }
    if !matches!(config.get_ssl_mode(), SslMode::Disable | SslMode::Prefer) {
        return Err(DsnError::Tls);
    }
    if connections == 0 {
        return Err(DsnError::NoConnections);
    }
    if config.get_application_name().is_none() {
        config.application_name("verdict");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(WITHIN);
    }
    let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    Pool::builder(Manager::from_config(config, NoTls, manager))
        .max_size(connections)
        .pre_recycle(Hook::async_fn(|client, metrics| Box::pin(shows_life(client, metrics.last_used()))))
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(WITHIN))
        .create_timeout(Some(WITHIN))
        .build()
        .map_err(|_| DsnError::NoConnections)
}

/// Costs a round, so it is not asked of a connection that was just in use.
async fn shows_life(client: &Client, idle: Duration) -> HookResult<tokio_postgres::Error> {
    if idle < FRESH {
        return Ok(());
    }
    let answered = timeout(WITHIN / 5, client.simple_query("")).await;
    let answered = answered.map_err(|_| HookError::message("an idle connection did not answer"))?;
    answered.map(drop).map_err(HookError::Backend)
}

#[tonic::async_trait]
impl XaDatabase for Database {
    async fn probe(&self) -> Result<Identity, NotAnswered> {
        let identity = format!("SELECT (SELECT system_identifier FROM pg_control_system()), {TIMELINE}");
        let what = || "whose data it holds can't be read".to_owned();
        let rows = self.ask(what, async |client| rows(client, &identity).await).await?;
        let text = |column| rows.first().and_then(|row| row.get(column)).unwrap_or_default().to_owned();
        Ok(Identity { system: text(0), timeline: text(1) })
    }

    async fn check(&self) -> Result<Vec<Finding>, NotAnswered> {
        self.ask(|| "its settings can't be read".to_owned(), async |client| check(client).await).await
    }

    async fn list_prepared(&self, cluster: ClusterId, limit: usize) -> Result<Vec<Held>, NotAnswered> {
        let list = format!(
            "SELECT gid, transaction, pg_snapshot_xmax(pg_current_snapshot()), {TIMELINE} FROM pg_prepared_xacts \
             WHERE database = current_database() AND starts_with(gid, '{}') ORDER BY prepared LIMIT {limit}",
            prefix(cluster)
        );
        let what = || "what is prepared can't be read".to_owned();
        let rows = self.ask(what, async |client| rows(client, &list).await).await?;
        let held = |row: &SimpleQueryRow| {
            let branch = branch_of(cluster, row.get(0)?)?;
            let (low, near) = (row.get(1)?.parse().ok()?, row.get(2)?.parse().ok()?);
            let evidence = Evidence { xid8: with_epoch(low, near), timeline: row.get(3)?.parse().ok()? };
            Some(Held { branch, evidence: evidence.to_bytes() })
        };
        Ok(rows.iter().filter_map(held).collect())
    }

    async fn holds(&self, name: BranchName) -> Result<bool, NotAnswered> {
        let what = || format!("whether {} is prepared can't be read", Gid(name));
        self.ask(what, async |client| holds(client, Gid(name)).await).await
    }

    async fn finish(&self, name: BranchName, outcome: Outcome, _: &[u8]) -> Result<Finished, NotAnswered> {
        self.ask(|| unfinished(Gid(name), outcome), async |client| finish(client, Gid(name), outcome).await).await
    }

    async fn fate(&self, name: BranchName, evidence: &[u8]) -> Result<Fate, NotAnswered> {
        let Some(evidence) = Evidence::read(evidence) else { return Ok(Fate::Unknown) };
        let what = || format!("how {} ended, transaction {evidence}, can't be read", Gid(name));
        self.ask(what, async |client| fate(client, evidence).await).await
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgreSQL {}", self.resource)
    }
}

/// Without a statement of its own to prepare: one round, also through a pooler.
pub(super) async fn rows(client: &Client, query: &str) -> Result<Vec<SimpleQueryRow>, tokio_postgres::Error> {
    let messages = client.simple_query(query).await?;
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    };
    Ok(messages.into_iter().filter_map(row).collect())
}

pub(super) async fn holds(client: &Client, gid: Gid) -> Result<bool, tokio_postgres::Error> {
    let look = format!("SELECT 1 FROM pg_prepared_xacts WHERE gid = '{gid}' AND database = current_database()");
    Ok(!rows(client, &look).await?.is_empty())
}

pub(super) async fn finish(client: &Client, gid: Gid, outcome: Outcome) -> Result<Finished, tokio_postgres::Error> {
    match client.batch_execute(&format!("{} PREPARED '{gid}'", verb(outcome))).await {
        Ok(()) => Ok(Finished::Done),
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_OBJECT) => Ok(Finished::NotPrepared),
        Err(error) => Err(error),
    }
}

pub(super) async fn fate(client: &Client, evidence: Evidence) -> Result<Fate, tokio_postgres::Error> {
    let Evidence { xid8, timeline } = evidence;
    let status = format!("SELECT pg_xact_status('{xid8}'::xid8) WHERE {TIMELINE} = {timeline}");
    let rows = match rows(client, &status).await {
        // The number is of a future that this database, restored, has not come to.
        Err(error) if error.code() == Some(&SqlState::INVALID_PARAMETER_VALUE) => Vec::new(),
        asked => asked?,
    };
    Ok(match rows.first().and_then(|row| row.get(0)) {
        Some("committed") => Fate::Committed,
        Some("aborted") => Fate::Aborted,
        Some("in progress") => Fate::Open,
        _ => Fate::Unknown,
    })
}

pub(super) fn unfinished(gid: Gid, outcome: Outcome) -> String {
    format!("{} PREPARED of {gid} failed", verb(outcome))
}

fn verb(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Committed => "COMMIT",
        Outcome::Aborted => "ROLLBACK",
    }
}

/// No answer: it is asked again.
pub(super) fn failed(what: String, error: tokio_postgres::Error) -> NotAnswered {
    let advice = match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            ": only the role that prepared it, or a superuser, may end it; let the agent log in as one of them"
        }
        Some(&SqlState::FEATURE_NOT_SUPPORTED) => ": let the agent connect to the database that it was prepared in",
        Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) => {
            ": a standby takes no writes; if it is none, another ends it"
        }
        _ => "",
    };
    NotAnswered::Unavailable { what: format!("{what}{advice}"), source: Some(Box::new(error)) }
}
