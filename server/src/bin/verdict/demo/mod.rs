//! `verdict demo`: bus tickets over three nodes and three participants, with faults, and an audit at the end.
//!
//! ```text
//!   bookings.csv ─▶ load ──commit──▶ 3 × verdict serve ──prepare, commit──▶ 3 × verdict participant ─▶ SQLite files
//!                    │                    ▲                                   ▲                           │
//!                    ▼                    └────────── faults ─────────────────┘                           ▼
//!                  board ─▶ progress, report ◀────────────────────────────────────────────────────────── audit
//! ```
//!
//! With `--databases` the load works on real servers itself, in sessions whose votes commit brings along, and agents in the
//! nodes settle what it can't; what no server keeps stays with a participant.

mod audit;
mod board;
mod bookings;
mod databases;
mod faults;
mod fleet;
mod load;
mod oracle;
mod progress;
mod report;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use thiserror::Error;
use tokio::time::{sleep, timeout};
use verdict_client::{ClusterStatus, Options, OptionsError, Verdict};

pub(crate) use self::bookings::BookingsError;
use self::{
    audit::AuditError,
    board::Board,
    bookings::Line,
    databases::{Brand, ServerError, Stock},
    faults::{FaultError, Stage},
    fleet::{Fleet, FleetError},
    load::{Desk, Pace},
    oracle::Oracle,
    progress::Progress,
    report::Report,
};
use crate::{
    client::{AskError, Format, grouped, print, short},
    participant::Kind,
    signals::StopSignals,
};

/// How long the processes may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// How long the cluster may take to settle everything once the last booking has its answer.
const DRAIN_WITHIN: Duration = Duration::from_secs(60);

/// By what participants keep their parts.
const SQLITE: &str = "SQLite";

/// With real servers each booking holds a connection to each of them.
const MOST_IN_FLIGHT_AT_SERVERS: u16 = 400;

/// Bookings that are not answered for so long will not be: something is wrong.
const STUCK_AFTER: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// CSV with the columns order_id,customer,trip,seats,price_cents. Each trip has 50 seats, each customer 250.00.
    /// Without it: about 2,000 bookings that come with the program.
    #[arg(long, value_name = "FILE")]
    bookings: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Keep logs, databases and what became of each line (outcomes.csv) in this folder, which must be new or empty.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Where random numbers start: ports, transactions' ids, pauses.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How many bookings are under way at a time.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    in_flight: u16,
    /// Keep seats in the first of these databases and the wallet in the second, each on a server that the demo starts
    /// itself and ends. What is not named stays with a participant and its SQLite file: the tickets always, the wallet if
    /// one database is named. The same one twice is two servers of it.
    #[arg(long, value_enum, value_name = "NAME,NAME", value_delimiter = ',')]
    databases: Vec<Brand>,
}

