//! What operators do about what cannot settle by itself, by the command line.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    process::{Command, Output},
    time::Duration,
};

use support::{Cluster, Gates, name};
use verdict_client::{Outcome, State, Xid, participant::rules::Record};

fn tx(cluster: &Cluster, arguments: &[&str]) -> Output {
    let nodes: Vec<&str> = cluster.nodes.values().map(String::as_str).collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_verdict"));
    command.env("VERDICT_NODES", nodes.join(",")).env("USER", "ada").arg("tx").args(arguments);
    command.output().unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The command is refused without `--force`, says so, and is taken with it.
fn takes_force(cluster: &Cluster, arguments: &[&str]) -> serde_json::Value {
    let refused = tx(cluster, arguments);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("--force"), "{said}");
    json(&tx(cluster, &[arguments, &["--force", "-o", "json"]].concat()))
}

async fn until(cluster: &Cluster, xid: Xid, state: State) {
    let verdict = cluster.client();
    while verdict.get(xid).await.unwrap().state != state {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_that_will_never_answer_is_settled_by_word_and_the_transaction_forgotten() {
    let gates = Gates::new();
    let cluster = Cluster::start_with(&gates.wrap()).await;
    gates.commit("wallet").close();
    let mut booking = cluster.client().transaction();
    let seats = booking.add(name("seats"), "work".into()).unwrap();
    booking.add(name("wallet"), "work".into()).unwrap();
    assert_eq!(booking.commit().await.unwrap().outcome, Outcome::Committed);
    let xid = booking.xid().to_string();
    cluster.wait_for("confirmed", |cluster| cluster.effects("seats").confirmed.contains_key(&seats)).await;

    let listed = json(&tx(&cluster, &["list", "--in-doubt", "-o", "json"]));
    assert_eq!(listed["transactions"][0]["xid"], xid.as_str());
    // Which participant, why, how often, and when next.
    let blocked = loop {
        let shown = json(&tx(&cluster, &["show", &xid, "-o", "json"]));
        if !shown["branches"][1]["blocker"].is_null() {
            break shown["branches"][1].clone();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(blocked["resource"], "wallet");
    assert!(blocked["blocker"]["last_error"].as_str().unwrap().contains("no acknowledgement"), "{blocked}");
    assert!(blocked["blocker"]["failed_attempts"].as_u64().unwrap() >= 1, "{blocked}");
    let said = tx(&cluster, &["list", "--in-doubt", "--older-than", "10ms"]);
    let said = String::from_utf8_lossy(&said.stdout);
    assert!(said.contains("wallet: no acknowledgement") && said.contains("again"), "{said}");
    let too_early = tx(&cluster, &["resolve", &xid, "--outcome", "aborted", "--reason", "no"]);
    assert!(!too_early.status.success(), "it is decided");

    let lost = ["resolve", &xid, "--branch", "2", "--ended", "rolled-back", "--reason", "the database is lost"];
    let view = takes_force(&cluster, &lost);
    assert_eq!(view["branches"][1]["settlement"], "HEURISTIC_ROLLBACK", "which branch ended how: {view}");
    assert_eq!((&view["words"][0]["who"], &view["words"][0]["why"]), (&"ada".into(), &"the database is lost".into()));
    let shown = tx(&cluster, &["show", &xid]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("the database is lost"));
    let in_doubt = json(&tx(&cluster, &["list", "--in-doubt", "-o", "json"]));
    assert_eq!(in_doubt["transactions"], serde_json::json!([]), "nobody is in doubt any more");

    let silent = tx(&cluster, &["forget", &xid, "--reason", " "]);
    assert!(String::from_utf8_lossy(&silent.stderr).contains("word.why is empty"), "a reason is wanted");
    let forgotten = json(&tx(&cluster, &["forget", &xid, "--reason", "compensated by hand", "-o", "json"]));
    assert_eq!((&forgotten["state"], &forgotten["outcome"]), (&"ENDED".into(), &"COMMITTED".into()));
    gates.commit("wallet").open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_delegated_to_a_lost_database_is_taken_over() {
    let gates = Gates::new();
    let cluster = Cluster::start_with(&gates.wrap()).await;
    gates.commit("wallet").close();
    let mut booking = cluster.client().transaction();
    let seats = booking.add(name("seats"), "work".into()).unwrap();
    let wallet = booking.add(name("wallet"), "work".into()).unwrap();
    booking.decided_by(wallet.number);
    let xid = booking.xid();
    let commit = tokio::spawn(async move { booking.commit().await });
    until(&cluster, xid, State::Delegated).await;
    let id = xid.to_string();
    let view = takes_force(&cluster, &["resolve", &id, "--outcome", "aborted", "--reason", "the wallet is gone"]);
    assert_eq!((&view["outcome"], &view["reason"]["code"]), (&"ABORTED".into(), &"OPERATOR".into()), "{view}");
    assert_eq!(commit.await.unwrap().unwrap().outcome, Outcome::Aborted, "the client that waits hears it");
    cluster.wait_for("cancelled", |cluster| cluster.effects("seats").cancelled.contains_key(&seats)).await;
    // It was told to roll back as well: the question that comes late finds that it may not commit.
    until(&cluster, xid, State::Ended).await;
    assert_eq!(cluster.participants["wallet"].record(wallet), Some(Record::RolledBack));
    gates.commit("wallet").open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_undecided_is_aborted_by_word_and_never_committed() {
    let cluster = Cluster::start().await;
    let booking = cluster.client().begin(Duration::from_secs(60)).await.unwrap();
    let xid = booking.xid().to_string();
    let commit = tx(&cluster, &["resolve", &xid, "--outcome", "committed", "--reason", "I want it", "--force"]);
    assert!(!commit.status.success() && String::from_utf8_lossy(&commit.stderr).contains("not every branch"));
    let view = json(&tx(&cluster, &["resolve", &xid, "--outcome", "aborted", "--reason", "left over", "-o", "json"]));
    assert_eq!((&view["state"], &view["outcome"]), (&"ENDED".into(), &"ABORTED".into()), "{view}");
    let unknown = cluster.client().new_xid().to_string();
    let nothing = tx(&cluster, &["forget", &unknown, "--reason", "a slip"]);
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("no such transaction"));
}
