//! The configuration of a node: a TOML file with the environment laid over it, checked once. Nothing is guessed: what
//! is missing or wrong stops the start with an error that names the key.

mod address;
mod databases;
mod values;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use verdict_client::resource::xa::XaDatabase;
use verdict_protocol::ResourceName;
use verdict_raft_log::NodeId;
use verdict_server::{Options, Reach};

pub(crate) use self::values::ConfigError;
use self::{
    address::{Address, endpoint, is_loopback},
    databases::{Brand, RawDatabase},
    values::Values,
};

/// A year: more is a typing error, and far more would overflow a clock.
const MAX_MS: u64 = 366 * 24 * 3_600_000;

/// What stands in the place of an endpoint where the participant opens streams.
const STREAM: &str = "stream";

/// What `verdict serve` needs to know.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) options: Options,
    /// Where the node keeps its log. A relative path starts at the configuration file's folder.
    pub(crate) data: PathBuf,
    /// `host:port`.
    pub(crate) listen: String,
    /// Those that the resources name.
    pub(crate) databases: BTreeMap<ResourceName, Arc<dyn XaDatabase>>,
}

impl Config {
    /// Reads `path` and the environment.
    pub(crate) fn read(
        path: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut values = Values::read(path, environment)?;
        let raw = Raw::take(&mut values)?;
        values.finish()?;
        raw.check(&values, path)
    }
}

/// Every key, not checked against the others yet.
#[derive(Debug)]
struct Raw {
    cluster: Option<String>,
    node: Option<u64>,
    data: Option<String>,
    listen: Option<String>,
    insecure: bool,
    nodes: Vec<(String, String)>,
    resources: Vec<(String, String)>,
    databases: Vec<RawDatabase>,
    numbers: BTreeMap<&'static str, u64>,
}

const NUMBERS: [&str; 24] = [
    "timeouts.vote_ms",
    "timeouts.max_vote_ms",
    "timeouts.transaction_ms",
    "timeouts.grace_ms",
    "timeouts.settle_grace_ms",
    "timeouts.least_vote_ms",
    "limits.calls",
    "limits.open",
    "limits.branches",
    "limits.branches_per_resource",
    "limits.keys",
    "limits.sessions",
    "limits.watchers",
    "limits.transitions",
    "log.heartbeat_ms",
    "log.election_min_ms",
    "log.election_max_ms",
    "log.snapshot_every",
    "log.keep_entries",
    "retention.outcomes_ms",
    "retention.lifetime_ms",
    "retention.longest_lifetime_ms",
    "retention.skew_ms",
    "retention.keys_ms",
];

impl Raw {
    fn take(values: &mut Values) -> Result<Self, ConfigError> {
        let resources = values.texts("resources")?;
        let mut raw = Self {
            cluster: values.text("cluster")?,
            node: values.number("node")?,
            data: values.text("data")?,
            listen: values.text("listen")?,
            insecure: values.flag("insecure")?.unwrap_or(false),
            nodes: values.texts("nodes")?,
            databases: RawDatabase::take_all(values, &resources)?,
            resources,
            numbers: BTreeMap::new(),
        };
        for key in NUMBERS {
            let Some(number) = values.number(key)? else { continue };
            // How far clocks may be apart, and what a snapshot leaves, may be nothing.
            let least = u64::from(!matches!(
                key,
                "retention.skew_ms" | "log.keep_entries" | "timeouts.least_vote_ms" | "timeouts.settle_grace_ms"
            ));
            if number < least {
                return Err(values.wrong(key, "must be above 0"));
            }
            if key.ends_with("_ms") && number > MAX_MS {
                return Err(
                    values.wrong(key, format!("is in milliseconds and at most a year, {MAX_MS}, but it is {number}"))
                );
            }
            raw.numbers.insert(key, number);
        }
        Ok(raw)
    }

