//! Clients that prepare and settle branches themselves, over three real nodes; and who may speak for a branch.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use support::{Cluster, Effects, name};
use tokio::time::Instant;
use verdict_client::{
    BranchId, CallError, Enlisted, LocalBranch, LogTime, Order, Outcome, RefusalCode, ResourceName, Settlement, State,
    participant::{NotAnswered, Prepare, ResourceManager, Settle, Settled, Stamp, Voted},
    resource::memory::{Memory, MemoryManager},
};

/// A session of the client's own on a participant of the cluster.
#[derive(Debug)]
struct Session {
    manager: MemoryManager<Effects>,
    resource: ResourceName,
    stamp: Stamp,
    payload: &'static str,
    told: Mutex<Vec<Outcome>>,
}

impl Session {
    async fn open(cluster: &Cluster, resource: &str, payload: &'static str) -> Arc<Self> {
        let memory: &Memory<Effects> = &cluster.participants[resource];
        let status = cluster.client_of(cluster.leader().await).cluster_status().await.unwrap();
        let (cluster, incarnation, term) = (status.cluster.unwrap(), status.incarnation, status.term);
        let stamp = Stamp { cluster, incarnation, term, horizon: LogTime::default() };
        Arc::new(Self { manager: memory.open(), resource: name(resource), stamp, payload, told: Mutex::default() })
    }

    fn told(&self) -> Vec<Outcome> {
        self.told.lock().unwrap().clone()
    }
}

#[tonic::async_trait]
impl LocalBranch for Session {
    async fn prepare(&self, branch: BranchId) -> Result<Voted, NotAnswered> {
        let (stamp, resource, payload) = (self.stamp, self.resource.clone(), self.payload.into());
        let vote_timeout = Duration::ZERO;
        self.manager.prepare(Prepare { stamp, branch, resource, payload, vote_timeout, credential: None }).await
    }

