//! What a participant's SQLite file says.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, Row};

use super::{Books, Part};
use crate::participant::Kind;

pub(super) fn read(kind: Kind, path: &Path) -> rusqlite::Result<Books> {
    // Not read-only: what the participant wrote last may still stand in SQLite's write-ahead log.
    let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let mut books = Books::default();
    let (finished, held, stock) = match kind {
        Kind::Seats => (
            "SELECT order_id, xid, '', trip, seats, 0 FROM sales WHERE state = 'sold'",
            "SELECT count(*) FROM sales WHERE state = 'held'",
            "SELECT trip || ': ' || free || ' free of ' || capacity || ', ' || sold || ' sold' FROM (
                 SELECT trip, capacity, free, (SELECT coalesce(sum(seats), 0) FROM sales
                     WHERE sales.trip = trips.trip AND state = 'sold') AS sold FROM trips)
             WHERE free + sold <> capacity OR free < 0",
        ),
        Kind::Wallet => (
            "SELECT order_id, xid, customer, '', 0, cents FROM debits WHERE state = 'paid'",
            "SELECT count(*) FROM debits WHERE state = 'held'",
            "SELECT customer || ': ' || balance || ' left of ' || opening || ', ' || paid || ' paid' FROM (
                 SELECT customer, opening, balance, (SELECT coalesce(sum(cents), 0) FROM debits
                     WHERE debits.customer = customers.customer AND state = 'paid') AS paid FROM customers)
             WHERE balance + paid <> opening OR balance < 0",
        ),
        Kind::Tickets => (
            "SELECT order_id, xid, customer, trip, seats, price_cents FROM tickets WHERE state = 'issued'",
            "SELECT count(*) FROM tickets WHERE state = 'held'",
            "SELECT '' WHERE false",
        ),
    };
    let part = |row: &Row<'_>| {
        let part = Part {
            xid: row.get(1)?,
            customer: row.get(2)?,
            trip: row.get(3)?,
            seats: number(row, 4)?,
            cents: number(row, 5)?,
        };
        Ok((row.get::<_, String>(0)?, part))
    };
    for found in database.prepare(finished)?.query_map([], part)? {
        let (order, part) = found?;
        books.parts.entry(order).or_default().push(part);
    }
    books.held = database.query_row(held, [], |row| number(row, 0))?;
    // State 0 of the branch table is PREPARED.
    books.in_doubt =
        database.query_row("SELECT count(*) FROM verdict_branch WHERE state = 0", [], |row| number(row, 0))?;
    for wrong in database.prepare(stock)?.query_map([], |row| row.get(0))? {
        books.wrong.push(wrong?);
    }
    Ok(books)
}

/// SQLite's integers are signed; none of these is negative or large.
fn number(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, u32>(column).map(u64::from)
}
