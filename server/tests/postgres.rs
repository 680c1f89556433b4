//! PostgreSQL databases with three real nodes: applications that die, databases that are down, agents that settle.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../client/tests/common/postgres.rs"]
mod postgres;
mod support;

use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use postgres::{APP, PostgresServer, texts};
use support::{Cluster, name};
use tokio::{
    sync::{Barrier, Mutex},
    time::Instant,
};
use verdict_client::{
    BranchId, ClusterId, LocalBranch, Options, Outcome, State, Verdict,
    participant::{NotAnswered, Settled, Voted, with_causes},
    resource::{
        postgres::{Postgres, PostgresError, pool},
        xa::ClusterError,
    },
};

const PREPARES: &[&str] = &["max_prepared_transactions=20"];

/// So long may a branch stay prepared after its application died.
const BOUND: Duration = Duration::from_secs(5);

/// Resources, each a database of this name; presumed aborted after two and a half seconds.
fn tables(databases: &[(&str, &PostgresServer)], more: &str) -> String {
    let declared: String = databases.iter().map(|(name, _)| format!("{name} = \"postgres\"\n")).collect();
    let described = databases.iter().map(|(name, server)| {
        let file = server.dsn_file(name);
        format!("[databases.{name}]\ndsn_file = {file:?}\nsweep_ms = 200\nsettle_after_ms = 400\n{more}")
    });
    let timeouts = "[timeouts]\nvote_ms = 2000\nmax_vote_ms = 2000\ngrace_ms = 2500\nsettle_grace_ms = 300\n";
    format!("{declared}{}{timeouts}", described.collect::<String>())
}

async fn cluster(tables: &str) -> Cluster {
    Cluster::start_as(&|_, manager| manager, tables).await
}

async fn open(verdict: &Verdict, server: &PostgresServer, database: &str) -> Postgres {
    Postgres::open(verdict, name(database), pool(&server.dsn(APP, database), 4).unwrap()).await.unwrap()
}

/// A node that follows may not know it yet.
async fn founded(cluster: &Cluster) -> ClusterId {
    cluster.client_of(cluster.leader().await).cluster_status().await.unwrap().cluster.unwrap()
}

