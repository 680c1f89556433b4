//! An application prepares on PostgreSQL and on MariaDB, and is killed, as `kill -9` does, at each step of its commit; in
//! half of the runs the leader dies with it. Each time both databases must come to the same end, and hold nothing prepared,
//! within five seconds of a majority being up.
//!
//! ```text
//!   application ──▶ Tap ──▶ PostgreSQL ◀── agent ─┐
//!        │  └─────▶ Tap ──▶ MariaDB    ◀── agent ─┼── three nodes
//!        └─────────────────────────────────────────┘
//! ```
//!
//! The taps between the application and its databases see which step it has come to, and hold back what must not arrive.
//! What they hold when it dies is lost in one half of the runs, and arrives late in the other. `--runs N` makes N runs
//! instead of 50.

#![allow(clippy::unwrap_used, reason = "a test")]

mod application;
#[path = "../../../client/tests/common/mariadb.rs"]
mod mariadb;
#[path = "../../../client/tests/common/postgres.rs"]
mod postgres;
#[path = "../support/mod.rs"]
mod support;
mod tap;

use std::{
    env,
    fmt::Write as _,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use mariadb::MariaDb;
use postgres::PostgresServer;
use support::Cluster;
use tap::{Said, Tap};

/// From the moment at which the application is dead and a majority is up.
const BOUND: Duration = Duration::from_secs(5);
const RUNS: usize = 50;
/// So long nothing must come after the end: what was held back may arrive late.
const QUIET: Duration = Duration::from_millis(400);
/// What there is to be moved.
const ENOUGH: i32 = 1_000_000;
const ACCOUNTS: [&str; 2] = ["accounts", "ledger"];

/// Where the application dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// It has asked for a promise, and no database has heard it.
    BeforePrepare,
    /// One database has promised, the other has not heard of it.
    OnePrepared,
    /// Both have, and it has not heard that.
    BothPrepared,
    /// It has heard that, and is about to commit or has asked for it.
    CommitSent,
    /// It has heard the outcome, and told no database.
    Answered,
}

const STEPS: [Step; 5] = [Step::BeforePrepare, Step::OnePrepared, Step::BothPrepared, Step::CommitSent, Step::Answered];

