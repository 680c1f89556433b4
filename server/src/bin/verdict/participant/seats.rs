//! Seats on trips.

use rusqlite::{Connection, params};
use verdict_client::{
    BranchId, Reason,
    resource::{Reservation, sqlite::Handler},
};

use super::{Order, order};

pub(super) const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS trips (
        trip TEXT PRIMARY KEY, capacity INTEGER NOT NULL, free INTEGER NOT NULL CHECK (free BETWEEN 0 AND capacity)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS sales (
        xid TEXT NOT NULL, number INTEGER NOT NULL, order_id TEXT NOT NULL, trip TEXT NOT NULL,
        seats INTEGER NOT NULL CHECK (seats > 0), state TEXT NOT NULL CHECK (state IN ('held', 'sold')),
        PRIMARY KEY (xid, number)) WITHOUT ROWID;";

/// Takes seats when it promises, so that two transactions never promise the same one.
#[derive(Debug)]
pub(super) struct Seats {
    /// Of a trip that is new here.
    pub(super) opening: u32,
}

/// Why an order is refused where there are so few seats.
pub(crate) fn sold_out(order: &Order, free: i64) -> Reason {
    let text = format!("{} asks for {} seats, {free} are free", order.trip, order.seats);
    Reason::refused(text, "SOLD_OUT", false)
}

impl Handler for Seats {
    fn reserve(&mut self, database: &Connection, branch: BranchId, payload: &[u8]) -> rusqlite::Result<Reservation> {
        let order = match order(payload) {
            Ok(order) => order,
            Err(reason) => return Ok(Reservation::Refused(reason)),
        };
        database
            .prepare_cached("INSERT INTO trips VALUES (?1, ?2, ?2) ON CONFLICT DO NOTHING")?
            .execute(params![order.trip, self.opening])?;
        let taken = database
            .prepare_cached("UPDATE trips SET free = free - ?2 WHERE trip = ?1 AND free >= ?2")?
            .execute(params![order.trip, order.seats])?;
        if taken == 0 {
            let free: i64 = database
                .prepare_cached("SELECT free FROM trips WHERE trip = ?1")?
                .query_row([&order.trip], |row| row.get(0))?;
            return Ok(Reservation::Refused(sold_out(&order, free)));
        }
        database.prepare_cached("INSERT INTO sales VALUES (?1, ?2, ?3, ?4, ?5, 'held')")?.execute(params![
            branch.xid.to_string(),
            branch.number,
            order.order_id,
            order.trip,
            order.seats
        ])?;
        Ok(Reservation::Reserved)
    }

    fn confirm(&mut self, database: &Connection, branch: BranchId, _: &[u8]) -> rusqlite::Result<()> {
        database
            .prepare_cached("UPDATE sales SET state = 'sold' WHERE xid = ?1 AND number = ?2")?
            .execute(params![branch.xid.to_string(), branch.number])?;
        Ok(())
    }

    fn cancel(&mut self, database: &Connection, branch: BranchId, _: &[u8]) -> rusqlite::Result<()> {
        let (trip, seats): (String, u32) = database
            .prepare_cached("DELETE FROM sales WHERE xid = ?1 AND number = ?2 RETURNING trip, seats")?
            .query_row(params![branch.xid.to_string(), branch.number], |row| Ok((row.get(0)?, row.get(1)?)))?;
        database.prepare_cached("UPDATE trips SET free = free + ?2 WHERE trip = ?1")?.execute(params![trip, seats])?;
        Ok(())
    }
}
