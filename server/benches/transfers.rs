//! The same transfers from PostgreSQL to MariaDB, by a plain client that prepares and commits both databases itself and
//! keeps no decision, and by Verdict with three nodes on loopback that keep each on two disks before it is told.
//!
//! `cargo bench -p verdict-server --bench transfers -- [SECONDS]` prints, for 1, 16 and 64 clients, transfers per second and
//! p50 of both, medians of five rounds in which they take turns, and their ratio; and how long one append to the log takes
//! beside an idle cluster. Each client has an account of its own: nobody waits for anybody's locks.

#![allow(clippy::unwrap_used, reason = "a benchmark")]

#[path = "../../client/tests/common/mariadb.rs"]
mod mariadb;
#[path = "../../client/tests/common/postgres.rs"]
mod postgres;
#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    fmt::Write as _,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use mariadb::MariaDb;
use postgres::PostgresServer;
use support::Cluster;
use verdict_client::{
    Outcome, Verdict,
    resource::{
        mysql::{
            self, Mysql,
            mysql_async::{Conn, prelude::Queryable as _},
        },
        postgres::{
            Postgres,
            tokio_postgres::{Client, NoTls},
        },
    },
};

const CLIENTS: [usize; 3] = [1, 16, 64];
const ROUNDS: usize = 5;
const MOST: usize = 64;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let seconds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(2);
    let each = Duration::from_secs(seconds);
    let bench = Bench::set().await;
    bench.run(Way::Verdict, 16, Duration::from_secs(1)).await;
    bench.run(Way::Plain, 16, Duration::from_secs(1)).await;
    println!("clients   plain/s  p50 ms  verdict/s  p50 ms  ratio");
    for clients in CLIENTS {
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            // Whoever comes first meets what the other's round left behind.
            let (first, second) = if round % 2 == 0 { (Way::Plain, Way::Verdict) } else { (Way::Verdict, Way::Plain) };
            let one = bench.run(first, clients, each).await;
            let other = bench.run(second, clients, each).await;
            rounds.push(if first == Way::Plain { (one, other) } else { (other, one) });
        }
        let median = |of: &dyn Fn(&(Round, Round)) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[ROUNDS / 2]
        };
        println!(
            "{clients:>7}  {:>8.0}  {:>6.2}  {:>9.0}  {:>6.2}  {:>5.2}",
            median(&|(plain, _)| plain.rate),
            median(&|(plain, _)| plain.p50_ms),
            median(&|(_, verdict)| verdict.rate),
            median(&|(_, verdict)| verdict.p50_ms),
            median(&|(plain, verdict)| verdict.rate / plain.rate),
        );
    }
    println!("one replicated append, with its call: p50 {:.2} ms", bench.append_ms().await);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    Verdict,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    rate: f64,
    p50_ms: f64,
}

struct Bench {
    cluster: Cluster,
    postgres: PostgresServer,
    mariadb: MariaDb,
    accounts: Postgres,
    ledger: Mysql,
}

