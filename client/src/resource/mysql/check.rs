//! Whether a MariaDB or MySQL server can keep a promise: what each of its settings is worth.

use super::settings::Settings;
use crate::resource::xa::{Finding, Grade};

/// Locks should not be waited for longer than this: less than transactions take to give up.
const LOCK_WAIT_SECONDS: u64 = 10;
/// A session of the application's may be idle for so long at least.
const IDLE_SECONDS: u64 = 300;
/// And no longer than that: until then what a host that vanished held locked stays locked.
const LONG_IDLE_SECONDS: u64 = 28_800;

impl Settings {
    /// One line a setting, in a fixed order.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let finding = |setting, wrong: bool, grade, advice: &str| {
            let (grade, advice) = if wrong { (grade, advice.to_owned()) } else { (Grade::Fine, String::new()) };
            Finding { setting, value: self.get(setting).to_owned(), grade, advice }
        };
        let number = |name| self.get(name).parse::<u64>().unwrap_or_default();
        let isolation =
            if self.get("transaction_isolation").is_empty() { "tx_isolation" } else { "transaction_isolation" };
        let idle = number("wait_timeout");
        vec![
            finding(
                "version",
                !self.version().keeps_promises(),
                Grade::Error,
                "MariaDB 10.5, MySQL 8.0 or newer is needed: older ones lose what is prepared when its session ends",
            ),
            finding(
                "read_only",
                self.is_read_only(),
                Grade::Error,
                "nothing can be prepared or ended: name the server that takes writes",
            ),
            finding(
                "wsrep_on",
                self.get("wsrep_on") == "ON",
                Grade::Error,
                "Galera replicates no branch that is prepared: name a server that is no part of such a cluster",
            ),
            finding(
                "innodb_force_recovery",
                !matches!(self.get("innodb_force_recovery"), "0" | ""),
                Grade::Error,
                "a server that is being rescued keeps no promises: set it to 0 and restart the server",
            ),
            finding(
                "innodb_flush_log_at_trx_commit",
                // 3, MariaDB's own, flushes more often.
                !matches!(self.get("innodb_flush_log_at_trx_commit"), "1" | "3"),
                Grade::Error,
                match self.get("innodb_flush_log_at_trx_commit") {
                    "" => "there is no InnoDB, and no other engine keeps a promise: start the server with it",
                    _ => "a crash loses the votes of the last second: set it to 1",
                },
            ),
            finding("log_bin", false, Grade::Fine, ""),
            finding(
                "sync_binlog",
                self.get("log_bin") == "ON" && self.get("sync_binlog") != "1",
                Grade::Error,
                "a crash loses from the binary log what is prepared, and a replica that takes over never had it: set it \
                 to 1",
            ),
            finding(isolation, false, Grade::Fine, ""),
            finding(
                "innodb_lock_wait_timeout",
                number("innodb_lock_wait_timeout") > LOCK_WAIT_SECONDS,
                Grade::Warning,
                "deadlocks across databases end by it alone: set it to 5, for the server or in the applications' sessions",
            ),
            finding(
                "wait_timeout",
                !(IDLE_SECONDS..=LONG_IDLE_SECONDS).contains(&idle),
                Grade::Warning,
                "from 300 to 28800: a session that is idle for longer loses its work, and one whose host has vanished \
                 keeps its locks until then",
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::{super::settings::Settings, Grade};

    fn wrong(changes: &[(&str, &str)]) -> Vec<(&'static str, Grade)> {
        let good = [
            ("version", "10.11.19-MariaDB"),
            ("read_only", "OFF"),
            ("innodb_flush_log_at_trx_commit", "1"),
            ("log_bin", "OFF"),
            ("sync_binlog", "0"),
            ("innodb_lock_wait_timeout", "5"),
            ("wait_timeout", "28800"),
        ];
        let findings = Settings::of(good.iter().chain(changes).copied()).findings();
        assert!(findings.iter().all(|finding| (finding.grade == Grade::Fine) == finding.advice.is_empty()));
        let wrong = findings.iter().filter(|finding| finding.grade != Grade::Fine);
        wrong.map(|finding| (finding.setting, finding.grade)).collect()
    }

    #[test]
    fn each_setting_is_judged() {
        assert_eq!(wrong(&[]), []);
        for (changes, name, grade) in [
            (&[("version", "10.4.1-MariaDB")][..], "version", Grade::Error),
            (&[("read_only", "ON")], "read_only", Grade::Error),
            (&[("innodb_read_only", "ON")], "read_only", Grade::Error),
            (&[("innodb_flush_log_at_trx_commit", "")], "innodb_flush_log_at_trx_commit", Grade::Error),
            (&[("wsrep_on", "ON")], "wsrep_on", Grade::Error),
            (&[("innodb_force_recovery", "1")], "innodb_force_recovery", Grade::Error),
            (&[("innodb_flush_log_at_trx_commit", "2")], "innodb_flush_log_at_trx_commit", Grade::Error),
            (&[("log_bin", "ON")], "sync_binlog", Grade::Error),
            (&[("log_bin", "ON"), ("sync_binlog", "100")], "sync_binlog", Grade::Error),
            (&[("innodb_lock_wait_timeout", "50")], "innodb_lock_wait_timeout", Grade::Warning),
            (&[("wait_timeout", "60")], "wait_timeout", Grade::Warning),
            (&[("wait_timeout", "31536000")], "wait_timeout", Grade::Warning),
        ] {
            assert_eq!(wrong(changes), [(name, grade)], "{changes:?}");
        }
        assert_eq!(wrong(&[("log_bin", "ON"), ("sync_binlog", "1")]), []);
        assert_eq!(wrong(&[("innodb_flush_log_at_trx_commit", "3")]), []);
    }
}
