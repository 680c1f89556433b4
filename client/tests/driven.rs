//! Who may roll back: branches that their client drives, against nodes that answer as the test says.

#![cfg(not(madsim))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tonic::{Code, Status};
use verdict_client::{
    BranchId, CallError, Enlisted, LocalBranch, Outcome, Reason, RefusalCode, Settlement, Transaction, Verdict,
    participant::{NotAnswered, Settled, Voted},
};
use verdict_proto::v1::{self, branch_order::Order, error_detail::Code as Detail};

use common::cluster::{Answer, Call, Node, fails, options};

const COMMITTED: Answer = Answer::Outcome(v1::Outcome::Committed);
const ABORTED: Answer = Answer::Outcome(v1::Outcome::Aborted);

/// A session that answers as it is told to, and notes what it was asked.
#[derive(Debug, Default)]
struct Session {
    votes: Mutex<Vec<Result<Voted, NotAnswered>>>,
    /// So many attempts to settle fail first.
    stubborn: Mutex<u32>,
    asked: Mutex<Vec<Asked>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Prepare,
    Settle(Outcome),
}

const COMMIT: Asked = Asked::Settle(Outcome::Committed);
const ROLLBACK: Asked = Asked::Settle(Outcome::Aborted);

impl Session {
    fn voting(vote: Result<Voted, NotAnswered>) -> Arc<Self> {
        Arc::new(Self { votes: Mutex::new(vec![vote]), ..Self::default() })
    }

