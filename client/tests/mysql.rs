//! A MariaDB database as a resource, against a server that is killed, restarted and interfered with, and nodes that answer
//! as the test says.

#![cfg(all(feature = "mysql", not(madsim)))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mysql_async::prelude::Queryable;
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};
use tonic::Status;
use verdict_client::{
    CallError, Decision, Outcome, Settlement, Transaction, Verdict, Xid,
    participant::{InquiryOptions, ParticipantOptions, Participants, ResourceManager, Settle, Stamp, with_causes},
    resource::{
        mysql::{Database, DsnError, Mysql, MysqlError, Session},
        xa::Agent,
    },
};
use verdict_proto::v1::{self, branch_order::Order};
use verdict_protocol::{BranchId, ClusterId, LogTime};

use common::{
    cluster::{Answer, CLUSTER, Call, Node, options},
    mariadb::MariaDb,
};

const COMMITTED: Answer = Answer::Outcome(v1::Outcome::Committed);
const ABORTED: Answer = Answer::Outcome(v1::Outcome::Aborted);

/// A node that keeps everybody waiting until it is opened, and then says what became of the transaction.
struct Gate {
    node: Node,
    open: Arc<AtomicBool>,
}

impl Gate {
    fn new(outcome: v1::Outcome) -> Self {
        let open = Arc::new(AtomicBool::new(false));
        let opened = Arc::clone(&open);
        let node = Node::answering(move |_, call| match call {
            _ if !opened.load(Ordering::SeqCst) => Answer::Fails(Status::unavailable("not yet")),
            Call::Inquire(_) => order(if outcome == v1::Outcome::Committed { Order::Commit } else { Order::Rollback }),
            _ => Answer::Outcome(outcome),
        });
        Self { node, open }
    }

    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    async fn asked_to_commit(&self) -> Vec<(u32, v1::Vote)> {
        self.node.called(|call| if let Call::Commit(votes) = call { Some(votes.clone()) } else { None }).await
    }
}

fn order(order: Order) -> Answer {
    let stamp = Some(v1::Stamp { cluster: CLUSTER.as_slice().into(), incarnation: 1, term: 1, horizon_ms: 0 });
    Answer::Order(v1::BranchOrder { order: order.into(), retry_after_ms: 0, stamp })
}

/// Says to Commit what it says, COMMITTED to the rest.
fn node(commit: Answer) -> Node {
    Node::answering(move |_, call| match call {
        Call::Commit(_) => commit.clone(),
        Call::Rollback => ABORTED,
        _ => COMMITTED,
    })
}

fn verdict(node: &Node) -> Verdict {
    Verdict::new(options(&[node.address])).unwrap()
}

async fn open(verdict: &Verdict, server: &MariaDb) -> Mysql {
    Mysql::open(verdict, "bank".try_into().unwrap(), server.pool()).await.unwrap()
}

async fn pay(session: &Session, from: u32) {
    let pay = "UPDATE accounts SET balance = balance - 5 WHERE id = ?";
    session.connection().await.unwrap().exec_drop(pay, (from,)).await.unwrap();
}

/// A transaction whose branch has paid 5 from account 1.
async fn paid(verdict: &Verdict, bank: &Mysql) -> (Transaction, Session) {
    let mut transaction = verdict.transaction();
    let session = bank.enlist(&mut transaction).await.unwrap();
    pay(&session, 1).await;
    (transaction, session)
}

fn commit(transaction: Transaction) -> JoinHandle<Result<Decision, CallError>> {
    tokio::spawn(async move { transaction.commit().await })
}

/// An agent that asks soon.
fn attend(verdict: &Verdict, bank: &Mysql) -> Participants {
    let inquiry = InquiryOptions {
        inquire_after: Duration::from_millis(100),
        sweep_every: Duration::from_millis(50),
        ..InquiryOptions::default()
    };
    let options = ParticipantOptions { inquiry, ..ParticipantOptions::default() };
    Participants::start([("bank".try_into().unwrap(), Arc::new(bank.agent()) as _)], verdict.clone(), options)
}

