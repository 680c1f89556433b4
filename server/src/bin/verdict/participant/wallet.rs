//! Customers' money.

use rusqlite::{Connection, params};
use verdict_client::{
    BranchId, Reason,
    resource::{Reservation, sqlite::Handler},
};

use super::{Order, money, order};

pub(super) const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS customers (
        customer TEXT PRIMARY KEY, opening INTEGER NOT NULL, balance INTEGER NOT NULL CHECK (balance >= 0)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS debits (
        xid TEXT NOT NULL, number INTEGER NOT NULL, order_id TEXT NOT NULL, customer TEXT NOT NULL,
        cents INTEGER NOT NULL CHECK (cents >= 0), state TEXT NOT NULL CHECK (state IN ('held', 'paid')),
        PRIMARY KEY (xid, number)) WITHOUT ROWID;";

/// Takes the money when it promises, so that it is not spent twice.
#[derive(Debug)]
pub(super) struct Wallet {
    /// Cents of a customer who is new here.
    pub(super) opening: u32,
}

/// Why an order is refused that costs more than the customer has.
pub(crate) fn balance_too_low(order: &Order, balance: i64) -> Reason {
    let (has, price) = (money(balance.unsigned_abs()), money(order.price_cents.into()));
    Reason::refused(format!("{} has {has}, the price is {price}", order.customer), "BALANCE_TOO_LOW", false)
}

impl Handler for Wallet {
    fn reserve(&mut self, database: &Connection, branch: BranchId, payload: &[u8]) -> rusqlite::Result<Reservation> {
        let order = match order(payload) {
            Ok(order) => order,
            Err(reason) => return Ok(Reservation::Refused(reason)),
        };
        database
            .prepare_cached("INSERT INTO customers VALUES (?1, ?2, ?2) ON CONFLICT DO NOTHING")?
            .execute(params![order.customer, self.opening])?;
        let taken = database
            .prepare_cached("UPDATE customers SET balance = balance - ?2 WHERE customer = ?1 AND balance >= ?2")?
            .execute(params![order.customer, order.price_cents])?;
        if taken == 0 {
            let balance: i64 = database
                .prepare_cached("SELECT balance FROM customers WHERE customer = ?1")?
                .query_row([&order.customer], |row| row.get(0))?;
            return Ok(Reservation::Refused(balance_too_low(&order, balance)));
        }
        database.prepare_cached("INSERT INTO debits VALUES (?1, ?2, ?3, ?4, ?5, 'held')")?.execute(params![
            branch.xid.to_string(),
            branch.number,
            order.order_id,
            order.customer,
            order.price_cents
        ])?;
        Ok(Reservation::Reserved)
    }

    fn confirm(&mut self, database: &Connection, branch: BranchId, _: &[u8]) -> rusqlite::Result<()> {
        database
            .prepare_cached("UPDATE debits SET state = 'paid' WHERE xid = ?1 AND number = ?2")?
            .execute(params![branch.xid.to_string(), branch.number])?;
        Ok(())
    }

    fn cancel(&mut self, database: &Connection, branch: BranchId, _: &[u8]) -> rusqlite::Result<()> {
        let (customer, cents): (String, u32) = database
            .prepare_cached("DELETE FROM debits WHERE xid = ?1 AND number = ?2 RETURNING customer, cents")?
            .query_row(params![branch.xid.to_string(), branch.number], |row| Ok((row.get(0)?, row.get(1)?)))?;
        database
            .prepare_cached("UPDATE customers SET balance = balance + ?2 WHERE customer = ?1")?
            .execute(params![customer, cents])?;
        Ok(())
    }
}