/// Why a demo did not come to its audit.
#[derive(Debug, Error)]
pub(crate) enum DemoError {
    #[error(transparent)]
    Bookings(#[from] BookingsError),
    #[error("--keep {}: {problem}", path.display())]
    Keep { path: PathBuf, problem: String },
    #[error("no temporary folder can be made")]
    Folder(#[source] std::io::Error),
    #[error("signals cannot be listened to")]
    Signals(#[source] std::io::Error),
    #[error("--databases: {problem}")]
    Databases { problem: String },
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Fault(#[from] FaultError),
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error("{what}; the logs are in {}", dir.display())]
    Stuck { what: String, dir: PathBuf },
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error("what became of each line cannot be written to {}", path.display())]
    Outcomes {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Output(#[from] AskError),
    #[error("interrupted; all processes of the demo were ended")]
    Interrupted,
}

/// Where the demo's files are.
enum Folder {
    Kept(PathBuf),
    Passing(tempfile::TempDir),
}

impl Folder {
    fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Passing(folder) => folder.path(),
        }
    }

    /// Leaves the files, for somebody to look at.
    fn keep(self) -> PathBuf {
        match self {
            Self::Kept(path) => path,
            Self::Passing(folder) => folder.keep(),
        }
    }
}

impl Demo {
    pub(crate) async fn run(self) -> Result<ExitCode, DemoError> {
        let mut stop = StopSignals::listen().map_err(DemoError::Signals)?;
        let lines = bookings::read(self.bookings.as_deref())?;
        self.check_databases()?;
        let folder = self.folder()?;
        let seed = self.seed.unwrap_or_else(rand::random);
        let mut fleet = Fleet::lay_out(folder.path(), seed, &self.databases, self.in_flight)?;
        let result = tokio::select! {
            biased;
            _ = stop.received() => Err(DemoError::Interrupted),
            result = self.drive(&mut fleet, lines, folder.path(), seed) => result,
        };
        fleet.kill_all().await;
        let report = match result {
            Ok(report) => report,
            Err(DemoError::Interrupted) => return Err(DemoError::Interrupted),
            Err(error) => {
                eprintln!("verdict: the demo's files are left in {}", folder.keep().display());
                return Err(error);
            }
        };
        let format = if self.json { Format::Json } else { Format::Text };
        print(format, &report, Report::text)?;
        if !report.holds || matches!(folder, Folder::Kept(_)) {
            eprintln!("The demo's logs, databases and outcomes.csv are in {}", folder.keep().display());
        }
        Ok(if report.holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn check_databases(&self) -> Result<(), DemoError> {
        let wrong = |problem| Err(DemoError::Databases { problem });
        if self.databases.len() > Stock::ALL.len() {
            return wrong(format!("{} are named, and there is work for two", self.databases.len()));
        }
        if !self.databases.is_empty() && self.in_flight > MOST_IN_FLIGHT_AT_SERVERS {
            let most = MOST_IN_FLIGHT_AT_SERVERS;
            return wrong(format!("each booking holds a connection to each server: --in-flight may be {most} at most"));
        }
        Ok(())
    }

    fn folder(&self) -> Result<Folder, DemoError> {
        let Some(path) = &self.keep else {
            let folder = tempfile::Builder::new().prefix("verdict-demo-").tempdir().map_err(DemoError::Folder)?;
            return Ok(Folder::Passing(folder));
        };
        let wrong = |problem| DemoError::Keep { path: path.clone(), problem };
        std::fs::create_dir_all(path).map_err(|error| wrong(error.to_string()))?;
        let mut entries = std::fs::read_dir(path).map_err(|error| wrong(error.to_string()))?;
        if entries.next().is_some() {
            return Err(wrong("there are files in it: name a new folder".to_owned()));
        }
        Ok(Folder::Kept(path.canonicalize().map_err(|error| wrong(error.to_string()))?))
    }

    async fn drive(&self, fleet: &mut Fleet, lines: Vec<Line>, dir: &Path, seed: u64) -> Result<Report, DemoError> {
        let stuck = |what: &str| DemoError::Stuck { what: what.to_owned(), dir: dir.to_owned() };
        let total = lines.len();
        let progress = Progress::new(total);
        if !self.databases.is_empty() {
            progress.plain(&format!("Setting up {}.", names(&self.databases)));
        }
        fleet.make_servers().await?;
        let begun = Instant::now();
        fleet.start_all()?;
        let oracle = Oracle::new(fleet.nodes())?;
        let leader = timeout(READY_WITHIN, oracle.leader(None)).await;
        let leader = match leader {
            Ok(leader) => leader,
            Err(_) => {
                fleet.check()?;
                return Err(stuck("no node leads"));
            }
        };
        let kept = keepers(fleet, &lines).await?;
        progress.plain(&format!(
            "{} run; node {leader} leads after {}. {} bookings, {} at a time.",
            said(&kept),
            short(begun.elapsed()),
            grouped(total as u64),
            self.in_flight
        ));

        let verdict = Verdict::new(Options { seed: Some(seed), ..Options::new(fleet.nodes()) })?;
        let mut tills = Vec::new();
        for server in fleet.servers() {
            tills.push(server.till(&verdict).await?);
        }
        let desk = Desk { verdict, tills };
        let (board, pace) = (Arc::new(Board::new()), Pace::default());
        let databases = fleet.databases().to_vec();
        let stage = Stage {
            dir: dir.to_owned(),
            total,
            fleet,
            oracle: &oracle,
            board: &board,
            pace: &pace,
            progress: &progress,
        };
        let bookings = load::book_all(&desk, lines, self.in_flight.into(), &board, &pace);
        // Bookings that come to their end before a fault is due can't be: the pace sees to that.
        let work = async { tokio::join!(bookings, stage.run()) };
        let (accounts, faults) = tokio::select! {
            biased;
            done = work => done,
            () = progress.run(&board, &oracle) => unreachable!("it draws until it is dropped"),
            () = watch(&board) => (Vec::new(), Err(FaultError::TooLong {
                what: format!("no booking was answered for {}", short(STUCK_AFTER)), dir: dir.to_owned(),
            })),
        };
        let took = board.start().elapsed();
        let mut faults = faults?;
        faults::measure_gaps(&mut faults, &board);
        let drained = timeout(DRAIN_WITHIN, drained(&oracle)).await.ok();
        let Some(cluster) = drained else {
            fleet.check()?;
            return Err(stuck("the cluster still has open transactions a minute after the last booking was answered"));
        };
        progress.line(&board, "all bookings are answered and settled; stopping the processes");
        fleet.stop_all().await?;
        progress.finish();

        let outcomes = dir.join("outcomes.csv");
        report::write_outcomes(&outcomes, &accounts)
            .map_err(|source| DemoError::Outcomes { path: outcomes.clone(), source })?;
        let audit = audit::audit(&databases, fleet.servers(), &accounts, total, &cluster).await?;
        drop(desk);
        fleet.stop_servers().await?;
        Ok(Report::new(&accounts, took, &board, faults, audit, kept))
    }
}

/// By what each kind of parts is kept. Servers answer, and have their tables, when it returns.
async fn keepers(fleet: &mut Fleet, lines: &[Line]) -> Result<BTreeMap<&'static str, String>, DemoError> {
    let mut kept: BTreeMap<_, _> = Kind::ALL.map(|kind| (kind.name(), SQLITE.to_owned())).into();
    for server in fleet.servers() {
        server.answers().await?;
        server.set_up(lines).await?;
        kept.insert(server.stock.kind().name(), format!("{} {}", server.brand, server.version().await?));
    }
    fleet.check()?;
    Ok(kept)
}

/// Who they are, in a sentence.
fn said(kept: &BTreeMap<&'static str, String>) -> String {
    let servers: Vec<&str> = kept.values().map(String::as_str).filter(|by| *by != SQLITE).collect();
    let participants = match Kind::ALL.len() - servers.len() {
        1 => "one participant",
        2 => "two participants",
        _ => "three participants",
    };
    match servers[..] {
        [] => format!("Three nodes and {participants}"),
        _ => format!("Three nodes, {} and {participants}", servers.join(", ")),
    }
}

fn names(brands: &[Brand]) -> String {
    brands.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

/// Ends when no booking was answered for too long.
async fn watch(board: &Board) {
    while board.idle() < STUCK_AFTER {
        sleep(Duration::from_secs(1)).await;
    }
}

/// Waits until the leader has nothing open any more.
async fn drained(oracle: &Oracle) -> ClusterStatus {
    loop {
        let leader = oracle.leader(None).await;
        let status = oracle.node_is(leader, |_| true).await;
        if status.leader == Some(leader) && status.open_transactions == 0 {
            return status;
        }
        sleep(Duration::from_millis(20)).await;
    }
}