    fn check(self, values: &Values, path: &Path) -> Result<Config, ConfigError> {
        let missing = |key: &str, what: &str| values.wrong(key, format!("is missing: {what}"));
        let cluster = self.cluster.ok_or_else(|| {
            missing("cluster", "write the cluster's name, the same on every node: cluster = \"prod\"")
        })?;
        let node = self.node.ok_or_else(|| missing("node", "write this node's number in [nodes]: node = 1"))?;
        let data = self.data.filter(|data| !data.is_empty());
        let data =
            data.ok_or_else(|| missing("data", "write the folder for this node's log: data = \"/var/lib/verdict\""))?;
        if self.nodes.is_empty() {
            return Err(missing(
                "nodes",
                "write [nodes] and below it each node's number and address: 1 = \"10.0.0.1:7401\"",
            ));
        }

        let door = Door { values, insecure: self.insecure };
        let mut nodes = BTreeMap::new();
        for (name, text) in &self.nodes {
            let key = format!("nodes.{name}");
            let number = name.parse().map_err(|_| values.wrong(&key, "nodes are numbered: 1 = \"host:port\""))?;
            door.check(&key, &Address::parse(text).map_err(|problem| values.wrong(&key, problem))?)?;
            nodes.insert(NodeId(number), text.clone());
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let (mut resources, mut databases) = (BTreeMap::new(), BTreeMap::new());
        for raw in self.databases {
            let (name, options, database) = raw.check(values, &door, folder)?;
            resources.insert(name.clone(), Reach::Database(options));
            databases.insert(name, database);
        }
        for (name, text) in self.resources.iter().filter(|(_, text)| Brand::of(text).is_none()) {
            let key = format!("resources.{name}");
            let resource =
                ResourceName::try_from(name.as_str()).map_err(|error| values.wrong(&key, error.to_string()))?;
            let reach = if text == STREAM {
                Reach::Stream
            } else {
                door.check(&key, &endpoint(text).map_err(|problem| values.wrong(&key, problem))?)?;
                Reach::Endpoint(text.clone())
            };
            resources.insert(resource, reach);
        }
        let own = nodes.get(&NodeId(node)).cloned();
        let listen = self.listen.or(own).unwrap_or_default();
        let mut options = Options::new(cluster, NodeId(node), nodes);
        options.resources = resources;
        set(&self.numbers, &mut options);
        options.check().map_err(|error| values.wrong(&error.key, error.problem))?;
        check_log(&options).map_err(|(key, problem)| values.wrong(key, problem))?;
        door.check("listen", &Address::parse(&listen).map_err(|problem| values.wrong("listen", problem))?)?;

        Ok(Config { options, data: folder.join(data), listen, databases })
    }
}

fn set(numbers: &BTreeMap<&'static str, u64>, options: &mut Options) {
    let (rules, log) = (&mut options.rules, &mut options.log);
    for (key, number) in numbers {
        let number = *number;
        let time = Duration::from_millis(number);
        match *key {
            "timeouts.vote_ms" => options.vote_timeout = time,
            "timeouts.max_vote_ms" => options.max_vote_timeout = time,
            "timeouts.transaction_ms" => options.timeout = time,
            "timeouts.grace_ms" => options.grace = time,
            "timeouts.settle_grace_ms" => options.settle_grace = time,
            "timeouts.least_vote_ms" => options.least_vote_timeout = time,
            "limits.calls" => options.max_calls = usize::try_from(number).unwrap_or(usize::MAX),
            "limits.open" => rules.max_open = number,
            "limits.branches" => rules.max_branches = number,
            "limits.branches_per_resource" => rules.max_open_per_resource = number,
            "limits.keys" => rules.max_keys = number,
            "limits.sessions" => rules.max_sessions = number,
            "limits.watchers" => options.watch.watchers = usize::try_from(number).unwrap_or(usize::MAX),
            "limits.transitions" => options.watch.transitions = usize::try_from(number).unwrap_or(usize::MAX),
            "log.heartbeat_ms" => log.heartbeat = time,
            "log.election_min_ms" => log.election_min = time,
            "log.election_max_ms" => log.election_max = time,
            "log.snapshot_every" => log.snapshot_every = number,
            "log.keep_entries" => log.keep_entries = number,
            "retention.outcomes_ms" => rules.retention_ms = number,
            "retention.lifetime_ms" => rules.max_lifetime_ms = number,
            "retention.longest_lifetime_ms" => rules.longest_lifetime_ms = number,
            "retention.skew_ms" => rules.max_skew_ms = number,
            "retention.keys_ms" => rules.key_retention_ms = number,
            other => unreachable!("{other} is not among NUMBERS"),
        }
    }
}

/// What the replicated log asks of its times, in this file's words.
fn check_log(options: &Options) -> Result<(), (&'static str, String)> {
    let log = &options.log;
    if log.heartbeat * 2 > log.election_min {
        let min = log.election_min.as_millis();
        return Err(("log.heartbeat_ms", format!("must be at most half of log.election_min_ms, which is {min}")));
    }
    if log.election_min >= log.election_max {
        let min = log.election_min.as_millis();
        return Err(("log.election_max_ms", format!("must be above log.election_min_ms, which is {min}")));
    }
    Ok(())
}

/// Plaintext stays on this machine unless the configuration says otherwise in so many words.
struct Door<'a> {
    values: &'a Values,
    insecure: bool,
}

