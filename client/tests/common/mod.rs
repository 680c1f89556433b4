//! A service that sells seats, in memory.

#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod cluster;
#[cfg(feature = "mysql")]
pub(crate) mod mariadb;
#[cfg(feature = "mysql")]
pub(crate) mod mariadb_bank;
#[cfg(feature = "mysql")]
pub(crate) mod mariadb_seats;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "postgres")]
pub(crate) mod postgres_bank;
#[cfg(feature = "postgres")]
pub(crate) mod postgres_seats;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod tables;

use bytes::Bytes;
use verdict_client::{
    BranchId, Reason, Vote,
    conformance::Effects,
    resource::{Reservation, memory::Ledger},
};

#[derive(Clone, Debug, Default)]
pub(crate) struct Seats {
    pub(crate) reserved: u64,
    pub(crate) confirmed: u64,
}

impl Seats {
    pub(crate) fn effects(&self) -> Effects {
        Effects { reserved: self.reserved, confirmed: self.confirmed }
    }

    pub(crate) fn confirm_one(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
        self.confirmed += 1;
    }
}

pub(crate) fn seats_payload(vote: Vote) -> Bytes {
    Bytes::from_static(match vote {
        Vote::Prepared => b"one seat",
        Vote::ReadOnly => b"is there a seat?",
        Vote::Refused => b"a seat on the sold-out bus",
    })
}

pub(crate) fn decide(payload: &[u8]) -> Reservation {
    match payload {
        b"one seat" => Reservation::Reserved,
        b"is there a seat?" => Reservation::ReadOnly,
        _ => Reservation::Refused(Reason::refused("the bus is sold out", "SOLD_OUT", false)),
    }
}

impl Ledger for Seats {
    fn reserve(&mut self, _: BranchId, payload: &[u8]) -> Reservation {
        // A refusal must undo this.
        self.reserved += 1;
        let decided = decide(payload);
        if decided == Reservation::ReadOnly {
            self.reserved = self.reserved.saturating_sub(1);
        }
        decided
    }

    fn confirm(&mut self, _: BranchId, payload: &[u8]) {
        assert_eq!(payload, b"one seat", "the payload of the reservation");
        self.confirm_one();
    }

    fn cancel(&mut self, _: BranchId, payload: &[u8]) {
        assert_eq!(payload, b"one seat", "the payload of the reservation");
        self.reserved = self.reserved.saturating_sub(1);
    }
}
