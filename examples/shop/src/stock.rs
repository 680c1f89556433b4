//! The stock service: HTTP, and shelves in a SQLite database of its own. Its participant has an address beside it.

use std::{error::Error, path::Path, sync::Arc};

use axum::{Router, extract::State, routing::post};
use http::{HeaderMap, StatusCode};
use rusqlite::{Connection, Result};
use tokio::net::TcpListener;
use tonic::transport::server::{Server, TcpIncoming};
use verdict_client::{
    BranchId, CallError, Reason, Verdict,
    context::Context,
    participant::{ParticipantOptions, Participants},
    resource::{
        Reservation,
        sqlite::{BranchTable, Handler, TableOptions},
    },
};
use verdict_proto::v1::participant_server::ParticipantServer;

/// The resource's name in the cluster's configuration.
pub(crate) const RESOURCE: &str = "stock";

/// Serves the stock service over HTTP, and its participant, for as long as this program runs.
pub(crate) fn start(
    data: &Path,
    verdict: Verdict,
    http: TcpListener,
    incoming: TcpIncoming,
) -> std::result::Result<(), Box<dyn Error>> {
    let path = data.join("stock.db");
    Connection::open(&path)?.execute_batch(
        "CREATE TABLE IF NOT EXISTS shelves (good TEXT PRIMARY KEY, count INTEGER NOT NULL CHECK (count >= 0));
         CREATE TABLE IF NOT EXISTS sales (branch TEXT PRIMARY KEY, good TEXT NOT NULL, count INTEGER NOT NULL,
             done INTEGER NOT NULL DEFAULT 0);
         INSERT OR IGNORE INTO shelves VALUES ('tea', 20), ('cup', 3);",
    )?;
    let table = BranchTable::open(path, Shelves, TableOptions::default())?;
    let name = RESOURCE.try_into()?;
    let participants =
        Participants::start([(name, Arc::new(table) as _)], verdict.clone(), ParticipantOptions::default());
    let router = Server::builder().add_service(ParticipantServer::new(participants.handlers()));
    drop(tokio::spawn(async move {
        if let Err(error) = router.serve_with_incoming(incoming).await {
            eprintln!("the stock's participant has stopped: {error}");
        }
        participants.stop().await;
    }));
    let service = Router::new().route("/take", post(take)).with_state(verdict);
    drop(tokio::spawn(async move {
        if let Err(error) = axum::serve(http, service).await {
            eprintln!("the stock service has stopped: {error}");
        }
    }));
    Ok(())
}

/// `POST /take` with "good count": enlists this service with the transaction that it was called under.
async fn take(State(verdict): State<Verdict>, headers: HeaderMap, body: String) -> (StatusCode, String) {
    let context = match Context::extract(&headers) {
        Ok(Some(context)) => context,
        Ok(None) => return (StatusCode::BAD_REQUEST, "take within a transaction: send verdict-xid".to_owned()),
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()),
    };
    let Ok(name) = RESOURCE.try_into() else {
        return (StatusCode::INTERNAL_SERVER_ERROR, "its own name is wrong".to_owned());
    };
    match context.enlist(&verdict, name, body.into()).await {
        Ok(_) => (StatusCode::NO_CONTENT, String::new()),
        Err(error @ CallError::Unknown { .. }) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        Err(refused) => (StatusCode::CONFLICT, refused.to_string()),
    }
}

/// What prepare, commit and roll back do to the shelves.
struct Shelves;

fn read(payload: &[u8]) -> Option<(&str, u32)> {
    let (good, count) = std::str::from_utf8(payload).ok()?.split_once(' ')?;
    Some((good, count.parse().ok()?))
}

impl Handler for Shelves {
    fn reserve(&mut self, database: &Connection, branch: BranchId, payload: &[u8]) -> Result<Reservation> {
        let refused = |text: String, code: &str| Ok(Reservation::Refused(Reason::refused(text, code, false)));
        let Some((good, count)) = read(payload) else {
            return refused("what is to be taken cannot be read".to_owned(), "BAD_ORDER");
        };
        let take = "UPDATE shelves SET count = count - ?2 WHERE good = ?1 AND count >= ?2";
        if database.execute(take, (good, count))? == 0 {
            return refused(format!("there are not {count} of {good}"), "SOLD_OUT");
        }
        let sale = "INSERT INTO sales (branch, good, count) VALUES (?1, ?2, ?3)";
        database.execute(sale, (branch.to_string(), good, count))?;
        Ok(Reservation::Reserved)
    }

    fn confirm(&mut self, database: &Connection, branch: BranchId, _: &[u8]) -> Result<()> {
        database.execute("UPDATE sales SET done = 1 WHERE branch = ?1", [branch.to_string()]).map(drop)
    }

    fn cancel(&mut self, database: &Connection, branch: BranchId, payload: &[u8]) -> Result<()> {
        if let Some((good, count)) = read(payload) {
            database.execute("UPDATE shelves SET count = count + ?2 WHERE good = ?1", (good, count))?;
        }
        database.execute("DELETE FROM sales WHERE branch = ?1", [branch.to_string()]).map(drop)
    }
}
