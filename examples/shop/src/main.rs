//! A shop that calls a payment service over gRPC and a stock service over HTTP within one transaction.
//!
//! ```text
//!   shop ── Charge, verdict-xid ──────▶ payments ── Enlist ─▶ ┐
//!    │  ─── POST /take, verdict-xid ──▶ stock ───── Enlist ─▶ │ Verdict: three nodes
//!    └───── Commit ─────────────────────────────────────────▶ ┘ ─▶ prepare, commit at both
//! ```

mod cluster;
mod payments;
mod shop;
mod stock;

use std::{
    collections::BTreeSet,
    error::Error,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use rusqlite::Connection;
use tokio::net::TcpListener;
use tonic::transport::Endpoint;
use verdict_client::{Decision, ListQuery, Options, Outcome, Verdict};

use self::shop::{Order, Refused, Shop};

/// Sells a few things over two services that take part in the shop's transactions.
#[derive(Debug, Parser)]
struct Cli {
    /// Nodes of a running cluster, host:port, whose [resources] name payments and stock at the addresses below. Without
    /// it three nodes are started in this process.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
    nodes: Vec<String>,
    /// Where the payment service and its participant listen.
    #[arg(long, default_value = "127.0.0.1:0")]
    payments: SocketAddr,
    /// Where the stock's participant listens; the service itself takes a free port.
    #[arg(long, default_value = "127.0.0.1:0")]
    stock: SocketAddr,
    /// Where the databases lie; a temporary folder without it.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
}

const ORDERS: [(Order, u32); 5] = [
    (Order { customer: "alice", good: "tea", count: 2, cents: 1_000 }, 1),
    (Order { customer: "bob", good: "cup", count: 1, cents: 800 }, 3),
    (Order { customer: "carol", good: "tea", count: 1, cents: 9_900 }, 1),
    (Order { customer: "alice", good: "cup", count: 100, cents: 100 }, 1),
    (Order { customer: "carol", good: "tea", count: 1, cents: 500 }, 1),
];

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("shop: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<bool, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let data = cli.data.unwrap_or_else(|| folder.path().to_owned());
    std::fs::create_dir_all(&data)?;
    let (payments, stock) = (payments::listen(cli.payments)?, payments::listen(cli.stock)?);
    let http = TcpListener::bind("127.0.0.1:0").await?;
    let (pays, keeps, takes) = (payments.local_addr()?, stock.local_addr()?, http.local_addr()?);
    let nodes = if cli.nodes.is_empty() {
        let resources = [(payments::RESOURCE, pays.to_string()), (stock::RESOURCE, keeps.to_string())];
        cluster::start(&data, &resources).await?
    } else {
        cli.nodes
    };
    let verdict = Verdict::new(Options { deadline: Duration::from_secs(30), ..Options::new(nodes) })?;
    payments::start(&data, verdict.clone(), payments)?;
    stock::start(&data, verdict.clone(), http, stock)?;

    let channel = Endpoint::from_shared(format!("http://{pays}"))?.connect_lazy();
    let shop = Shop::new(verdict.clone(), channel, takes.to_string());
    let mut sold = BTreeSet::new();
    for (order, times) in ORDERS {
        let (transaction, decision) = shop.sell(order, times).await?;
        println!("{}", line(order, times, &decision));
        if decision.outcome == Outcome::Committed {
            sold.insert(transaction.xid().to_string());
        }
        // It is over: whoever calls now under it is refused, whatever it came to.
        let mut late = verdict.resume(transaction.xid());
        let context = (0..3).map(|_| late.call()).last().ok_or("no context")??;
        match (shop.charge(context, order).await, shop.take(context, order).await) {
            (Err(Refused(one)), Err(Refused(other))) => println!("  called again, late: {one}; {other}"),
            taken => return Err(format!("a late call was taken: {taken:?}").into()),
        }
    }
    let (status, why) = shop.post(|_| (), ORDERS[0].0).await.map_err(|error| error.to_string())?;
    println!("without a transaction: {status}: {why}");
    let nonsense = |headers: &mut http::HeaderMap| {
        headers.insert("verdict-xid", http::HeaderValue::from_static("nonsense"));
        headers.insert("verdict-branch", http::HeaderValue::from_static("1"));
    };
    let (status, why) = shop.post(nonsense, ORDERS[0].0).await.map_err(|error| error.to_string())?;
    println!("with a malformed one: {status}: {why}");

    while !verdict.list(ListQuery::default()).await?.transactions.is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    audit(&data, &sold)
}

fn line(order: Order, times: u32, decision: &Decision) -> String {
    let Order { customer, good, count, cents } = order;
    let again = if times > 1 { format!(", each call sent {times} times") } else { String::new() };
    let why = decision.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", reason.text));
    format!("{customer} buys {count} {good} for {}.{:02}{again}: {}{why}", cents / 100, cents % 100, decision.outcome)
}

/// Whether what was paid is what was sold, and nothing is held any more.
fn audit(data: &Path, sold: &BTreeSet<String>) -> Result<bool, Box<dyn Error>> {
    let of = |file: &str, table: &str| -> Result<(BTreeSet<String>, usize), Box<dyn Error>> {
        let database = Connection::open(data.join(file))?;
        let mut rows = database.prepare(&format!("SELECT branch, done FROM {table}"))?;
        let rows: Vec<(String, bool)> =
            rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
        let held = rows.iter().filter(|(_, done)| !done).count();
        let xids = rows.iter().filter_map(|(branch, _)| branch.split_once(':')).map(|(xid, _)| xid.to_owned());
        Ok((xids.collect(), held))
    };
    let ((paid, unpaid), (taken, kept)) = (of("payments.db", "charges")?, of("stock.db", "sales")?);
    let holds = paid == taken && sold.is_subset(&paid) && unpaid == 0 && kept == 0;
    println!(
        "{} paid, {} taken, {} held: {}",
        paid.len(),
        taken.len(),
        unpaid + kept,
        if holds { "every payment has its goods" } else { "THE BOOKS DIFFER" }
    );
    Ok(holds)
}
