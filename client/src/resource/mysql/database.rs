//! What an agent needs of MariaDB and MySQL, in their own statements.
//!
//! ```text
//!   XA COMMIT ─┬─ done
//!              ├─ XAER_NOTA ─▶ in XA RECOVER? ─ no ─▶ not prepared: its row, or the absence of it, says how it ended
//!              │                    └ yes ─▶ a session holds it ─▶ KILL, once it has hung ─▶ XA COMMIT again
//!              └─ any other error ─▶ asked again
//! ```
//!
//! MariaDB lets no other session end a branch as long as the one that prepared it is connected, and calls the branch
//! unknown meanwhile: XAER_NOTA alone says nothing. Since 8.0.29 MySQL detaches a branch when it is prepared.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mysql_async::{Conn, Error, Opts, OptsBuilder, Pool, PoolConstraints, UrlError, prelude::Queryable};
use thiserror::Error as ThisError;
use tokio::time::{Instant, sleep, timeout};
use verdict_protocol::{BranchId, ClusterId, Outcome, ResourceName};

use super::{
    super::xa::{BranchName, Fate, Finding, Finished, Grade, Held, Identity, XaDatabase},
    errors::{NO_SUCH_THREAD, code, failed, is_over},
    evidence::{Holder, SWEEP_ROWS, Table, Trace, uptime},
    name::{XaName, branch_of},
    settings::Settings,
};
use crate::participant::{NotAnswered, with_causes};

/// A MariaDB or MySQL server, and one database on it whose name the resource goes by. Clones share the pool.
#[derive(Clone)]
pub struct Database {
    resource: ResourceName,
    pool: Pool,
    sweeps: Arc<Mutex<Sweeps>>,
}

/// Why a URL can't be used. It is not shown: it may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
pub enum DsnError {
    #[error("is no URL of MariaDB's or MySQL's: write mysql://user:password@host:port/database")]
    Syntax,
    #[error("names no {0}")]
    Missing(&'static str),
    #[error("has a parameter {0} that is not known, or a value of it that is not allowed")]
    Parameter(String),
    #[error("asks for TLS, which this version does not speak to databases: leave require_ssl out")]
    Tls,
    #[error("gets a pool of no connections: one at least is needed")]
    NoConnections,
}

/// When evidence that nobody needs any more is deleted.
#[derive(Clone, Copy, Debug, Default)]
struct Sweeps {
    /// Since when every look at the database has succeeded.
    in_touch_since: Option<Instant>,
    last: Option<Instant>,
}

/// How many connections in a row may turn out to have died in the pool.
pub(super) const DEAD_CONNECTIONS: usize = 8;
/// How long one call may take, its connection included.
const CALL: Duration = Duration::from_secs(5);
/// A session that has held a branch prepared for so long is taken to hang, and ended.
const HANGS_AFTER: Duration = Duration::from_secs(2);
/// A session is gone within milliseconds of its KILL, unless the server is busy.
const GONE_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// For so long outcomes can come in before evidence goes that they may need: after an outage many are on their way.
const IN_TOUCH_FOR: Duration = Duration::from_secs(3600);
const SWEEP_EVERY: Duration = Duration::from_secs(60);

impl Database {
    /// The pool's URL names the database. Its user must be that of the applications, or have the privilege `CONNECTION
    /// ADMIN` (MySQL: `CONNECTION_ADMIN`), to end sessions that hang; on MySQL it needs `XA_RECOVER_ADMIN` as well.
    #[must_use]
    pub fn new(resource: ResourceName, pool: Pool) -> Self {
        Self { resource, pool, sweeps: Arc::default() }
    }

    /// The database of a URL, with a [`pool`] of its own.
    ///
    /// # Errors
    /// [`DsnError`]
    pub fn at(resource: ResourceName, url: &str, connections: usize) -> Result<Self, DsnError> {
        Ok(Self::new(resource, pool(url, connections)?))
    }

    #[must_use]
    pub fn resource(&self) -> &ResourceName {
        &self.resource
    }

    pub(super) async fn connect(&self) -> Result<Conn, Error> {
        self.pool.get_conn().await
    }