fn main() {
    let mut arguments = env::args().skip(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match arguments.next().as_deref() {
        Some("application") => runtime.block_on(application::transfer(&arguments.collect::<Vec<_>>())),
        Some("--runs") => runtime.block_on(runs(arguments.next().unwrap().parse().unwrap())),
        _ => runtime.block_on(runs(RUNS)),
    }
}

struct Scene {
    cluster: Cluster,
    postgres: PostgresServer,
    mariadb: MariaDb,
    taps: [Tap; 2],
}

async fn runs(count: usize) {
    let mut scene = Scene::set().await;
    let mut took: Vec<(Step, bool, Duration)> = Vec::new();
    let mut moved = 0;
    for run in 0..count {
        let (step, with_leader, late) = (STEPS[run % 5], run / 5 % 2 == 1, run / 10 % 2 == 1);
        let first = run / 20 % 2;
        let before = scene.moved().await;
        let lasted = scene.run(step, first, with_leader, late).await;
        let after = scene.moved().await;
        assert!(after == before || after == before + 1, "run {run}: {before} and then {after} were moved");
        // Undecided, it is aborted; once the outcome was told it stands.
        let committed = after > before;
        match step {
            Step::BeforePrepare | Step::OnePrepared | Step::BothPrepared => assert!(!committed, "run {run}: {step:?}"),
            Step::CommitSent => {}
            Step::Answered => assert!(committed, "run {run}: {step:?}"),
        }
        moved += u32::from(committed);
        took.push((step, with_leader, lasted));
    }
    println!("{}", distribution(&took));
    println!("{moved} of {count} transfers were committed, the others rolled back; both databases agree on each");
    assert!(took.iter().all(|(_, _, lasted)| *lasted <= BOUND), "longer than {BOUND:?}");
}

fn distribution(took: &[(Step, bool, Duration)]) -> String {
    let mut text = String::from("how long until both databases had come to the same end\n");
    for with_leader in [false, true] {
        for step in STEPS {
            let mut lasted: Vec<Duration> =
                took.iter().filter(|run| (run.0, run.1) == (step, with_leader)).map(|run| run.2).collect();
            lasted.sort_unstable();
            let Some(most) = lasted.last() else { continue };
            let who = if with_leader { "it and the leader die" } else { "it dies" };
            let (median, runs) = (lasted[lasted.len() / 2], lasted.len());
            writeln!(text, "  {who:<21} at {step:<13?}: {runs:>3} runs, median {median:>9.1?}, most {most:>9.1?}")
                .unwrap();
        }
    }
    text
}

impl Scene {
    async fn set() -> Self {
        let postgres = PostgresServer::start(&["max_prepared_transactions=20"]).await;
        postgres.database("shop").await;
        let enough = format!("UPDATE account SET balance = {ENOUGH} WHERE id = 1");
        postgres.client("shop").await.batch_execute(&enough).await.unwrap();
        let mariadb = MariaDb::start().await;
        // An agent may ask for the first time half a second after it saw a branch; no client takes longer to commit.
        let agent = "sweep_ms = 200\nsettle_after_ms = 500\n";
        let tables = format!(
            "accounts = \"postgres\"\nledger = \"mariadb\"\n[databases.accounts]\ndsn_file = {:?}\n{agent}\
             [databases.ledger]\ndsn_file = {:?}\n{agent}\
             [timeouts]\nvote_ms = 1000\nmax_vote_ms = 1000\ngrace_ms = 1500\nsettle_grace_ms = 300\n",
            kept("accounts.dsn", &postgres.dsn(postgres::APP, "shop")),
            kept("ledger.dsn", &mariadb.url("root", "bank")),
        );
        let cluster = Cluster::start_as(&|_, manager| manager, &tables).await;
        let taps = [Tap::before(postgres.port).await, Tap::before(mariadb.port).await];
        Self { cluster, postgres, mariadb, taps }
    }

    fn starts_application(&self) -> Child {
        let mut application = Command::new(env::current_exe().unwrap());
        let [accounts, ledger] = &self.taps;
        application.arg("application").arg(accounts.port.to_string()).arg(ledger.port.to_string());
        application.args(self.cluster.nodes.values()).stdin(Stdio::null());
        application.spawn().unwrap()
    }

    /// How long it took, from the application's death on, until nothing was prepared any more.
    async fn run(&mut self, step: Step, first: usize, with_leader: bool, late: bool) -> Duration {
        let leader = self.cluster.leader().await;
        for (number, tap) in self.taps.iter_mut().enumerate() {
            let holds: &[Said] = match step {
                Step::BeforePrepare => &[Said::Prepare],
                Step::OnePrepared if number != first => &[Said::Prepare],
                Step::OnePrepared | Step::BothPrepared => &[Said::Prepared],
                Step::CommitSent | Step::Answered => &[Said::Settle],
            };
            tap.holds(holds);
        }
        let mut application = self.starts_application();
        let reached = timeout(Duration::from_secs(20), self.comes_to(step, first)).await;
        if reached.is_err() {
            drop(application.kill());
            panic!("it does not come to {step:?}; see {}", self.cluster.logs());
        }
        application.kill().unwrap();
        application.wait().unwrap();
        if with_leader {
            self.cluster.kill(leader);
        }
        let died = Instant::now();
        self.taps.iter_mut().for_each(|tap| tap.lets_go(late));
        let ended = self.end().await;
        if with_leader {
            self.cluster.start_node(leader);
            self.cluster.leader().await;
        }
        ended.saturating_duration_since(died)
    }

    async fn comes_to(&mut self, step: Step, first: usize) {
        let [accounts, ledger] = &mut self.taps;
        match step {
            Step::BeforePrepare => {
                tokio::join!(accounts.hears(Said::Prepare), ledger.hears(Said::Prepare));
            }
            Step::OnePrepared => {
                let (one, other) = if first == 0 { (accounts, ledger) } else { (ledger, accounts) };
                tokio::join!(one.hears(Said::Prepared), other.hears(Said::Prepare));
            }
            Step::BothPrepared => {
                tokio::join!(accounts.hears(Said::Prepared), ledger.hears(Said::Prepared));
            }
            Step::CommitSent => {
                tokio::join!(accounts.hears(Said::Prepared), ledger.hears(Said::Prepared));
                // Somewhere in its call: an append to three disks takes longer.
                sleep(Duration::from_micros(700)).await;
            }
            Step::Answered => {
                tokio::select! {
                    () = accounts.hears(Said::Settle) => {}
                    () = ledger.hears(Said::Settle) => {}
                }
            }
        }
    }

    /// When it was over, for good.
    async fn end(&self) -> Instant {
        let mut since: Option<Instant> = None;
        let by = Instant::now() + 4 * BOUND;
        loop {
            let prepared = self.postgres.prepared().await.len() + self.mariadb.prepared().await;
            if prepared > 0 {
                since = None;
            }
            let now = Instant::now();
            let clean = *since.get_or_insert(now);
            if prepared == 0 && clean + QUIET <= now {
                return clean;
            }
            assert!(now < by, "{prepared} branches are still prepared; see {}", self.cluster.logs());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// How many transfers there were, by both databases.
    async fn moved(&self) -> i32 {
        let taken: i32 = ENOUGH - self.postgres.balances("shop").await[0].parse::<i32>().unwrap();
        let given = self.mariadb.balances().await[0] - 100;
        assert_eq!(taken, given, "one database has what the other has not");
        taken
    }
}

/// A file with a connection string, until this process ends.
fn kept(name: &str, dsn: &str) -> std::path::PathBuf {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    std::fs::write(&path, dsn).unwrap();
    path
}