fn settle(branch: BranchId, payload: &'static str) -> Settle {
    let stamp = Stamp { cluster: ClusterId(CLUSTER), incarnation: 1, term: 1, horizon: LogTime::from_millis(0) };
    Settle { stamp, branch, resource: "bank".try_into().unwrap(), payload: payload.into() }
}

async fn reported(node: &Node) -> Vec<(u32, v1::Settlement)> {
    node.called(|call| if let Call::ReportSettled(settled) = call { Some(settled.clone()) } else { None }).await
}

#[tokio::test]
async fn a_branch_commits_or_rolls_back_with_its_transaction() {
    let server = MariaDb::start().await;
    for (commit, expected) in [(COMMITTED, [95, 95]), (ABORTED, [95, 95])] {
        let node = node(commit);
        let verdict = verdict(&node);
        let bank = open(&verdict, &server).await;
        let mut transaction = verdict.transaction();
        let sessions = [bank.enlist(&mut transaction).await.unwrap(), bank.enlist(&mut transaction).await.unwrap()];
        pay(&sessions[0], 1).await;
        pay(&sessions[1], 2).await;
        transaction.commit().await.unwrap();
        let votes = [(1, v1::Vote::Prepared), (2, v1::Vote::Prepared)];
        assert!(node.asked().contains(&Call::Commit(votes.to_vec())), "{:?}", node.asked());
        assert_eq!(reported(&node).await, [(1, v1::Settlement::Done), (2, v1::Settlement::Done)]);
        assert!(matches!(sessions[0].connection().await, Err(MysqlError::WorkIsOver { .. })));
        assert_eq!((server.prepared().await, server.balances().await), (0, expected));
    }
}

#[tokio::test]
async fn a_transaction_that_gives_up_leaves_nothing() {
    let server = MariaDb::start().await;
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let (transaction, session) = paid(&verdict, &bank).await;
    transaction.rollback("changed its mind").await.unwrap();
    drop((transaction, session));
    // Dropped without a word.
    drop(paid(&verdict, &bank).await);
    // The connections that they had can be used again: the pool has four.
    for _ in 0..6 {
        let (transaction, _session) = paid(&verdict, &bank).await;
        transaction.rollback("changed its mind").await.unwrap();
    }
    assert_eq!((server.prepared().await, server.balances().await), (0, [100, 100]));
}

#[tokio::test]
async fn a_branch_that_only_reads_is_out_of_phase_two_and_can_not_write() {
    let server = MariaDb::start().await;
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let mut transaction = verdict.transaction();
    let session = bank.enlist_read_only(&mut transaction).await.unwrap();
    let balance: Option<i32> =
        session.connection().await.unwrap().query_first("SELECT balance FROM accounts WHERE id = 1").await.unwrap();
    assert_eq!(balance, Some(100));
    let written = session.connection().await.unwrap().query_drop("UPDATE accounts SET balance = 0").await;
    assert!(written.unwrap_err().to_string().contains("READ ONLY"));
    transaction.commit().await.unwrap();
    assert!(node.asked().contains(&Call::Commit(vec![(1, v1::Vote::ReadOnly)])));
    assert_eq!((server.prepared().await, server.balances().await), (0, [100, 100]));
}

#[tokio::test]
async fn a_branch_that_wrote_nothing_keeps_its_promise_without_its_session() {
    let server = MariaDb::start().await;
    let gate = Gate::new(v1::Outcome::Committed);
    let verdict = verdict(&gate.node);
    let bank = open(&verdict, &server).await;
    let mut transaction = verdict.transaction();
    let session = bank.enlist(&mut transaction).await.unwrap();
    let id = session.connection().await.unwrap().id();
    let committing = commit(transaction);
    assert_eq!(gate.asked_to_commit().await, [(1, v1::Vote::Prepared)]);
    server.root("").await.query_drop(format!("KILL {id}")).await.unwrap();
    gate.open();
    assert_eq!(committing.await.unwrap().unwrap().outcome, Outcome::Committed);
    assert_eq!(reported(&gate.node).await, [(1, v1::Settlement::Done)]);
}

