//! Sessions and the agent on a real PostgreSQL server, for a cluster that answers as the test says.

#![cfg(all(feature = "postgres", not(madsim)))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    process::Command,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::{join, join_all};
use tokio::time::timeout;
use verdict_client::{
    BranchId, Outcome, Settlement,
    participant::{NotAnswered, ResourceManager, with_causes},
    resource::{
        postgres::{Database, PostgresError},
        xa::{Agent, Grade, XaDatabase as _},
    },
};
use verdict_proto::v1;

use common::{
    postgres::{APP, PostgresServer, texts},
    postgres_bank::*,
};

#[tokio::test]
async fn branches_are_prepared_brought_with_evidence_and_settled() {
    let bank = Bank::open(PREPARES).await;
    let mut transfer = bank.verdict.transaction();
    let first = bank.accounts.enlist(&mut transfer).await.unwrap();
    let second = bank.accounts.enlist(&mut transfer).await.unwrap();
    let client = first.client().unwrap();
    client.execute("UPDATE account SET balance = balance - $1 WHERE id = 1", &[&30]).await.unwrap();
    second.client().unwrap().execute("UPDATE account SET balance = balance + 30 WHERE id = 2", &[]).await.unwrap();
    assert_eq!(bank.server.prepared().await, [""; 0]);
    assert_eq!(transfer.commit().await.unwrap().outcome, Outcome::Committed);
    assert_eq!(bank.server.balances("bank").await, ["70", "130"]);
    assert_eq!(bank.server.prepared().await, [""; 0]);
    for branch in bank.node.brought() {
        assert_eq!(branch.vote(), v1::Vote::Prepared);
        let evidence = String::from_utf8(branch.payload.to_vec()).unwrap();
        assert!(evidence.ends_with("@1"), "on the first timeline: {evidence}");
    }
    assert!(matches!(first.client(), Err(PostgresError::WorkIsOver { .. })));
    drop((first, second, transfer));
    bank.pool_is_clean().await;
    assert!(bank.pool.status().size <= 4);

    let given_up = bank.paying().await;
    assert_eq!(given_up.rollback("changed its mind").await.unwrap().outcome, Outcome::Aborted);
    drop(bank.paying().await);
    assert_eq!(bank.server.balances("bank").await, ["70", "130"]);
    drop(given_up);
    bank.pool_is_clean().await;
}

#[tokio::test]
async fn a_session_that_only_read_is_out_of_phase_two() {
    let bank = Bank::open(PREPARES).await;
    let reading = bank.doing("SELECT * FROM account").await;
    assert_eq!(reading.commit().await.unwrap().outcome, Outcome::Committed);
    assert_eq!(bank.node.brought()[0].vote(), v1::Vote::ReadOnly);
    // A row that is locked is something to be kept.
    let locking = bank.doing("SELECT * FROM account FOR UPDATE").await;
    locking.commit().await.unwrap();
    assert_eq!(bank.node.brought()[0].vote(), v1::Vote::Prepared);
    drop((reading, locking));
    bank.pool_is_clean().await;
}

#[tokio::test]
async fn s41_s42_a_backend_that_was_ended_after_prepare_is_done_without() {
    let bank = Bank::open(PREPARES).await;
    // Other connections of the pool's die as well: none of them is used for the retry.
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(bank.pool.get().await.unwrap());
    }
    drop(idle);
    let transaction = bank.paying().await;
    bank.silent.store(true, Ordering::SeqCst);
    let interrupt = async {
        bank.prepared_is(1).await;
        assert!(bank.server.terminate_backends().await >= 4);
        bank.silent.store(false, Ordering::SeqCst);
    };
    let (decision, ()) = join(transaction.commit(), interrupt).await;
    assert_eq!(decision.unwrap().outcome, Outcome::Committed);
    assert_eq!(bank.server.balances("bank").await, ["95", "100"], "settled when commit returns");
    assert_eq!(bank.server.prepared().await, [""; 0]);
    drop(transaction);
    bank.pool_is_clean().await;
}

