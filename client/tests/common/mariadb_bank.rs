//! Transactions on a MariaDB server of the test's, with nodes that answer as the test says.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mysql_async::prelude::Queryable;
use tokio::task::JoinHandle;
use tonic::Status;
use verdict_client::{
    CallError, Decision, Transaction, Verdict,
    participant::{InquiryOptions, ParticipantOptions, Participants, Settle, Stamp},
    resource::mysql::{Mysql, Session},
};
use verdict_proto::v1::{self, branch_order::Order};
use verdict_protocol::{BranchId, ClusterId, LogTime};

use super::{
    cluster::{Answer, CLUSTER, Call, Node, options},
    mariadb::MariaDb,
};

pub(crate) const COMMITTED: Answer = Answer::Outcome(v1::Outcome::Committed);
pub(crate) const ABORTED: Answer = Answer::Outcome(v1::Outcome::Aborted);

/// A node that keeps everybody waiting until it is opened, and then says what became of the transaction.
pub(crate) struct Gate {
    pub(crate) node: Node,
    pub(crate) open: Arc<AtomicBool>,
}

impl Gate {
    pub(crate) fn new(outcome: v1::Outcome) -> Self {
        let open = Arc::new(AtomicBool::new(false));
        let opened = Arc::clone(&open);
        let node = Node::answering(move |_, call| match call {
            // What opening a resource asks.
            Call::Enlist | Call::Rollback => ABORTED,
            _ if !opened.load(Ordering::SeqCst) => Answer::Fails(Status::unavailable("not yet")),
            Call::Inquire(_) => order(if outcome == v1::Outcome::Committed { Order::Commit } else { Order::Rollback }),
            _ => Answer::Outcome(outcome),
        });
        Self { node, open }
    }

    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    pub(crate) async fn asked_to_commit(&self) -> Vec<(u32, v1::Vote)> {
        self.node.called(|call| if let Call::Commit(votes) = call { Some(votes.clone()) } else { None }).await
    }
}

pub(crate) fn order(order: Order) -> Answer {
    let stamp = Some(v1::Stamp { cluster: CLUSTER.as_slice().into(), incarnation: 1, term: 1, horizon_ms: 0 });
    Answer::Order(v1::BranchOrder { order: order.into(), retry_after_ms: 0, stamp })
}

/// Says to Commit what it says, COMMITTED to the rest.
pub(crate) fn node(commit: Answer) -> Node {
    Node::answering(move |_, call| match call {
        Call::Commit(_) => commit.clone(),
        Call::Rollback => ABORTED,
        _ => COMMITTED,
    })
}

pub(crate) fn verdict(node: &Node) -> Verdict {
    Verdict::new(options(&[node.address])).unwrap()
}

pub(crate) async fn open(verdict: &Verdict, server: &MariaDb) -> Mysql {
    Mysql::open(verdict, "bank".try_into().unwrap(), server.pool()).await.unwrap()
}

pub(crate) async fn pay(session: &Session, from: u32) {
    let pay = "UPDATE accounts SET balance = balance - 5 WHERE id = ?";
    session.connection().await.unwrap().exec_drop(pay, (from,)).await.unwrap();
}

/// A transaction whose branch has paid 5 from account 1.
pub(crate) async fn paid(verdict: &Verdict, bank: &Mysql) -> (Transaction, Session) {
    let mut transaction = verdict.transaction();
    let session = bank.enlist(&mut transaction).await.unwrap();
    pay(&session, 1).await;
    (transaction, session)
}

pub(crate) fn commit(transaction: Transaction) -> JoinHandle<Result<Decision, CallError>> {
    tokio::spawn(async move { transaction.commit().await })
}

/// An agent that asks soon.
pub(crate) fn attend(verdict: &Verdict, bank: &Mysql) -> Participants {
    let inquiry = InquiryOptions {
        inquire_after: Duration::from_millis(100),
        sweep_every: Duration::from_millis(50),
        ..InquiryOptions::default()
    };
    let options = ParticipantOptions { inquiry, ..ParticipantOptions::default() };
    Participants::start([("bank".try_into().unwrap(), Arc::new(bank.agent()) as _)], verdict.clone(), options)
}

pub(crate) fn settle(branch: BranchId, payload: &'static str) -> Settle {
    let stamp = Stamp { cluster: ClusterId(CLUSTER), incarnation: 1, term: 1, horizon: LogTime::from_millis(0) };
    Settle { stamp, branch, resource: "bank".try_into().unwrap(), payload: payload.into() }
}

pub(crate) async fn reported(node: &Node) -> Vec<(u32, v1::Settlement)> {
    node.called(|call| if let Call::ReportSettled(settled) = call { Some(settled.clone()) } else { None }).await
}

/// Why the only branch of the last commit refused: the database's code, the sentence, whether to try again.
pub(crate) fn refused(node: &Node) -> (String, String, bool) {
    let [branch] = &node.brought()[..] else { panic!("one branch: {:?}", node.brought()) };
    assert_eq!(branch.vote(), v1::Vote::Refused);
    let reason = branch.reason.clone().unwrap();
    (reason.source_code, reason.text, reason.retryable)
}