    async fn settle(&self, branch: BranchId, outcome: Outcome) -> Result<Settled, NotAnswered> {
        self.told.lock().unwrap().push(outcome);
        let request =
            Settle { stamp: self.stamp, branch, resource: self.resource.clone(), payload: self.payload.into() };
        match outcome {
            Outcome::Committed => self.manager.commit(request).await,
            Outcome::Aborted => self.manager.rollback(request).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn votes_brought_along_take_one_append_and_their_client_settles() {
    let cluster = Cluster::start().await;
    let verdict = cluster.client();
    let before = cluster.last_index().await;
    let (seats, wallet) =
        (Session::open(&cluster, "seats", "work").await, Session::open(&cluster, "wallet", "work").await);
    let mut booking = verdict.transaction();
    let first = booking.add(name("seats"), "work".into()).unwrap();
    let second = booking.add(name("wallet"), "work".into()).unwrap();
    booking.drive(first.number, Arc::clone(&seats) as _).unwrap();
    booking.drive(second.number, Arc::clone(&wallet) as _).unwrap();
    let decision = booking.commit().await.unwrap();
    assert_eq!(decision.outcome, Outcome::Committed);
    assert_eq!(decision.log_index, before + 1, "one append");
    assert_eq!(cluster.effects("seats").confirmed[&first], 1, "settled when commit returns");
    assert_eq!(cluster.effects("wallet").confirmed[&second], 1);
    let by = Instant::now() + Duration::from_millis(900);
    while verdict.get(booking.xid()).await.unwrap().state != State::Ended {
        assert!(Instant::now() < by, "its client's report has settled it, before the cluster would have");
    }
    assert_eq!([seats.told(), wallet.told()], [[Outcome::Committed], [Outcome::Committed]]);

    // One refuses: the other is rolled back, by the recorded outcome.
    let (seats, wallet) =
        (Session::open(&cluster, "seats", "work").await, Session::open(&cluster, "wallet", "no").await);
    let mut booking = verdict.transaction();
    let first = booking.enlist(name("seats"), "work".into()).await.unwrap().branch;
    let second = booking.add(name("wallet"), "no".into()).unwrap();
    booking.drive(first.number, seats as _).unwrap();
    booking.drive(second.number, wallet as _).unwrap();
    let decision = booking.commit().await.unwrap();
    assert_eq!((decision.outcome, decision.reason.unwrap().source_code.as_str()), (Outcome::Aborted, "E42"));
    assert_eq!(cluster.effects("seats").cancelled[&first], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_dies_with_the_outcome_leaves_its_branches_to_the_cluster() {
    let mut cluster = Cluster::start().await;
    let verdict = cluster.client();
    let seats = Session::open(&cluster, "seats", "work").await;
    let mut booking = verdict.transaction();
    let branch = booking.add(name("seats"), "work".into()).unwrap();
    let voted = seats.prepare(branch).await.unwrap();
    booking.brings(branch.number, voted).unwrap();
    assert_eq!(booking.commit().await.unwrap().outcome, Outcome::Committed);
    // Nobody settles it; and the leader dies, too.
    let leader = cluster.leader().await;
    cluster.kill(leader);
    cluster.wait_for("confirmed", |cluster| cluster.effects("seats").confirmed.contains_key(&branch)).await;
    cluster.leader().await;
    let by = Instant::now() + Duration::from_secs(20);
    while verdict.get(booking.xid()).await.unwrap().state != State::Ended {
        assert!(Instant::now() < by, "it is settled, and ends");
    }
    assert_eq!(cluster.effects("seats").confirmed[&branch], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m40_only_who_enlisted_a_branch_speaks_for_it_at_every_node() {
    let cluster = Cluster::start().await;
    let verdict = cluster.client();
    let mut booking = verdict.transaction();
    let own = booking.enlist(name("seats"), "work".into()).await.unwrap();
    let other = booking.enlist(name("wallet"), "work".into()).await.unwrap();
    let forbidden = |error: CallError| assert_eq!(error.code(), Some(RefusalCode::Forbidden), "{error}");
    for node in cluster.nodes.keys() {
        let verdict = cluster.client_of(*node);
        let forged = Enlisted { branch: other.branch, ..own };
        forbidden(verdict.vote(forged, Voted::PREPARED).await.unwrap_err());
        let done = vec![(own, Settlement::Done), (forged, Settlement::Done)];
        forbidden(verdict.report_settled(booking.xid(), done).await.unwrap_err());
        let undecided = verdict.report_settled(booking.xid(), vec![(own, Settlement::Done)]).await.unwrap_err();
        assert_eq!(undecided.code(), Some(RefusalCode::Undecided));
    }
    // Somebody who knows the xid, and has enlisted nothing.
    let mut thief = verdict.resume(booking.xid());
    for (number, resource) in [(1, "seats"), (2, "wallet")] {
        let (payload, vote) = ("work".into(), Some(Voted::PREPARED));
        thief.add_branch(verdict_client::Branch { number, resource: name(resource), payload, vote }).unwrap();
    }
    forbidden(thief.commit().await.unwrap_err());
    assert_eq!(verdict.get(booking.xid()).await.unwrap().state, State::Active);

    // Pushed ahead of the list, at whichever node, by whom they belong to.
    let seats = Session::open(&cluster, "seats", "work").await;
    let wallet = Session::open(&cluster, "wallet", "work").await;
    let mut pushing = cluster.nodes.keys().map(|node| cluster.client_of(*node)).cycle();
    for (enlisted, session) in [(own, &seats), (other, &wallet)] {
        let voted = session.prepare(enlisted.branch).await.unwrap();
        let order = pushing.next().unwrap().vote(enlisted, voted).await.unwrap();
        assert!(matches!(order, Order::Wait { .. }), "the list is not closed: {order:?}");
    }
    assert_eq!(booking.commit().await.unwrap().outcome, Outcome::Committed);
    // And again after it.
    let order = pushing.next().unwrap().vote(own, Voted::PREPARED).await.unwrap();
    assert!(matches!(order, Order::Commit(_)), "{order:?}");
    cluster.wait_for("confirmed", |cluster| cluster.effects("seats").confirmed.contains_key(&own.branch)).await;
}
