//! `verdict participant`: a service with a local SQLite database that takes part in transactions. The demo runs three.
//!
//! ```text
//!   kind      table         prepare                       commit          rollback
//!   seats     trips, sales  takes seats from a trip       held → sold     gives them back
//!   wallet    customers,    takes money from a balance    held → paid     gives it back
//!             debits
//!   tickets   tickets       writes the order's ticket     held → issued   removes it
//! ```
//!
//! All three are handed the same [`Order`] and use what concerns them.

mod seats;
mod tickets;
mod wallet;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::{Args, ValueEnum};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::time::timeout;
use verdict_client::{
    Options, OptionsError, Reason, ResourceName, Verdict,
    participant::{ParticipantOptions, Participants},
    resource::sqlite::{BranchTable, OpenError, TableOptions},
};
use verdict_proto::v1::participant_server::ParticipantServer;
use verdict_protocol::IdError;

pub(crate) use self::{seats::sold_out, wallet::balance_too_low};
use crate::{
    client::grouped,
    listener::{self, ListenError},
    logging::Logging,
    parent,
    signals::StopSignals,
};

/// How long a stop lets calls that are under way come to their end.
const DRAIN_WITHIN: Duration = Duration::from_secs(3);

/// What a booking's branches carry, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) order_id: String,
    pub(crate) customer: String,
    pub(crate) trip: String,
    pub(crate) seats: u32,
    pub(crate) price_cents: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
    Seats,
    Wallet,
    Tickets,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Seats, Self::Wallet, Self::Tickets];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Seats => "seats",
            Self::Wallet => "wallet",
            Self::Tickets => "tickets",
        }
    }

    /// What a trip or customer that is new starts with, if nothing is said.
    pub(crate) fn opening(self) -> u32 {
        match self {
            Self::Seats => 50,
            Self::Wallet => 25_000,
            Self::Tickets => 0,
        }
    }

    fn schema(self) -> &'static str {
        match self {
            Self::Seats => seats::SCHEMA,
            Self::Wallet => wallet::SCHEMA,
            Self::Tickets => tickets::SCHEMA,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[arg(long, value_enum)]
    kind: Kind,
    /// The SQLite file; made if it is not there.
    #[arg(long, value_name = "FILE")]
    database: PathBuf,
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// A node of the cluster, host:port, to ask about branches that hear nothing. Several: repeat it, or commas.
    #[arg(long = "node", env = "VERDICT_NODES", value_delimiter = ',', required = true, value_name = "HOST:PORT")]
    nodes: Vec<String>,
    /// The resource's name in the cluster's configuration; its kind if not given.
    #[arg(long)]
    resource: Option<String>,
    /// What a trip (in seats) or a customer (in cents) that is new here starts with. Default: 50 seats, 250.00.
    #[arg(long)]
    opening: Option<u32>,
    #[command(flatten)]
    logging: Logging,
    /// End when standard input is closed.
    #[arg(long, hide = true)]
    exit_with_parent: bool,
}

/// Why a participant did not start, or does not go on.
#[derive(Debug, Error)]
pub(crate) enum ParticipantError {
    #[error("--node: {0}")]
    Options(#[from] OptionsError),
    #[error("--resource: {0}")]
    Resource(#[from] IdError),
    #[error("{0}")]
    Logging(String),
    #[error("signals cannot be listened to")]
    Signals(#[source] std::io::Error),
    #[error("--listen")]
    Listen(#[from] ListenError),
    #[error("--database: the tables cannot be made in {}", path.display())]
    Schema { path: PathBuf, source: rusqlite::Error },
    #[error("--database")]
    Open(#[from] OpenError),
    #[error("the server failed")]
    Server(#[from] tonic::transport::Error),
}

impl Serve {
    pub(crate) async fn run(self) -> Result<ExitCode, ParticipantError> {
        if self.exit_with_parent {
            parent::exit_with_parent();
        }
        self.logging.start().map_err(ParticipantError::Logging)?;
        let mut stop = StopSignals::listen().map_err(ParticipantError::Signals)?;
        let resource = ResourceName::try_from(self.resource.as_deref().unwrap_or(self.kind.name()))?;
        let verdict = Verdict::new(Options::new(&self.nodes))?;
        let (incoming, address) = listener::listen(&self.listen).await?;
        let table = open(self.kind, &self.database, self.opening.unwrap_or(self.kind.opening()))?;
        let participants =
            Participants::start([(resource.clone(), Arc::new(table) as _)], verdict, ParticipantOptions::default());
        tracing::info!(%resource, %address, database = %self.database.display(), "serving");

        let signal = async move {
            let signal = stop.received().await;
            tracing::info!(signal, "stopping");
        };
        let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
        let server = listener::server()
            .add_service(ParticipantServer::new(participants.handlers()))
            .serve_with_incoming_shutdown(incoming, async move {
                signal.await;
                // Nobody waits for it if the server has failed.
                let _ = stopping.send(());
            });
        let bounded = async {
            // Not sent: the server has failed, and says so.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(DRAIN_WITHIN).await;
        };
        tokio::select! {
            result = server => result?,
            () = bounded => {}
        }
        // Calls that run come to their end; a disk that hangs does not hold the process for ever.
        if timeout(DRAIN_WITHIN, participants.stop()).await.is_err() {
            tracing::warn!("calls were still under way; what they promised is in the database or was not answered");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Makes the kind's tables and opens the branch table beside them.
pub(crate) fn open(kind: Kind, path: &Path, opening: u32) -> Result<BranchTable, ParticipantError> {
    let schema = |source| ParticipantError::Schema { path: path.to_owned(), source };
    let database = Connection::open(path).map_err(schema)?;
    database.execute_batch("PRAGMA journal_mode = WAL").map_err(schema)?;
    database.execute_batch(kind.schema()).map_err(schema)?;
    drop(database);
    let options = TableOptions::default();
    Ok(match kind {
        Kind::Seats => BranchTable::open(path, seats::Seats { opening }, options)?,
        Kind::Wallet => BranchTable::open(path, wallet::Wallet { opening }, options)?,
        Kind::Tickets => BranchTable::open(path, tickets::Tickets, options)?,
    })
}

/// The order in a payload, or why there is none.
fn order(payload: &[u8]) -> Result<Order, Reason> {
    serde_json::from_slice(payload)
        .map_err(|error| Reason::refused(format!("the payload is no order: {error}"), "NO_ORDER", false))
}

/// A price, for people.
pub(crate) fn money(cents: u64) -> String {
    format!("{}.{:02}", grouped(cents / 100), cents % 100)
}

#[cfg(test)]
mod tests;