impl Door<'_> {
    fn check(&self, key: &str, address: &Address) -> Result<(), ConfigError> {
        self.check_place(key, &address.to_string(), address.is_loopback())
    }

    /// Of a connection string, whose port does not matter.
    fn check_host(&self, key: &str, host: &str) -> Result<(), ConfigError> {
        self.check_place(key, host, is_loopback(host))
    }

    fn check_place(&self, key: &str, place: &str, is_here: bool) -> Result<(), ConfigError> {
        if self.insecure || is_here {
            return Ok(());
        }
        let problem = format!(
            "{place} is not on this machine, and traffic is not encrypted: use a loopback address, or write \
             insecure = true if everybody on that network may read and change it"
        );
        Err(self.values.wrong(key, problem))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    const EXAMPLE: &str = include_str!("../../../../../examples/node.toml");

    fn read(text: &str, environment: &[(&str, &str)]) -> Config {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.toml");
        std::fs::write(&path, text).unwrap();
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let config = Config::read(&path, environment).unwrap();
        assert_eq!(config.data.parent().unwrap().parent(), Some(folder.path()));
        config
    }

    /// The example is valid, names every key, and the defaults that it shows are the ones that are taken.
    #[test]
    fn the_example_shows_every_key_and_its_default() {
        let defaults = read(EXAMPLE, &[]);
        let shown: String = EXAMPLE
            .lines()
            .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line).to_owned() + "\n")
            .collect();
        let spelt_out = read(&shown, &[]);
        assert_eq!(format!("{:?}", spelt_out.options), format!("{:?}", defaults.options));
        assert_eq!(spelt_out.listen, defaults.listen);
        for key in NUMBERS {
            let (_, key) = key.split_once('.').unwrap();
            assert!(EXAMPLE.contains(&format!("\n#{key} = ")), "{key}");
        }
    }

    #[test]
    fn the_environment_wins_over_the_file() {
        let config = read(
            EXAMPLE,
            &[
                ("VERDICT_NODE", "2"),
                ("VERDICT_TIMEOUTS__VOTE_MS", "1234"),
                ("VERDICT_RESOURCES__HOTEL", "http://127.0.0.1:7504"),
                // Not keys: the command line's, Kubernetes' own, and somebody else's.
                ("VERDICT_LOG", "debug"),
                ("VERDICT_SERVICE_HOST", "10.0.0.1"),
                ("VERDICT_PORT_7401_TCP", "tcp://10.0.0.1:7401"),
                ("VERDIKT_NODE", "3"),
            ],
        );
        assert_eq!(config.options.node, NodeId(2));
        assert_eq!(config.listen, "127.0.0.1:7402");
        assert_eq!(config.options.vote_timeout, Duration::from_millis(1234));
        assert_eq!(config.options.resources.len(), 4);
    }
}
