//! Tickets, one an order: the order's id is the key, so that an order sent twice is issued once.

use rusqlite::{Connection, OptionalExtension as _, params};
use verdict_client::{
    BranchId, Reason,
    resource::{Reservation, sqlite::Handler},
};

use super::order;

pub(super) const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS tickets (
        order_id TEXT PRIMARY KEY, xid TEXT NOT NULL, number INTEGER NOT NULL, customer TEXT NOT NULL,
        trip TEXT NOT NULL, seats INTEGER NOT NULL, price_cents INTEGER NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('held', 'issued'))) WITHOUT ROWID;
    CREATE UNIQUE INDEX IF NOT EXISTS tickets_branch ON tickets (xid, number);";

#[derive(Debug)]
pub(super) struct Tickets;

impl Handler for Tickets {
    fn reserve(&mut self, database: &Connection, branch: BranchId, payload: &[u8]) -> rusqlite::Result<Reservation> {
        let order = match order(payload) {
            Ok(order) => order,
            Err(reason) => return Ok(Reservation::Refused(reason)),
        };
        let before: Option<(String, String)> = database
            .prepare_cached("SELECT state, xid FROM tickets WHERE order_id = ?1")?
            .query_row([&order.order_id], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        if let Some((state, xid)) = before {
            let id = &order.order_id;
            return Ok(Reservation::Refused(if state == "issued" {
                Reason::refused(format!("order {id} has its ticket, from transaction {xid}"), "ALREADY_ISSUED", false)
            } else {
                // That one may still roll back: then this one is free to go.
                Reason::refused(format!("order {id} is being booked by transaction {xid}"), "BEING_BOOKED", true)
            }));
        }
        database.prepare_cached("INSERT INTO tickets VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'held')")?.execute(
            params![
                order.order_id,
                branch.xid.to_string(),
                branch.number,
                order.customer,
                order.trip,
                order.seats,
                order.price_cents
            ],
        )?;
        Ok(Reservation::Reserved)
    }

    fn confirm(&mut self, database: &Connection, branch: BranchId, _: &[u8]) -> rusqlite::Result<()> {
        database
            .prepare_cached("UPDATE tickets SET state = 'issued' WHERE xid = ?1 AND number = ?2")?
            .execute(params![branch.xid.to_string(), branch.number])?;
        Ok(())
    }

    fn cancel(&mut self, database: &Connection, branch: BranchId, _: &[u8]) -> rusqlite::Result<()> {
        database
            .prepare_cached("DELETE FROM tickets WHERE xid = ?1 AND number = ?2")?
            .execute(params![branch.xid.to_string(), branch.number])?;
        Ok(())
    }
}
