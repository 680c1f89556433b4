//! Transfers: what an account of one bank loses, accounts of others get.

use rand::{RngExt as _, rngs::StdRng};

use crate::{bank::Deed, plan::ACCOUNTS};

/// Draws one. Now and then a branch only looks, or names an account that there is not.
pub(super) fn draw(random: &mut StdRng, banks: usize) -> Vec<(usize, Deed)> {
    let amount: i64 = random.random_range(1..=60);
    let first = random.random_range(0..banks);
    let step = if random.random_bool(0.2) { 0 } else { random.random_range(1..banks) };
    let second = (first + step) % banks;
    let mut deeds = vec![(first, money(random, -amount))];
    if random.random_bool(0.4) {
        let part = random.random_range(0..=amount);
        deeds.push((second, money(random, part)));
        let third = random.random_range(0..banks);
        deeds.push((third, money(random, amount - part)));
    } else {
        deeds.push((second, money(random, amount)));
    }
    if random.random_bool(0.08) {
        deeds.push((random.random_range(0..banks), Deed::Money { account: 0, change: 0 }));
    }
    if random.random_bool(0.05) {
        // There is no such account: the bank refuses.
        deeds.push((random.random_range(0..banks), Deed::Money { account: ACCOUNTS, change: 1 }));
    }
    deeds
}

fn money(random: &mut StdRng, change: i64) -> Deed {
    Deed::Money { account: random.random_range(0..ACCOUNTS), change }
}