    /// A connection that works, on which each statement stands for itself.
    async fn reach(&self) -> Result<(Conn, Table), NotAnswered> {
        let unreachable = |error| failed(format!("{}: no connection to the server", self.resource), error);
        let mut dead = 0;
        let connection = loop {
            let mut connection = self.connect().await.map_err(unreachable)?;
            match connection.query_drop("SET autocommit = 1").await {
                Ok(()) => break connection,
                // It has died in the pool.
                Err(error) if error.is_fatal() && dead < DEAD_CONNECTIONS => dead += 1,
                Err(error) => return Err(unreachable(error)),
            }
        };
        let table = Table::of(&connection)
            .ok_or_else(|| NotAnswered::unavailable(format!("{}: its URL names no database", self.resource)))?;
        Ok((connection, table))
    }

    /// Deletes up to 2,000 rows of evidence that are too old to be asked for, and says how many. An agent does so by
    /// itself, once it has been in touch with the database for an hour.
    ///
    /// # Errors
    /// [`NotAnswered`] if the database can't be asked.
    pub async fn sweep_evidence(&self, cluster: ClusterId) -> Result<usize, NotAnswered> {
        within(async {
            let (mut connection, table) = self.reach().await?;
            let swept = table.sweep(&mut connection, cluster).await;
            swept.map_err(|error| failed("old rows of verdict_branches can't be deleted", error))
        })
        .await
    }

