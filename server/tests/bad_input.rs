//! Bad input to every call: a clear status, a message that says what to do, and nothing lost.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use support::Cluster;
use tonic::{Code, Request, Response, Status, transport::Channel};
use verdict_client::{ListQuery, LogTime, Outcome, RefusalCode, wire::detail};
use verdict_proto::v1::{
    self, Branch, BranchId, branches_client::BranchesClient, error_detail::Code as Detail,
    operator_client::OperatorClient, sessions_client::SessionsClient, transactions_client::TransactionsClient,
};

/// A call failed: with this code and detail, and with a text that has these words.
#[track_caller]
fn fails<T: std::fmt::Debug>(reply: Result<Response<T>, Status>, code: Code, what: Detail, words: &str) {
    let status = reply.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    assert_eq!(detail(&status).unwrap().code(), what, "{status}");
    assert!(status.message().contains(words), "{:?} does not say {words:?}", status.message());
}

fn branch(number: u32, resource: &str) -> Branch {
    Branch { number, resource: resource.to_owned(), payload: "work".into(), ..Branch::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_says_what_is_wrong() {
    let cluster = Cluster::start().await;
    // Of the leader and of a follower: a forwarded call's error is the same.
    let leader = cluster.leader().await;
    let follower = *cluster.nodes.keys().find(|node| **node != leader).unwrap();
    for node in [leader, follower] {
        let address = format!("http://{}", cluster.nodes[&node]);
        let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
        check(&cluster, channel).await;
    }

    let verdict = cluster.client();
    let mut booking = verdict.transaction();
    booking.add(support::name("seats"), "work".into()).unwrap();
    assert_eq!(booking.commit().await.unwrap().outcome, Outcome::Committed, "the cluster works on");
    let by = Instant::now() + Duration::from_secs(20);
    while verdict.cluster_status().await.unwrap().open_transactions > 0 {
        assert!(Instant::now() < by, "transactions are left behind: {:?}", verdict.list(ListQuery::default()).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn check(cluster: &Cluster, channel: Channel) {
    use Code::{FailedPrecondition, InvalidArgument, NotFound, OutOfRange, PermissionDenied, ResourceExhausted};
    let mut transactions = TransactionsClient::new(channel.clone());
    let mut branches = BranchesClient::new(channel.clone());
    let xid = || Bytes::copy_from_slice(cluster.client().new_xid().as_bytes());

    for bad in ["", "short", "sixteen bytes of"] {
        let bad = Bytes::from(bad);
        let begin = v1::BeginRequest { xid: bad.clone(), timeout_ms: 0, ..v1::BeginRequest::default() };
        fails(transactions.begin(begin).await, InvalidArgument, Detail::Invalid, "UUIDv7");
        let enlist = v1::EnlistRequest { xid: bad.clone(), branches: vec![branch(1, "seats")] };
        fails(transactions.enlist(enlist).await, InvalidArgument, Detail::Invalid, "UUIDv7");
        let commit =
            v1::CommitRequest { xid: bad.clone(), branches: vec![], vote_timeout_ms: 0, delegate: None, session: None };
        fails(transactions.commit(commit).await, InvalidArgument, Detail::Invalid, "UUIDv7");
        let rollback = v1::RollbackRequest { xid: bad.clone(), reason: String::new() };
        fails(transactions.rollback(rollback).await, InvalidArgument, Detail::Invalid, "UUIDv7");
        fails(transactions.get(v1::GetRequest { xid: bad }).await, InvalidArgument, Detail::Invalid, "UUIDv7");
    }
    let list = v1::ListRequest { after_xid: "short".into(), ..Default::default() };
    fails(transactions.list(list).await, InvalidArgument, Detail::Invalid, "after_xid");

    let begin = v1::BeginRequest { xid: xid(), key: "k".repeat(129), ..v1::BeginRequest::default() };
    fails(transactions.begin(begin).await, InvalidArgument, Detail::Invalid, "1 to 128 bytes");
    let session = Some(v1::SessionRef { name: "a\nb".to_owned(), epoch: 1 });
    let begin = v1::BeginRequest { xid: xid(), session, ..v1::BeginRequest::default() };
    fails(transactions.begin(begin).await, InvalidArgument, Detail::Invalid, "session");
    let mut sessions = SessionsClient::new(channel.clone());
    let open = v1::OpenSessionRequest { name: "till".to_owned(), instance: "short".into() };
    fails(sessions.open(open).await, InvalidArgument, Detail::Invalid, "16 random bytes");
    let mut operator = OperatorClient::new(channel.clone());
    let word = || Some(v1::Word { who: "ada".to_owned(), why: "a test".to_owned(), at_ms: 0 });
    let nothing = v1::ResolveRequest { xid: xid(), word: word(), force: false, resolution: None };
    fails(operator.resolve(nothing).await, InvalidArgument, Detail::Invalid, "resolution is missing");
    let silent = v1::ForgetRequest { xid: xid(), word: None, force: false };
    fails(operator.forget(silent).await, InvalidArgument, Detail::Invalid, "word.who is empty");
    let unknown = v1::ForgetRequest { xid: xid(), word: word(), force: false };
    fails(operator.forget(unknown).await, NotFound, Detail::UnknownTransaction, "no such transaction");
    let begin = v1::BeginRequest { xid: xid(), timeout_ms: u64::MAX, ..v1::BeginRequest::default() };
    fails(transactions.begin(begin).await, InvalidArgument, Detail::Invalid, "retention.longest_lifetime_ms");
    let commit =
        v1::CommitRequest { xid: xid(), branches: vec![], vote_timeout_ms: u64::MAX, delegate: None, session: None };
    fails(transactions.commit(commit).await, InvalidArgument, Detail::Invalid, "timeouts.max_vote_ms");
    let enlist = v1::EnlistRequest { xid: xid(), branches: vec![] };
    fails(transactions.enlist(enlist).await, InvalidArgument, Detail::Invalid, "at least one");

    for (bad, words) in [
        (branch(7, "No Such Name"), "a-z 0-9"),
        (branch(7, ""), "branch 7"),
        (branch(7, "elsewhere"), "[resources]"),
        (Branch { payload: vec![0; 4097].into(), ..branch(7, "seats") }, "4096"),
        (Branch { vote: 99, ..branch(7, "seats") }, "vote"),
    ] {
        let commit = v1::CommitRequest {
            xid: xid(),
            branches: vec![bad.clone()],
            vote_timeout_ms: 0,
            delegate: None,
            session: None,
        };
        fails(transactions.commit(commit).await, InvalidArgument, Detail::Invalid, words);
        let enlist = v1::EnlistRequest { xid: xid(), branches: vec![bad] };
        fails(transactions.enlist(enlist).await, InvalidArgument, Detail::Invalid, words);
    }
    let voted = Branch { vote: v1::Vote::Prepared.into(), ..branch(1, "seats") };
    let enlist = v1::EnlistRequest { xid: xid(), branches: vec![voted] };
    fails(transactions.enlist(enlist).await, InvalidArgument, Detail::Invalid, "votes go with Commit");

    // One number for two branches; another list than the one that was closed; enlisting behind it.
    let twice = vec![branch(1, "seats"), branch(1, "wallet")];
    let commit = v1::CommitRequest { xid: xid(), branches: twice, vote_timeout_ms: 0, delegate: None, session: None };
    fails(transactions.commit(commit).await, FailedPrecondition, Detail::Mismatch, "other branches");
    let decided = xid();
    let commit = |branches| v1::CommitRequest {
        xid: decided.clone(),
        branches,
        vote_timeout_ms: 0,
        delegate: None,
        session: None,
    };
    let status = transactions.commit(commit(vec![branch(1, "seats")])).await.unwrap().into_inner();
    assert_eq!(status.outcome(), v1::Outcome::Committed);
    fails(transactions.commit(commit(vec![branch(2, "seats")])).await, FailedPrecondition, Detail::Mismatch, "list");
    let enlist = v1::EnlistRequest { xid: decided.clone(), branches: vec![branch(3, "seats")] };
    fails(transactions.enlist(enlist).await, FailedPrecondition, Detail::Closed, "closed");

    // Too old, and too far ahead.
    let now = u64::try_from(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let born = |at| Bytes::copy_from_slice(verdict_client::Xid::new(LogTime::from_millis(at), 0, 1).as_bytes());
    let old = v1::BeginRequest { xid: born(now - 30 * 24 * 3_600_000), timeout_ms: 0, ..v1::BeginRequest::default() };
    fails(transactions.begin(old).await, OutOfRange, Detail::Expired, "older");
    let ahead = v1::BeginRequest { xid: born(now + 3_600_000), timeout_ms: 0, ..v1::BeginRequest::default() };
    fails(transactions.begin(ahead).await, FailedPrecondition, Detail::Skewed, "clock");

    let nobody = BranchId { xid: xid(), number: 1 };
    let vote = |branch, vote: i32| v1::VoteRequest { branch, vote, ..v1::VoteRequest::default() };
    fails(branches.vote(vote(None, 1)).await, InvalidArgument, Detail::Invalid, "branch");
    fails(branches.vote(vote(Some(nobody.clone()), 0)).await, InvalidArgument, Detail::Invalid, "vote");
    fails(branches.vote(vote(Some(nobody.clone()), 99)).await, InvalidArgument, Detail::Invalid, "vote");
    fails(branches.vote(vote(Some(nobody), 1)).await, PermissionDenied, Detail::Forbidden, "credential");
    let inquire = v1::InquireRequest { branch: None, held_ms: 0 };
    fails(branches.inquire(inquire).await, InvalidArgument, Detail::Invalid, "branch");

    // More than a message may hold: 4 MiB.
    let mut heavy = cluster.client().transaction();
    for _ in 0..1_100 {
        heavy.add("seats".try_into().unwrap(), vec![7; 4_000].into()).unwrap();
    }
    let refused = heavy.commit().await.unwrap_err();
    assert_eq!(refused.code(), Some(RefusalCode::Invalid), "{refused}");
    assert!(refused.to_string().contains("too large"), "{refused}");
    let branches = (1..=1_100).map(|number| Branch { payload: vec![7; 4_000].into(), ..branch(number, "seats") });
    let heavy = v1::CommitRequest { xid: xid(), branches: branches.collect(), ..v1::CommitRequest::default() };
    fails(transactions.commit(heavy).await, ResourceExhausted, Detail::Invalid, "the limit is: 4194304 bytes");

    let transfer = Request::new(v1::TransferLeaderRequest { to: 77 });
    let reply = OperatorClient::new(channel).transfer_leader(transfer).await;
    fails(reply, FailedPrecondition, Detail::Invalid, "node 77");
}
