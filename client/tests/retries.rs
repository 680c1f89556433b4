//! The client's rules of retrying, against nodes that answer as the test says.

#![cfg(not(madsim))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use tonic::{Code, Status};
use verdict_client::{Backoff, CallError, ListQuery, Outcome, RefusalCode, State, Transaction, Verdict};
use verdict_proto::v1::{self, error_detail::Code as Detail};

use common::cluster::{Answer, Node, dead, fails, options};

const COMMITTED: Answer = Answer::Outcome(v1::Outcome::Committed);

fn transaction(verdict: &Verdict) -> Transaction {
    let mut transaction = verdict.transaction();
    transaction.add("seats".try_into().unwrap(), "one seat".into()).unwrap();
    transaction
}

#[tokio::test]
async fn an_outcome_is_an_answer_be_it_aborted() {
    let node = Node::start(|_| Answer::Outcome(v1::Outcome::Aborted));
    let verdict = Verdict::new(options(&[node.address])).unwrap();
    assert_eq!(transaction(&verdict).commit().await.unwrap().outcome, Outcome::Aborted);
    assert_eq!(node.calls(), 1);
}

#[tokio::test]
async fn a_node_that_is_no_leader_names_it_and_is_not_asked_again() {
    let leader = Node::start(|_| COMMITTED);
    let address = leader.address;
    let follower = Node::start(move |_| fails(Code::Unavailable, Detail::NotLeader, Some(address), 3000));
    let verdict = Verdict::new(options(&[follower.address, address])).unwrap();
    let start = Instant::now();
    for _ in 0..3 {
        transaction(&verdict).commit().await.unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(2), "a named leader is asked without a pause");
    assert_eq!((follower.calls(), leader.calls()), (1, 3));
}

#[tokio::test]
async fn a_leader_that_the_options_do_not_name_is_learnt_from_a_reply() {
    let leader = Node::start(|_| COMMITTED);
    let address = leader.address;
    let follower = Node::start(move |_| Answer::Led(address));
    let verdict = Verdict::new(options(&[follower.address])).unwrap();
    for _ in 0..3 {
        transaction(&verdict).commit().await.unwrap();
    }
    assert_eq!((follower.calls(), leader.calls()), (1, 2));
}

