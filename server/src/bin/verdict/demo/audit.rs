//! Reads the three databases, files or servers, and holds them against each other and against the bookings' file.

mod server;
mod sqlite;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use serde::Serialize;
use thiserror::Error;
use verdict_client::ClusterStatus;

use super::{
    databases::{Server, ServerError},
    load::{Account, Answer},
};
use crate::{
    client::grouped,
    participant::{Kind, money},
};

#[derive(Debug, Error)]
pub(crate) enum AuditError {
    #[error("the database {} cannot be read", path.display())]
    File { path: PathBuf, source: rusqlite::Error },
    #[error("a database cannot be read")]
    Server(#[from] ServerError),
    #[error("the {kind:?}' database has a row that nobody wrote: {row}")]
    Row { kind: Kind, row: String },
}

/// What the databases say.
#[derive(Debug, Serialize)]
pub(super) struct Audit {
    pub(super) holds: bool,
    pub(super) checks: Vec<Check>,
    pub(super) seats_sold: u64,
    pub(super) tickets_issued: u64,
    pub(super) wallets_debited: u64,
    pub(super) cents_debited: u64,
    /// Branches and transactions whose outcome somebody does not know, in the cluster or in a database.
    pub(super) in_doubt: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) holds: bool,
    /// What was found; if it does not hold, the first things that are wrong.
    pub(super) detail: String,
}

/// A finished part of an order: seats sold, money paid or a ticket issued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Part {
    xid: String,
    customer: String,
    trip: String,
    seats: u64,
    cents: u64,
}

/// All that a database holds.
#[derive(Debug, Default)]
struct Books {
    /// By order id.
    parts: BTreeMap<String, Vec<Part>>,
    /// Rows that are neither finished nor given back.
    held: u64,
    /// Branches that are prepared and were told no outcome.
    in_doubt: u64,
    /// Trips or customers whose stock does not add up.
    wrong: Vec<String>,
}

impl Books {
    fn single(&self, order: &str) -> Option<&Part> {
        self.parts.get(order).filter(|parts| parts.len() == 1).and_then(|parts| parts.first())
    }
}

/// Audits. `cluster` is what the leader said once everything was settled; the servers still run.
pub(super) async fn audit(
    databases: &[(Kind, PathBuf)],
    servers: &[Server],
    accounts: &[Account],
    lines: usize,
    cluster: &ClusterStatus,
) -> Result<Audit, AuditError> {
    let mut books = BTreeMap::new();
    for (kind, path) in databases {
        let read = sqlite::read(*kind, path).map_err(|source| AuditError::File { path: path.clone(), source })?;
        books.insert(kind.name(), read);
    }
    for server in servers {
        books.insert(server.stock.kind().name(), server::read(server).await?);
    }
    Ok(judge(&books["seats"], &books["wallet"], &books["tickets"], accounts, lines, cluster))
}

fn judge(
    seats: &Books,
    wallet: &Books,
    tickets: &Books,
    accounts: &[Account],
    lines: usize,
    cluster: &ClusterStatus,
) -> Audit {
    let count = |books: &Books| books.parts.values().map(|parts| parts.len() as u64).sum::<u64>();
    let sum = |books: &Books, of: fn(&Part) -> u64| books.parts.values().flatten().map(of).sum::<u64>();
    let in_doubt = [seats, wallet, tickets].iter().map(|books| books.in_doubt + books.held).sum::<u64>()
        + cluster.in_doubt
        + cluster.open_transactions;
    let (seats_sold, cents_debited) = (sum(seats, |part| part.seats), sum(wallet, |part| part.cents));
    let mut checks = Vec::new();

    let same = differences(seats, wallet, tickets);
    let found = format!(
        "{} sales of {} seats = {} tickets for {} seats at {} = {} debits of {}",
        grouped(count(seats)),
        grouped(seats_sold),
        grouped(count(tickets)),
        grouped(sum(tickets, |part| part.seats)),
        money(sum(tickets, |part| part.cents)),
        grouped(count(wallet)),
        money(cents_debited),
    );
    checks.push(check("seats sold = tickets issued = wallets debited", same, found));

    let wrong = seats.wrong.iter().chain(&wallet.wrong).cloned().collect();
    checks.push(check("every trip and every balance adds up", wrong, "none oversold, none below zero".to_owned()));

    let answered = accounts.iter().filter(|account| matches!(account.answer, Answer::Committed)).count();
    let (all, others) = (grouped(lines as u64), grouped((lines - answered.min(lines)) as u64));
    let found = format!("{all} lines, {} booked, {others} not, each with its reason", grouped(answered as u64));
    checks.push(check("every line of the file is accounted for", unaccounted(tickets, accounts, lines), found));

    let wrong = if in_doubt == 0 {
        Vec::new()
    } else {
        let held: Vec<String> = [("seats", seats), ("wallet", wallet), ("tickets", tickets)]
            .iter()
            .map(|(name, books)| format!("{name}: {} branches in doubt, {} rows held", books.in_doubt, books.held))
            .collect();
        let open = format!("cluster: {} open, {} in doubt", cluster.open_transactions, cluster.in_doubt);
        held.into_iter().chain([open]).collect()
    };
    checks.push(check("nothing is in doubt", wrong, "0 in doubt in the cluster and in the three databases".to_owned()));

    Audit {
        holds: checks.iter().all(|check| check.holds),
        checks,
        seats_sold,
        tickets_issued: count(tickets),
        wallets_debited: count(wallet),
        cents_debited,
        in_doubt,
    }
}