#[tokio::test]
async fn s41_s42_a_session_that_is_killed_while_prepared_is_settled_by_a_fresh_connection() {
    for (outcome, balances) in [(v1::Outcome::Committed, [95, 100]), (v1::Outcome::Aborted, [100, 100])] {
        let server = MariaDb::start().await;
        let gate = Gate::new(outcome);
        let verdict = verdict(&gate.node);
        let bank = open(&verdict, &server).await;
        let (transaction, session) = paid(&verdict, &bank).await;
        let id = session.connection().await.unwrap().id();
        let committing = commit(transaction);
        gate.asked_to_commit().await;
        let mut root = server.root("").await;
        // All the pool's connections die, the idle ones too.
        let sessions: Vec<u32> = root.query("SELECT id FROM information_schema.processlist").await.unwrap();
        assert!(sessions.contains(&id));
        let own = root.id();
        for other in sessions.into_iter().filter(|other| *other != own) {
            root.query_drop(format!("KILL {other}")).await.unwrap();
        }
        gate.open();
        committing.await.unwrap().unwrap();
        assert_eq!(reported(&gate.node).await, [(1, v1::Settlement::Done)]);
        assert_eq!((server.prepared().await, server.balances().await), (0, balances));
    }
}

#[tokio::test]
async fn s45_a_branch_is_settled_after_its_server_was_killed_and_started_again() {
    for (outcome, balances) in [(v1::Outcome::Committed, [95, 100]), (v1::Outcome::Aborted, [100, 100])] {
        let mut server = MariaDb::start().await;
        let gate = Gate::new(outcome);
        let verdict = verdict(&gate.node);
        let bank = open(&verdict, &server).await;
        let agent = attend(&verdict, &bank);
        let (transaction, session) = paid(&verdict, &bank).await;
        let committing = commit(transaction);
        gate.asked_to_commit().await;
        server.kill();
        server.restart().await;
        assert_eq!(server.prepared().await, 1);
        gate.open();
        committing.await.unwrap().unwrap();
        server.has_prepared(0).await;
        assert_eq!(server.balances().await, balances);
        drop(session);
        agent.stop().await;
    }
}