impl Bench {
    async fn set() -> Self {
        let postgres = PostgresServer::start(&["max_prepared_transactions=100", "max_connections=200"]).await;
        postgres.database("shop").await;
        let mariadb = MariaDb::start_with(&["max-connections=300"]).await;
        let ids = (10..10 + MOST).map(|id| format!("({id}, 1000000)")).collect::<Vec<_>>().join(", ");
        postgres.client("shop").await.batch_execute(&format!("INSERT INTO account VALUES {ids}")).await.unwrap();
        let mut root = mariadb.root("bank").await;
        root.query_drop(format!("INSERT INTO accounts VALUES {ids}")).await.unwrap();

        let (dsn, url) = (postgres.dsn(postgres::APP, "shop"), mariadb.url("root", "bank"));
        let mut tables = String::from("accounts = \"postgres\"\nledger = \"mariadb\"\n");
        for (name, text) in [("accounts", &dsn), ("ledger", &url)] {
            let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("transfers-{name}.dsn"));
            fs::write(&file, text).unwrap();
            writeln!(tables, "[databases.{name}]\ndsn_file = {file:?}").unwrap();
        }
        let cluster = Cluster::start_as(&|_, manager| manager, &tables).await;
        let verdict = cluster.client();
        let pool = verdict_client::resource::postgres::pool(&dsn, MOST).unwrap();
        let accounts = Postgres::open(&verdict, "accounts".try_into().unwrap(), pool).await.unwrap();
        // As the plain client, which keeps its connections and their prepared statements.
        let pool = mysql::pool(&format!("{url}&reset_connection=false"), MOST).unwrap();
        let ledger = Mysql::open(&verdict, "ledger".try_into().unwrap(), pool).await.unwrap();
        Self { cluster, postgres, mariadb, accounts, ledger }
    }

    /// Moves as fast as so many clients can.
    async fn run(&self, way: Way, clients: usize, how_long: Duration) -> Round {
        let over = Arc::new(AtomicBool::new(false));
        let mut workers = Vec::new();
        for id in (10..).take(clients) {
            let over = Arc::clone(&over);
            workers.push(match way {
                Way::Plain => {
                    let (giver, taker) = self.connections().await;
                    tokio::spawn(plain(giver, taker, id, over))
                }
                Way::Verdict => {
                    let (accounts, ledger) = (self.accounts.clone(), self.ledger.clone());
                    tokio::spawn(by_verdict(self.cluster.client(), accounts, ledger, id, over))
                }
            });
        }
        let begun = Instant::now();
        tokio::time::sleep(how_long).await;
        over.store(true, Ordering::Relaxed);
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        for worker in workers {
            for latency in worker.await.unwrap() {
                histogram.record(latency).unwrap();
            }
        }
        let rate = histogram.len() as f64 / begun.elapsed().as_secs_f64();
        Round { rate, p50_ms: histogram.value_at_quantile(0.5) as f64 / 1000.0 }
    }

    async fn connections(&self) -> (Client, Conn) {
        let dsn = self.postgres.dsn(postgres::APP, "shop");
        let (client, connection) =
            verdict_client::resource::postgres::tokio_postgres::connect(&dsn, NoTls).await.unwrap();
        drop(tokio::spawn(connection));
        (client, self.mariadb.root("bank").await)
    }

    /// A registration is one append and nothing else.
    async fn append_ms(&self) -> f64 {
        let (verdict, mut histogram) = (self.cluster.client(), Histogram::<u64>::new(3).unwrap());
        for _ in 0..200 {
            let mut transaction = verdict.transaction();
            let begun = Instant::now();
            transaction.enlist("accounts".try_into().unwrap(), "".into()).await.unwrap();
            histogram.record(u64::try_from(begun.elapsed().as_micros()).unwrap()).unwrap();
            transaction.rollback("only measured").await.unwrap();
        }
        histogram.value_at_quantile(0.5) as f64 / 1000.0
    }
}

const TAKE: &str = "UPDATE account SET balance = balance - 1 WHERE id = $1";
const GIVE: &str = "UPDATE accounts SET balance = balance + 1 WHERE id = ?";

/// Latencies in microseconds.
async fn plain(giver: Client, mut taker: Conn, id: i32, over: Arc<AtomicBool>) -> Vec<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut latencies = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let name = format!("plain {}", NEXT.fetch_add(1, Ordering::Relaxed));
        let begun = Instant::now();
        let (giver_side, taker_side) = (
            async {
                giver.batch_execute("BEGIN").await.unwrap();
                giver.execute(TAKE, &[&id]).await.unwrap();
                giver.batch_execute(&format!("PREPARE TRANSACTION '{name}'")).await.unwrap();
            },
            async {
                taker.query_drop(format!("XA START '{name}'")).await.unwrap();
                taker.exec_drop(GIVE, (id,)).await.unwrap();
                taker.query_drop(format!("XA END '{name}'; XA PREPARE '{name}'")).await.unwrap();
            },
        );
        tokio::join!(giver_side, taker_side);
        let (commit_giver, commit_taker) = (format!("COMMIT PREPARED '{name}'"), format!("XA COMMIT '{name}'"));
        let (one, other) = tokio::join!(giver.batch_execute(&commit_giver), taker.query_drop(commit_taker));
        one.unwrap();
        other.unwrap();
        latencies.push(u64::try_from(begun.elapsed().as_micros()).unwrap());
    }
    latencies
}

async fn by_verdict(verdict: Verdict, accounts: Postgres, ledger: Mysql, id: i32, over: Arc<AtomicBool>) -> Vec<u64> {
    let mut latencies = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let mut transaction = verdict.transaction();
        let giver = accounts.enlist(&mut transaction).await.unwrap();
        let taker = ledger.enlist(&mut transaction).await.unwrap();
        let take = async { giver.client().unwrap().execute(TAKE, &[&id]).await.unwrap() };
        let give = async { taker.connection().await.unwrap().exec_drop(GIVE, (id,)).await.unwrap() };
        tokio::join!(take, give);
        let decision = transaction.commit().await.unwrap();
        assert_eq!(decision.outcome, Outcome::Committed, "{decision:?}");
        latencies.push(u64::try_from(begun.elapsed().as_micros()).unwrap());
    }
    latencies
}
