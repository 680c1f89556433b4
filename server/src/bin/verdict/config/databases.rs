//! The databases that a node has agents of: how each is reached, and how it is looked after.
//!
//! A connection string may hold a password. It stands in a file of its own, or comes from the environment, and is shown in
//! no error and no log.

use std::{fmt, fs, path::Path, sync::Arc, time::Duration};

use verdict_client::resource::{mysql, postgres, xa::XaDatabase};
use verdict_protocol::ResourceName;
use verdict_server::DatabaseOptions;

use super::{
    Door, MAX_MS,
    values::{ConfigError, Values},
};

/// What stands in the place of an endpoint where the resource is such a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brand {
    Postgres,
    /// MariaDB and MySQL.
    Mysql,
}

const TABLE: &str = "databases";

/// Of one database, not checked yet.
#[derive(Debug)]
pub(super) struct RawDatabase {
    name: String,
    brand: Brand,
    dsn: Option<Dsn>,
    dsn_file: Option<String>,
    connections: u64,
    options: DatabaseOptions,
}

/// Not shown.
struct Dsn(String);

impl fmt::Debug for Dsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dsn")
    }
}

impl Brand {
    /// None for what is no database.
    pub(super) fn of(reach: &str) -> Option<Self> {
        match reach {
            "postgres" => Some(Self::Postgres),
            "mariadb" | "mysql" => Some(Self::Mysql),
            _ => None,
        }
    }

    /// The hosts that a connection string leads to.
    fn hosts(self, dsn: &str) -> Result<Vec<String>, String> {
        match self {
            Self::Postgres => postgres::hosts(dsn).map_err(|error| error.to_string()),
            Self::Mysql => mysql::hosts(dsn).map_err(|error| error.to_string()),
        }
    }

    /// At most so many connections. None is made yet.
    fn database(self, name: ResourceName, dsn: &str, connections: usize) -> Result<Arc<dyn XaDatabase>, String> {
        Ok(match self {
            Self::Postgres => {
                Arc::new(postgres::Database::at(name, dsn, connections).map_err(|error| error.to_string())?)
            }
            Self::Mysql => Arc::new(mysql::Database::at(name, dsn, connections).map_err(|error| error.to_string())?),
        })
    }
}

impl RawDatabase {
    /// Takes the keys of every database that `resources`, or a table of its own, names.
    pub(super) fn take_all(values: &mut Values, resources: &[(String, String)]) -> Result<Vec<Self>, ConfigError> {
        let declared = resources.iter().filter_map(|(name, reach)| Some((name.clone(), Brand::of(reach)?)));
        let declared: Vec<(String, Brand)> = declared.collect();
        let is_declared = |name: &String| declared.iter().any(|(declared, _)| declared == name);
        if let Some(name) = values.names(TABLE).into_iter().find(|name| !is_declared(name)) {
            let problem = format!(
                "is no resource that is a database: write {name} = \"postgres\", or \"mariadb\", in [resources]"
            );
            return Err(values.wrong(&format!("{TABLE}.{name}"), problem));
        }
        declared.into_iter().map(|(name, brand)| Self::take(values, name, brand)).collect()
    }

    fn take(values: &mut Values, name: String, brand: Brand) -> Result<Self, ConfigError> {
        let key = |key: &str| format!("{TABLE}.{name}.{key}");
        let mut options = DatabaseOptions { identity: values.text(&key("identity"))?, ..DatabaseOptions::default() };
        for (key, time) in
            [(key("sweep_ms"), &mut options.sweep_every), (key("settle_after_ms"), &mut options.settle_after)]
        {
            let Some(millis) = values.number(&key)? else { continue };
            if millis == 0 || millis > MAX_MS {
                return Err(values.wrong(&key, format!("is in milliseconds, from 1 to a year, but it is {millis}")));
            }
            *time = Duration::from_millis(millis);
        }
        if values.is_in_file(&key("dsn")) {
            let variable = format!("VERDICT_DATABASES__{}__DSN", name.to_ascii_uppercase());
            let problem = format!(
                "may hold a password, which is not for this file: write dsn_file and a file's name, or set {variable}"
            );
            return Err(values.wrong(&key("dsn"), problem));
        }
        Ok(Self {
            dsn: values.text(&key("dsn"))?.map(Dsn),
            dsn_file: values.text(&key("dsn_file"))?,
            connections: values.number(&key("connections"))?.unwrap_or(CONNECTIONS),
            options,
            brand,
            name,
        })
    }

    /// A relative file starts at the configuration file's folder.
    pub(super) fn check(
        self,
        values: &Values,
        door: &Door<'_>,
        folder: &Path,
    ) -> Result<(ResourceName, DatabaseOptions, Arc<dyn XaDatabase>), ConfigError> {
        let key = |key: &str| format!("{TABLE}.{}.{key}", self.name);
        let resource = ResourceName::try_from(self.name.as_str());
        let resource =
            resource.map_err(|error| values.wrong(&format!("resources.{}", self.name), error.to_string()))?;
        let (source, dsn) = match (self.dsn, self.dsn_file) {
            (Some(_), Some(_)) => return Err(values.wrong(&key("dsn"), "is given, and dsn_file too: one is enough")),
            (Some(Dsn(dsn)), None) => (key("dsn"), dsn),
            (None, Some(file)) => {
                let path = folder.join(file);
                let dsn = fs::read_to_string(&path).map_err(|error| {
                    values.wrong(&key("dsn_file"), format!("{} cannot be read: {error}", path.display()))
                })?;
                (key("dsn_file"), dsn)
            }
            (None, None) => {
                let variable = format!("VERDICT_DATABASES__{}__DSN", self.name.to_ascii_uppercase());
                let problem =
                    format!("is missing: write the name of a file with the connection string in it, or set {variable}");
                return Err(values.wrong(&key("dsn_file"), problem));
            }
        };
        let connections = usize::try_from(self.connections).ok().filter(|count| (1..=MOST_CONNECTIONS).contains(count));
        let connections = connections.ok_or_else(|| {
            let problem = format!("must be from 1 to {MOST_CONNECTIONS}, but it is {}", self.connections);
            values.wrong(&key("connections"), problem)
        })?;
        if self.brand == Brand::Mysql && self.name.len() > mysql::MAX_RESOURCE {
            let problem =
                format!("an XA name has room for {} bytes of it, and it has {}", mysql::MAX_RESOURCE, self.name.len());
            return Err(values.wrong(&format!("resources.{}", self.name), problem));
        }
        let wrong = |problem: String| values.wrong(&source, problem);
        for host in self.brand.hosts(&dsn).map_err(wrong)? {
            door.check_host(&source, &host)?;
        }
        let database = self.brand.database(resource.clone(), &dsn, connections).map_err(wrong)?;
        Ok((resource, self.options, database))
    }
}

/// Connections of one node to one database, where nothing else is said.
const CONNECTIONS: u64 = 8;
/// A PostgreSQL server serves a hundred as it is shipped.
const MOST_CONNECTIONS: usize = 1_000;
