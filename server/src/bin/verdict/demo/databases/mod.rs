//! Real servers for the demo's bookings: found on this machine, made in the demo's folder, reached over loopback with a
//! password of their own.
//!
//! ```text
//!   find ─▶ make (initdb, mariadb-install-db) ─▶ the fleet runs it ─▶ set up ─▶ tills: bookings
//!                                                                          └──▶ books: the audit
//! ```
//!
//! Neither server runs as root: started by root, it runs as the user that its package has made.

mod install;
mod mariadb;
mod owner;
mod postgres;
mod tables;
mod till;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use clap::ValueEnum;
use rustix::process::Signal;
use thiserror::Error;
use tokio::time::{sleep, timeout};
use verdict_client::Verdict;

pub(super) use self::{install::NotInstalled, tables::Stock, till::Till};
use self::{install::Programs, owner::Owner};
use super::bookings::Line;
use crate::participant::Kind;

/// How long a server may take until it answers. One that was killed reads its log first.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Connections beside those of bookings: the nodes' agents have eight each, the rest is for the audit.
const OTHER_CONNECTIONS: u16 = 40;

const DATABASE: &str = "bookings";
const USER: &str = "verdict";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Brand {
    Postgres,
    Mariadb,
}

/// Why a server can't be used.
#[derive(Debug, Error)]
pub(crate) enum ServerError {
    #[error(transparent)]
    NotInstalled(#[from] NotInstalled),
    #[error("{}: cannot be written", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{brand} does not run as root, and there is no user {user}, or no setpriv to become it: run the demo as another user"
    )]
    NoUser { brand: Brand, user: &'static str },
    #[error("{} cannot be run", program.display())]
    Run {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} failed, {status}; {hint}{said}", program.display())]
    Make { program: PathBuf, status: ExitStatus, hint: String, said: String },
    #[error("{brand} does not answer after {ANSWERS_WITHIN:?}")]
    Silent {
        brand: Brand,
        #[source]
        source: QueryError,
    },
    #[error("{brand} cannot be asked")]
    Query {
        brand: Brand,
        #[source]
        source: QueryError,
    },
    #[error("the {brand} database of the {kind:?} cannot be used")]
    Open {
        brand: Brand,
        kind: Kind,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

#[derive(Debug, Error)]
pub(crate) enum QueryError {
    #[error(transparent)]
    Postgres(#[from] verdict_client::resource::postgres::tokio_postgres::Error),
    #[error(transparent)]
    Mariadb(#[from] verdict_client::resource::mysql::mysql_async::Error),
}

/// A server of its own for one kind of a booking's parts.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) stock: Stock,
    pub(super) brand: Brand,
    programs: Programs,
    owner: Owner,
    folder: PathBuf,
    port: u16,
    /// Bookings that hold a connection at a time.
    bookings: u16,
    password: String,
}

/// What is to be run, and how it is asked to end.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) stop: Signal,
    /// Ends it and all that it has started, whatever they do, within moments.
    pub(super) end: Signal,
}

impl Server {
    /// Looks for its programs. Makes nothing yet.
    pub(super) fn find(
        stock: Stock,
        brand: Brand,
        folder: &Path,
        port: u16,
        bookings: u16,
    ) -> Result<Self, ServerError> {
        let programs = install::find(brand)?;
        let owner = Owner::of(brand)?;
        let folder = folder.join(format!("{}.{brand:?}", stock.kind().name()).to_lowercase());
        let password = format!("{:032x}", rand::random::<u128>());
        Ok(Self { stock, brand, programs, owner, folder, port, bookings, password })
    }

    /// Makes its files.
    pub(super) async fn make(&self) -> Result<(), ServerError> {
        self.owner.opens(&self.folder)?;
        match self.brand {
            Brand::Postgres => postgres::make(self).await,
            Brand::Mariadb => mariadb::make(self).await,
        }
    }

    pub(super) fn run(&self) -> Run {
        let (arguments, stop, end) = match self.brand {
            // Killed, it would leave its children to find out.
            Brand::Postgres => (postgres::arguments(self), Signal::INT, Signal::QUIT),
            Brand::Mariadb => (mariadb::arguments(self), Signal::TERM, Signal::KILL),
        };
        let (program, arguments) = self.owner.command(&self.programs.server, arguments);
        Run { program, arguments, stop, end }
    }

    /// Waits until it takes connections.
    pub(super) async fn answers(&self) -> Result<(), ServerError> {
        let mut last = None;
        let asked = timeout(ANSWERS_WITHIN, async {
            loop {
                let asked = match self.brand {
                    Brand::Postgres => postgres::answers(self).await.map_err(QueryError::from),
                    Brand::Mariadb => mariadb::rows(self, "SELECT 1").await.map(drop).map_err(QueryError::from),
                };
                match asked {
                    Ok(()) => return,
                    Err(error) => last = Some(error),
                }
                sleep(LOOK_EVERY).await;
            }
        });
        match (asked.await, last) {
            (Err(_), Some(source)) => Err(ServerError::Silent { brand: self.brand, source }),
            (Ok(()) | Err(_), _) => Ok(()),
        }
    }

    /// Makes the tables, with all that these bookings will ask for.
    pub(super) async fn set_up(&self, lines: &[Line]) -> Result<(), ServerError> {
        if self.brand == Brand::Postgres {
            postgres::make_database(self).await.map_err(|source| self.wrong(source.into()))?;
        }
        let tables = self.stock.tables();
        for table in tables.schema {
            self.rows(table).await?;
        }
        let keys: std::collections::BTreeSet<&str> = lines.iter().map(|line| self.stock.key(&line.order)).collect();
        let opening = i64::from(self.stock.kind().opening());
        let rows: Vec<(String, i64)> = keys.into_iter().map(|key| (key.to_owned(), opening)).collect();
        let filled = match self.brand {
            Brand::Postgres => postgres::fill(self, tables.fill, rows).await.map_err(QueryError::from),
            Brand::Mariadb => mariadb::fill(self, tables.fill, rows).await.map_err(QueryError::from),
        };
        filled.map_err(|source| self.wrong(source))
    }

    /// What the bookings work with. The cluster must have a leader.
    pub(super) async fn till(&self, verdict: &Verdict) -> Result<Till, ServerError> {
        let (dsn, connections) = (self.dsn(), usize::from(self.bookings));
        let opened = match self.brand {
            Brand::Postgres => Till::at_postgres(self.stock, verdict, &dsn, connections).await,
            Brand::Mariadb => Till::at_mariadb(self.stock, verdict, &dsn, connections).await,
        };
        opened.map_err(|source| ServerError::Open { brand: self.brand, kind: self.stock.kind(), source })
    }

    /// Such as 15.13.
    pub(super) async fn version(&self) -> Result<String, ServerError> {
        let rows = match self.brand {
            Brand::Postgres => self.rows("SHOW server_version").await?,
            Brand::Mariadb => self.rows("SELECT version()").await?,
        };
        let text = rows.into_iter().flatten().next().unwrap_or_default();
        Ok(text.split([' ', '-']).next().unwrap_or_default().to_owned())
    }

    /// How many branches it holds prepared, whosever they are.
    pub(super) async fn prepared(&self) -> Result<u64, ServerError> {
        let rows = match self.brand {
            Brand::Postgres => self.rows("SELECT gid FROM pg_prepared_xacts").await?,
            Brand::Mariadb => self.rows("XA RECOVER").await?,
        };
        Ok(rows.len() as u64)
    }

    /// What a statement answers, as text, on a connection of its own. Null is nothing.
    pub(super) async fn rows(&self, sql: &str) -> Result<Vec<Vec<String>>, ServerError> {
        let rows = match self.brand {
            Brand::Postgres => postgres::rows(self, sql).await.map_err(QueryError::from),
            Brand::Mariadb => mariadb::rows(self, sql).await.map_err(QueryError::from),
        };
        rows.map_err(|source| self.wrong(source))
    }

    /// For applications and agents.
    pub(super) fn dsn(&self) -> String {
        match self.brand {
            Brand::Postgres => postgres::dsn(self, USER, DATABASE),
            Brand::Mariadb => mariadb::dsn(self),
        }
    }

    /// Bookings, agents and the audit.
    fn connections(&self) -> u16 {
        self.bookings + OTHER_CONNECTIONS
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn wrong(&self, source: QueryError) -> ServerError {
        ServerError::Query { brand: self.brand, source }
    }
}

/// It has a password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.brand, self.folder.display())
    }
}

impl Brand {
    /// As the configuration calls it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mariadb => "mariadb",
        }
    }
}

impl fmt::Display for Brand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Postgres => "PostgreSQL",
            Self::Mariadb => "MariaDB",
        })
    }
}
