//! The `verdict` command: runs a node, asks a cluster, demonstrates the whole.
//!
//! ```text
//!   serve         one node                     config ─▶ verdict_server::Node ─▶ gRPC, health, reflection
//!   resource      looks at databases             verdict_client's drivers
//!   tx, cluster   questions to any node        verdict_client
//!   participant   a resource of the demo       verdict_client's SQLite branch table
//!   demo          three nodes and three participants as child processes, faults, an audit
//! ```

mod calls;
mod client;
mod cluster;
mod config;
mod demo;
mod failure;
mod listener;
mod logging;
mod parent;
mod participant;
mod resource;
mod serve;
mod signals;
mod tx;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::failure::Failure;

const EXIT_CODES: &str = "\
Exit codes:
  0    done; for demo: the audit holds
  1    failed or refused; for demo: the audit does not hold
  2    wrong usage or configuration
  3    no answer from the cluster in time: whether the request took effect is not known
  4    the cluster knows no such transaction
  130  interrupted";

/// A transaction manager: one action in several databases and services happens everywhere or nowhere.
#[derive(Debug, Parser)]
#[command(name = "verdict", version, after_help = EXIT_CODES, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node of a cluster.
    Serve(serve::Serve),
    /// Look at transactions.
    #[command(subcommand)]
    Tx(tx::Tx),
    /// Look at the cluster, move its leadership.
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    /// Look whether the databases of a configuration can keep a promise.
    #[command(subcommand)]
    Resource(resource::Resource),
    /// Run one of the demo's participants: a service with a local SQLite database.
    Participant(participant::Serve),
    /// Book bus tickets over three nodes and three participants while nodes are killed, then audit the databases.
    Demo(demo::Demo),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(code) => code,
        Err(failure) => {
            // The one place where errors are printed.
            eprintln!("verdict: {}", verdict_client::participant::with_causes(&failure));
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::Runtime)?;
    let result = runtime.block_on(async {
        match command {
            Command::Serve(serve) => serve.run().await.map_err(Failure::from),
            Command::Tx(tx) => tx.run().await.map_err(Failure::from),
            Command::Cluster(cluster) => cluster.run().await.map_err(Failure::from),
            Command::Resource(resource) => resource.run().await.map_err(Failure::from),
            Command::Participant(participant) => participant.run().await.map_err(Failure::from),
            Command::Demo(demo) => demo.run().await.map_err(Failure::from),
        }
    });
    // Not waited for: what still runs here is a read of standard input that nothing will end.
    runtime.shutdown_background();
    result
}