async fn prepared_is_empty(servers: &[&PostgresServer], by: Instant, cluster: &Cluster) {
    for server in servers {
        loop {
            let held = server.prepared().await;
            if held.is_empty() {
                break;
            }
            assert!(Instant::now() < by, "still prepared: {held:?}; see {}", cluster.logs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The last branch to promise: does something in between, and has nothing to be told.
struct Between<F>(Mutex<Option<F>>);

impl<F> std::fmt::Debug for Between<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Between")
    }
}

#[tonic::async_trait]
impl<F: Future<Output = ()> + Send + 'static> LocalBranch for Between<F> {
    async fn prepare(&self, _: BranchId) -> Result<Voted, NotAnswered> {
        self.0.lock().await.take().expect("it is asked once").await;
        Ok(Voted::READ_ONLY)
    }

    async fn settle(&self, _: BranchId, _: Outcome) -> Result<Settled, NotAnswered> {
        Ok(Settled::DONE)
    }
}

const NODES: &str = "VERDICT_TEST_NODES_OF_APPLICATION";
const DSNS: &str = "VERDICT_TEST_DSNS";

/// Moves one thing after the other from the bank to the shop, and says so, until it is killed.
async fn application(nodes: &str, dsns: &str) {
    let verdict = Verdict::new(Options::new(nodes.split(','))).unwrap();
    let mut databases = Vec::new();
    for (database, dsn) in ["bank", "shop"].into_iter().zip(dsns.split(';')) {
        databases.push(Postgres::open(&verdict, name(database), pool(dsn, 2).unwrap()).await.unwrap());
    }
    println!("\nworks");
    loop {
        let mut transfer = verdict.transaction();
        let moved = format!("INSERT INTO moved VALUES ('{}')", transfer.xid());
        for database in &databases {
            let session = database.enlist(&mut transfer).await.unwrap();
            session.client().unwrap().batch_execute(&moved).await.unwrap();
        }
        let committed = transfer.commit().await.unwrap().outcome == Outcome::Committed;
        println!("{} {}", if committed { "committed" } else { "aborted" }, transfer.xid());
        std::io::stdout().flush().unwrap();
    }
}

/// Killed when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_application_left_prepared_is_settled_within_five_seconds() {
    if let (Ok(nodes), Ok(dsns)) = (env::var(NODES), env::var(DSNS)) {
        return application(&nodes, &dsns).await;
    }
    let server = PostgresServer::start(PREPARES).await;
    for database in ["bank", "shop"] {
        server.database(database).await;
        server.client(database).await.batch_execute("CREATE TABLE moved (xid text PRIMARY KEY)").await.unwrap();
    }
    let mut cluster = cluster(&tables(&[("bank", &server), ("shop", &server)], "")).await;
    let nodes = cluster.nodes.values().cloned().collect::<Vec<_>>().join(",");
    let (mut left, mut said) = (0, BTreeSet::new());
    for round in 0..8_u64 {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "what_a_killed_application_left_prepared_is_settled_within_five_seconds"])
            .arg("--nocapture")
            .env(NODES, &nodes)
            .env(DSNS, format!("{};{}", server.dsn(APP, "bank"), server.dsn(APP, "shop")))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = Process(child);
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines().map_while(Result::ok);
        tokio::task::block_in_place(|| lines.by_ref().find(|line| line == "works").expect("it works"));
        tokio::time::sleep(Duration::from_millis(100 + 37 * round)).await;
        drop(child);
        let died = Instant::now();
        let killed_leader = round % 2 == 1;
        if killed_leader {
            let leader = cluster.leader().await;
            cluster.kill(leader);
            cluster.leader().await;
            cluster.start_node(leader);
        }
        said.extend(lines.filter_map(|line| line.strip_prefix("committed ").map(str::to_owned)));
        left += server.prepared().await.len();
        let up = if killed_leader { Instant::now() } else { died };
        prepared_is_empty(&[&server], up + BOUND, &cluster).await;
        let mut moved = Vec::new();
        for database in ["bank", "shop"] {
            let xids = texts(&server.client(database).await, "SELECT xid FROM moved").await;
            moved.push(xids.into_iter().flatten().collect::<BTreeSet<String>>());
        }
        assert_eq!(moved[0], moved[1], "round {round}: both or neither");
        assert!(moved[0].is_superset(&said), "round {round}: what was told to be committed is there");
        println!("round {round}: settled {:?} after the kill", died.elapsed());
    }
    println!("{left} branches were in doubt at 8 kills, {} transfers committed", said.len());
    assert!(!said.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_prepared_and_never_committed_is_presumed_aborted() {
    let server = PostgresServer::start(PREPARES).await;
    server.database("bank").await;
    let cluster = cluster(&tables(&[("bank", &server)], "")).await;
    let verdict = cluster.client();
    let of_cluster = founded(&cluster).await;
    let id: String = of_cluster.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let client = server.client("bank").await;
    let prepare = |gid: &str, id: u32| {
        format!("BEGIN; UPDATE account SET balance = balance - 5 WHERE id = {id}; PREPARE TRANSACTION '{gid}'")
    };
    let foreign = format!("verdict:{}:{}:1", "0".repeat(32), verdict.transaction().xid());
    client.batch_execute(&prepare(&format!("verdict:{id}:{}:1", verdict.transaction().xid()), 1)).await.unwrap();
    client.batch_execute(&prepare(&foreign, 2)).await.unwrap();
    let by = Instant::now() + BOUND;
    while server.prepared().await.len() > 1 {
        assert!(Instant::now() < by, "{:?}; see {}", server.prepared().await, cluster.logs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.prepared().await, std::slice::from_ref(&foreign), "another cluster's is not touched");
    assert_eq!(server.balances("bank").await[0], "100");
    client.batch_execute(&format!("ROLLBACK PREPARED '{foreign}'")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s47_a_database_that_is_down_slows_nothing_else_and_drains_when_it_is_back() {
    let here = PostgresServer::start(PREPARES).await;
    let there = PostgresServer::start(PREPARES).await;
    here.database("bank").await;
    there.database("shop").await;
    let mut cluster = cluster(&tables(&[("bank", &here), ("shop", &there)], "")).await;
    let verdict = cluster.client().with_deadline(Duration::from_secs(2));
    let (bank, shop) = (open(&verdict, &here, "bank").await, open(&verdict, &there, "shop").await);
    let pay = "UPDATE account SET balance = balance - 5 WHERE id = 1";

    let mut transfer = verdict.transaction();
    for database in [&bank, &shop] {
        database.enlist(&mut transfer).await.unwrap().client().unwrap().batch_execute(pay).await.unwrap();
    }
    // The last vote is given once the other database has promised, and is gone.
    let there = Arc::new(Mutex::new(there));
    let dying = Arc::clone(&there);
    let gone = async move {
        let mut there = dying.lock().await;
        while there.prepared().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        there.kill();
    };
    let last = transfer.add(name("seats"), "".into()).unwrap();
    transfer.drive(last.number, Arc::new(Between(Mutex::new(Some(gone))))).unwrap();
    assert_eq!(transfer.commit().await.unwrap().outcome, Outcome::Committed);
    assert_eq!(here.balances("bank").await[0], "95");

    for n in 1..=10 {
        let began = Instant::now();
        let mut payment = verdict.transaction();
        bank.enlist(&mut payment).await.unwrap().client().unwrap().batch_execute(pay).await.unwrap();
        assert_eq!(payment.commit().await.unwrap().outcome, Outcome::Committed);
        assert!(began.elapsed() < Duration::from_secs(1), "payment {n} took {:?}", began.elapsed());
    }
    assert_eq!(verdict.get(transfer.xid()).await.unwrap().state, State::Decided, "not settled over there");

    // Nor does it hold up nodes that start, all at once, or what they do then.
    for node in cluster.nodes.clone().into_keys() {
        cluster.kill(node);
    }
    for node in cluster.nodes.clone().into_keys() {
        cluster.start_node(node);
    }
    cluster.leader().await;
    let mut payment = verdict.transaction();
    bank.enlist(&mut payment).await.unwrap().client().unwrap().batch_execute(pay).await.unwrap();
    assert_eq!(payment.commit().await.unwrap().outcome, Outcome::Committed);
    assert_eq!(verdict.get(transfer.xid()).await.unwrap().state, State::Decided, "it is still to be told");

    let mut there = there.lock().await;
    there.start_again().await;
    prepared_is_empty(&[&there, &here], Instant::now() + BOUND, &cluster).await;
    assert_eq!(there.balances("shop").await[0], "95");
    assert_eq!(here.balances("bank").await[0], "40");
    let by = Instant::now() + BOUND;
    while verdict.get(transfer.xid()).await.unwrap().state != State::Ended {
        assert!(Instant::now() < by, "it ends; see {}", cluster.logs());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_database_than_was_agreed_upon_is_left_alone_until_an_operator_agrees() {
    let server = PostgresServer::start(PREPARES).await;
    server.database("bank").await;
    let mut cluster = cluster(&tables(&[("bank", &server)], "identity = \"4711/1\"\n")).await;
    let verdict = cluster.client();
    let of_cluster = founded(&cluster).await;
    let id: String = of_cluster.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let gid = format!("verdict:{id}:{}:1", verdict.transaction().xid());
    let client = server.client("bank").await;
    let work = "BEGIN; UPDATE account SET balance = balance - 5 WHERE id = 1";
    client.batch_execute(&format!("{work}; PREPARE TRANSACTION '{gid}'")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(4_000)).await;
    assert_eq!(server.prepared().await, [gid], "nobody knows whether it was committed");
    assert!(cluster.logs().contains("until an operator agrees"), "{}", cluster.logs());

    // What is recorded is settled all the same.
    let bank = open(&verdict, &server, "bank").await;
    let mut payment = verdict.transaction();
    let pay = "UPDATE account SET balance = balance - 5 WHERE id = 2";
    bank.enlist(&mut payment).await.unwrap().client().unwrap().batch_execute(pay).await.unwrap();
    assert_eq!(payment.commit().await.unwrap().outcome, Outcome::Committed);
    assert_eq!(server.balances("bank").await, ["100", "95"]);

    // The operator names the database.
    let identity = "SELECT system_identifier || '/1' FROM pg_control_system()";
    let identity = texts(&client, identity).await[0].clone().unwrap();
    for node in cluster.nodes.clone().into_keys() {
        let path = cluster.config(node);
        let config = fs::read_to_string(&path).unwrap();
        fs::write(&path, config.replace("4711/1", &identity)).unwrap();
        cluster.kill(node);
        cluster.start_node(node);
        cluster.leader().await;
    }
    prepared_is_empty(&[&server], Instant::now() + 2 * BOUND, &cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s40_what_the_cluster_does_not_look_after_is_refused_before_anything_is_prepared() {
    let server = PostgresServer::start(&["max_prepared_transactions=1"]).await;
    server.database("bank").await;
    let cluster = cluster(&tables(&[("bank", &server)], "")).await;
    let verdict = cluster.client();
    let stranger =
        Postgres::open(&verdict, name("shop"), pool(&server.dsn(APP, "bank"), 1).unwrap()).await.unwrap_err();
    assert!(matches!(stranger, PostgresError::Cluster { source: ClusterError::NotConfigured(_), .. }), "{stranger}");
    assert!(with_causes(&stranger).contains("shop"), "{}", with_causes(&stranger));

    // No room for the second: the whole transaction aborts, with a reason that names the setting.
    let bank = open(&verdict, &server, "bank").await;
    let mut transfer = verdict.transaction();
    for id in [1, 2] {
        let pay = format!("UPDATE account SET balance = balance - 5 WHERE id = {id}");
        bank.enlist(&mut transfer).await.unwrap().client().unwrap().batch_execute(&pay).await.unwrap();
    }
    let decision = transfer.commit().await.unwrap();
    let reason = decision.reason.unwrap();
    assert_eq!(decision.outcome, Outcome::Aborted);
    assert_eq!((reason.source_code.as_str(), reason.retryable), ("53200", true));
    assert!(reason.text.contains("max_prepared_transactions"), "{}", reason.text);
    assert_eq!(server.prepared().await, [""; 0]);
    assert_eq!(server.balances("bank").await, ["100", "100"]);
}

/// Room for three, one of which somebody else has left prepared, and twelve that come at once, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s40_room_that_runs_out_in_mid_load_refuses_some_and_loses_none() {
    const PAYMENTS: u32 = 12;
    let server = PostgresServer::start(&["max_prepared_transactions=3"]).await;
    server.database("bank").await;
    let cluster = cluster(&tables(&[("bank", &server)], "")).await;
    let verdict = cluster.client();
    let connections = usize::try_from(PAYMENTS).unwrap();
    let bank = pool(&server.dsn(APP, "bank"), connections).unwrap();
    let bank = Postgres::open(&verdict, name("bank"), bank).await.unwrap();
    let stray = "BEGIN; INSERT INTO account VALUES (99, 1); PREPARE TRANSACTION 'somebody-else'";
    server.client("bank").await.batch_execute(stray).await.unwrap();
    let all_at_once = Arc::new(Barrier::new(connections));
    let payments = (10..10 + PAYMENTS).map(|id| {
        let (verdict, bank, all_at_once) = (verdict.clone(), bank.clone(), Arc::clone(&all_at_once));
        tokio::spawn(async move {
            let mut refused = 0;
            loop {
                let mut payment = verdict.transaction();
                let session = bank.enlist(&mut payment).await.unwrap();
                let pay = format!("INSERT INTO account VALUES ({id}, 1)");
                session.client().unwrap().batch_execute(&pay).await.unwrap();
                if refused == 0 {
                    all_at_once.wait().await;
                }
                let decision = payment.commit().await.unwrap();
                let Some(reason) = decision.reason.filter(|_| decision.outcome == Outcome::Aborted) else {
                    return refused;
                };
                assert_eq!((reason.source_code.as_str(), reason.retryable), ("53200", true), "{}", reason.text);
                assert!(reason.text.contains("max_prepared_transactions"), "{}", reason.text);
                refused += 1;
            }
        })
    });
    let refused: Vec<u32> = join_all(payments).await.into_iter().map(Result::unwrap).collect();
    assert!(refused.iter().any(|times| *times > 0), "there was room for all: {refused:?}");
    assert_eq!(server.prepared().await, ["somebody-else"]);
    assert_eq!(server.balances("bank").await.len(), 2 + connections);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resource_check_tells_what_a_vote_is_worth() {
    let mut good = PostgresServer::start(&["max_prepared_transactions=100"]).await;
    let bad = PostgresServer::start(&["max_prepared_transactions=0", "synchronous_commit=off"]).await;
    good.database("bank").await;
    bad.database("shop").await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("node.toml");
    let tables = tables(&[("bank", &good), ("shop", &bad)], "");
    let head = "cluster = \"test\"\nnode = 1\ndata = \"data\"\n[nodes]\n1 = \"127.0.0.1:1\"\n[resources]\n";
    fs::write(&config, format!("{head}{tables}")).unwrap();
    let check = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_verdict"));
        let output = command.args(["resource", "check", "--config"]).arg(&config).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, table, _) = check(&["bank"]);
    assert_eq!(code, Some(0), "{table}");
    for line in ["max_prepared_transactions", "version", "lock_timeout", "SET lock_timeout = '5s'", "fsync"] {
        assert!(table.contains(line), "{line} in {table}");
    }
    let (code, table, _) = check(&["--all"]);
    assert_eq!(code, Some(1), "{table}");
    assert!(table.contains("write max_prepared_transactions = 60 in postgresql.conf"), "{table}");
    assert!(table.contains("a crash loses votes that were given"), "{table}");
    let (code, json, _) = check(&["shop", "-o", "json"]);
    let found: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, found[0]["resource"].as_str()), (Some(1), Some("shop")));
    assert_eq!(found[0]["settings"][2]["grade"], "ERROR", "{json}");
    let (code, _, said) = check(&["nobody"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("there are bank, shop"), "{said}");
    good.kill();
    let (code, table, _) = check(&["bank"]);
    assert_eq!(code, Some(1), "{table}");
    assert!(table.contains("bank: ERROR: bank: no connection to PostgreSQL"), "{table}");
    assert!(!folder.path().join("data").exists());
}