#[tokio::test]
async fn a_session_that_broke_before_it_was_prepared_refuses() {
    let server = MariaDb::start().await;
    let node = node(ABORTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let (transaction, session) = paid(&verdict, &bank).await;
    let id = session.connection().await.unwrap().id();
    server.root("").await.query_drop(format!("KILL {id}")).await.unwrap();
    assert_eq!(transaction.commit().await.unwrap().outcome, Outcome::Aborted);
    assert!(node.asked().contains(&Call::Commit(vec![(1, v1::Vote::Refused)])));
    assert_eq!((server.prepared().await, server.balances().await), (0, [100, 100]));
}

#[tokio::test]
async fn what_the_database_refuses_is_refused_in_its_words_and_leaves_nothing() {
    let server = MariaDb::start().await;
    let mut root = server.root("bank").await;
    let node = node(ABORTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;

    // The evidence can't be written.
    let (transaction, session) = paid(&verdict, &bank).await;
    root.query_drop("RENAME TABLE verdict_branches TO elsewhere").await.unwrap();
    let committed = transaction.commit().await.unwrap();
    assert_eq!(committed.outcome, Outcome::Aborted);
    assert!(node.asked().contains(&Call::Commit(vec![(1, v1::Vote::Refused)])));
    assert_eq!(server.prepared().await, 0);
    root.query_drop("RENAME TABLE elsewhere TO verdict_branches").await.unwrap();
    drop((transaction, session));

    // A deadlock that the application took no notice of.
    let mut transactions = [verdict.transaction(), verdict.transaction()];
    let [first, second] = &mut transactions;
    let (a, b) = (bank.enlist(first).await.unwrap(), bank.enlist(second).await.unwrap());
    pay(&a, 1).await;
    pay(&b, 2).await;
    let cross = |session: Session, from: u32| async move {
        let pay = format!("UPDATE accounts SET balance = balance - 5 WHERE id = {from}");
        session.connection().await.unwrap().query_drop(pay).await.is_err()
    };
    let (first_lost, second_lost) = tokio::join!(cross(a.clone(), 2), cross(b.clone(), 1));
    assert!(first_lost != second_lost, "one of them met it");
    let loser = usize::from(second_lost);
    let before = node.calls();
    transactions[loser].commit().await.unwrap();
    assert_eq!(node.asked()[before], Call::Commit(vec![(1, v1::Vote::Refused)]));
    transactions[1 - loser].commit().await.unwrap();
    assert_eq!((server.prepared().await, server.balances().await), (0, [100, 100]));
}

#[tokio::test]
async fn a_leftover_answer_is_not_taken_for_a_promise() {
    let server = MariaDb::start().await;
    let node = node(ABORTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let (transaction, session) = paid(&verdict, &bank).await;
    {
        let mut connection = session.connection().await.unwrap();
        // The application gives up on a statement, and on nothing else.
        let slow = connection.query_drop("SELECT SLEEP(0.2)");
        drop(timeout(Duration::from_millis(50), slow).await);
        drop(connection.query_drop("UPDATE accounts SET balance = 0 WHERE id = 3").await);
    }
    assert_eq!(transaction.commit().await.unwrap().outcome, Outcome::Aborted);
    assert!(node.asked().contains(&Call::Commit(vec![(1, v1::Vote::Refused)])), "{:?}", node.asked());
    drop((transaction, session));
    server.has_prepared(0).await;
    assert_eq!(server.balances().await, [100, 100]);
}

#[tokio::test]
async fn s41_a_dead_application_s_branch_is_settled_by_the_agent() {
    for (outcome, balances) in [(v1::Outcome::Committed, [95, 100]), (v1::Outcome::Aborted, [100, 100])] {
        let server = MariaDb::start().await;
        let gate = Gate::new(outcome);
        let verdict = verdict(&gate.node);
        let bank = open(&verdict, &server).await;
        let (transaction, session) = paid(&verdict, &bank).await;
        let committing = commit(transaction);
        gate.asked_to_commit().await;
        committing.abort();
        drop(committing.await.unwrap_err());
        drop(session);
        server.has_prepared(1).await;
        let agent = attend(&verdict, &bank);
        gate.open();
        server.has_prepared(0).await;
        assert_eq!(server.balances().await, balances);
        agent.stop().await;
    }
}

#[tokio::test]
async fn s43_a_session_that_hangs_while_prepared_is_ended_by_the_agent() {
    let server = MariaDb::start().await;
    let gate = Gate::new(v1::Outcome::Committed);
    let (verdict, hung) = (verdict(&gate.node), Node::start(|_| Answer::Hangs));
    let bank = open(&verdict, &server).await;
    // Its application waits for a node that never answers.
    let patient = verdict_client::Options {
        deadline: Duration::from_secs(60),
        attempt_timeout: Duration::from_secs(60),
        ..options(&[hung.address])
    };
    let (transaction, session) = paid(&Verdict::new(patient).unwrap(), &bank).await;
    let committing = commit(transaction);
    server.has_prepared(1).await;
    let since = Instant::now();
    let agent = attend(&verdict, &bank);
    gate.open();
    server.has_prepared(0).await;
    assert!(since.elapsed() > Duration::from_secs(1), "it was given time");
    assert_eq!(server.balances().await, [95, 100]);
    committing.abort();
    drop(session);
    agent.stop().await;
}

#[tokio::test]
async fn s44_unknown_is_done_on_rollback_and_judged_by_evidence_on_commit() {
    let server = MariaDb::start().await;
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let agent = bank.agent();

    let (transaction, session) = paid(&verdict, &bank).await;
    let branch = BranchId { xid: transaction.xid(), number: 1 };
    transaction.commit().await.unwrap();
    let committed = agent.commit(settle(branch, "7")).await.unwrap();
    assert_eq!(committed.settlement, Settlement::Done, "its row is there");
    let opposite = agent.rollback(settle(branch, "7")).await.unwrap();
    assert_eq!(opposite.settlement, Settlement::HeuristicCommit);
    drop((transaction, session));

    let now = LogTime::from_millis(verdict.transaction().xid().birth().as_millis());
    let unknown = BranchId { xid: Xid::new(now, 0, 1), number: 1 };
    assert_eq!(agent.rollback(settle(unknown, "7")).await.unwrap().settlement, Settlement::Done);
    let lost = agent.commit(settle(unknown, "7")).await.unwrap();
    assert_eq!(lost.settlement, Settlement::HeuristicRollback, "it would have left a row: {:?}", lost.reason);

    let of_last_week = LogTime::from_millis(now.as_millis() - 7 * 86_400_000);
    let old = BranchId { xid: Xid::new(of_last_week, 0, 1), number: 1 };
    let swept = agent.commit(settle(old, "7")).await.unwrap();
    assert_eq!(swept.settlement, Settlement::HeuristicHazard, "its row may have been swept: {:?}", swept.reason);
}

#[tokio::test]
async fn s44_a_branch_that_an_operator_rolled_back_is_reported() {
    let server = MariaDb::start().await;
    let gate = Gate::new(v1::Outcome::Committed);
    let verdict = verdict(&gate.node);
    let bank = open(&verdict, &server).await;
    let (transaction, session) = paid(&verdict, &bank).await;
    let id = session.connection().await.unwrap().id();
    let committing = commit(transaction);
    gate.asked_to_commit().await;
    let mut root = server.root("").await;
    root.query_drop(format!("KILL {id}")).await.unwrap();
    let names: Vec<(u64, usize, usize, String)> = root.query("XA RECOVER FORMAT='SQL'").await.unwrap();
    let by_hand = async {
        // Until the server has let go of it.
        while root.query_drop(format!("XA ROLLBACK {}", names[0].3)).await.is_err() {}
    };
    timeout(Duration::from_secs(5), by_hand).await.unwrap();
    gate.open();
    assert_eq!(committing.await.unwrap().unwrap().outcome, Outcome::Committed);
    assert_eq!(reported(&gate.node).await, [(1, v1::Settlement::HeuristicRollback)]);
    assert_eq!(server.balances().await, [100, 100]);
}

#[tokio::test]
async fn s46_a_scan_that_fails_loses_and_misjudges_nothing() {
    let mut server = MariaDb::start().await;
    let gate = Gate::new(v1::Outcome::Committed);
    let verdict = verdict(&gate.node);
    let bank = open(&verdict, &server).await;
    let (transaction, session) = paid(&verdict, &bank).await;
    let branch = BranchId { xid: transaction.xid(), number: 1 };
    let committing = commit(transaction);
    gate.asked_to_commit().await;
    committing.abort();
    drop(session);
    let agent = bank.agent();
    assert_eq!(agent.recover(10).await.unwrap(), [branch]);
    server.kill();
    agent.recover(10).await.unwrap_err();
    agent.commit(settle(branch, "7")).await.unwrap_err();
    server.restart().await;
    assert_eq!(agent.recover(10).await.unwrap(), [branch]);
    assert_eq!(agent.commit(settle(branch, "7")).await.unwrap().settlement, Settlement::Done);
    assert_eq!(agent.commit(settle(branch, "7")).await.unwrap().settlement, Settlement::Done, "again");
    assert_eq!(agent.recover(10).await.unwrap(), []);
    assert_eq!(server.balances().await, [95, 100]);
}

#[tokio::test]
async fn s49_branches_of_others_are_never_touched() {
    let server = MariaDb::start().await;
    let node = Node::answering(|_, call| match call {
        Call::Inquire(_) => order(Order::Rollback),
        _ => COMMITTED,
    });
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let mine = "07070707070707070707070707070707";
    let (xid, format) = ("018BCFE568007000800000000000002A", 1_448_232_020);
    let bank_1 = "0000000162616E6B";
    let others = [
        "'somebody'".to_owned(),
        format!("X'{mine}018BCFE568007000800000000000002B',X'{bank_1}',1"),
        format!("X'08080808080808080808080808080808{xid}',X'{bank_1}',{format}"),
        format!("X'{mine}{xid}',X'000000016F7264657273',{format}"),
        format!("X'{mine}{xid}FF',X'{bank_1}',{format}"),
        format!("X'{mine}00112233445566778899AABBCCDDEEFF',X'{bank_1}',{format}"),
    ];
    let own = format!("X'{mine}{xid}',X'{bank_1}',{format}");
    for name in others.iter().chain([&own]) {
        let mut session = server.root("bank").await;
        session
            .query_drop(format!("XA START {name}; INSERT INTO accounts VALUES (50 + RAND() * 100000, 1)"))
            .await
            .unwrap();
        session.query_drop(format!("XA END {name}; XA PREPARE {name}")).await.unwrap();
        session.disconnect().await.unwrap();
    }
    let agent = attend(&verdict, &bank);
    server.has_prepared(others.len()).await;
    let asked = node.asked().into_iter().filter(|call| matches!(call, Call::Inquire(_))).count();
    assert_eq!(asked, 1, "about its own");
    agent.stop().await;
}

#[tokio::test]
async fn evidence_is_swept_by_age_and_never_waits_for_a_branch() {
    let server = MariaDb::start().await;
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let (transaction, session) = paid(&verdict, &bank).await;
    transaction.commit().await.unwrap();
    drop(session);
    let mut root = server.root("bank").await;
    let row = |cluster: u8, birth: LogTime, bqual: &str, hours: u32| {
        let gtrid = [[cluster; 16], *Xid::new(birth, 0, 3).as_bytes()].concat();
        let gtrid: String = gtrid.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("INSERT INTO verdict_branches VALUES (X'{gtrid}', '{bqual}', 1, NOW(3) - INTERVAL {hours} HOUR)")
    };
    let now = transaction.xid().birth();
    let old = LogTime::from_millis(now.as_millis() - 7 * 3_600_000);
    let kept = [row(8, old, "another cluster", 7), row(7, now, "young", 7), row(7, old, "prepared of late", 5)];
    for insert in kept.into_iter().chain([row(7, old, "old", 7), row(7, LogTime::from_millis(5), "very old", 7)]) {
        root.query_drop(insert).await.unwrap();
    }
    let mut holder = server.root("bank").await;
    holder.query_drop("XA START 'a'").await.unwrap();
    holder.query_drop(row(7, old, "still prepared", 7)).await.unwrap();
    holder.query_drop("XA END 'a'; XA PREPARE 'a'").await.unwrap();

    let database = Database::new("bank".try_into().unwrap(), server.pool());
    assert_eq!(database.sweep_evidence(ClusterId(CLUSTER)).await.unwrap(), 2);
    assert_eq!(database.sweep_evidence(ClusterId(CLUSTER)).await.unwrap(), 0);
    let left: Option<usize> = root.query_first("SELECT COUNT(*) FROM verdict_branches").await.unwrap();
    assert_eq!(left, Some(4), "three, and that of the transaction");
}

#[tokio::test]
async fn an_agent_that_may_not_end_another_user_s_session_says_what_it_needs() {
    let server = MariaDb::start().await;
    let gate = Gate::new(v1::Outcome::Committed);
    let verdict = verdict(&gate.node);
    let bank = open(&verdict, &server).await;
    let mut root = server.root("").await;
    root.query_drop("CREATE USER agent; GRANT SELECT, DELETE ON bank.verdict_branches TO agent").await.unwrap();
    let (transaction, session) = paid(&verdict, &bank).await;
    let branch = BranchId { xid: transaction.xid(), number: 1 };
    let committing = commit(transaction);
    server.has_prepared(1).await;
    let agent = |user: &str| {
        let database = Database::at("bank".try_into().unwrap(), &server.url(user, "bank"), 2).unwrap();
        Agent::new(Arc::new(database), Some(ClusterId(CLUSTER)))
    };
    let powerless = agent("agent");
    assert_eq!(powerless.recover(10).await.unwrap(), [branch]);
    let until_it_may = async {
        loop {
            let error = with_causes(&powerless.commit(settle(branch, "7")).await.unwrap_err());
            if error.contains("CONNECTION ADMIN") {
                return error;
            }
            assert!(error.contains("session alone"), "{error}");
        }
    };
    let error = timeout(Duration::from_secs(10), until_it_may).await.unwrap();
    assert!(error.contains("1095"), "{error}");
    root.query_drop("GRANT CONNECTION ADMIN ON *.* TO agent").await.unwrap();
    let settled = agent("agent").commit(settle(branch, "7")).await;
    assert_eq!(settled.unwrap().settlement, Settlement::Done);
    committing.abort();
    drop(session);
}

#[tokio::test]
async fn a_statement_that_fails_leaves_the_rest_to_be_committed() {
    let server = MariaDb::start().await;
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    let bank = open(&verdict, &server).await;
    let (transaction, session) = paid(&verdict, &bank).await;
    let twice = session.connection().await.unwrap().query_drop("INSERT INTO accounts VALUES (2, 7)").await;
    assert!(twice.unwrap_err().to_string().contains("1062"));
    let ddl = session.connection().await.unwrap().query_drop("CREATE TABLE t (i INT)").await;
    assert!(ddl.unwrap_err().to_string().contains("1399"));
    transaction.commit().await.unwrap();
    assert_eq!((server.prepared().await, server.balances().await), (0, [95, 100]));
}

#[test]
fn a_url_that_can_not_be_used_is_not_shown() {
    let at = |url| Database::at("bank".try_into().unwrap(), url, 2).unwrap_err();
    assert_eq!(at("postgres://app:hunter2@host/bank"), DsnError::Syntax);
    assert_eq!(at("hunter2"), DsnError::Syntax);
    assert_eq!(at("mysql://host/bank"), DsnError::Missing("user"));
    assert_eq!(at("mysql://app:hunter2@host"), DsnError::Missing("database"));
    assert_eq!(at("mysql://app:hunter2@host/bank?require_ssl=true"), DsnError::Tls);
    assert_eq!(at("mysql://app:hunter2@host/bank?pool_limit=7"), DsnError::Parameter("pool_limit".to_owned()));
    let none = Database::at("bank".try_into().unwrap(), "mysql://app:hunter2@host/bank", 0).unwrap_err();
    assert_eq!(none, DsnError::NoConnections);
}

#[tokio::test]
async fn what_can_not_be_used_says_why() {
    let server = MariaDb::start().await;
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    let mut root = server.root("bank").await;
    let refuses = async |resource: &str, pool| {
        let error = Mysql::open(&verdict, resource.try_into().unwrap(), pool).await.unwrap_err();
        format!("{error} {error:?}")
    };
    let long = "r".repeat(61);
    assert!(refuses(&long, server.pool()).await.contains("60 bytes"));

    let nowhere = mysql_async::Pool::from_url(server.url("root", "")).unwrap();
    assert!(refuses("bank", nowhere).await.contains("names no database"));

    root.query_drop("CREATE USER reader; GRANT SELECT ON bank.* TO reader").await.unwrap();
    let no_evidence = refuses("bank", server.pool_of("reader")).await;
    assert!(no_evidence.contains("verdict_branches is missing") && no_evidence.contains("1142"), "{no_evidence}");

    let secret = mysql_async::Pool::from_url(server.url("root:hunter2", "bank")).unwrap();
    let wrong = refuses("bank", secret).await;
    assert!(wrong.contains("no connection") && wrong.contains("1045") && !wrong.contains("hunter2"), "{wrong}");

    root.query_drop("SET GLOBAL read_only = 1").await.unwrap();
    assert!(refuses("bank", server.pool()).await.contains("read_only"));
}

#[tokio::test]
async fn nothing_writes_a_password() {
    let server = MariaDb::start().await;
    server
        .root("")
        .await
        .query_drop("CREATE USER app IDENTIFIED BY 'hunter2'; GRANT ALL ON bank.* TO app")
        .await
        .unwrap();
    let node = node(COMMITTED);
    let verdict = verdict(&node);
    let pool = mysql_async::Pool::from_url(server.url("app:hunter2", "bank")).unwrap();
    let bank = Mysql::open(&verdict, "bank".try_into().unwrap(), pool).await.unwrap();
    let (transaction, session) = paid(&verdict, &bank).await;
    let written = format!("{bank:?} {:?} {transaction:?} {session:?} {:?}", bank.agent(), session.connection().await);
    assert!(!written.contains("hunter2"), "{written}");
}