    fn prepared() -> Arc<Self> {
        Self::voting(Ok(Voted::PREPARED))
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

#[tonic::async_trait]
impl LocalBranch for Session {
    async fn prepare(&self, _: BranchId) -> Result<Voted, NotAnswered> {
        self.asked.lock().unwrap().push(Asked::Prepare);
        self.votes.lock().unwrap().pop().expect("a branch is asked to prepare once")
    }

    async fn settle(&self, _: BranchId, outcome: Outcome) -> Result<Settled, NotAnswered> {
        self.asked.lock().unwrap().push(Asked::Settle(outcome));
        let mut stubborn = self.stubborn.lock().unwrap();
        if *stubborn > 0 {
            *stubborn -= 1;
            return Err(NotAnswered::unavailable("the connection broke"));
        }
        Ok(Settled::DONE)
    }
}

/// A transaction whose branches are these sessions, numbered from 1.
fn transaction(node: &Node, sessions: &[&Arc<Session>]) -> Transaction {
    let options = verdict_client::Options { deadline: Duration::from_millis(600), ..options(&[node.address]) };
    let mut transaction = Verdict::new(options).unwrap().transaction();
    for session in sessions {
        let branch = transaction.add("wallet".try_into().unwrap(), "3.00".into()).unwrap();
        transaction.drive(branch.number, Arc::clone(session) as _).unwrap();
    }
    transaction
}

/// Answers each kind of call alike; what is not named is answered COMMITTED.
fn node(answers: impl Fn(&Call) -> Option<Answer> + Send + Sync + 'static) -> Node {
    Node::answering(move |_, call| answers(call).unwrap_or(COMMITTED))
}

/// What was settled is reported by a task of its own.
async fn reported(node: &Node) -> BTreeMap<u32, v1::Settlement> {
    let settled = |call: &Call| match call {
        Call::ReportSettled(settled) => Some(settled.iter().copied().collect()),
        _ => None,
    };
    node.called(settled).await
}

#[tokio::test]
async fn committed_branches_are_prepared_brought_settled_and_reported() {
    let node = node(|_| None);
    let (first, second) = (Session::prepared(), Session::prepared());
    let transaction = transaction(&node, &[&first, &second]);
    assert_eq!(transaction.commit().await.unwrap().outcome, Outcome::Committed);
    assert_eq!([first.asked(), second.asked()], [[Asked::Prepare, COMMIT], [Asked::Prepare, COMMIT]]);
    assert_eq!(reported(&node).await, [(1, v1::Settlement::Done), (2, v1::Settlement::Done)].into());
    assert_eq!(node.asked()[0], Call::Commit(vec![(1, v1::Vote::Prepared), (2, v1::Vote::Prepared)]));
    // Asked again, it neither prepares nor settles again.
    assert_eq!(transaction.commit().await.unwrap().outcome, Outcome::Committed);
    assert_eq!(first.asked().len(), 2);
}

#[tokio::test]
async fn aborted_is_a_recorded_outcome_and_rolls_back() {
    let node = node(|call| matches!(call, Call::Commit(_)).then_some(ABORTED));
    let (first, second) = (Session::prepared(), Session::prepared());
    assert_eq!(transaction(&node, &[&first, &second]).commit().await.unwrap().outcome, Outcome::Aborted);
    assert_eq!([first.asked(), second.asked()], [[Asked::Prepare, ROLLBACK], [Asked::Prepare, ROLLBACK]]);
}

#[tokio::test]
async fn m46_an_unknown_outcome_leaves_every_branch_as_it_is() {
    let silences: [fn() -> Answer; 4] = [
        || Answer::Hangs,
        || Answer::Fails(Status::unavailable("the connection was reset")),
        || fails(Code::Unavailable, Detail::Interrupted, None, 0),
        || fails(Code::Unavailable, Detail::NotLeader, None, 0),
    ];
    for silence in silences {
        let answers = Arc::new(AtomicBool::new(false));
        let now = Arc::clone(&answers);
        let node = node(move |_| (!now.load(Ordering::SeqCst)).then(silence));
        let session = Session::prepared();
        let transaction = transaction(&node, &[&session]);
        assert!(matches!(transaction.commit().await.unwrap_err(), CallError::Unknown { .. }));
        assert_eq!(session.asked(), [Asked::Prepare]);
        assert!(node.asked().iter().all(|call| matches!(call, Call::Commit(_))), "nobody gave up: {:?}", node.asked());
        answers.store(true, Ordering::SeqCst);
        assert_eq!(transaction.commit().await.unwrap().outcome, Outcome::Committed);
        assert_eq!(session.asked(), [Asked::Prepare, COMMIT]);
    }
}

/// Every way in which a Commit can be refused, and not answered.
const REFUSALS: [(Code, Detail, RefusalCode); 8] = [
    (Code::FailedPrecondition, Detail::Fenced, RefusalCode::Fenced),
    (Code::FailedPrecondition, Detail::Skewed, RefusalCode::Skewed),
    (Code::ResourceExhausted, Detail::Overloaded, RefusalCode::Overloaded),
    (Code::FailedPrecondition, Detail::Closed, RefusalCode::Closed),
    (Code::FailedPrecondition, Detail::Mismatch, RefusalCode::Mismatch),
    (Code::OutOfRange, Detail::Expired, RefusalCode::Expired),
    (Code::InvalidArgument, Detail::Invalid, RefusalCode::Invalid),
    (Code::PermissionDenied, Detail::Forbidden, RefusalCode::Forbidden),
];

#[tokio::test]
async fn a_refusal_is_no_outcome_and_only_what_is_recorded_then_rolls_back() {
    for (code, detail, refusal) in REFUSALS {
        let session = Session::prepared();
        let seen = Arc::clone(&session);
        let early = Arc::new(AtomicBool::new(false));
        let told_early = Arc::clone(&early);
        let node = node(move |call| match call {
            Call::Commit(_) => Some(fails(code, detail, None, 0)),
            Call::Rollback => {
                told_early.store(seen.asked() != [Asked::Prepare], Ordering::SeqCst);
                Some(ABORTED)
            }
            _ => None,
        });
        let refused = transaction(&node, &[&session]).commit().await.unwrap_err();
        assert_eq!(refused.code(), Some(refusal));
        assert_eq!(session.asked(), [Asked::Prepare, ROLLBACK], "{detail:?}");
        assert!(!early.load(Ordering::SeqCst), "{detail:?}: nothing before ABORTED is recorded");
    }
}

#[tokio::test]
async fn a_refusal_without_a_recorded_outcome_leaves_every_branch_as_it_is() {
    for (code, detail, _) in REFUSALS {
        let session = Session::prepared();
        let node = node(move |call| match call {
            Call::Commit(_) => Some(fails(code, detail, None, 0)),
            _ => Some(Answer::Fails(Status::unavailable("the cluster is gone"))),
        });
        transaction(&node, &[&session]).commit().await.unwrap_err();
        assert_eq!(session.asked(), [Asked::Prepare], "{detail:?}");
    }
}

#[tokio::test]
async fn where_another_list_was_committed_each_branch_is_told_its_own_part() {
    let sessions = [Session::prepared(), Session::prepared(), Session::prepared()];
    let node = node(|call| match call {
        Call::Commit(_) => Some(fails(Code::FailedPrecondition, Detail::Mismatch, None, 0)),
        Call::Inquire(number) => {
            let order = [Order::Commit, Order::Rollback, Order::Wait][*number as usize - 1];
            let stamp = Some(v1::Stamp { cluster: vec![7; 16].into(), incarnation: 1, term: 1, horizon_ms: 0 });
            Some(Answer::Order(v1::BranchOrder { order: order.into(), retry_after_ms: 0, stamp }))
        }
        _ => None,
    });
    let [first, second, third] = &sessions;
    let refused = transaction(&node, &[first, second, third]).commit().await.unwrap_err();
    assert_eq!(refused.code(), Some(RefusalCode::Mismatch));
    assert_eq!(first.asked(), [Asked::Prepare, COMMIT]);
    assert_eq!(second.asked(), [Asked::Prepare, ROLLBACK]);
    assert_eq!(third.asked(), [Asked::Prepare], "in doubt still");
}

#[tokio::test]
async fn a_client_that_gives_up_obeys_the_answer() {
    for (answer, told) in [(ABORTED, vec![ROLLBACK]), (Answer::Hangs, vec![])] {
        let session = Session::prepared();
        let node = node(move |_| Some(answer.clone()));
        drop(transaction(&node, &[&session]).rollback("changed its mind").await);
        assert_eq!(session.asked(), told, "it was not prepared");
    }
}

#[tokio::test]
async fn a_promise_that_is_not_known_counts_as_none_and_is_rolled_back() {
    let lost = Session::voting(Err(NotAnswered::unavailable("the connection broke at PREPARE")));
    let refused = Session::voting(Ok(Voted::refused(Reason::refused("no money", "42", false))));
    let reader = Session::voting(Ok(Voted::READ_ONLY));
    let node = node(|call| matches!(call, Call::Commit(_)).then_some(ABORTED));
    transaction(&node, &[&lost, &refused, &reader]).commit().await.unwrap();
    let brought = [(1, v1::Vote::Refused), (2, v1::Vote::Refused), (3, v1::Vote::ReadOnly)];
    assert_eq!(node.asked()[0], Call::Commit(brought.to_vec()));
    assert_eq!(lost.asked(), [Asked::Prepare, ROLLBACK]);
    assert_eq!([refused.asked(), reader.asked()], [[Asked::Prepare], [Asked::Prepare]], "they have nothing to be told");
    assert_eq!(reported(&node).await, [(1, v1::Settlement::Done)].into());
}

#[tokio::test]
async fn a_branch_whose_promise_got_lost_is_not_told_to_commit_unless_the_log_has_it() {
    for (order, told) in [(Order::Commit, COMMIT), (Order::Rollback, ROLLBACK)] {
        let lost = Session::voting(Err(NotAnswered::unavailable("the connection broke at PREPARE")));
        let node = node(move |call| {
            let stamp = Some(v1::Stamp { cluster: vec![7; 16].into(), incarnation: 1, term: 1, horizon_ms: 0 });
            let order = Answer::Order(v1::BranchOrder { order: order.into(), retry_after_ms: 0, stamp });
            matches!(call, Call::Inquire(1)).then_some(order)
        });
        // Another client has committed the same list.
        assert_eq!(transaction(&node, &[&lost]).commit().await.unwrap().outcome, Outcome::Committed);
        assert_eq!(lost.asked(), [Asked::Prepare, told]);
    }
}

#[tokio::test]
async fn a_branch_that_cannot_be_settled_is_told_again_and_then_left_to_the_cluster() {
    let (slow, gone) = (Session::prepared(), Session::prepared());
    *slow.stubborn.lock().unwrap() = 2;
    *gone.stubborn.lock().unwrap() = u32::MAX;
    let node = node(|_| None);
    assert_eq!(transaction(&node, &[&slow, &gone]).commit().await.unwrap().outcome, Outcome::Committed);
    assert_eq!(slow.asked(), [Asked::Prepare, COMMIT, COMMIT, COMMIT]);
    assert!(gone.asked().len() > 3, "{:?}", gone.asked());
    assert_eq!(reported(&node).await, [(1, v1::Settlement::Done)].into(), "only what was settled");
}

#[tokio::test]
async fn only_a_branch_that_was_added_can_be_driven_or_voted_for() {
    let node = node(|_| None);
    let mut transaction = transaction(&node, &[]);
    let unknown = Some(RefusalCode::UnknownBranch);
    assert_eq!(transaction.drive(3, Session::prepared()).unwrap_err().code(), unknown);
    assert_eq!(transaction.brings(3, Voted::PREPARED).unwrap_err().code(), unknown);
    let enlisted: Enlisted = transaction.enlist("wallet".try_into().unwrap(), "3.00".into()).await.unwrap();
    transaction.brings(enlisted.branch.number, Voted::PREPARED).unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(node.asked()[1], Call::Commit(vec![(1, v1::Vote::Prepared)]));
    let verdict = Verdict::new(options(&[node.address])).unwrap();
    verdict.report_settled(transaction.xid(), vec![(enlisted, Settlement::HeuristicMixed)]).await.unwrap();
    assert_eq!(reported(&node).await, [(1, v1::Settlement::HeuristicMixed)].into());
}
