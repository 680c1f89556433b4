//! The demo over real servers that it starts itself: that its audit reads them, and that none of them outlives it.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use verdict_client::resource::{
    mysql::mysql_async::{Conn, Opts, prelude::Queryable as _},
    postgres::tokio_postgres::{self, NoTls},
};

fn demo(folder: &Path, databases: &str, lines: usize) -> Command {
    let all = include_str!("../../examples/bookings.csv");
    let bookings = folder.join("bookings.csv");
    fs::write(&bookings, all.lines().take(lines + 1).collect::<Vec<_>>().join("\n")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_verdict"));
    command.args(["demo", "--json", "--databases", databases]).arg("--bookings").arg(bookings);
    command.arg("--keep").arg(folder.join("kept")).env_clear().stdin(Stdio::null());
    command
}

/// Starts it and waits until it says this.
fn started(folder: &Path, databases: &str, lines: usize, says: &str) -> Child {
    let said = folder.join("said");
    let log = fs::File::create(&said).unwrap();
    let child = demo(folder, databases, lines).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    wait_for(says, || fs::read_to_string(&said).unwrap().contains(says));
    child
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let by = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < by, "{what}");
        sleep(Duration::from_millis(10));
    }
}

/// Whoever works in this folder, or on a file that its command line names: servers, their backends, nodes.
#[cfg(target_os = "linux")]
fn processes(folder: &Path) -> Vec<String> {
    let name = folder.to_str().unwrap();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        // One that ended meanwhile can't be read.
        let Ok(command) = fs::read(entry.path().join("cmdline")) else { continue };
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let works_in = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        if command.contains(name) || works_in.starts_with(folder) {
            found.push(command);
        }
    }
    found
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn the_audit_of_both_databases_holds_over_all_faults() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), "postgres,mariadb", 120).output().unwrap();
    let report = report(&output);
    assert!(output.status.success(), "{report}");
    let (holds, in_doubt, lines) = (&report["holds"], &report["in_doubt"], &report["lines"]);
    assert_eq!((holds.as_bool(), in_doubt.as_u64(), lines.as_u64()), (Some(true), Some(0), Some(120)));
    assert!(report["committed"].as_u64().unwrap() > 80, "{report}");
    assert_eq!(report["audit"]["wallets_debited"], report["committed"]);
    assert_eq!(report["faults"][3]["what"], "kill -9 MariaDB, for 1.0 s");
    let databases = &report["databases"];
    assert!(databases["seats"].as_str().unwrap().starts_with("PostgreSQL 1"), "{databases}");
    assert!(databases["wallet"].as_str().unwrap().starts_with("MariaDB 1"), "{databases}");
    assert_eq!(databases["tickets"], "SQLite");
    #[cfg(target_os = "linux")]
    assert_eq!(processes(folder.path()), [""; 0]);
}

/// A wallet that lacks a cent, and a transaction that somebody left prepared.
#[tokio::test]
async fn the_audit_of_servers_that_were_tampered_with_does_not_hold() {
    let folder = tempfile::tempdir().unwrap();
    let demo = started(folder.path(), "postgres,mariadb", 60, "kill -9 the leader");
    let dsn = |kind: &str| fs::read_to_string(folder.path().join(format!("kept/{kind}.dsn"))).unwrap();
    let (seats, connection) = tokio_postgres::connect(&dsn("seats"), NoTls).await.unwrap();
    drop(tokio::spawn(connection));
    let stray = "BEGIN; INSERT INTO sales VALUES ('stray', 'stray', 'nowhere', 1); PREPARE TRANSACTION 'stray'";
    seats.batch_execute(stray).await.unwrap();
    drop(seats);
    let mut wallet = Conn::new(Opts::from_url(&dsn("wallet")).unwrap()).await.unwrap();
    wallet.query_drop("UPDATE customers SET balance = balance - 1 LIMIT 1").await.unwrap();
    wallet.disconnect().await.unwrap();
    let output = tokio::task::spawn_blocking(|| demo.wait_with_output().unwrap()).await.unwrap();
    let report = report(&output);
    assert_eq!((output.status.code(), report["holds"].as_bool()), (Some(1), Some(false)), "{report}");
    let checks = report["audit"]["checks"].as_array().unwrap();
    let holds: Vec<bool> = checks.iter().map(|check| check["holds"].as_bool().unwrap()).collect();
    assert_eq!(holds, [true, false, true, false], "{report}");
    assert!(checks[1]["detail"].as_str().unwrap().contains(" left of 25000"), "{report}");
    assert_eq!(report["in_doubt"], 1, "{report}");
}

/// Ctrl-C while bookings are under way, and in the middle of setting the servers up.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_demo_ends_its_servers() {
    for says in ["kill -9 the leader", "Setting up"] {
        let folder = tempfile::tempdir().unwrap();
        let mut demo = started(folder.path(), "postgres,mariadb", 400, says);
        kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
        assert_eq!(demo.wait().unwrap().code(), Some(130));
        // What killed processes have started is gone a moment later.
        wait_for("all processes end", || processes(folder.path()).is_empty());
    }
}

/// Not even of a demo that is killed, and can do nothing about it.
#[cfg(target_os = "linux")]
#[test]
fn a_killed_demo_leaves_no_server_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = started(folder.path(), "mariadb,postgres", 400, "kill -9 the leader");
    assert!(processes(folder.path()).len() > 6, "the demo, nodes, servers, backends, a participant");
    demo.kill().unwrap();
    demo.wait().unwrap();
    wait_for("all processes end", || processes(folder.path()).is_empty());
}

#[test]
fn what_can_not_be_is_said() {
    let folder = tempfile::tempdir().unwrap();
    for (databases, more, says) in [
        ("oracle", &[][..], "possible values: postgres, mariadb"),
        ("postgres,", &[], "possible values: postgres, mariadb"),
        ("postgres,mariadb,postgres", &[], "3 are named, and there is work for two"),
        ("postgres", &["--in-flight", "401"], "--in-flight may be 400 at most"),
    ] {
        let output = demo(folder.path(), databases, 1).args(more).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(says), "{databases}: {said}");
    }
    assert!(!folder.path().join("kept").exists());
}
