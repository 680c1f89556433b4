//! Whether a PostgreSQL database can keep a promise: one query, and what each answer is worth.

use tokio_postgres::{Client, Error, SimpleQueryRow};

use super::database::rows;
use crate::resource::xa::{Finding, Grade};

/// The oldest version with `pg_current_xact_id` and `pg_xact_status`.
pub(super) const OLDEST: u32 = 130_000;

/// In the order of [`findings`].
const SETTINGS: &str = "SELECT current_setting('server_version'), current_setting('server_version_num'), \
    pg_is_in_recovery(), current_setting('max_prepared_transactions'), current_setting('max_connections'), \
    current_user, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user), \
    has_function_privilege('pg_control_system()', 'execute') AND has_function_privilege('pg_walfile_name(pg_lsn)', 'execute'), \
    (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database() AND owner <> current_user \
        AND starts_with(gid, 'verdict:')), \
    current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'), \
    current_setting('default_transaction_isolation'), current_setting('lock_timeout'), \
    current_setting('idle_in_transaction_session_timeout')";

/// Looks at all that matters.
pub(super) async fn check(client: &Client) -> Result<Vec<Finding>, Error> {
    Ok(rows(client, SETTINGS).await?.first().map(findings).unwrap_or_default())
}

fn findings(row: &SimpleQueryRow) -> Vec<Finding> {
    let text = |column: usize| row.get(column).unwrap_or_default();
    let number = |column: usize| text(column).parse::<u64>().unwrap_or_default();
    let is = |column: usize, value: &str| text(column) == value;
    let finding = |setting, value: &str, wrong: Option<(Grade, String)>| {
        let (grade, advice) = wrong.unwrap_or((Grade::Fine, String::new()));
        Finding { setting, value: value.to_owned(), grade, advice }
    };
    let error = |wrong: bool, advice: &str| wrong.then(|| (Grade::Error, advice.to_owned()));
    let warning = |wrong: bool, advice: &str| wrong.then(|| (Grade::Warning, advice.to_owned()));
    let (prepares, connections, foreign) = (number(3), number(4), number(8));
    vec![
        finding("version", text(0), error(number(1) < u64::from(OLDEST), "13 or newer is needed")),
        finding(
            "primary",
            if is(2, "t") { "no, a standby" } else { "yes" },
            error(is(2, "t"), "a standby takes no writes: name the primary in the connection string"),
        ),
        finding(
            "max_prepared_transactions",
            text(3),
            error(
                prepares == 0,
                &format!(
                    "nothing can be prepared: write max_prepared_transactions = {connections} in postgresql.conf and \
                     restart the server"
                ),
            )
            .or_else(|| {
                let few = format!(
                    "below max_connections, which is {connections}: with more transactions at a time than this, some are \
                     refused"
                );
                warning(prepares < connections, &few)
            }),
        ),
        finding(
            "role",
            &format!("{}{}", text(5), if is(6, "t") { ", a superuser" } else { "" }),
            error(
                foreign > 0 && !is(6, "t"),
                &format!(
                    "{foreign} transactions were prepared by another role, which alone can end them: let applications and \
                     agent log in as one role"
                ),
            ),
        ),
        finding(
            "identity",
            if is(7, "t") { "can be read" } else { "can't be read" },
            error(
                !is(7, "t"),
                "GRANT EXECUTE ON FUNCTION pg_control_system(), pg_walfile_name(pg_lsn) to this role: without it a \
                 failover is not noticed",
            ),
        ),
        finding("fsync", text(9), error(is(9, "off"), "a crash loses votes: set it to on")),
        finding("full_page_writes", text(10), error(is(10, "off"), "a crash damages data: set it to on")),
        finding(
            "synchronous_commit",
            text(11),
            error(is(11, "off"), "a crash loses votes that were given: set it to on, for the applications' role too"),
        ),
        finding("default_transaction_isolation", text(12), None),
        finding(
            "lock_timeout",
            text(13),
            warning(
                is(13, "0"),
                "deadlocks across databases end by it alone: ALTER ROLE … SET lock_timeout = '5s' for the applications",
            ),
        ),
        finding(
            "idle_in_transaction_session_timeout",
            text(14),
            warning(
                is(14, "0"),
                "an application that hangs before it commits keeps its locks: ALTER ROLE … SET \
                 idle_in_transaction_session_timeout = '60s'",
            ),
        ),
    ]
}
