//! What a server says of itself.

use std::collections::BTreeMap;

use mysql_async::{Conn, Result, prelude::Queryable};

/// The variables that matter here, as the server writes them. One that it does not know is missing.
#[derive(Clone, Debug)]
pub(super) struct Settings(BTreeMap<String, String>);

/// A server's version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) text: String,
    pub(super) is_mariadb: bool,
    number: (u32, u32),
}

const NAMES: &str = "'version', 'hostname', 'port', 'server_uid', 'server_uuid', 'read_only', 'innodb_force_recovery', \
                     'innodb_flush_log_at_trx_commit', 'innodb_read_only', 'sync_binlog', 'log_bin', 'tx_isolation', \
                     'transaction_isolation', 'innodb_lock_wait_timeout', 'wait_timeout', 'wsrep_on'";

impl Settings {
    pub(super) async fn read(connection: &mut Conn) -> Result<Self> {
        let rows: Vec<(String, String)> =
            connection.query(format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({NAMES})")).await?;
        Ok(Self(rows.into_iter().collect()))
    }

    #[cfg(test)]
    pub(super) fn of<'a>(settings: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        Self(settings.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    pub(super) fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    pub(super) fn is_read_only(&self) -> bool {
        ["read_only", "innodb_read_only"].iter().any(|name| self.get(name) != "OFF" && !self.get(name).is_empty())
    }

    /// The server, as far as it has a name of its own; otherwise its address.
    pub(super) fn server(&self) -> String {
        let own = [self.get("server_uuid"), self.get("server_uid")].into_iter().find(|name| !name.is_empty());
        own.map_or_else(|| format!("{}:{}", self.get("hostname"), self.get("port")), ToOwned::to_owned)
    }

    pub(super) fn version(&self) -> Version {
        Version::parse(self.get("version"))
    }
}

impl Version {
    fn parse(text: &str) -> Self {
        let mut numbers = text.split(['.', '-']).map_while(|part| part.parse().ok());
        let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        Self { text: text.to_owned(), is_mariadb: text.contains("MariaDB"), number }
    }

    /// Before MariaDB 10.5 a prepared branch was rolled back when its session ended, promise or not.
    pub(super) fn keeps_promises(&self) -> bool {
        self.number >= if self.is_mariadb { (10, 5) } else { (8, 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn versions_that_keep_their_promises() {
        for (text, is_mariadb, keeps) in [
            ("10.11.19-MariaDB-0+deb12u1", true, true),
            ("10.4.34-MariaDB", true, false),
            ("11.4.2-MariaDB-log", true, true),
            ("8.0.36", false, true),
            ("8.4.0-commercial", false, true),
            ("5.7.44-log", false, false),
            ("", false, false),
        ] {
            let version = Version::parse(text);
            assert_eq!((version.is_mariadb, version.keeps_promises()), (is_mariadb, keeps), "{text}");
        }
    }
}