    /// As [`XaDatabase::finish`]. A session that holds the branch is ended if it has done so for as long as `patience`.
    pub(super) async fn end(
        &self,
        name: BranchName,
        outcome: Outcome,
        patience: Duration,
    ) -> Result<Finished, NotAnswered> {
        let xa_name = XaName::new(&self.resource, name);
        let (mut connection, table) = self.reach().await?;
        let connection = &mut connection;
        if tell(connection, &xa_name, outcome).await? == Told::Done {
            return Ok(Finished::Done);
        }
        if !self.recover(connection, name.cluster).await?.contains(&name.branch) {
            return Ok(Finished::NotPrepared);
        }
        let holder =
            table.holder(connection, &xa_name).await.map_err(|error| failed("no word of who holds it", error))?;
        match holder {
            Some(Holder { connection: id, held, is_of_this_start: true }) if held >= patience => {
                tracing::warn!(resource = %self.resource, branch = %name, connection = id, ?held, "its session hangs: ended");
                end_session(connection, id).await?;
            }
            _ => return Ok(Finished::InSession),
        }
        let by = Instant::now() + GONE_WITHIN;
        loop {
            match tell(connection, &xa_name, outcome).await? {
                Told::Done => return Ok(Finished::Done),
                Told::Unknown if Instant::now() >= by => return Ok(Finished::InSession),
                Told::Unknown => sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Sees to it that a session of the application's own is gone, in which the server may still run what it was last
    /// asked: nothing gets prepared in it any more.
    pub(super) async fn outlive(&self, session: u32, begun: Instant) -> Result<(), NotAnswered> {
        within(async {
            let (mut connection, _) = self.reach().await?;
            let unread = |error| failed("whether the session is gone can't be read", error);
            // If the server was started since, the number may be another session's.
            if uptime(&mut connection).await.map_err(unread)? <= begun.elapsed() {
                return Ok(());
            }
            end_session(&mut connection, session.into()).await?;
            let look = format!("SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = {session}");
            while connection.query_first::<u64, _>(&look).await.map_err(unread)?.is_some() {
                sleep(LOOK_EVERY).await;
            }
            Ok(())
        })
        .await
    }

    async fn recover(&self, connection: &mut Conn, cluster: ClusterId) -> Result<Vec<BranchId>, NotAnswered> {
        let rows: Vec<(u64, usize, usize, Vec<u8>)> =
            connection.query("XA RECOVER").await.map_err(|error| failed("what is prepared can't be read", error))?;
        let mut held: Vec<_> = rows.iter().filter_map(|row| branch_of(&self.resource, cluster, row)).collect();
        held.sort_unstable();
        Ok(held)
    }

    /// An error of it harms nobody: it comes again.
    async fn sweep_if_due(&self, connection: &mut Conn, table: &Table, cluster: ClusterId) {
        if !self.sweep_is_due(Instant::now()) {
            return;
        }
        match table.sweep(connection, cluster).await {
            Ok(deleted) if deleted == SWEEP_ROWS => self.sweeps(|sweeps| sweeps.last = None),
            Ok(_) => {}
            Err(error) => tracing::warn!(resource = %self.resource, %error, "old rows of verdict_branches stay"),
        }
    }

    fn sweep_is_due(&self, now: Instant) -> bool {
        self.sweeps(|sweeps| {
            let in_touch = now.duration_since(*sweeps.in_touch_since.get_or_insert(now));
            let due =
                in_touch >= IN_TOUCH_FOR && sweeps.last.is_none_or(|last| now.duration_since(last) >= SWEEP_EVERY);
            if due {
                sweeps.last = Some(now);
            }
            due
        })
    }

    fn sweeps<T>(&self, change: impl FnOnce(&mut Sweeps) -> T) -> T {
        change(&mut self.sweeps.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn list(&self, cluster: ClusterId, limit: usize) -> Result<Vec<Held>, NotAnswered> {
        let (mut connection, table) = self.reach().await?;
        let held = self.recover(&mut connection, cluster).await?;
        self.sweep_if_due(&mut connection, &table, cluster).await;
        Ok(held.into_iter().take(limit).map(|branch| Held { branch, evidence: LISTED.into() }).collect())
    }
}

/// The host of a URL, if it is reached over a network, or over this machine's.
///
/// # Errors
/// [`DsnError`]
pub fn hosts(url: &str) -> Result<Vec<String>, DsnError> {
    let options = options(url)?;
    let by_network = options.socket().is_none();
    Ok(by_network.then(|| options.ip_or_hostname().to_owned()).into_iter().collect())
}

/// A pool of at most so many connections to the database of a URL, `mysql://user:password@host:port/database`. None is
/// made yet. Each is reset when it comes back, with all that the application has set in it and the statements that it keeps
/// prepared; `?reset_connection=false` spares that where nothing is set.
///
/// # Errors
/// [`DsnError`]
pub fn pool(url: &str, connections: usize) -> Result<Pool, DsnError> {
    let options = options(url)?;
    let bounds = PoolConstraints::new(0, connections).filter(|_| connections > 0).ok_or(DsnError::NoConnections)?;
    let pool = options.pool_opts().clone().with_constraints(bounds);
    Ok(Pool::new(OptsBuilder::from_opts(options).pool_opts(pool)))
}

fn options(url: &str) -> Result<Opts, DsnError> {
    let options = Opts::from_url(url.trim()).map_err(|error| match error {
        UrlError::UnknownParameter { param }
        | UrlError::InvalidParamValue { param, .. }
        | UrlError::FeatureRequired { param, .. } => DsnError::Parameter(param),
        UrlError::Invalid
        | UrlError::InvalidPoolConstraints { .. }
        | UrlError::Parse(_)
        | UrlError::UnsupportedScheme { .. } => DsnError::Syntax,
    })?;
    // The driver would go on without.
    if options.ssl_opts().is_some() {
        return Err(DsnError::Tls);
    }
    if options.user().is_none_or(str::is_empty) {
        return Err(DsnError::Missing("user"));
    }
    if options.db_name().is_none_or(str::is_empty) {
        return Err(DsnError::Missing("database"));
    }
    Ok(options)
}

fn finding(setting: &'static str, refused: Option<NotAnswered>) -> Finding {
    let (value, grade) = if refused.is_some() { ("refused", Grade::Error) } else { ("can be used", Grade::Fine) };
    let advice = refused.map(|error| with_causes(&error)).unwrap_or_default();
    Finding { setting, value: value.to_owned(), grade, advice }
}

/// The evidence of a branch that was listed: its row is looked for under its name.
const LISTED: &[u8] = b"listed";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Done,
    /// There is none that this session may end, or there was and the database rolled it back.
    Unknown,
}

/// A branch that was rolled back before it was told to commit is one of which its row tells.
async fn tell(connection: &mut Conn, name: &XaName, outcome: Outcome) -> Result<Told, NotAnswered> {
    let verb = match outcome {
        Outcome::Committed => "XA COMMIT",
        Outcome::Aborted => "XA ROLLBACK",
    };
    match connection.query_drop(format!("{verb} {name}")).await {
        Ok(()) => Ok(Told::Done),
        Err(error) if code(&error).is_some_and(is_over) => Ok(Told::Unknown),
        Err(error) => Err(failed(format!("{verb} {name} failed"), error)),
    }
}

/// Ends another session. It may be there for some milliseconds more.
async fn end_session(connection: &mut Conn, id: u64) -> Result<(), NotAnswered> {
    match connection.query_drop(format!("KILL {id}")).await {
        Err(error) if code(&error) != Some(NO_SUCH_THREAD) => {
            Err(failed(format!("connection {id} hangs and can't be ended"), error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A connection whose call was given up on does not go back to the pool: its driver closes it.
async fn within<T>(call: impl Future<Output = Result<T, NotAnswered>>) -> Result<T, NotAnswered> {
    timeout(CALL, call)
        .await
        .unwrap_or_else(|_| Err(NotAnswered::unavailable(format!("the database did not answer within {CALL:?}"))))
}

/// The pool would write its password.
impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MariaDB or MySQL {}", self.resource)
    }
}

#[tonic::async_trait]
impl XaDatabase for Database {
    /// Creates the table of evidence if it is missing. Its age stands for the timeline: a database that was restored has
    /// a table that was created anew.
    async fn probe(&self) -> Result<Identity, NotAnswered> {
        within(async {
            let (mut connection, table) = self.reach().await?;
            let no_word = |error| failed("the server's settings can't be read", error);
            let settings = Settings::read(&mut connection).await.map_err(no_word)?;
            if settings.is_read_only() {
                return Err(NotAnswered::unavailable(format!("{}: the server is read_only", self.resource)));
            }
            table.create(&mut connection).await.map_err(|error| failed("verdict_branches is missing", error))?;
            let created = table.created(&mut connection).await.map_err(no_word)?;
            Ok(Identity { system: settings.server(), timeline: created.map(|at| at.to_string()).unwrap_or_default() })
        })
        .await
    }

    async fn check(&self) -> Result<Vec<Finding>, NotAnswered> {
        within(async {
            let (mut connection, table) = self.reach().await?;
            let settings = Settings::read(&mut connection).await;
            let settings = settings.map_err(|error| failed("the server's settings can't be read", error))?;
            let mut findings = settings.findings();
            // Where each is refused, nothing can be settled.
            let recover = self.recover(&mut connection, ClusterId([0; 16])).await.err();
            findings.push(finding("XA RECOVER", recover));
            let evidence = table.create(&mut connection).await.err();
            findings.push(finding("verdict_branches", evidence.map(|error| failed("is missing", error))));
            Ok(findings)
        })
        .await
    }

    async fn list_prepared(&self, cluster: ClusterId, limit: usize) -> Result<Vec<Held>, NotAnswered> {
        let listed = within(self.list(cluster, limit)).await;
        if listed.is_err() {
            self.sweeps(|sweeps| sweeps.in_touch_since = None);
        }
        listed
    }

    async fn holds(&self, name: BranchName) -> Result<bool, NotAnswered> {
        within(async {
            let (mut connection, _) = self.reach().await?;
            Ok(self.recover(&mut connection, name.cluster).await?.contains(&name.branch))
        })
        .await
    }

    /// The session that prepared the branch is told the outcome by its application, which is quicker; one that is late is
    /// ended. Which one that is stands in the branch's own row, so nothing that was brought along has to be believed.
    async fn finish(&self, name: BranchName, outcome: Outcome, _: &[u8]) -> Result<Finished, NotAnswered> {
        within(self.end(name, outcome, HANGS_AFTER)).await
    }

    async fn fate(&self, name: BranchName, _: &[u8]) -> Result<Fate, NotAnswered> {
        within(async {
            let (mut connection, table) = self.reach().await?;
            // In this order: one that ends in between has its row.
            if self.recover(&mut connection, name.cluster).await?.contains(&name.branch) {
                return Ok(Fate::Open);
            }
            let (xa_name, birth) = (XaName::new(&self.resource, name), name.branch.xid.birth().as_millis());
            let trace = table.trace(&mut connection, &xa_name, birth).await;
            Ok(match trace.map_err(|error| failed("how the branch ended can't be read", error))? {
                Trace::Committed => Fate::Committed,
                Trace::NotCommitted => Fate::Aborted,
                Trace::Gone => Fate::Unknown,
            })
        })
        .await
    }
}
