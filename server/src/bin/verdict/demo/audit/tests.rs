//! The audit holds over good books, and over no others.
#![allow(clippy::unwrap_used, reason = "a test")]

use futures_util::FutureExt as _;
use rusqlite::Connection;
use tempfile::TempDir;
use verdict_client::{LogTime, Reason, Xid};

use super::*;
use crate::{demo::bookings::Line, participant::Order};

const GOOD: &str = "1111";

/// Two orders booked, one refused.
struct World {
    _folder: TempDir,
    databases: Vec<(Kind, PathBuf)>,
    accounts: Vec<Account>,
    cluster: ClusterStatus,
}

fn xid(number: u64) -> Xid {
    Xid::new(LogTime::from_millis(1_700_000_000_000), 0, number)
}

fn account(number: u32, answer: Answer) -> Account {
    let order = Order {
        order_id: format!("o{number}"),
        customer: "ada".to_owned(),
        trip: "T".to_owned(),
        seats: number,
        price_cents: 100 * number,
    };
    let line = Line { number: u64::from(number) + 1, order };
    Account { line, xid: xid(number.into()), attempts: 1, answer }
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let databases = Kind::ALL.map(|kind| (kind, folder.path().join(kind.name()))).to_vec();
        let (one, two) = (xid(1), xid(2));
        for (kind, path) in &databases {
            // Ends the table's thread, and with it its connection, at once.
            drop(crate::participant::open(*kind, path, 10).unwrap());
            let rows = match kind {
                Kind::Seats => format!(
                    "INSERT INTO trips VALUES ('T', 10, 7);
                     INSERT INTO sales VALUES ('{one}', 1, 'o1', 'T', 1, 'sold'), ('{two}', 1, 'o2', 'T', 2, 'sold');"
                ),
                Kind::Wallet => format!(
                    "INSERT INTO customers VALUES ('ada', 1000, 700);
                     INSERT INTO debits VALUES ('{one}', 2, 'o1', 'ada', 100, 'paid'),
                         ('{two}', 2, 'o2', 'ada', 200, 'paid');"
                ),
                Kind::Tickets => format!(
                    "INSERT INTO tickets VALUES ('o1', '{one}', 3, 'ada', 'T', 1, 100, 'issued'),
                         ('o2', '{two}', 3, 'ada', 'T', 2, 200, 'issued');"
                ),
            };
            Connection::open(path).unwrap().execute_batch(&rows).unwrap();
        }
        let refused = Answer::Aborted(Some(Reason::refused("no seats", "SOLD_OUT", false)));
        let accounts = vec![account(1, Answer::Committed), account(2, Answer::Committed), account(3, refused)];
        let cluster = ClusterStatus {
            node: 1,
            leader: Some(1),
            term: 1,
            cluster: None,
            incarnation: 1,
            nodes: Vec::new(),
            last_index: 9,
            applied_index: 9,
            log_time: LogTime::default(),
            open_transactions: 0,
            in_doubt: 0,
            ended_transactions: 3,
        };
        Self { _folder: folder, databases, accounts, cluster }
    }

    fn sql(&self, kind: Kind, sql: &str) {
        let (_, path) = self.databases.iter().find(|(this, _)| *this == kind).unwrap();
        Connection::open(path).unwrap().execute_batch(sql).unwrap();
    }

    /// Which of the four checks hold, such as "1101".
    fn checks(&self) -> String {
        let audit = audit(&self.databases, &[], &self.accounts, 3, &self.cluster);
        let audit = audit.now_or_never().unwrap().unwrap();
        let marks: String = audit.checks.iter().map(|check| if check.holds { '1' } else { '0' }).collect();
        assert_eq!(audit.holds, marks == GOOD, "{audit:?}");
        marks
    }
}

#[test]
fn good_books_pass() {
    assert_eq!(World::new().checks(), GOOD);
}

#[test]
fn each_kind_of_wrong_books_fails() {
    let stranger = format!("('o9', '{}', 3, 'bob', 'T', 1, 100, 'issued')", xid(9));
    let branch = "INSERT INTO verdict_branch VALUES (x'00', 1, 0, x'', NULL, NULL, NULL, 0)";
    for (kind, sql, expected) in [
        (Kind::Seats, "DELETE FROM sales WHERE order_id = 'o1'", "0011"),
        (Kind::Seats, "UPDATE sales SET seats = 2, trip = 'U' WHERE order_id = 'o1'", "0011"),
        (Kind::Seats, "UPDATE trips SET free = 6", "1011"),
        (Kind::Seats, "UPDATE sales SET state = 'held' WHERE order_id = 'o1'", "0010"),
        (Kind::Wallet, "DELETE FROM debits WHERE order_id = 'o2'", "0011"),
        (Kind::Wallet, "UPDATE debits SET xid = 'other' WHERE order_id = 'o2'", "0111"),
        (Kind::Wallet, "INSERT INTO debits SELECT 'other', 2, 'o2', 'ada', 0, 'paid'", "0111"),
        (Kind::Wallet, "UPDATE customers SET balance = 701", "1011"),
        (Kind::Tickets, "DELETE FROM tickets WHERE order_id = 'o1'", "0101"),
        (Kind::Tickets, "UPDATE tickets SET trip = 'U' WHERE order_id = 'o1'", "0101"),
        (Kind::Tickets, &format!("INSERT INTO tickets VALUES {stranger}"), "0101"),
        (Kind::Tickets, branch, "1110"),
        (Kind::Wallet, branch, "1110"),
    ] {
        let world = World::new();
        world.sql(kind, sql);
        assert_eq!(world.checks(), expected, "{sql}");
    }
}

#[test]
fn each_kind_of_wrong_account_fails() {
    type Change = fn(&mut World);
    let wrong: [(&str, Change, &str); 7] = [
        ("a line without an account", |world| drop(world.accounts.pop()), "1101"),
        ("no reason", |world| world.accounts[2].answer = Answer::Aborted(None), "1101"),
        ("an error", |world| world.accounts[2].answer = Answer::Refused("CLOSED".to_owned()), "1101"),
        ("told of an abort, and booked", |world| world.accounts[0].answer = world.accounts[2].answer.clone(), "1101"),
        ("told of a booking that is not there", |world| world.accounts[2].answer = Answer::Committed, "1101"),
        ("open in the cluster", |world| world.cluster.open_transactions = 1, "1110"),
        ("in doubt in the cluster", |world| world.cluster.in_doubt = 1, "1110"),
    ];
    for (what, change, expected) in wrong {
        let mut world = World::new();
        change(&mut world);
        assert_eq!(world.checks(), expected, "{what}");
    }
}
