//! Participants that open a stream to the cluster: commit, failover, replicas, stopping.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{sync::Arc, time::Duration};

use support::{Cluster, Gates, RESOURCES, name};
use tokio::{task::JoinHandle, time::Instant};
use verdict_client::{
    BranchId, BranchStatus, CallError, Decision, Outcome, State, Transaction, Xid,
    participant::{ResourceManager, StreamStatus},
};

fn plain(_: &str, manager: Arc<dyn ResourceManager>) -> Arc<dyn ResourceManager> {
    manager
}

/// A commit under way.
struct Commit {
    xid: Xid,
    branches: Vec<BranchId>,
    answer: JoinHandle<(Transaction, Result<Decision, CallError>)>,
}

fn commit(cluster: &Cluster, resources: &[&str]) -> Commit {
    let mut transaction = cluster.client().with_deadline(Duration::from_secs(30)).transaction();
    transaction.set_vote_timeout(Duration::from_secs(20));
    let branches = resources.iter().map(|resource| transaction.add(name(resource), "work".into()).unwrap()).collect();
    let xid = transaction.xid();
    let answer = tokio::spawn(async move {
        let decision = transaction.commit().await;
        (transaction, decision)
    });
    Commit { xid, branches, answer }
}

/// It commits, and has its effect once at each participant.
async fn commits(cluster: &Cluster, commit: Commit, resources: &[&str]) {
    let (transaction, decision) = commit.answer.await.unwrap();
    let decision = decision.unwrap();
    assert_eq!(decision.outcome, Outcome::Committed, "{decision:?}");
    for (resource, branch) in resources.iter().zip(&commit.branches) {
        cluster.wait_for("confirmed", |cluster| cluster.effects(resource).confirmed.contains_key(branch)).await;
    }
    assert_eq!(transaction.commit().await.unwrap(), decision, "a repeat has the same answer");
    for (resource, branch) in resources.iter().zip(&commit.branches) {
        let effects = cluster.effects(resource);
        assert_eq!((effects.reserved[branch], effects.confirmed[branch]), (1, 1), "{resource}");
        assert!(!effects.cancelled.contains_key(branch), "{resource}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_takes_effect_once_through_streams() {
    let cluster = Cluster::start_attached(&plain).await;
    commits(&cluster, commit(&cluster, &RESOURCES), &RESOURCES).await;

    // One no aborts everywhere, with its reason; read-only branches are out of phase two.
    let verdict = cluster.client();
    let mut booking = verdict.transaction();
    let seats = booking.add(name("seats"), "work".into()).unwrap();
    booking.add(name("wallet"), "no".into()).unwrap();
    booking.add(name("tickets"), "read".into()).unwrap();
    let decision = booking.commit().await.unwrap();
    assert_eq!(decision.outcome, Outcome::Aborted);
    assert_eq!(decision.reason.unwrap().text, "told to say no");
    cluster.wait_for("cancelled", |cluster| cluster.effects("seats").cancelled.contains_key(&seats)).await;

    // One branch decides.
    let mut booking = verdict.transaction();
    let seats = booking.add(name("seats"), "work".into()).unwrap();
    let wallet = booking.add(name("wallet"), "work".into()).unwrap();
    booking.decided_by(wallet.number);
    assert_eq!(booking.commit().await.unwrap().outcome, Outcome::Committed);
    cluster.wait_for("confirmed", |cluster| cluster.effects("seats").confirmed.contains_key(&seats)).await;
    assert_eq!(cluster.effects("wallet").confirmed[&wallet], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_and_endpoints_take_part_in_one_transaction() {
    let cluster = Cluster::start_by_stream(&plain, &["wallet"], &[]).await;
    commits(&cluster, commit(&cluster, &RESOURCES), &RESOURCES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_dies_while_a_branch_is_prepared() {
    let gates = Gates::new();
    let mut cluster = Cluster::start_attached(&gates.wrap()).await;
    let leader = cluster.leader().await;
    gates.prepare("tickets").close();
    let under_way = commit(&cluster, &RESOURCES);
    for resource in ["seats", "wallet"] {
        cluster.wait_for("reserved", |cluster| !cluster.effects(resource).reserved.is_empty()).await;
    }
    gates.prepare("tickets").arrived(1).await;
    while cluster.client().get(under_way.xid).await.unwrap().state != State::Voting {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cluster.kill(leader);
    // The new leader asks it again, through a new stream, while it still works on the first question.
    gates.prepare("tickets").arrived(2).await;
    gates.prepare("tickets").open();
    commits(&cluster, under_way, &RESOURCES).await;
    let leader = cluster.leader().await;
    cluster.all_attached(leader).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_dies_before_the_outcome_arrives() {
    let gates = Gates::new();
    let mut cluster = Cluster::start_attached(&gates.wrap()).await;
    let leader = cluster.leader().await;
    RESOURCES.iter().for_each(|resource| gates.commit(resource).close());
    let under_way = commit(&cluster, &RESOURCES);
    for resource in RESOURCES {
        gates.commit(resource).arrived(1).await;
    }
    cluster.kill(leader);
    for resource in RESOURCES {
        gates.commit(resource).arrived(2).await;
        gates.commit(resource).open();
    }
    commits(&cluster, under_way, &RESOURCES).await;
}

/// As an operator does who is told that nobody to hand over to was heard of lately: again, once somebody was.
async fn hand_over(cluster: &Cluster) -> u64 {
    let by = Instant::now() + Duration::from_secs(20);
    loop {
        match cluster.client().transfer_leader(None).await {
            Ok(leader) => return leader,
            Err(error) => assert!(Instant::now() < by && error.to_string().contains("heard of lately"), "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hands_over_ends_its_streams() {
    let mut cluster = Cluster::start_attached(&plain).await;
    for _ in 0..2 {
        let before = cluster.leader().await;
        let leader = hand_over(&cluster).await;
        assert_ne!(leader, before);
        cluster.all_attached(leader).await;
        commits(&cluster, commit(&cluster, &RESOURCES), &RESOURCES).await;
    }
    // An operator's stop does the same.
    let before = cluster.leader().await;
    assert!(cluster.stop(before).await.success());
    commits(&cluster, commit(&cluster, &RESOURCES), &RESOURCES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_lost_its_majority_lets_its_participants_go() {
    let mut cluster = Cluster::start_attached(&plain).await;
    let leader = cluster.leader().await;
    let followers: Vec<u64> = cluster.nodes.keys().copied().filter(|node| *node != leader).collect();
    followers.iter().for_each(|node| cluster.kill(*node));
    let detached = |cluster: &Cluster| {
        cluster.attached.values().all(|one| matches!(one.stream(), Some(StreamStatus::Detached { .. })))
    };
    cluster.wait_for("all are detached", detached).await;
    for node in followers {
        cluster.start_node(node);
    }
    commits(&cluster, commit(&cluster, &RESOURCES), &RESOURCES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_may_be_opened_after_the_commit() {
    let cluster = Cluster::start_by_stream(&plain, &["seats", "tickets"], &["wallet"]).await;
    let under_way = commit(&cluster, &RESOURCES);
    let verdict = cluster.client();
    let said = loop {
        let status = verdict.get(under_way.xid).await.unwrap();
        let waits = |branch: &&BranchStatus| branch.resource == name("wallet") && !branch.last_error.is_empty();
        if let Some(branch) = status.branches.iter().find(waits) {
            break branch.last_error.clone();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(said.contains("no participant is attached for wallet"), "{said}");
    let late = cluster.replica("wallet", &plain);
    commits(&cluster, under_way, &RESOURCES).await;
    late.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_share_the_work_and_one_goes_on_alone() {
    let gates = Gates::new();
    let mut cluster = Cluster::start_by_stream(&gates.wrap(), &["seats"], &["wallet", "tickets"]).await;
    let other_gates = Gates::new();
    let other = cluster.replica("seats", &other_gates.wrap());
    let leader = cluster.leader().await;
    let both = |cluster: &Cluster| {
        let to = Some(StreamStatus::Attached { node: leader });
        cluster.attached["seats"].stream() == to && other.stream() == to
    };
    cluster.wait_for("both are attached", both).await;

    // Neither answers: what one holds is not what holds up the other.
    gates.prepare("seats").close();
    other_gates.prepare("seats").close();
    let under_way: Vec<Commit> = (0..40).map(|_| commit(&cluster, &["seats"])).collect();
    gates.prepare("seats").arrived(5).await;
    other_gates.prepare("seats").arrived(5).await;

    // One dies with its questions; the other is asked them.
    other_gates.prepare("seats").open();
    drop(cluster.attached.remove("seats"));
    for one in under_way {
        commits(&cluster, one, &["seats"]).await;
    }
    gates.prepare("seats").open();
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_lets_the_last_vote_out_and_takes_nothing_new() {
    let gates = Gates::new();
    let mut cluster = Cluster::start_by_stream(&gates.wrap(), &["seats"], &["wallet", "tickets"]).await;
    gates.prepare("seats").close();
    let under_way = commit(&cluster, &["seats"]);
    gates.prepare("seats").arrived(1).await;
    let stopping = tokio::spawn(cluster.attached.remove("seats").unwrap().stop());
    // It is told apart from one that is attached at once.
    let after = commit(&cluster, &["seats"]);
    let verdict = cluster.client();
    loop {
        let status = verdict.get(after.xid).await.unwrap();
        if status.branches.iter().any(|branch| branch.last_error.contains("no participant is attached for seats")) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!stopping.is_finished(), "it waits for what is under way");
    gates.prepare("seats").open();
    stopping.await.unwrap();
    let (_, decision) = under_way.answer.await.unwrap();
    assert_eq!(decision.unwrap().outcome, Outcome::Committed, "the last vote was heard");
    assert_eq!(cluster.effects("seats").confirmed.len(), 0, "and nobody was there for the outcome");

    let next = cluster.replica("seats", &plain);
    commits(&cluster, after, &["seats"]).await;
    let settled = |cluster: &Cluster| cluster.effects("seats").confirmed.contains_key(&under_way.branches[0]);
    cluster.wait_for("the outcome came", settled).await;
    next.stop().await;
}
