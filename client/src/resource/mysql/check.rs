//! What a server's settings mean for its votes: a table for people, made of what the server says of itself.

use super::settings::Settings;

/// One line of the check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The setting, as the server calls it.
    pub name: &'static str,
    /// As the server writes it; empty if it has no such setting.
    pub found: String,
    pub advised: &'static str,
    pub judgement: Judgement,
    /// What becomes of transactions otherwise.
    pub why: &'static str,
}

/// In order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judgement {
    Good,
    /// It works; another value would serve better.
    Advice,
    /// A vote may be lost with the server, or with its replacement.
    VotesAreLost,
    /// The database can't be a resource.
    Unusable,
}

/// How long a lock should be waited for at most: less than transactions take to give up.
const LOCK_WAIT_SECONDS: u64 = 10;
/// How long a session of the application's may be idle at least.
const IDLE_SECONDS: u64 = 300;

impl Settings {
    /// The lines of the check, in a fixed order.
    pub(super) fn facts(&self) -> Vec<Fact> {
        let fact =
            |name, advised, judgement, why| Fact { name, found: self.get(name).to_owned(), advised, judgement, why };
        let good_or = |good: bool, otherwise| if good { Judgement::Good } else { otherwise };
        let number = |name| self.get(name).parse::<u64>().ok();
        let flush = self.get("innodb_flush_log_at_trx_commit");
        let (binlog, isolation) = (self.get("log_bin") == "ON", self.isolation());
        vec![
            fact(
                "version",
                "MariaDB 10.5, MySQL 8.0 or newer",
                good_or(self.version().keeps_promises(), Judgement::Unusable),
                "older ones lose what is prepared when its session ends",
            ),
            fact(
                "read_only",
                "OFF",
                good_or(!self.is_read_only(), Judgement::Unusable),
                "nothing can be prepared or ended at a server that takes no writes",
            ),
            fact(
                "innodb_force_recovery",
                "0",
                good_or(matches!(self.get("innodb_force_recovery"), "0" | ""), Judgement::Unusable),
                "a server that is being rescued keeps no promises",
            ),
            fact(
                "innodb_flush_log_at_trx_commit",
                "1",
                // 3, MariaDB's own, flushes more often.
                good_or(matches!(flush, "1" | "3"), Judgement::VotesAreLost),
                "what was prepared in the last second may be gone after a crash",
            ),
            fact("log_bin", "as replication needs it", Judgement::Good, "with it, sync_binlog counts too"),
            fact(
                "sync_binlog",
                "1, if log_bin is ON",
                good_or(!binlog || self.get("sync_binlog") == "1", Judgement::VotesAreLost),
                "after a crash the binary log may lack what is prepared, and a replica that takes over never had it",
            ),
            fact(isolation, "as the application needs it", Judgement::Good, "a branch has that of its session"),
            fact(
                "innodb_lock_wait_timeout",
                "10 or less",
                good_or(
                    number("innodb_lock_wait_timeout").is_some_and(|seconds| seconds <= LOCK_WAIT_SECONDS),
                    Judgement::Advice,
                ),
                "work waits longer for the locks of a branch in doubt than its own transaction lives",
            ),
            fact(
                "wait_timeout",
                "300 or more",
                good_or(number("wait_timeout").is_some_and(|seconds| seconds >= IDLE_SECONDS), Judgement::Advice),
                "a session that is idle in its branch for so long is ended, and its work with it",
            ),
        ]
    }

    fn isolation(&self) -> &'static str {
        if self.get("transaction_isolation").is_empty() { "tx_isolation" } else { "transaction_isolation" }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::settings::Settings, Judgement};

    fn judged(changes: &[(&str, &str)]) -> Vec<(&'static str, Judgement)> {
        let good = [
            ("version", "10.11.19-MariaDB"),
            ("read_only", "OFF"),
            ("innodb_flush_log_at_trx_commit", "1"),
            ("log_bin", "OFF"),
            ("sync_binlog", "0"),
            ("innodb_lock_wait_timeout", "5"),
            ("wait_timeout", "28800"),
        ];
        let facts = Settings::of(good.iter().chain(changes).copied()).facts();
        facts.iter().filter(|fact| fact.judgement != Judgement::Good).map(|fact| (fact.name, fact.judgement)).collect()
    }

    #[test]
    fn each_setting_is_judged() {
        assert_eq!(judged(&[]), []);
        for (changes, name, judgement) in [
            (&[("version", "10.4.1-MariaDB")][..], "version", Judgement::Unusable),
            (&[("read_only", "ON")], "read_only", Judgement::Unusable),
            (&[("innodb_read_only", "ON")], "read_only", Judgement::Unusable),
            (&[("innodb_force_recovery", "1")], "innodb_force_recovery", Judgement::Unusable),
            (&[("innodb_flush_log_at_trx_commit", "2")], "innodb_flush_log_at_trx_commit", Judgement::VotesAreLost),
            (&[("log_bin", "ON")], "sync_binlog", Judgement::VotesAreLost),
            (&[("log_bin", "ON"), ("sync_binlog", "100")], "sync_binlog", Judgement::VotesAreLost),
            (&[("innodb_lock_wait_timeout", "50")], "innodb_lock_wait_timeout", Judgement::Advice),
            (&[("wait_timeout", "60")], "wait_timeout", Judgement::Advice),
        ] {
            assert_eq!(judged(changes), [(name, judgement)], "{changes:?}");
        }
        assert_eq!(judged(&[("log_bin", "ON"), ("sync_binlog", "1")]), []);
        assert_eq!(judged(&[("innodb_flush_log_at_trx_commit", "3")]), []);
    }
}
