//! The demo as a whole, with a short file of bookings; and that none of its processes outlives it.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The first lines of the file that comes with the program, header included.
fn bookings(folder: &Path, lines: usize) -> std::path::PathBuf {
    let all = include_str!("../../examples/bookings.csv");
    let path = folder.join("bookings.csv");
    let text: Vec<&str> = all.lines().take(lines + 1).collect();
    fs::write(&path, text.join("\n")).unwrap();
    path
}

fn demo(folder: &Path, lines: usize) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verdict"));
    command.arg("demo").arg("--bookings").arg(bookings(folder, lines)).arg("--keep").arg(folder.join("kept"));
    command.env_clear().stdin(Stdio::null());
    command
}

/// The processes whose command line names a file in `folder`.
#[cfg(target_os = "linux")]
fn processes(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        // One that ended meanwhile can't be read.
        let Ok(command) = fs::read(entry.path().join("cmdline")) else { continue };
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if command.contains(folder) {
            found.push(command);
        }
    }
    found
}

#[cfg(target_os = "linux")]
fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let by = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < by, "{what}");
        sleep(Duration::from_millis(10));
    }
}

/// Starts a demo and waits until it is in the middle of its faults: a node was killed.
#[cfg(target_os = "linux")]
fn started(folder: &Path) -> Child {
    let log = fs::File::create(folder.join("said")).unwrap();
    let child = demo(folder, 400).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    wait_for("the leader is paused", || fs::read_to_string(folder.join("said")).unwrap().contains("pause the leader"));
    assert_eq!(processes(&folder.join("kept")).len(), 7, "the demo, three nodes, three participants");
    child
}

#[test]
fn the_audit_holds_over_all_faults() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), 200).arg("--json").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["holds"], true);
    assert_eq!(report["in_doubt"], 0);
    assert_eq!(report["lines"], 200);
    assert_eq!(report["committed"].as_u64().unwrap() + report["aborted"].as_u64().unwrap(), 200);
    assert_eq!(report["audit"]["tickets_issued"], report["committed"]);
    assert_eq!(report["faults"].as_array().unwrap().len(), 4, "{said}");
    for fault in [0, 2] {
        assert!(report["faults"][fault]["new_leader"].as_u64().is_some(), "{report}");
    }
    let outcomes = fs::read_to_string(folder.path().join("kept/outcomes.csv")).unwrap();
    assert_eq!(outcomes.lines().count(), 201);
}

/// Ctrl-C, in the worst moment: a node is paused.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_demo_leaves_no_process_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = started(folder.path());
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(130));
    assert_eq!(processes(folder.path()), [""; 0]);
}

/// Not even when it is killed, and can do nothing about it.
#[cfg(target_os = "linux")]
#[test]
fn a_killed_demo_leaves_no_process_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = started(folder.path());
    demo.kill().unwrap();
    demo.wait().unwrap();
    wait_for("all processes end", || processes(folder.path()).is_empty());
}
