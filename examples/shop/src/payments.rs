//! The payment service: gRPC, and accounts in a SQLite database of its own.

use std::{error::Error, net::SocketAddr, path::Path};

use rusqlite::{Connection, Result};
use tonic::{
    Request, Response, Status,
    transport::server::{Server, TcpIncoming},
};
use verdict_client::{
    BranchId, CallError, Reason, Verdict,
    context::{self, Context},
    participant::{ParticipantOptions, Participants},
    resource::{
        Reservation,
        sqlite::{BranchTable, Handler, TableOptions},
    },
};
use verdict_proto::v1::participant_server::ParticipantServer;

use generated::payments_server::{Payments, PaymentsServer};
pub(crate) use generated::{ChargeRequest, ChargeResponse, payments_client::PaymentsClient};

#[allow(clippy::all, clippy::allow_attributes_without_reason, unreachable_pub, reason = "generated code")]
mod generated {
    tonic::include_proto!("payments");
}

/// The resource's name in the cluster's configuration.
pub(crate) const RESOURCE: &str = "payments";

/// Serves the payment service and its participant at one address, for as long as this program runs.
pub(crate) fn start(data: &Path, verdict: Verdict, incoming: TcpIncoming) -> std::result::Result<(), Box<dyn Error>> {
    let path = data.join("payments.db");
    Connection::open(&path)?.execute_batch(
        "CREATE TABLE IF NOT EXISTS accounts (customer TEXT PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0));
         CREATE TABLE IF NOT EXISTS charges (branch TEXT PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL,
             done INTEGER NOT NULL DEFAULT 0);
         INSERT OR IGNORE INTO accounts VALUES ('alice', 10000), ('bob', 5000), ('carol', 500);",
    )?;
    let table = BranchTable::open(path, Accounts, TableOptions::default())?;
    let name = RESOURCE.try_into()?;
    let participants =
        Participants::start([(name, std::sync::Arc::new(table) as _)], verdict.clone(), ParticipantOptions::default());
    let router = Server::builder()
        .add_service(PaymentsServer::with_interceptor(Service { verdict }, context::accept))
        .add_service(ParticipantServer::new(participants.handlers()));
    drop(tokio::spawn(async move {
        if let Err(error) = router.serve_with_incoming(incoming).await {
            eprintln!("the payment service has stopped: {error}");
        }
        participants.stop().await;
    }));
    Ok(())
}

struct Service {
    verdict: Verdict,
}

#[tonic::async_trait]
impl Payments for Service {
    /// Enlists this service with the transaction that it was called under. Nothing moves before the caller commits.
    async fn charge(&self, request: Request<ChargeRequest>) -> std::result::Result<Response<ChargeResponse>, Status> {
        let context = request.extensions().get::<Context>().copied();
        let context =
            context.ok_or_else(|| Status::invalid_argument("charge within a transaction: send verdict-xid"))?;
        let ChargeRequest { customer, cents } = request.into_inner();
        let name = RESOURCE.try_into().map_err(|_| Status::internal("its own name is wrong"))?;
        match context.enlist(&self.verdict, name, format!("{customer} {cents}").into()).await {
            Ok(_) => Ok(Response::new(ChargeResponse {})),
            Err(error @ CallError::Unknown { .. }) => Err(Status::unavailable(error.to_string())),
            Err(refused) => Err(Status::failed_precondition(refused.to_string())),
        }
    }
}

/// What prepare, commit and roll back do to the accounts.
struct Accounts;

fn read(payload: &[u8]) -> Option<(&str, u32)> {
    let (customer, cents) = std::str::from_utf8(payload).ok()?.split_once(' ')?;
    Some((customer, cents.parse().ok()?))
}

impl Handler for Accounts {
    fn reserve(&mut self, database: &Connection, branch: BranchId, payload: &[u8]) -> Result<Reservation> {
        let refused = |text: String, code: &str| Ok(Reservation::Refused(Reason::refused(text, code, false)));
        let Some((customer, cents)) = read(payload) else {
            return refused("the charge cannot be read".to_owned(), "BAD_CHARGE");
        };
        let take = "UPDATE accounts SET cents = cents - ?2 WHERE customer = ?1 AND cents >= ?2";
        if database.execute(take, (customer, cents))? == 0 {
            return refused(format!("{customer} has not enough money"), "NO_MONEY");
        }
        let charge = "INSERT INTO charges (branch, customer, cents) VALUES (?1, ?2, ?3)";
        database.execute(charge, (branch.to_string(), customer, cents))?;
        Ok(Reservation::Reserved)
    }

    fn confirm(&mut self, database: &Connection, branch: BranchId, _: &[u8]) -> Result<()> {
        database.execute("UPDATE charges SET done = 1 WHERE branch = ?1", [branch.to_string()]).map(drop)
    }

    fn cancel(&mut self, database: &Connection, branch: BranchId, payload: &[u8]) -> Result<()> {
        if let Some((customer, cents)) = read(payload) {
            database.execute("UPDATE accounts SET cents = cents + ?2 WHERE customer = ?1", (customer, cents))?;
        }
        database.execute("DELETE FROM charges WHERE branch = ?1", [branch.to_string()]).map(drop)
    }
}

/// An address to serve at.
pub(crate) fn listen(address: SocketAddr) -> std::io::Result<TcpIncoming> {
    Ok(TcpIncoming::bind(address)?.with_nodelay(Some(true)))
}
