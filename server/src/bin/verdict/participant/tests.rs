#![allow(clippy::unwrap_used, reason = "a test")]

use verdict_client::{
    LogTime, Xid,
    resource::{Reservation, sqlite::Handler},
};
use verdict_protocol::BranchId;

use super::*;

fn database(kind: Kind) -> Connection {
    let database = Connection::open_in_memory().unwrap();
    database.execute_batch(kind.schema()).unwrap();
    database
}

fn branch(random: u64) -> BranchId {
    BranchId { xid: Xid::new(LogTime::from_millis(1_000), 0, random), number: 1 }
}

fn payload(order_id: &str, seats: u32, price_cents: u32) -> Vec<u8> {
    let order = Order { order_id: order_id.into(), customer: "ada".into(), trip: "T1".into(), seats, price_cents };
    serde_json::to_vec(&order).unwrap()
}

/// The refusal's code, or "" if it was reserved.
fn reserve(handler: &mut dyn Handler, database: &Connection, branch: BranchId, payload: &[u8]) -> String {
    match handler.reserve(database, branch, payload).unwrap() {
        Reservation::Reserved => String::new(),
        Reservation::Refused(reason) => reason.source_code,
        Reservation::ReadOnly => "READ_ONLY".to_owned(),
    }
}

fn number(database: &Connection, sql: &str) -> i64 {
    database.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn seats_are_held_sold_and_given_back() {
    let (database, mut seats) = (database(Kind::Seats), seats::Seats { opening: 3 });
    let free = |database: &Connection| number(database, "SELECT free FROM trips");
    assert_eq!(reserve(&mut seats, &database, branch(1), &payload("a", 2, 0)), "");
    assert_eq!(reserve(&mut seats, &database, branch(2), &payload("b", 2, 0)), "SOLD_OUT");
    assert_eq!(reserve(&mut seats, &database, branch(3), &payload("c", 1, 0)), "");
    assert_eq!(free(&database), 0);
    seats.cancel(&database, branch(3), &[]).unwrap();
    seats.confirm(&database, branch(1), &[]).unwrap();
    assert_eq!(free(&database), 1);
    assert_eq!(number(&database, "SELECT sum(seats) FROM sales WHERE state = 'sold'"), 2);
    assert_eq!(number(&database, "SELECT count(*) FROM sales"), 1);
}

#[test]
fn money_is_held_paid_and_given_back() {
    let (database, mut wallet) = (database(Kind::Wallet), wallet::Wallet { opening: 1_000 });
    let balance = |database: &Connection| number(database, "SELECT balance FROM customers");
    assert_eq!(reserve(&mut wallet, &database, branch(1), &payload("a", 1, 700)), "");
    assert_eq!(reserve(&mut wallet, &database, branch(2), &payload("b", 1, 301)), "BALANCE_TOO_LOW");
    assert_eq!(reserve(&mut wallet, &database, branch(3), &payload("c", 1, 300)), "");
    assert_eq!(balance(&database), 0);
    wallet.cancel(&database, branch(1), &[]).unwrap();
    wallet.confirm(&database, branch(3), &[]).unwrap();
    assert_eq!(balance(&database), 700);
    assert_eq!(number(&database, "SELECT count(*) FROM debits WHERE state = 'paid'"), 1);
}

#[test]
fn an_order_gets_one_ticket() {
    let (database, mut tickets) = (database(Kind::Tickets), tickets::Tickets);
    assert_eq!(reserve(&mut tickets, &database, branch(1), &payload("a", 1, 1)), "");
    assert_eq!(reserve(&mut tickets, &database, branch(2), &payload("a", 1, 1)), "BEING_BOOKED");
    tickets.cancel(&database, branch(1), &[]).unwrap();
    assert_eq!(reserve(&mut tickets, &database, branch(3), &payload("a", 1, 1)), "");
    tickets.confirm(&database, branch(3), &[]).unwrap();
    assert_eq!(reserve(&mut tickets, &database, branch(4), &payload("a", 1, 1)), "ALREADY_ISSUED");
    assert_eq!(number(&database, "SELECT count(*) FROM tickets WHERE state = 'issued'"), 1);
}

#[test]
fn a_payload_that_is_no_order_is_refused() {
    for kind in Kind::ALL {
        let database = database(kind);
        let handler: &mut dyn Handler = match kind {
            Kind::Seats => &mut seats::Seats { opening: 1 },
            Kind::Wallet => &mut wallet::Wallet { opening: 1 },
            Kind::Tickets => &mut tickets::Tickets,
        };
        assert_eq!(reserve(handler, &database, branch(1), b"{"), "NO_ORDER", "{kind:?}");
    }
}
