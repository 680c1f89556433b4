//! Moves money from an account at PostgreSQL to one at MariaDB: all of it, or none.
//!
//! ```text
//!   transfer ── UPDATE, PREPARE TRANSACTION ──▶ PostgreSQL (accounts)
//!       ├────── UPDATE, XA PREPARE ───────────▶ MariaDB (ledger)
//!       └────── Commit, with both votes ──────▶ Verdict
//! ```

mod transfer;

use std::{error::Error, process::ExitCode};

use clap::Parser;
use verdict_client::{
    Options, Outcome, Verdict,
    participant::with_causes,
    resource::{
        mysql::{self, Mysql},
        postgres::{self, Postgres},
    },
};

/// Moves money from an account at PostgreSQL to one at MariaDB.
#[derive(Debug, Parser)]
struct Arguments {
    /// Nodes of the cluster, HOST:PORT each.
    #[arg(long, value_delimiter = ',', required = true)]
    nodes: Vec<String>,
    /// The PostgreSQL database: host=… user=… dbname=…
    #[arg(long, env = "ACCOUNTS_DSN", hide_env_values = true)]
    accounts: String,
    /// The MariaDB database: mysql://user:password@host:port/database
    #[arg(long, env = "LEDGER_URL", hide_env_values = true)]
    ledger: String,
    /// The account that it is taken from.
    #[arg(long)]
    from: i32,
    /// The account that gets it.
    #[arg(long)]
    to: i32,
    amount: i64,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("transfer: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let Arguments { nodes, accounts, ledger, from, to, amount } = arguments;
    let verdict = Verdict::new(Options::new(nodes))?;
    let accounts = Postgres::open(&verdict, "accounts".try_into()?, postgres::pool(&accounts, 4)?).await?;
    let ledger = Mysql::open(&verdict, "ledger".try_into()?, mysql::pool(&ledger, 4)?).await?;

    let decision = transfer::transfer(&verdict, &accounts, &ledger, transfer::Order { from, to, amount }).await?;
    match (decision.outcome, decision.reason) {
        (Outcome::Committed, _) => println!("moved {amount} from {from} to {to}"),
        (Outcome::Aborted, reason) => {
            println!("nothing was moved: {}", reason.map_or_else(String::new, |reason| reason.text));
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}
