//! The keys of a configuration file with the environment laid over them, each remembering where it came from.
//!
//! The environment rule: a variable `VERDICT_<KEY>` sets the key of that name, in capitals, with two underscores
//! between a table and its key: `VERDICT_DATA` sets `data`, `VERDICT_TIMEOUTS__VOTE_MS` sets `timeouts.vote_ms`,
//! `VERDICT_NODES__2` sets `nodes.2`, `VERDICT_DATABASES__SHOP__DSN` sets `databases.shop.dsn`. It wins over the file. A variable that names no key is refused, like a key that
//! is none.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use thiserror::Error;
use toml::{Table, Value};

/// Why a configuration can't be used. Names the file or variable, the key, and what to do.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error("{}: cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{}: is no TOML\n{error}", path.display())]
    Syntax { path: PathBuf, error: toml::de::Error },
    #[error("{place}: {key}: {problem}")]
    Key {
        /// The file or the environment variable.
        place: String,
        key: String,
        problem: String,
    },
}

/// Variables with the prefix that are not keys: they belong to the command line.
const OTHERS: [&str; 4] = ["VERDICT_CONFIG", "VERDICT_LOG", "VERDICT_LOG_FORMAT", "VERDICT_NODES"];

/// The tables that a file may have.
const TABLES: [&str; 7] = ["nodes", "resources", "databases", "timeouts", "limits", "log", "retention"];

/// The one whose keys are tables themselves.
const OF_TABLES: &str = "databases";

#[derive(Debug)]
enum Entry {
    File(Value),
    Variable { name: String, text: String },
}

/// The keys that were given, by their dotted path.
#[derive(Debug)]
pub(super) struct Values {
    file: String,
    entries: BTreeMap<String, Entry>,
    variables: BTreeMap<String, String>,
    known: Vec<String>,
}

impl Values {
    pub(super) fn read(
        path: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let table: Table =
            toml::from_str(&text).map_err(|error| ConfigError::Syntax { path: path.to_owned(), error })?;
        let mut values = Self {
            file: path.display().to_string(),
            entries: BTreeMap::new(),
            variables: BTreeMap::new(),
            known: Vec::new(),
        };
        for (name, value) in table {
            match value {
                Value::Table(table) if TABLES.contains(&name.as_str()) => {
                    for (key, value) in table {
                        let key = format!("{name}.{key}");
                        match value {
                            Value::Table(table) if name == OF_TABLES => {
                                for (last, value) in table {
                                    values.entries.insert(format!("{key}.{last}"), Entry::File(value));
                                }
                            }
                            value if name == OF_TABLES => {
                                let problem =
                                    format!("is a table: write [{key}] and its keys below, not {}", show(&value));
                                return Err(values.wrong(&key, problem));
                            }
                            value => drop(values.entries.insert(key, Entry::File(value))),
                        }
                    }
                }
                value if TABLES.contains(&name.as_str()) => {
                    return Err(values
                        .wrong(&name, format!("is a table: write [{name}] and its keys below, not {}", show(&value))));
                }
                value => {
                    values.entries.insert(name, Entry::File(value));
                }
            }
        }
        for (name, text) in environment {
            let Some(key) = name.strip_prefix("VERDICT_") else { continue };
            if OTHERS.contains(&name.as_str()) || is_service_link(key) {
                continue;
            }
            let key = dotted(&key.to_ascii_lowercase());
            values.variables.insert(key.clone(), name.clone());
            values.entries.insert(key, Entry::Variable { name, text });
        }
        Ok(values)
    }

    /// An error about a key, placed where its value came from.
    pub(super) fn wrong(&self, key: &str, problem: impl Into<String>) -> ConfigError {
        let place = self.variables.get(key).unwrap_or(&self.file).clone();
        ConfigError::Key { place, key: key.to_owned(), problem: problem.into() }
    }

    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, ConfigError> {
        self.take(key, "a text in quotes", |value| value.as_str().map(str::to_owned), |text| Some(text.to_owned()))
    }

