//! Transfers between two MariaDB servers over three real nodes, while sessions, servers, nodes and applications die.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../client/tests/common/mariadb.rs"]
mod mariadb;
mod support;

use std::{
    collections::BTreeSet,
    error::Error,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mariadb::MariaDb;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use support::{Cluster, name};
use tokio::time::{Instant, sleep, timeout};
use verdict_client::{
    Outcome, Verdict, Xid,
    resource::mysql::{Mysql, mysql_async::prelude::Queryable},
};

/// How long things go wrong.
const TROUBLED: Duration = Duration::from_secs(12);
const APPLICATIONS: u64 = 4;
/// Beyond this nothing may be prepared once everybody is there again.
const SETTLED_WITHIN: Duration = Duration::from_secs(20);

/// What applications have heard.
#[derive(Debug, Default)]
struct Heard {
    committed: BTreeSet<Xid>,
    aborted: BTreeSet<Xid>,
    /// Died, or was not answered.
    unknown: usize,
}

/// Resources, each the database of one server; presumed aborted after two and a half seconds.
fn tables(servers: &[(&str, &MariaDb)]) -> String {
    let declared: String = servers.iter().map(|(name, _)| format!("{name} = \"mariadb\"\n")).collect();
    let described = servers.iter().map(|(name, server)| {
        let file = server.url_file();
        format!("[databases.{name}]\ndsn_file = {file:?}\nsweep_ms = 200\nsettle_after_ms = 400\n")
    });
    let timeouts = "[timeouts]\nvote_ms = 2000\nmax_vote_ms = 2000\ngrace_ms = 2500\nsettle_grace_ms = 300\n";
    format!("{declared}{}{timeouts}", described.collect::<String>())
}

/// Moves one from the bank to the shop, and leaves a note of it in both.
async fn transfer(
    verdict: &Verdict,
    banks: &[Mysql; 2],
    account: u32,
) -> Result<(Xid, Outcome), Box<dyn Error + Send + Sync>> {
    let mut transaction = verdict.transaction();
    let xid = transaction.xid();
    for (bank, amount) in banks.iter().zip([-1, 1]) {
        let session = bank.enlist(&mut transaction).await?;
        let mut connection = session.connection().await?;
        let pay = "UPDATE purses SET balance = balance + ? WHERE id = ?";
        connection.exec_drop(pay, (amount, account)).await?;
        connection.exec_drop("INSERT INTO notes VALUES (?)", (xid.as_bytes().to_vec(),)).await?;
    }
    Ok((xid, transaction.commit().await?.outcome))
}

async fn application(
    (verdict, banks): (Verdict, Arc<[Mysql; 2]>),
    seed: u64,
    (over, heard): (Arc<AtomicBool>, Arc<Mutex<Heard>>),
) {
    let mut random = StdRng::seed_from_u64(seed);
    while !over.load(Ordering::SeqCst) {
        let account = random.random_range(0..16);
        // One in eight dies in the middle of it.
        let lives = if random.random_ratio(1, 8) { random.random_range(0..40) } else { 20_000 };
        let transfer = timeout(Duration::from_millis(lives), transfer(&verdict, &banks, account)).await;
        {
            let mut heard = heard.lock().unwrap();
            match transfer {
                Ok(Ok((xid, Outcome::Committed))) => drop(heard.committed.insert(xid)),
                Ok(Ok((xid, Outcome::Aborted))) => drop(heard.aborted.insert(xid)),
                Ok(Err(_)) | Err(_) => heard.unknown += 1,
            }
        }
        sleep(Duration::from_millis(random.random_range(0..20))).await;
    }
}

async fn kill_a_session(server: &MariaDb, random: &mut StdRng) {
    let mut root = server.root("").await;
    let others = format!("SELECT ID FROM information_schema.PROCESSLIST WHERE DB = 'bank' AND ID <> {}", root.id());
    let sessions: Vec<u32> = root.query(others).await.unwrap();
    if !sessions.is_empty() {
        let unlucky = sessions[random.random_range(0..sessions.len())];
        drop(root.query_drop(format!("KILL {unlucky}")).await);
    }
}

async fn notes(server: &MariaDb) -> BTreeSet<Xid> {
    let notes: Vec<Vec<u8>> = server.root("bank").await.query("SELECT xid FROM notes").await.unwrap();
    notes.iter().map(|note| Xid::from_slice(note).unwrap()).collect()
}

async fn sum(server: &MariaDb) -> i64 {
    server.root("bank").await.query_first("SELECT CAST(SUM(balance) AS SIGNED) FROM purses").await.unwrap().unwrap()
}

async fn a_bank() -> MariaDb {
    let server = MariaDb::start_with(&["innodb-lock-wait-timeout=3"]).await;
    let tables = "CREATE TABLE notes (xid BINARY(16) PRIMARY KEY) ENGINE=InnoDB; \
                  CREATE TABLE purses (id INT PRIMARY KEY, balance INT NOT NULL) ENGINE=InnoDB; \
                  INSERT INTO purses SELECT seq, 1000 FROM seq_0_to_15";
    server.root("bank").await.query_drop(tables).await.unwrap();
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_s43_s45_s47_two_databases_agree_whoever_dies() {
    let seed = std::env::var("SEED").ok().map_or_else(rand::random, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut servers = [a_bank().await, a_bank().await];
    let tables = tables(&[("bank", &servers[0]), ("shop", &servers[1])]);
    let mut cluster = Cluster::start_as(&|_, manager| manager, &tables).await;
    let verdict = cluster.client();
    let open = async |resource, server: &MariaDb| {
        Mysql::open(&verdict, name(resource), server.pool_of_at_most(16)).await.unwrap()
    };
    let banks = Arc::new([open("bank", &servers[0]).await, open("shop", &servers[1]).await]);

    let (over, heard) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Heard>>::default());
    let applications: Vec<_> = (0..APPLICATIONS)
        .map(|n| {
            let shared = (over.clone(), heard.clone());
            tokio::spawn(application((verdict.clone(), banks.clone()), seed.wrapping_add(n), shared))
        })
        .collect();
    let until = Instant::now() + TROUBLED;
    while Instant::now() < until {
        sleep(Duration::from_millis(random.random_range(10..200))).await;
        let unlucky = random.random_range(0..2);
        match random.random_range(0..20) {
            0 => {
                servers[unlucky].kill();
                sleep(Duration::from_millis(random.random_range(0..500))).await;
                servers[unlucky].restart().await;
            }
            1 => {
                let leader = cluster.leader().await;
                cluster.kill(leader);
                sleep(Duration::from_millis(random.random_range(0..1000))).await;
                cluster.start_node(leader);
            }
            _ => kill_a_session(&servers[unlucky], &mut random).await,
        }
    }
    cluster.leader().await;
    over.store(true, Ordering::SeqCst);
    for application in applications {
        application.await.unwrap();
    }
    let healed = Instant::now();
    while servers[0].prepared().await + servers[1].prepared().await > 0 {
        assert!(healed.elapsed() < SETTLED_WITHIN, "still prepared");
        sleep(Duration::from_millis(50)).await;
    }
    let settled = healed.elapsed();

    let heard = std::mem::take(&mut *heard.lock().unwrap());
    let (left, right) = (notes(&servers[0]).await, notes(&servers[1]).await);
    println!(
        "{} committed, {} aborted, {} not known to their applications, {} notes; settled {settled:?} after",
        heard.committed.len(),
        heard.aborted.len(),
        heard.unknown,
        left.len()
    );
    assert_eq!(left, right, "both or none");
    assert_eq!(heard.committed.difference(&left).count(), 0, "what was said to be committed is");
    assert_eq!(heard.aborted.intersection(&left).count(), 0, "what was said to be aborted is");
    assert!(heard.committed.len() > 20, "something went on");
    let moved = i64::try_from(left.len()).unwrap();
    assert_eq!([sum(&servers[0]).await, sum(&servers[1]).await], [16_000 - moved, 16_000 + moved]);
}
