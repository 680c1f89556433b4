//! What a server says, asked in SQL.

use super::{AuditError, Books, Part};
use crate::demo::databases::Server;

pub(super) async fn read(server: &Server) -> Result<Books, AuditError> {
    let tables = server.stock.tables();
    let mut books = Books { in_doubt: server.prepared().await?, ..Books::default() };
    for row in server.rows(tables.finished).await? {
        let (order, part) =
            part(&row).ok_or_else(|| AuditError::Row { kind: server.stock.kind(), row: row.join(", ") })?;
        books.parts.entry(order).or_default().push(part);
    }
    books.wrong = server.rows(tables.wrong).await?.into_iter().flatten().collect();
    Ok(books)
}

fn part(row: &[String]) -> Option<(String, Part)> {
    let [order, xid, customer, trip, seats, cents] = row else { return None };
    let (seats, cents) = (seats.parse().ok()?, cents.parse().ok()?);
    let part = Part { xid: xid.clone(), customer: customer.clone(), trip: trip.clone(), seats, cents };
    Some((order.clone(), part))
}