/// A connection that was just in use is not asked for a sign of life before it is used again.
#[tokio::test]
async fn a_connection_that_hangs_or_died_in_the_pool_costs_no_branch() {
    let bank = Bank::open(PREPARES).await;
    let pid: i32 = bank.pool.get().await.unwrap().query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    assert_eq!(bank.pool.status().size, 1, "there is no other yet");
    let signal = |name: &str| Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success();
    assert!(signal("-STOP"));
    let hung = timeout(Duration::from_secs(20), bank.accounts.enlist(&mut bank.verdict.transaction())).await;
    assert!(signal("-CONT"));
    hung.expect("it waits for the one that hangs").unwrap();

    bank.server.terminate_backends().await;
    assert_eq!(bank.paying().await.commit().await.unwrap().outcome, Outcome::Committed);
    bank.pool_is_clean().await;
}

/// As when all sessions of a pool break at once: none of them has another connection to hope for.
#[tokio::test]
async fn s41_s42_a_pool_without_another_connection_does_not_hold_up_who_settles() {
    let bank = Bank::open(PREPARES).await;
    // All but one are taken.
    let _taken = [bank.pool.get().await.unwrap(), bank.pool.get().await.unwrap(), bank.pool.get().await.unwrap()];
    let transaction = bank.paying().await;
    bank.silent.store(true, Ordering::SeqCst);
    let interrupt = async {
        bank.prepared_is(1).await;
        bank.server.terminate_backends().await;
        bank.silent.store(false, Ordering::SeqCst);
    };
    let (decision, ()) = join(transaction.commit(), interrupt).await;
    assert_eq!(decision.unwrap().outcome, Outcome::Committed);
    assert_eq!(bank.server.prepared().await, [""; 0], "settled when commit returns");
    assert_eq!(bank.server.balances("bank").await, ["95", "100"]);
}

#[tokio::test]
async fn s45_what_was_prepared_before_the_server_crashed_is_found_and_settled() {
    let mut bank = Bank::open(PREPARES).await;
    let (committed, left) = (bank.paying().await, a_branch(1));
    left_prepared_at(&bank.server, "UPDATE account SET balance = balance - 7 WHERE id = 2", &gid(7, left)).await;
    bank.silent.store(true, Ordering::SeqCst);
    let silent = Arc::clone(&bank.silent);
    let server = &mut bank.server;
    let crash = async {
        while server.prepared().await.len() < 2 {}
        server.kill();
        silent.store(false, Ordering::SeqCst);
        server.start_again().await;
    };
    let (decision, ()) = join(committed.commit(), crash).await;
    assert_eq!(decision.unwrap().outcome, Outcome::Committed);
    bank.prepared_is(1).await;
    assert_eq!(bank.server.balances("bank").await, ["95", "100"], "the client's retry has settled it");
    // The other one's application is dead: its agent finds it.
    let agent = agent(&bank.server);
    assert_eq!(agent.recover(9).await.unwrap(), [left]);
    assert_eq!(agent.commit(settle(left, "")).await.unwrap().settlement, Settlement::Done);
    assert_eq!(bank.server.balances("bank").await, ["95", "93"]);
    bank.server.kill();
    assert!(matches!(agent.recover(9).await, Err(NotAnswered::Unavailable { .. })));
    bank.server.start_again().await;
    assert_eq!(agent.recover(9).await.unwrap(), []);
}

