//! A PostgreSQL server of one test's making: its own folder and port, killed and started again as the test likes.
//!
//! The binaries are Debian's `postgresql` package's, or whatever is in the path.

#![allow(dead_code, reason = "each test uses a part")]

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use verdict_client::resource::postgres::{
    Database,
    tokio_postgres::{self, Client, NoTls, SimpleQueryMessage},
};

/// The role of applications and agents, which owns its tables and no more.
pub(crate) const APP: &str = "app";

pub(crate) struct PostgresServer {
    folder: TempDir,
    pub(crate) port: u16,
    settings: Vec<String>,
    /// None while it is down.
    process: Option<Child>,
}

impl PostgresServer {
    /// Starts a server with these settings besides, `max_prepared_transactions=20` for one.
    pub(crate) async fn start(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(folder.path()));
        }
        let data = folder.path().join("data");
        let log = folder.path().join("initdb.log");
        let mut initdb = as_postgres(&binary("initdb"));
        initdb.arg("-D").arg(&data).args(["--no-sync", "-A", "trust", "-U", "postgres", "--locale=C", "-E", "UTF8"]);
        run(initdb.stdout(File::create(log).unwrap()));
        let settings = settings.iter().map(ToString::to_string).collect();
        let mut server = Self { folder, port: free_port(), settings, process: None };
        server.start_again().await;
        let superuser = server.superuser("postgres").await;
        superuser.batch_execute(&format!("CREATE ROLE {APP} LOGIN")).await.unwrap();
        server
    }

    /// Kills it as `kill -9` does, and all that it serves.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Starts it on what is in its folder, and waits until it answers.
    pub(crate) async fn start_again(&mut self) {
        let by = Instant::now() + Duration::from_secs(30);
        // What a killed one has left behind may hold the folder for a moment.
        while Instant::now() < by {
            let process = self.process.insert(self.spawn());
            while process.try_wait().unwrap().is_none() {
                if let Some(client) = connect(self.port, "postgres", "postgres").await
                    && texts(&client, "SELECT pg_is_in_recovery()").await == [Some("f".to_owned())]
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        panic!("PostgreSQL does not start: {}", fs::read_to_string(self.log()).unwrap_or_default());
    }

    /// Its next start recovers from an archive with nothing in it, and so begins a new timeline.
    pub(crate) fn recover_to_a_new_timeline(&mut self) {
        self.settings.push("restore_command=/bin/false".to_owned());
        let signal = self.folder.path().join("data/recovery.signal");
        File::create(&signal).unwrap();
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(signal));
        }
    }

    fn spawn(&self) -> Child {
        let mut server = as_postgres(&binary("postgres"));
        server.arg("-D").arg(self.folder.path().join("data")).arg("-p").arg(self.port.to_string());
        let sockets = self.folder.path().display().to_string();
        let own = ["listen_addresses=127.0.0.1", "max_connections=60"];
        for setting in own.into_iter().map(str::to_owned).chain([format!("unix_socket_directories={sockets}")]) {
            server.arg("-c").arg(setting);
        }
        for setting in &self.settings {
            server.arg("-c").arg(setting);
        }
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    pub(crate) fn dsn(&self, role: &str, database: &str) -> String {
        format!("host=127.0.0.1 port={} user={role} dbname={database}", self.port)
    }

    /// A file with the application's connection string in it, of a database of this name.
    pub(crate) fn dsn_file(&self, database: &str) -> PathBuf {
        let path = self.folder.path().join(format!("{database}.dsn"));
        fs::write(&path, self.dsn(APP, database)).unwrap();
        path
    }

    /// A database of the application's, with two accounts of 100 each.
    pub(crate) async fn database(&self, name: &str) {
        self.superuser("postgres").await.batch_execute(&format!("CREATE DATABASE {name} OWNER {APP}")).await.unwrap();
        let tables = "CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL CHECK (balance >= 0));
                      INSERT INTO account VALUES (1, 100), (2, 100);";
        self.client(name).await.batch_execute(tables).await.unwrap();
    }

    pub(crate) async fn client(&self, database: &str) -> Client {
        connect(self.port, APP, database).await.expect("a connection")
    }

    pub(crate) async fn superuser(&self, database: &str) -> Client {
        connect(self.port, "postgres", database).await.expect("a connection")
    }

    pub(crate) fn agent_database(&self, database: &str) -> Database {
        Database::at("accounts".try_into().unwrap(), &self.dsn(APP, database), 4).unwrap()
    }

    /// What stands prepared in the whole server.
    pub(crate) async fn prepared(&self) -> Vec<String> {
        let rows =
            texts(&self.superuser("postgres").await, "SELECT gid FROM pg_prepared_xacts ORDER BY prepared").await;
        rows.into_iter().flatten().collect()
    }

    pub(crate) async fn balances(&self, database: &str) -> Vec<String> {
        let rows = texts(&self.client(database).await, "SELECT balance FROM account ORDER BY id").await;
        rows.into_iter().flatten().collect()
    }

    /// Ends the server's side of every connection of applications and agents, as an operator does.
    pub(crate) async fn terminate_backends(&self) -> usize {
        let terminate = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{APP}'");
        texts(&self.superuser("postgres").await, &terminate).await.len()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

pub(crate) async fn texts(client: &Client, query: &str) -> Vec<Option<String>> {
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).map(str::to_owned)),
        _ => None,
    };
    client.simple_query(query).await.unwrap().into_iter().filter_map(row).collect()
}

async fn connect(port: u16, role: &str, database: &str) -> Option<Client> {
    let dsn = format!("host=127.0.0.1 port={port} user={role} dbname={database}");
    let (client, connection) = tokio_postgres::connect(&dsn, NoTls).await.ok()?;
    drop(tokio::spawn(connection));
    Some(client)
}

/// PostgreSQL does not run as root.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Ends with the thread that starts it, however that ends.
fn as_postgres(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    }
    command.args(["--pdeathsig", "KILL"]).arg(program).current_dir("/");
    command
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

fn binary(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|version| version.path().join("bin").join(name)).collect();
    found.retain(|path| path.exists());
    found.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.exists());
    found.pop().or(in_path).unwrap_or_else(|| panic!("{name} is not installed: install Debian's package postgresql"))
}

/// Below the ports that connections are given.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 997).unwrap() * 9;
    let ports = std::iter::repeat_with(|| 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 9_000);
    let mut free = ports.filter(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().unwrap()
}
