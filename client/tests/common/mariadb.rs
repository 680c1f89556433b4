//! A MariaDB server of one test's making: on a free port, in a directory of its own, killed with the test.

#![allow(dead_code, reason = "each test uses a part")]

use std::{
    fs, io,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use verdict_client::resource::mysql::{
    mysql_async::{Conn, Opts, Pool, Row, prelude::Queryable},
    pool,
};

/// Debian's packages put them there.
const SERVERS: [&str; 3] = ["/usr/sbin/mariadbd", "/usr/local/sbin/mariadbd", "/usr/local/bin/mariadbd"];
const STARTS_WITHIN: Duration = Duration::from_secs(30);

pub(crate) struct MariaDb {
    directory: TempDir,
    pub(crate) port: u16,
    settings: Vec<String>,
    server: Option<Child>,
}

impl MariaDb {
    /// With a database `bank`, in which two accounts hold 100 each.
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// With settings as on the command line, without their dashes.
    pub(crate) async fn start_with(settings: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        copy(&template(), &directory.path().join("data"));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings = settings.iter().map(|setting| format!("--{setting}")).collect();
        let mut server = Self { directory, port, settings, server: None };
        server.restart().await;
        let mut root = server.root("").await;
        root.query_drop(
            "CREATE DATABASE bank; CREATE TABLE bank.accounts (id INT PRIMARY KEY, balance INT NOT NULL) ENGINE=InnoDB; \
             INSERT INTO bank.accounts VALUES (1, 100), (2, 100)",
        )
        .await
        .unwrap();
        root.disconnect().await.unwrap();
        server
    }

    /// As a power cut does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }

    /// Restarts it with these settings besides.
    pub(crate) async fn restart_with(&mut self, settings: &[&str]) {
        self.settings.extend(settings.iter().map(|setting| format!("--{setting}")));
        self.restart().await;
    }

    /// Starts it, on the port and the data that it had, and waits until it takes connections.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        let binary = SERVERS.iter().find(|path| Path::new(path).exists());
        let binary = binary.expect("these tests need MariaDB: apt-get install mariadb-server");
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        // If the test is killed, so is the server.
        let server = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", binary, "--no-defaults", "--user", &whoami(), "--bind-address=127.0.0.1"])
            .args([format!("--datadir={}", path("data")), format!("--socket={}", path("socket"))])
            .arg(tmpdir(self.directory.path()))
            .args([format!("--port={}", self.port), format!("--log-error={}", path("log"))])
            .args(SMALL)
            .args(&self.settings)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.server = Some(server);
        let by = Instant::now() + STARTS_WITHIN;
        while let Err(error) = Conn::new(self.options("root", "")).await {
            let log = || fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < by, "MariaDB does not start: {error}\n{}", log());
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn url(&self, user: &str, database: &str) -> String {
        format!("mysql://{user}@127.0.0.1:{}/{database}?prefer_socket=false", self.port)
    }

    /// A file with the URL of `bank` in it, for a configuration.
    pub(crate) fn url_file(&self) -> PathBuf {
        let file = self.directory.path().join("url");
        fs::write(&file, self.url("root", "bank")).unwrap();
        file
    }

    fn options(&self, user: &str, database: &str) -> Opts {
        Opts::from_url(&self.url(user, database)).unwrap()
    }

    /// A connection of an administrator's.
    pub(crate) async fn root(&self, database: &str) -> Conn {
        Conn::new(self.options("root", database)).await.unwrap()
    }

    /// Connections to `bank`, at most four.
    pub(crate) fn pool(&self) -> Pool {
        self.pool_of_at_most(4)
    }

    pub(crate) fn pool_of_at_most(&self, connections: usize) -> Pool {
        pool(&self.url("root", "bank"), connections).unwrap()
    }

    pub(crate) fn pool_of(&self, user: &str) -> Pool {
        pool(&self.url(user, "bank"), 4).unwrap()
    }

    /// What the accounts hold, as others see it.
    pub(crate) async fn balances(&self) -> [i32; 2] {
        let mut root = self.root("bank").await;
        let balances: Vec<i32> = root.query("SELECT balance FROM accounts ORDER BY id").await.unwrap();
        balances.try_into().unwrap()
    }

    /// How many branches stand prepared, of whoever.
    pub(crate) async fn prepared(&self) -> usize {
        self.root("").await.query::<Row, _>("XA RECOVER").await.unwrap().len()
    }

    /// Waits until a session has ended, its branch included: a killed one closes its socket earlier.
    pub(crate) async fn is_rid_of(&self, connection: u32) {
        let look = format!("SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = {connection}");
        let mut root = self.root("").await;
        let by = Instant::now() + Duration::from_secs(20);
        while root.query_first::<u8, _>(&look).await.unwrap().is_some() {
            assert!(Instant::now() < by, "connection {connection} is still there");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until so many branches stand prepared.
    pub(crate) async fn has_prepared(&self, branches: usize) {
        let by = Instant::now() + Duration::from_secs(20);
        while self.prepared().await != branches {
            assert!(Instant::now() < by, "{} branches stand prepared", self.prepared().await);
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Fast to start, small on disk; as durable as ever.
const SMALL: [&str; 4] = [
    "--innodb-log-file-size=8M",
    "--innodb-buffer-pool-size=16M",
    "--performance-schema=OFF",
    "--innodb-flush-log-at-trx-commit=1",
];

/// A server that starts deletes the temporary tables there: in a folder of all it would be those of others.
fn tmpdir(own: &Path) -> String {
    format!("--tmpdir={}", own.display())
}

/// A fresh data directory, made once for all tests.
fn template() -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let template = home.join("mariadb-data");
    if !template.exists() {
        let fresh = tempfile::tempdir_in(home).unwrap();
        let data = fresh.path().join("data");
        let installed = Command::new("mariadb-install-db")
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .args([format!("--datadir={}", data.display()), format!("--user={}", whoami())])
            .arg(tmpdir(fresh.path()))
            .arg(SMALL[0])
            .stdout(Stdio::null())
            .status();
        assert!(installed.expect("these tests need MariaDB: apt-get install mariadb-server").success());
        // Another test may have been quicker.
        if let Err(error) = fs::rename(&data, &template) {
            assert!(template.exists(), "{error}");
        }
    }
    template
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().collect::<io::Result<Vec<_>>>().unwrap() {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn whoami() -> String {
    let who = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(who.stdout).unwrap().trim().to_owned()
}
