//! Idempotency keys and sessions over three processes: one attempt, one instance, whoever dies.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::time::Duration;

use support::{Cluster, Gates, name};
use verdict_client::{Begun, CallError, Outcome, ReasonCode, RefusalCode, State, Transaction, Verdict};

const TIMEOUT: Duration = Duration::from_secs(60);

fn ours(begun: Begun) -> Transaction {
    match begun {
        Begun::Ours(transaction) => transaction,
        Begun::Taken(status) => panic!("taken by {status:?}"),
    }
}

async fn taken(verdict: &Verdict, key: &str) -> verdict_client::TransactionStatus {
    match verdict.begin_once(key, TIMEOUT).await.unwrap() {
        Begun::Taken(status) => status,
        Begun::Ours(transaction) => panic!("{} has the right to work", transaction.xid()),
    }
}

fn is_fenced<T: std::fmt::Debug>(answer: Result<T, CallError>) {
    let error = answer.unwrap_err();
    assert_eq!(error.code(), Some(RefusalCode::Fenced), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_one_attempt_at_a_time_works_under_a_key_over_a_failover() {
    let mut cluster = Cluster::start().await;
    let verdict = cluster.client();
    let first = ours(verdict.begin_once("order 7", TIMEOUT).await.unwrap());
    let leader = cluster.leader().await;
    cluster.kill(leader);
    let status = taken(&verdict, "order 7").await;
    assert_eq!((status.xid, status.state), (first.xid(), State::Active), "the right survives its leader");
    first.rollback("the customer waits no longer").await.unwrap();

    let mut second = ours(verdict.begin_once("order 7", TIMEOUT).await.unwrap());
    second.add(name("seats"), "work".into()).unwrap();
    assert_eq!(second.commit().await.unwrap().outcome, Outcome::Committed);
    cluster.start_node(leader);
    for node in cluster.nodes.keys() {
        let status = taken(&cluster.client_of(*node).with_deadline(Duration::from_secs(20)), "order 7").await;
        assert_eq!((status.xid, status.decision.unwrap().outcome), (second.xid(), Outcome::Committed), "node {node}");
    }
    ours(verdict.begin_once("order 8", TIMEOUT).await.unwrap());
    let long = verdict.begin_once("k".repeat(129), TIMEOUT).await.unwrap_err();
    assert_eq!(long.code(), Some(RefusalCode::Invalid), "{long}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m22_an_instance_that_was_followed_is_fenced() {
    let cluster = Cluster::start().await;
    let (old, new) = (cluster.client(), cluster.client());
    let before = old.open_session("till 3").await.unwrap();
    let left = before.begin(TIMEOUT).await.unwrap();
    let mut late = before.transaction();
    late.add(name("seats"), "work".into()).unwrap();
    let after = new.open_session("till 3").await.unwrap();
    assert_eq!((before.reference().epoch, after.reference().epoch), (1, 2));

    let status = new.get(left.xid()).await.unwrap();
    assert_eq!(status.decision.unwrap().reason.unwrap().code, ReasonCode::Fenced, "what it left is aborted");
    is_fenced(before.begin(TIMEOUT).await);
    is_fenced(late.commit().await);
    let recorded = new.get(late.xid()).await.unwrap().decision.unwrap();
    assert_eq!(recorded.outcome, Outcome::Aborted, "recorded before it was spoken");
    assert!(cluster.effects("seats").confirmed.is_empty());

    let mut booking = after.transaction();
    booking.add(name("seats"), "work".into()).unwrap();
    assert_eq!(booking.commit().await.unwrap().outcome, Outcome::Committed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m57_an_instance_waits_for_what_its_predecessor_left_voting_over_a_failover() {
    let gates = Gates::new();
    let mut cluster = Cluster::start_with(&gates.wrap()).await;
    gates.prepare("seats").close();
    let before = cluster.client().with_deadline(Duration::from_secs(30)).open_session("till 3").await.unwrap();
    let mut booking = before.transaction();
    booking.set_vote_timeout(Duration::from_secs(20));
    booking.add(name("seats"), "work".into()).unwrap();
    let xid = booking.xid();
    let commit = tokio::spawn(async move { booking.commit().await });
    gates.prepare("seats").arrived(1).await;
    let verdict = cluster.client();
    while verdict.get(xid).await.unwrap().state != State::Voting {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let impatient = verdict.with_deadline(Duration::from_secs(1)).open_session("till 3").await;
    assert!(matches!(impatient, Err(CallError::Unknown { .. })), "it is still voting: {impatient:?}");
    let opening = {
        let verdict = verdict.with_deadline(Duration::from_secs(30));
        tokio::spawn(async move { verdict.open_session("till 3").await })
    };
    let leader = cluster.leader().await;
    cluster.kill(leader);
    gates.prepare("seats").open();
    assert_eq!(commit.await.unwrap().unwrap().outcome, Outcome::Committed, "what was voting goes on");
    let after = opening.await.unwrap().unwrap();
    assert_eq!(after.reference().epoch, 3, "the impatient one was an instance as well");
    assert!(verdict.get(xid).await.unwrap().decision.is_some());
}
