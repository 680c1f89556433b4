//! A PostgreSQL server of the demo's.

use std::fs;

use verdict_client::resource::postgres::tokio_postgres::{
    self, Client, Error, NoTls, SimpleQueryMessage, SimpleQueryRow, types::ToSql,
};

use super::{DATABASE, Server, ServerError, USER, tables::numbered};

const SUPERUSER: &str = "postgres";

pub(super) async fn make(server: &Server) -> Result<(), ServerError> {
    let password = server.folder.join("password");
    server.owner.writes(&password, &server.password)?;
    let (data, from) = (server.data().display().to_string(), password.display().to_string());
    // What is synced later is what bookings write.
    let arguments = ["--no-sync", "--locale=C", "-E", "UTF8", "-A", "scram-sha-256", "-U", SUPERUSER];
    let arguments = arguments.into_iter().chain(["-D", &data, "--pwfile", &from]);
    server.owner.make(&server.programs.make, arguments.map(str::to_owned).collect()).await?;
    fs::remove_file(&password).map_err(|source| ServerError::Write { path: password, source })
}

pub(super) fn arguments(server: &Server) -> Vec<String> {
    let connections = server.connections();
    let mut arguments = vec!["-D".to_owned(), server.data().display().to_string()];
    for setting in [
        "listen_addresses=127.0.0.1".to_owned(),
        format!("port={}", server.port),
        // A socket's path may be too long.
        "unix_socket_directories=".to_owned(),
        format!("max_connections={connections}"),
        format!("max_prepared_transactions={connections}"),
        "lock_timeout=5s".to_owned(),
        "idle_in_transaction_session_timeout=60s".to_owned(),
    ] {
        arguments.extend(["-c".to_owned(), setting]);
    }
    arguments
}

pub(super) fn dsn(server: &Server, user: &str, database: &str) -> String {
    let Server { port, password, .. } = server;
    format!("host=127.0.0.1 port={port} user={user} password={password} dbname={database}")
}

async fn connect(dsn: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await?;
    // It ends with its client, and what goes wrong the client hears.
    drop(tokio::spawn(connection));
    Ok(client)
}

pub(super) async fn answers(server: &Server) -> Result<(), Error> {
    connect(&dsn(server, SUPERUSER, SUPERUSER)).await?.batch_execute("SELECT 1").await
}

/// The application's role, which owns its database and may do no more.
pub(super) async fn make_database(server: &Server) -> Result<(), Error> {
    let client = connect(&dsn(server, SUPERUSER, SUPERUSER)).await?;
    let role = format!("CREATE ROLE {USER} LOGIN PASSWORD '{}'", server.password);
    client.batch_execute(&role).await?;
    client.batch_execute(&format!("CREATE DATABASE {DATABASE} OWNER {USER}")).await
}

pub(super) async fn rows(server: &Server, sql: &str) -> Result<Vec<Vec<String>>, Error> {
    let messages = connect(&server.dsn()).await?.simple_query(sql).await?;
    let texts = |row: SimpleQueryRow| (0..row.len()).map(|at| row.get(at).unwrap_or_default().to_owned()).collect();
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => Some(texts(row)),
        // How many there were, and what they are called.
        _ => None,
    };
    Ok(messages.into_iter().filter_map(row).collect())
}

pub(super) async fn fill(server: &Server, insert: &str, rows: Vec<(String, i64)>) -> Result<(), Error> {
    let mut client = connect(&server.dsn()).await?;
    let transaction = client.transaction().await?;
    let insert = transaction.prepare(&numbered(insert)).await?;
    for (key, opening) in rows {
        let values: [&(dyn ToSql + Sync); 3] = [&key, &opening, &opening];
        transaction.execute(&insert, &values).await?;
    }
    transaction.commit().await
}
