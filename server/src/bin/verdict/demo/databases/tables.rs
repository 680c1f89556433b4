//! What a real database keeps of bookings, in SQL that PostgreSQL and MariaDB understand alike.
//!
//! ```text
//!   trips, customers   what is there, and what is left of it
//!   sales, debits      what an order took, and in which transaction
//! ```
//!
//! An order is not held first and then confirmed, as at the participants: what is prepared is held by its database.

use std::fmt::Write as _;

use verdict_client::Reason;

use crate::participant::{self, Kind, Order};

/// A part of a booking that a real database can keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::demo) enum Stock {
    Seats,
    Wallet,
}

/// Its statements; their parameters are question marks.
#[derive(Debug)]
pub(in crate::demo) struct Tables {
    pub(super) schema: &'static [&'static str],
    /// Key, and twice how much there is.
    pub(super) fill: &'static str,
    /// Key: how much is left. Nobody else takes of it until the transaction has ended.
    pub(super) left: &'static str,
    /// How much, key.
    pub(super) take: &'static str,
    /// Order, transaction, key, how much.
    pub(super) note: &'static str,
    /// Order, transaction, customer, trip, seats, cents.
    pub(in crate::demo) finished: &'static str,
    /// A sentence for each key of which more or less is gone than was taken.
    pub(in crate::demo) wrong: &'static str,
}

const SEATS: Tables = Tables {
    schema: &[
        "CREATE TABLE trips (trip varchar(200) PRIMARY KEY, capacity bigint NOT NULL, \
         free bigint NOT NULL CHECK (free BETWEEN 0 AND capacity))",
        "CREATE TABLE sales (order_id varchar(200) NOT NULL, xid varchar(36) PRIMARY KEY, trip varchar(200) NOT NULL, \
         seats bigint NOT NULL CHECK (seats > 0))",
    ],
    fill: "INSERT INTO trips VALUES (?, ?, ?)",
    left: "SELECT free FROM trips WHERE trip = ? FOR UPDATE",
    take: "UPDATE trips SET free = free - ? WHERE trip = ?",
    note: "INSERT INTO sales VALUES (?, ?, ?, ?)",
    finished: "SELECT order_id, xid, '', trip, seats, 0 FROM sales",
    wrong: "SELECT concat(trip, ': ', free, ' free of ', capacity, ', ', sold, ' sold') FROM (SELECT trip, capacity, free, \
            (SELECT coalesce(sum(seats), 0) FROM sales WHERE sales.trip = trips.trip) AS sold FROM trips) AS stock \
            WHERE free + sold <> capacity OR free < 0",
};

const WALLET: Tables = Tables {
    schema: &[
        "CREATE TABLE customers (customer varchar(200) PRIMARY KEY, opening bigint NOT NULL, \
         balance bigint NOT NULL CHECK (balance >= 0))",
        "CREATE TABLE debits (order_id varchar(200) NOT NULL, xid varchar(36) PRIMARY KEY, \
         customer varchar(200) NOT NULL, cents bigint NOT NULL CHECK (cents >= 0))",
    ],
    fill: "INSERT INTO customers VALUES (?, ?, ?)",
    left: "SELECT balance FROM customers WHERE customer = ? FOR UPDATE",
    take: "UPDATE customers SET balance = balance - ? WHERE customer = ?",
    note: "INSERT INTO debits VALUES (?, ?, ?, ?)",
    finished: "SELECT order_id, xid, customer, '', 0, cents FROM debits",
    wrong: "SELECT concat(customer, ': ', balance, ' left of ', opening, ', ', paid, ' paid') FROM (SELECT customer, opening, \
            balance, (SELECT coalesce(sum(cents), 0) FROM debits WHERE debits.customer = customers.customer) AS paid \
            FROM customers) AS stock WHERE balance + paid <> opening OR balance < 0",
};

impl Stock {
    /// Whose databases are named first, is given first.
    pub(in crate::demo) const ALL: [Self; 2] = [Self::Seats, Self::Wallet];

    pub(in crate::demo) fn kind(self) -> Kind {
        match self {
            Self::Seats => Kind::Seats,
            Self::Wallet => Kind::Wallet,
        }
    }

    pub(in crate::demo) fn tables(self) -> &'static Tables {
        match self {
            Self::Seats => &SEATS,
            Self::Wallet => &WALLET,
        }
    }

    /// Of what an order takes.
    pub(super) fn key(self, order: &Order) -> &str {
        match self {
            Self::Seats => &order.trip,
            Self::Wallet => &order.customer,
        }
    }

    /// How much an order takes, or why it can't.
    pub(super) fn amount(self, order: &Order, left: i64) -> Result<i64, Reason> {
        let (amount, too_little): (u32, fn(&Order, i64) -> Reason) = match self {
            Self::Seats => (order.seats, participant::sold_out),
            Self::Wallet => (order.price_cents, participant::balance_too_low),
        };
        let amount = i64::from(amount);
        if amount > left { Err(too_little(order, left)) } else { Ok(amount) }
    }
}

/// PostgreSQL numbers parameters.
pub(super) fn numbered(sql: &str) -> String {
    let mut parts = sql.split('?');
    let mut numbered = parts.next().unwrap_or_default().to_owned();
    for (number, part) in (1..).zip(parts) {
        // Writing to a string does not fail.
        let _ = write!(numbered, "${number}{part}");
    }
    numbered
}

#[cfg(test)]
mod tests {
    use super::numbered;

    #[test]
    fn parameters_are_numbered() {
        assert_eq!(numbered("INSERT INTO sales VALUES (?, ?)"), "INSERT INTO sales VALUES ($1, $2)");
        assert_eq!(numbered("SELECT 1"), "SELECT 1");
    }
}