    pub(super) fn flag(&mut self, key: &str) -> Result<Option<bool>, ConfigError> {
        self.take(key, "true or false", Value::as_bool, |text| text.parse().ok())
    }

    pub(super) fn number(&mut self, key: &str) -> Result<Option<u64>, ConfigError> {
        let from_file = |value: &Value| value.as_integer().and_then(|number| u64::try_from(number).ok());
        self.take(key, "a whole number, not below 0", from_file, |text| text.parse().ok())
    }

    /// All keys of a table whose names are the user's own, each a text.
    pub(super) fn texts(&mut self, table: &str) -> Result<Vec<(String, String)>, ConfigError> {
        let prefix = format!("{table}.");
        let keys: Vec<String> = self.entries.keys().filter(|key| key.starts_with(&prefix)).cloned().collect();
        let mut texts = Vec::new();
        for key in keys {
            if let Some(text) = self.text(&key)? {
                texts.push((key[prefix.len()..].to_owned(), text));
            }
        }
        Ok(texts)
    }

    /// What the tables in a table are named.
    pub(super) fn names(&self, table: &str) -> Vec<String> {
        let prefix = format!("{table}.");
        let rest = self.entries.keys().filter_map(|key| key.strip_prefix(&prefix));
        let mut names: Vec<String> =
            rest.map(|rest| rest.rsplit_once('.').map_or(rest, |(name, _)| name).to_owned()).collect();
        names.dedup();
        names
    }

    /// Whether the key was given in the file, and not by a variable.
    pub(super) fn is_in_file(&self, key: &str) -> bool {
        matches!(self.entries.get(key), Some(Entry::File(_)))
    }

    fn take<T>(
        &mut self,
        key: &str,
        wanted: &str,
        from_file: impl Fn(&Value) -> Option<T>,
        from_text: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        self.known.push(key.to_owned());
        let Some(entry) = self.entries.remove(key) else { return Ok(None) };
        let (value, found) = match &entry {
            Entry::File(value) => (from_file(value), show(value)),
            Entry::Variable { text, .. } => (from_text(text), format!("the text {text:?}")),
        };
        value.map(Some).ok_or_else(|| self.wrong(key, format!("must be {wanted}, but it is {found}")))
    }

    /// Refuses what nobody asked for.
    pub(super) fn finish(&self) -> Result<(), ConfigError> {
        let Some((key, entry)) = self.entries.first_key_value() else { return Ok(()) };
        let table = |key: &str| key.split_once('.').map(|(table, _)| table.to_owned());
        let mut near: Vec<&str> =
            self.known.iter().filter(|known| table(known) == table(key)).map(String::as_str).collect();
        if near.is_empty() {
            near = self.known.iter().filter(|known| table(known).is_none()).map(String::as_str).chain(TABLES).collect();
        }
        let near = near.join(", ");
        let problem = match entry {
            Entry::File(_) => format!("there is no such key: remove it or correct its name; there are {near}"),
            Entry::Variable { name, .. } => {
                format!("there is no such key: unset {name} or correct its name; there are {near}")
            }
        };
        Err(self.wrong(key, problem))
    }
}

/// A variable's name, as a key: two underscores between a table and its key, and between a table in a table and its key.
fn dotted(name: &str) -> String {
    let name = name.replacen("__", ".", 1);
    match name.strip_prefix(OF_TABLES).and_then(|rest| rest.rsplit_once("__")) {
        Some((table, key)) => format!("{OF_TABLES}{table}.{key}"),
        None => name,
    }
}

/// A value, as people would say it.
fn show(value: &Value) -> String {
    match value {
        Value::String(text) => format!("the text {text:?}"),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(flag) => flag.to_string(),
        Value::Datetime(time) => time.to_string(),
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a table".to_owned(),
    }
}

/// Variables that Kubernetes sets by itself beside a service whose name starts with "verdict".
fn is_service_link(key: &str) -> bool {
    key.ends_with("SERVICE_HOST")
        || key.contains("SERVICE_PORT")
        || key == "PORT"
        || key.ends_with("_PORT")
        || key.starts_with("PORT_")
        || key.contains("_PORT_")
}
