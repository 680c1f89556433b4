//! A MariaDB server of the demo's.

use verdict_client::resource::mysql::mysql_async::{Conn, Error, Opts, Row, TxOpts, Value, prelude::Queryable as _};

use super::{DATABASE, Server, ServerError, USER};

/// Small: it holds some thousand rows.
const LOG_SIZE: &str = "--innodb-log-file-size=8M";

pub(super) async fn make(server: &Server) -> Result<(), ServerError> {
    let data = format!("--datadir={}", server.data().display());
    // Root comes in by a socket alone, and there is none: nobody comes in but the application.
    let root = "--auth-root-authentication-method=socket".to_owned();
    let mut arguments = vec!["--no-defaults".to_owned(), "--skip-test-db".to_owned(), root, LOG_SIZE.to_owned(), data];
    arguments.push(tmpdir(server));
    server.owner.make(&server.programs.make, arguments).await?;
    let Server { password, .. } = server;
    // Names of trips and customers are what they are, to the last letter.
    let statements = format!(
        "CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;\n\
         CREATE USER IF NOT EXISTS {USER}@'127.0.0.1' IDENTIFIED BY '{password}';\n\
         GRANT ALL ON {DATABASE}.* TO {USER}@'127.0.0.1';\n"
    );
    server.owner.writes(&server.folder.join("start.sql"), &statements)
}

/// A server that starts deletes the temporary tables there, which in `/tmp` may be those of another that runs.
fn tmpdir(server: &Server) -> String {
    format!("--tmpdir={}", server.folder.display())
}

pub(super) fn arguments(server: &Server) -> Vec<String> {
    let path = |name: &str| server.folder.join(name).display().to_string();
    vec![
        "--no-defaults".to_owned(),
        format!("--datadir={}", server.data().display()),
        tmpdir(server),
        format!("--pid-file={}", path("pid")),
        format!("--init-file={}", path("start.sql")),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--port={}", server.port),
        // A socket's path may be too long.
        "--socket=".to_owned(),
        "--skip-name-resolve".to_owned(),
        format!("--max-connections={}", server.connections()),
        "--innodb-flush-log-at-trx-commit=1".to_owned(),
        "--innodb-lock-wait-timeout=5".to_owned(),
        "--innodb-buffer-pool-size=32M".to_owned(),
        LOG_SIZE.to_owned(),
    ]
}

pub(super) fn dsn(server: &Server) -> String {
    let Server { port, password, .. } = server;
    format!("mysql://{USER}:{password}@127.0.0.1:{port}/{DATABASE}?prefer_socket=false")
}

async fn connect(server: &Server) -> Result<Conn, Error> {
    Conn::new(Opts::from_url(&server.dsn())?).await
}

pub(super) async fn rows(server: &Server, sql: &str) -> Result<Vec<Vec<String>>, Error> {
    let mut connection = connect(server).await?;
    let rows: Vec<Row> = connection.query(sql).await?;
    connection.disconnect().await?;
    Ok(rows.into_iter().map(|row| row.unwrap().into_iter().map(text).collect()).collect())
}

/// Without parameters all values come as text.
fn text(value: Value) -> String {
    match value {
        Value::NULL => String::new(),
        Value::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        value @ (Value::Int(_)
        | Value::UInt(_)
        | Value::Float(_)
        | Value::Double(_)
        | Value::Date(..)
        | Value::Time(..)) => value.as_sql(true),
    }
}

pub(super) async fn fill(server: &Server, insert: &str, rows: Vec<(String, i64)>) -> Result<(), Error> {
    let mut connection = connect(server).await?;
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let rows = rows.into_iter().map(|(key, opening)| (key, opening, opening));
    transaction.exec_batch(insert, rows).await?;
    transaction.commit().await?;
    connection.disconnect().await
}