#[tokio::test]
async fn a_dead_node_costs_no_more_than_a_pause() {
    let node = Node::start(|_| COMMITTED);
    let verdict = Verdict::new(options(&[dead(), node.address])).unwrap();
    let start = Instant::now();
    transaction(&verdict).commit().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_paused_leader_does_not_swallow_the_deadline_and_the_xid_stays() {
    let paused = Node::start(|_| Answer::Hangs);
    let address = paused.address;
    // It still takes the paused one for the leader, says so once, and is then elected.
    let other = Node::start(move |before| match before {
        0 => fails(Code::Unavailable, Detail::NotLeader, Some(address), 0),
        _ => COMMITTED,
    });
    let verdict = Verdict::new(options(&[address, other.address])).unwrap();
    let transaction = transaction(&verdict);
    let start = Instant::now();
    transaction.commit().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!(paused.xids(), [transaction.xid()], "suspected: not asked again on another's word");
    assert_eq!(other.xids(), [transaction.xid(); 2]);
}

/// While a leader is elected, calls fail at once and many times; the patience with the next node is none the longer.
#[tokio::test]
async fn calls_that_fail_at_once_make_nobody_more_patient() {
    let paused = Node::start(|call| if call < 12 { lost() } else { Answer::Hangs });
    let other = Node::start(|call| if call < 12 { lost() } else { COMMITTED });
    let mut options = options(&[paused.address, other.address]);
    options.backoff = Backoff { first: Duration::from_millis(1), most: Duration::from_millis(1) };
    options.deadline = Duration::from_secs(20);
    let start = Instant::now();
    transaction(&Verdict::new(options).unwrap()).commit().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

fn lost() -> Answer {
    fails(Code::Unavailable, Detail::Interrupted, None, 0)
}

#[tokio::test]
async fn a_slow_call_is_not_held_against_a_node_that_answers_others() {
    let leader = Node::start(|before| if before == 0 { Answer::Hangs } else { COMMITTED });
    let other = Node::start(|_| COMMITTED);
    let verdict = Verdict::new(options(&[leader.address, other.address])).unwrap();
    let slow = transaction(&verdict);
    let quick = async {
        tokio::time::timeout(Duration::from_secs(5), async {
            while leader.calls() == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        transaction(&verdict).commit().await.unwrap();
    };
    let (slow, ()) = tokio::join!(slow.commit(), quick);
    slow.unwrap();
    assert_eq!((leader.calls(), other.calls()), (3, 0));
}

#[tokio::test]
async fn a_timeout_is_unknown_never_an_answer() {
    let nodes = [Node::start(|_| Answer::Hangs), Node::start(|_| Answer::Hangs)];
    let verdict = Verdict::new(options(&[nodes[0].address, nodes[1].address])).unwrap();
    let start = Instant::now();
    let error = transaction(&verdict.with_deadline(Duration::from_secs(1))).commit().await.unwrap_err();
    let took = start.elapsed();
    assert!(matches!(&error, CallError::Unknown { attempts, .. } if *attempts >= 2), "{error}");
    assert!(error.code().is_none());
    assert!((600..3000).contains(&took.as_millis()), "{took:?}");
    assert!(nodes.iter().all(|node| node.calls() >= 1), "both were tried");
}

#[tokio::test]
async fn every_code_that_leaves_the_outcome_open_is_asked_again() {
    for failure in [
        Answer::Fails(Status::unavailable("the transport")),
        Answer::Fails(Status::cancelled("Timeout expired")),
        Answer::Fails(Status::deadline_exceeded("late")),
        Answer::Fails(Status::unknown("h2 protocol error")),
        Answer::Fails(Status::internal("a bug")),
        // Not Verdict's word: no detail.
        Answer::Fails(Status::invalid_argument("a proxy's word")),
        Answer::Fails(Status::not_found("a proxy's word")),
        Answer::Fails(Status::resource_exhausted("a proxy's word")),
        fails(Code::Aborted, Detail::Interrupted, None, 5),
        fails(Code::Unavailable, Detail::Storage, None, 5),
        fails(Code::Unavailable, Detail::NotLeader, None, 5),
        fails(Code::ResourceExhausted, Detail::Overloaded, None, 5),
        Answer::State(v1::State::Voting),
        Answer::State(v1::State::Unknown),
        Answer::State(v1::State::Decided),
        Answer::State(v1::State::Unspecified),
    ] {
        let answer = failure.clone();
        let node = Node::start(move |before| if before < 2 { answer.clone() } else { COMMITTED });
        let verdict = Verdict::new(options(&[node.address])).unwrap();
        let decided = transaction(&verdict).commit().await;
        assert_eq!(decided.map(|decision| decision.outcome).map_err(|error| error.to_string()), Ok(Outcome::Committed));
        assert_eq!(node.calls(), 3, "{failure:?}");
    }
}

#[tokio::test]
async fn a_refusal_is_definite_and_not_repeated() {
    for (code, detail, expected) in [
        (Code::OutOfRange, Detail::Expired, RefusalCode::Expired),
        (Code::FailedPrecondition, Detail::Skewed, RefusalCode::Skewed),
        (Code::FailedPrecondition, Detail::Closed, RefusalCode::Closed),
        (Code::FailedPrecondition, Detail::Mismatch, RefusalCode::Mismatch),
        (Code::InvalidArgument, Detail::Invalid, RefusalCode::Invalid),
        (Code::NotFound, Detail::UnknownTransaction, RefusalCode::UnknownTransaction),
        (Code::NotFound, Detail::UnknownBranch, RefusalCode::UnknownBranch),
        (Code::InvalidArgument, Detail::UnknownResource, RefusalCode::UnknownResource),
    ] {
        let node = Node::start(move |_| fails(code, detail, None, 0));
        let verdict = Verdict::new(options(&[node.address])).unwrap();
        let refused = transaction(&verdict).commit().await.unwrap_err();
        assert_eq!((refused.code(), node.calls()), (Some(expected), 1), "{refused}");
    }
    let node = Node::start(|_| Answer::State(v1::State::Expired));
    let verdict = Verdict::new(options(&[node.address])).unwrap();
    assert_eq!(transaction(&verdict).commit().await.unwrap_err().code(), Some(RefusalCode::Expired));
    assert_eq!(verdict.get(verdict.new_xid()).await.unwrap().state, State::Expired);
}

#[tokio::test]
async fn overload_is_waited_out_as_told_and_then_said() {
    let overloaded = |_| fails(Code::ResourceExhausted, Detail::Overloaded, None, 300);
    let node = Node::start(move |before| if before < 2 { overloaded(before) } else { COMMITTED });
    let verdict = Verdict::new(options(&[node.address])).unwrap();
    let start = Instant::now();
    transaction(&verdict).commit().await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(600), "{:?}", start.elapsed());

    let node = Node::start(overloaded);
    let verdict = Verdict::new(options(&[node.address])).unwrap().with_deadline(Duration::from_secs(1));
    let refused = transaction(&verdict).commit().await.unwrap_err();
    assert_eq!(refused.code(), Some(RefusalCode::Overloaded));
    assert!((3..=4).contains(&node.calls()), "{}", node.calls());
}

#[tokio::test]
async fn overload_after_an_attempt_that_may_have_been_logged_is_unknown() {
    let node = Node::start(|before| match before {
        0 => Answer::Hangs,
        _ => fails(Code::ResourceExhausted, Detail::Overloaded, None, 50),
    });
    let verdict = Verdict::new(options(&[node.address])).unwrap().with_deadline(Duration::from_secs(1));
    let error = transaction(&verdict).commit().await.unwrap_err();
    assert!(matches!(error, CallError::Unknown { .. }), "{error}");
}

#[tokio::test]
async fn s64_with_nobody_up_the_client_backs_off() {
    let verdict = Verdict::new(options(&[dead(), dead(), dead()])).unwrap().with_deadline(Duration::from_secs(3));
    let error = transaction(&verdict).commit().await.unwrap_err();
    let CallError::Unknown { attempts, .. } = error else { panic!("{error}") };
    // 10, 20, … 640, 1000 ms, each at least half: no more than 10 fit into 3 s.
    assert!((5..=12).contains(&attempts), "{attempts}");
}

#[tokio::test]
async fn the_rest_of_the_surface_reaches_the_cluster() {
    let node = Node::start(|_| Answer::State(v1::State::Active));
    let verdict = Verdict::new(options(&[node.address])).unwrap();
    let mut begun = verdict.begin(Duration::from_secs(30)).await.unwrap();
    let first = begun.enlist("seats".try_into().unwrap(), "one seat".into()).await.unwrap();
    let second = begun.enlist_as(7, "wallet".try_into().unwrap(), "3.00".into()).await.unwrap();
    let third = begun.add("tickets".try_into().unwrap(), "one".into()).unwrap();
    assert_eq!([first.branch.number, second.branch.number, third.number], [1, 7, 8]);
    assert_eq!(node.xids(), [begun.xid(); 3]);
    let page = verdict.list(ListQuery { after: Some(begun.xid()), ..ListQuery::default() }).await.unwrap();
    assert_eq!((page.transactions[0].xid, page.more), (begun.xid(), true));
    let status = verdict.cluster_status().await.unwrap();
    assert_eq!((status.node, status.leader, status.term), (3, None, 9));
    assert_eq!(verdict.transfer_leader(Some(2)).await.unwrap(), 2);
}

#[tokio::test]
async fn a_transaction_refuses_what_can_never_be_committed() {
    let verdict = Verdict::new(options(&[dead()])).unwrap();
    let mut transaction = transaction(&verdict);
    let too_long = vec![0; Transaction::MAX_PAYLOAD + 1];
    let refused = transaction.add("seats".try_into().unwrap(), too_long.into()).unwrap_err();
    assert_eq!(refused.code(), Some(RefusalCode::Invalid));
    let taken = transaction.enlist_as(1, "wallet".try_into().unwrap(), "3.00".into()).await.unwrap_err();
    assert_eq!(taken.code(), Some(RefusalCode::Mismatch));
}

#[tokio::test]
async fn options_that_make_no_sense_are_refused() {
    let none: [&str; 0] = [];
    assert!(Verdict::new(verdict_client::Options::new(none)).is_err());
    for address in ["", "localhost", ":7101", "a b:7101", "127.0.0.1:70000"] {
        let error = Verdict::new(verdict_client::Options::new([address])).unwrap_err().to_string();
        assert!(error.contains("is no node's address"), "{address}: {error}");
    }
}

#[tokio::test]
async fn one_seed_makes_the_same_xids_and_another_seed_others() {
    let made = |seed| {
        let mut options = options(&[dead()]);
        options.seed = Some(seed);
        let verdict = Verdict::new(options).unwrap();
        (0..100).map(|_| verdict.new_xid().as_bytes()[8..].to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(made(1), made(1));
    assert_ne!(made(1), made(2));
    let distinct: std::collections::BTreeSet<_> = made(1).into_iter().collect();
    assert_eq!(distinct.len(), 100);
}
