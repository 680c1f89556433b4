//! `kill -9` of the leader at each step of a commit: one outcome, at all participants, once.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::time::Duration;

use support::{Cluster, Gates, RESOURCES, name};
use tokio::task::JoinHandle;
use verdict_client::{BranchId, CallError, Decision, Outcome, State, Transaction, Verdict};

/// One commit under way, in a cluster whose participants answer when they are let.
struct Scene {
    cluster: Cluster,
    gates: Gates,
    leader: u64,
}

impl Scene {
    async fn set() -> Self {
        let gates = Gates::new();
        let cluster = Cluster::start_with(&gates.wrap()).await;
        let leader = cluster.leader().await;
        Self { cluster, gates, leader }
    }

    fn close(&self, at: impl Fn(&Gates, &str)) {
        RESOURCES.iter().for_each(|resource| at(&self.gates, resource));
    }

    fn commit(&self, verdict: &Verdict) -> Commit {
        let mut transaction = verdict.with_deadline(Duration::from_secs(30)).transaction();
        transaction.set_vote_timeout(Duration::from_secs(20));
        let branches =
            RESOURCES.iter().map(|resource| transaction.add(name(resource), "work".into()).unwrap()).collect();
        let xid = transaction.xid();
        let answer = tokio::spawn(async move {
            let decision = transaction.commit().await;
            (transaction, decision)
        });
        Commit { xid, branches, answer }
    }

    async fn until_voting(&self, commit: &Commit) {
        let verdict = self.cluster.client();
        while verdict.get(commit.xid).await.unwrap().state != State::Voting {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn followers(&self) -> Vec<u64> {
        self.cluster.nodes.keys().copied().filter(|node| *node != self.leader).collect()
    }

    /// The leader is dead by now and the participants may answer: the transaction commits, everywhere, once.
    async fn commits(mut self, commit: Commit) {
        RESOURCES.iter().for_each(|resource| {
            self.gates.prepare(resource).open();
            self.gates.commit(resource).open();
        });
        let (transaction, decision) = commit.answer.await.unwrap();
        let decision = decision.unwrap();
        assert_eq!(decision.outcome, Outcome::Committed, "it was voting, and is not rolled back: {decision:?}");
        for (resource, branch) in RESOURCES.iter().zip(&commit.branches) {
            self.cluster
                .wait_for("confirmed", |cluster| cluster.effects(resource).confirmed.contains_key(branch))
                .await;
        }
        self.cluster.start_node(self.leader);
        for node in self.cluster.nodes.keys() {
            let verdict = self.cluster.client_of(*node).with_deadline(Duration::from_secs(20));
            let status = verdict.get(commit.xid).await.unwrap();
            assert_eq!(status.decision.unwrap().log_index, decision.log_index, "node {node} has another decision");
        }
        assert_eq!(transaction.commit().await.unwrap().log_index, decision.log_index);
        for (resource, branch) in RESOURCES.iter().zip(&commit.branches) {
            let effects = self.cluster.effects(resource);
            assert_eq!((effects.reserved[branch], effects.confirmed[branch]), (1, 1), "{resource}");
            assert!(effects.cancelled.is_empty(), "{resource}");
        }
    }
}

struct Commit {
    xid: verdict_client::Xid,
    branches: Vec<BranchId>,
    answer: JoinHandle<(Transaction, Result<Decision, CallError>)>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_prepare_is_logged() {
    let mut scene = Scene::set().await;
    scene.close(|gates, resource| gates.prepare(resource).close());
    let followers = scene.followers();
    for node in &followers {
        scene.cluster.kill(*node);
    }
    // The leader asks the participants at once, and cannot log the list: no majority is there.
    let commit = scene.commit(&scene.cluster.client());
    scene.gates.prepare("tickets").arrived(1).await;
    scene.cluster.kill(scene.leader);
    for node in followers {
        scene.cluster.start_node(node);
    }
    scene.commits(commit).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_prepare_is_logged() {
    let mut scene = Scene::set().await;
    scene.close(|gates, resource| gates.prepare(resource).close());
    let commit = scene.commit(&scene.cluster.client());
    scene.until_voting(&commit).await;
    scene.cluster.kill(scene.leader);
    scene.commits(commit).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn between_votes() {
    let mut scene = Scene::set().await;
    scene.gates.prepare("tickets").close();
    let commit = scene.commit(&scene.cluster.client());
    for resource in ["seats", "wallet"] {
        scene.cluster.wait_for("reserved", |cluster| !cluster.effects(resource).reserved.is_empty()).await;
    }
    scene.until_voting(&commit).await;
    scene.cluster.kill(scene.leader);
    scene.commits(commit).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_last_votes_append_and_before_any_answer() {
    let mut scene = Scene::set().await;
    scene.close(|gates, resource| {
        gates.prepare(resource).close();
        gates.commit(resource).close();
    });
    // The client's only way to the leader leads through a follower that is paused before the votes come.
    let between = scene.followers()[0];
    let commit = scene.commit(&scene.cluster.client_of(between));
    scene.until_voting(&commit).await;
    scene.cluster.pause(between, true);
    scene.close(|gates, resource| gates.prepare(resource).open());
    scene.gates.commit("seats").arrived(1).await;
    assert!(!commit.answer.is_finished());
    scene.cluster.kill(scene.leader);
    scene.cluster.pause(between, false);
    scene.commits(commit).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_answer() {
    let mut scene = Scene::set().await;
    scene.close(|gates, resource| gates.commit(resource).close());
    let commit = scene.commit(&scene.cluster.client());
    scene.cluster.wait_for("answered", |_| commit.answer.is_finished()).await;
    assert!(RESOURCES.iter().all(|resource| scene.cluster.effects(resource).confirmed.is_empty()));
    scene.cluster.kill(scene.leader);
    scene.commits(commit).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_middle_of_settling() {
    let mut scene = Scene::set().await;
    scene.gates.commit("wallet").close();
    scene.gates.commit("tickets").close();
    let commit = scene.commit(&scene.cluster.client());
    scene.cluster.wait_for("seats are sold", |cluster| !cluster.effects("seats").confirmed.is_empty()).await;
    scene.cluster.kill(scene.leader);
    scene.commits(commit).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s31_all_transactions_that_were_voting_go_on_and_commit() {
    const IN_FLIGHT: usize = 30;
    let mut scene = Scene::set().await;
    scene.gates.prepare("tickets").close();
    let verdict = scene.cluster.client();
    let commits: Vec<Commit> = (0..IN_FLIGHT).map(|_| scene.commit(&verdict)).collect();
    for commit in &commits {
        scene.until_voting(commit).await;
    }
    scene.cluster.kill(scene.leader);
    scene.gates.prepare("tickets").open();
    for commit in commits {
        let (_, decision) = commit.answer.await.unwrap();
        let decision = decision.unwrap();
        assert_eq!(decision.outcome, Outcome::Committed, "it was voting, and is not rolled back: {decision:?}");
        for (resource, branch) in RESOURCES.iter().zip(&commit.branches) {
            let confirmed = |cluster: &Cluster| cluster.effects(resource).confirmed.get(branch) == Some(&1);
            scene.cluster.wait_for("confirmed", confirmed).await;
        }
    }
    assert!(RESOURCES.iter().all(|resource| scene.cluster.effects(resource).cancelled.is_empty()));
}