/// What became of it is asked of PostgreSQL.
#[tokio::test]
async fn s44_no_such_prepared_transaction_is_judged_by_its_number() {
    let server = PostgresServer::start(PREPARES).await;
    server.database("bank").await;
    let agent = agent(&server);
    let by_hand = server.client("bank").await;
    let brought = async |branch: BranchId, verb: &str| {
        let work = "BEGIN; UPDATE account SET balance = balance - 1; SELECT pg_current_xact_id()";
        let xid8 = texts(&by_hand, work).await[0].clone().unwrap();
        let gid = gid(7, branch);
        by_hand.batch_execute(&format!("PREPARE TRANSACTION '{gid}'")).await.unwrap();
        by_hand.batch_execute(&format!("{verb} PREPARED '{gid}'")).await.unwrap();
        format!("{xid8}@1")
    };
    let committed = brought(a_branch(1), "COMMIT").await;
    assert_eq!(agent.commit(settle(a_branch(1), &committed)).await.unwrap().settlement, Settlement::Done);
    let told = agent.rollback(settle(a_branch(1), &committed)).await.unwrap();
    assert_eq!(told.settlement, Settlement::HeuristicCommit);
    let aborted = brought(a_branch(2), "ROLLBACK").await;
    let told = agent.commit(settle(a_branch(2), &aborted)).await.unwrap();
    assert_eq!(told.settlement, Settlement::HeuristicRollback);
    assert_eq!(agent.rollback(settle(a_branch(2), &aborted)).await.unwrap().settlement, Settlement::Done);
    // Still open, of another timeline, of the future, and no number at all.
    let open = server.client("bank").await;
    let xid8 = texts(&open, "BEGIN; SELECT pg_current_xact_id()").await[0].clone().unwrap();
    assert!(agent.commit(settle(a_branch(3), &format!("{xid8}@1"))).await.is_err());
    let elsewhere = committed.replace("@1", "@2");
    for evidence in ["", "4.50", "9000000000@1", &elsewhere] {
        let told = agent.commit(settle(a_branch(4), evidence)).await.unwrap();
        assert_eq!(told.settlement, Settlement::HeuristicHazard, "{evidence}");
        assert_eq!(agent.rollback(settle(a_branch(4), evidence)).await.unwrap().settlement, Settlement::Done);
    }
    // One that was listed and then ended by somebody else.
    left_prepared(&server, &gid(7, a_branch(5))).await;
    assert_eq!(agent.recover(9).await.unwrap(), [a_branch(5)]);
    by_hand.batch_execute(&format!("ROLLBACK PREPARED '{}'", gid(7, a_branch(5)))).await.unwrap();
    let told = agent.commit(settle(a_branch(5), "")).await.unwrap();
    assert_eq!(told.settlement, Settlement::HeuristicRollback);
}

#[tokio::test]
async fn s46_s49_only_what_is_this_clusters_and_this_databases_is_seen() {
    let server = PostgresServer::start(PREPARES).await;
    server.database("bank").await;
    server.database("shop").await;
    let own = a_branch(1);
    let looks_alike = gid(7, own).replace(":1", ":01");
    let foreign = [gid(8, own), looks_alike, "verdict:".to_owned(), "backup".to_owned()];
    for (n, gid) in foreign.iter().enumerate() {
        left_prepared_at(&server, &format!("INSERT INTO account VALUES ({}, 1)", 20 + n), gid).await;
    }
    left_prepared(&server, &gid(7, own)).await;
    let elsewhere = gid(7, a_branch(2));
    let shop = server.client("shop").await;
    shop.batch_execute(&format!("BEGIN; UPDATE account SET balance = 1; PREPARE TRANSACTION '{elsewhere}'"))
        .await
        .unwrap();

    let agent = agent(&server);
    assert_eq!(agent.recover(9).await.unwrap(), [own]);
    // Its connection breaks in the scan: the next one is whole again.
    server.terminate_backends().await;
    for _ in 0..3 {
        if let Ok(found) = agent.recover(9).await {
            assert_eq!(found, [own]);
        }
    }
    assert_eq!(agent.recover(9).await.unwrap(), [own]);
    let told = agent.commit(settle(a_branch(2), "")).await.unwrap_err();
    assert!(with_causes(&told).contains("the database that it was prepared in"), "{told}");
    assert_eq!(agent.rollback(settle(own, "")).await.unwrap().settlement, Settlement::Done);
    let mut left: Vec<_> = foreign.into_iter().chain([elsewhere]).collect();
    let mut held = server.prepared().await;
    left.sort();
    held.sort();
    assert_eq!(held, left);
}

#[tokio::test]
async fn an_agent_without_the_right_to_end_a_branch_says_whose_it_is() {
    let server = PostgresServer::start(PREPARES).await;
    server.database("bank").await;
    server.superuser("postgres").await.batch_execute("CREATE ROLE stranger LOGIN").await.unwrap();
    left_prepared(&server, &gid(7, a_branch(1))).await;
    let database = Database::at(accounts(), &server.dsn("stranger", "bank"), 1).unwrap();
    let agent = Agent::new(Arc::new(database), Some(OWN));
    assert_eq!(agent.recover(9).await.unwrap(), [a_branch(1)], "it sees it");
    let told = agent.commit(settle(a_branch(1), "")).await.unwrap_err();
    let told = with_causes(&told);
    assert!(told.contains("only the role that prepared it, or a superuser, may end it"), "{told}");
    assert_eq!(server.prepared().await.len(), 1);
}