fn check(name: &'static str, wrong: Vec<String>, found: String) -> Check {
    let holds = wrong.is_empty();
    let more = wrong.len().saturating_sub(5);
    let mut detail = if holds { found } else { wrong.into_iter().take(5).collect::<Vec<_>>().join("; ") };
    if more > 0 {
        detail.push_str(&format!("; and {more} more"));
    }
    Check { name, holds, detail }
}

/// Orders that are not the same thing in all three databases.
fn differences(seats: &Books, wallet: &Books, tickets: &Books) -> Vec<String> {
    let orders: BTreeSet<&String> = [seats, wallet, tickets].iter().flat_map(|books| books.parts.keys()).collect();
    let mut wrong = Vec::new();
    for order in orders {
        let parts = (seats.single(order), wallet.single(order), tickets.single(order));
        let same = match parts {
            (Some(sale), Some(debit), Some(ticket)) => {
                let Part { xid, customer, trip, seats, cents } = ticket;
                (&sale.xid, &sale.trip, sale.seats) == (xid, trip, *seats)
                    && (&debit.xid, &debit.customer, debit.cents) == (xid, customer, *cents)
            }
            _ => false,
        };
        if !same {
            let many = |books: &Books| books.parts.get(order).map_or(0, Vec::len);
            let (sold, paid, issued) = (many(seats), many(wallet), many(tickets));
            wrong.push(format!("order {order}: {sold} sales, {paid} debits, {issued} tickets, or not the same"));
        }
    }
    wrong
}

/// Lines whose answer is not what the databases hold, and tickets of no line.
fn unaccounted(tickets: &Books, accounts: &[Account], lines: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    if accounts.len() != lines {
        wrong.push(format!("{} accounts for {lines} lines", accounts.len()));
    }
    let mut booked = BTreeMap::new();
    for Account { line, xid, answer, .. } in accounts {
        let (number, order) = (line.number, &line.order);
        let xid = xid.to_string();
        let ticket = tickets.parts.get(&order.order_id).and_then(|parts| parts.iter().find(|part| part.xid == xid));
        match (answer, ticket) {
            (Answer::Committed, Some(ticket)) => {
                let same = *ticket
                    == Part {
                        xid,
                        customer: order.customer.clone(),
                        trip: order.trip.clone(),
                        seats: order.seats.into(),
                        cents: order.price_cents.into(),
                    };
                if !same {
                    wrong.push(format!("line {number}: order {} has a ticket for something else", order.order_id));
                }
                if let Some(other) = booked.insert(&order.order_id, number) {
                    wrong.push(format!("order {} was booked twice, by lines {other} and {number}", order.order_id));
                }
            }
            (Answer::Committed, None) => {
                wrong.push(format!("line {number}: committed, but order {} has no ticket of it", order.order_id));
            }
            (Answer::Aborted(Some(_)), None) => {}
            (Answer::Aborted(None), None) => wrong.push(format!("line {number}: aborted without a reason")),
            (Answer::Aborted(_), Some(_)) => wrong.push(format!("line {number}: aborted, but it has a ticket")),
            (Answer::Refused(error), _) => wrong.push(format!("line {number}: {error}")),
        }
    }
    let strangers = tickets.parts.keys().filter(|order| !booked.contains_key(order));
    wrong.extend(strangers.map(|order| format!("order {order} has a ticket, but no line was told so")));
    wrong
}

#[cfg(test)]
mod tests;
