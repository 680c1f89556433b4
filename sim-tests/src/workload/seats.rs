//! Seats: one is booked and paid for at another bank, or given back. Many want the same few: all but one are refused.

use rand::{RngExt as _, rngs::StdRng};

use crate::{
    bank::Deed,
    plan::{ACCOUNTS, SEATS},
};

/// Draws a booking or the return of one; its price goes from an account at one bank to one at another.
pub(super) fn draw(random: &mut StdRng, banks: usize) -> Vec<(usize, Deed)> {
    let (bank, seat) = (random.random_range(0..banks), random.random_range(0..SEATS));
    let mut deeds = vec![(bank, if random.random_bool(0.5) { Deed::Book { seat } } else { Deed::Free { seat } })];
    let price: i64 = random.random_range(1..=5);
    let (from, to) = (random.random_range(0..banks), random.random_range(0..banks));
    for (bank, change) in [(from, -price), (to, price)] {
        deeds.push((bank, Deed::Money { account: random.random_range(0..ACCOUNTS), change }));
    }
    if random.random_bool(0.2) {
        // Two seats or none.
        let other = (seat + 1) % SEATS;
        deeds.push((random.random_range(0..banks), Deed::Book { seat: other }));
    }
    deeds
}