#[tokio::test]
async fn twins_and_latecomers_are_answered_alike() {
    let server = PostgresServer::start(PREPARES).await;
    server.database("bank").await;
    let agent = agent(&server);
    let branch = a_branch(1);
    let gid = gid(7, branch);
    left_prepared(&server, &gid).await;
    assert_eq!(agent.recover(9).await.unwrap(), [branch]);
    let twins = (0..8).map(|_| agent.commit(settle(branch, "")));
    for told in join_all(twins).await {
        // One that meets its twin at work is asked again.
        assert!(told.is_err() || told.is_ok_and(|told| told.settlement == Settlement::Done));
    }
    assert_eq!(agent.commit(settle(branch, "")).await.unwrap().settlement, Settlement::Done);
    assert_eq!(server.balances("bank").await, ["95", "100"]);
    // A rollback that comes first leaves no tombstone: what is prepared after it is found by the next sweep.
    let late = a_branch(2);
    assert_eq!(agent.rollback(settle(late, "")).await.unwrap().settlement, Settlement::Done);
    left_prepared(&server, &self::gid(7, late)).await;
    assert_eq!(agent.recover(9).await.unwrap(), [late]);
}

/// A standby that is promoted, or a restore, begins another timeline.
#[tokio::test]
async fn a_new_timeline_is_noticed_and_its_numbers_prove_nothing() {
    let mut server = PostgresServer::start(PREPARES).await;
    server.database("bank").await;
    let agent = agent(&server);
    let (first, second) = (a_branch(1), a_branch(2));
    left_prepared(&server, &gid(7, first)).await;
    left_prepared_at(&server, "UPDATE account SET balance = 7 WHERE id = 2", &gid(7, second)).await;
    assert_eq!(agent.recover(9).await.unwrap(), [first, second]);
    assert!(agent.presumes());
    let ended = format!("COMMIT PREPARED '{}'", gid(7, second));
    server.client("bank").await.batch_execute(&ended).await.unwrap();

    server.kill();
    server.recover_to_a_new_timeline();
    server.start_again().await;
    assert_eq!(agent.recover(9).await.unwrap(), [first]);
    assert!(!agent.presumes());
    // It was committed, but for all that is known under another number.
    assert_eq!(agent.commit(settle(second, "")).await.unwrap().settlement, Settlement::HeuristicHazard);
    assert_eq!(agent.commit(settle(first, "")).await.unwrap().settlement, Settlement::Done);

    let found = agent.database().probe().await.unwrap();
    assert_eq!(found.timeline, "2");
    let agreed = Agent::new(Arc::new(server.agent_database("bank")), Some(OWN)).expecting(found.to_string());
    agreed.recover(9).await.unwrap();
    assert!(agreed.presumes());
}

#[tokio::test]
async fn a_database_that_cannot_keep_a_promise_says_which_setting_it_is() {
    let server = PostgresServer::start(&["max_prepared_transactions=3", "synchronous_commit=off"]).await;
    server.database("bank").await;
    server.superuser("postgres").await.batch_execute("CREATE ROLE other LOGIN IN ROLE app").await.unwrap();
    left_prepared(&server, &gid(7, a_branch(1))).await;
    let graded = async |role: &str, grade: Grade| {
        let database = Database::at(accounts(), &server.dsn(role, "bank"), 1).unwrap();
        let mut found = database.check().await.unwrap();
        found.retain(|finding| finding.grade == grade);
        assert!(found.iter().all(|finding| grade == Grade::Fine || !finding.advice.is_empty()));
        found.into_iter().map(|finding| finding.setting).collect::<Vec<_>>()
    };
    assert_eq!(graded(APP, Grade::Error).await, ["synchronous_commit"]);
    assert_eq!(graded("other", Grade::Error).await, ["role", "synchronous_commit"]);
    let idle = "idle_in_transaction_session_timeout";
    assert_eq!(graded(APP, Grade::Warning).await, ["max_prepared_transactions", "lock_timeout", idle]);
    let set = format!("ALTER ROLE app SET lock_timeout = '5s'; ALTER ROLE app SET {idle} = '60s'");
    server.superuser("postgres").await.batch_execute(&set).await.unwrap();
    assert_eq!(graded(APP, Grade::Warning).await, ["max_prepared_transactions"]);
    let right = "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM public";
    server.superuser("bank").await.batch_execute(right).await.unwrap();
    assert_eq!(graded(APP, Grade::Error).await, ["identity", "synchronous_commit"]);
    let blind = agent(&server);
    let told = with_causes(&blind.recover(9).await.unwrap_err());
    assert!(told.contains("permission denied for function pg_control_system"), "{told}");
}
