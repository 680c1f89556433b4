//! A participant's own service: accounts, of which branches take and to which they give.
//!
//! A branch's payload is `account:change:…`: below 0 takes (refused if it is not there), above 0 gives, 0 only looks.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use verdict_client::resource::{Reservation, memory::Ledger};
use verdict_protocol::{BranchId, Reason};

use crate::{
    history::{Effect, History, What},
    plan::{ACCOUNTS, OPENING, Place},
};

/// A bank. Clones are the same bank: a reservation that is refused changes nothing, so there is nothing to undo.
#[derive(Clone, Debug)]
pub struct Bank {
    place: Place,
    history: History,
    books: Arc<Mutex<Books>>,
}

/// The accounts as they stand, and what is held back for branches that have promised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {
    pub balances: BTreeMap<u32, i64>,
    pub held: BTreeMap<BranchId, (u32, i64)>,
}

impl Books {
    /// All money, what is held back included.
    #[must_use]
    pub fn sum(&self) -> i64 {
        self.balances.values().sum::<i64>() + self.held.values().map(|(_, amount)| amount).sum::<i64>()
    }
}

impl Bank {
    #[must_use]
    pub fn open(place: Place, history: History) -> Self {
        let balances = (0..ACCOUNTS).map(|account| (account, OPENING)).collect();
        let books = Books { balances, held: BTreeMap::new() };
        Self { place, history, books: Arc::new(Mutex::new(books)) }
    }

    /// A copy of its books.
    #[must_use]
    pub fn books(&self) -> Books {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, branch: BranchId, effect: Effect) {
        self.history.record(self.place, What::Effect { branch, effect });
    }

    /// Makes a branch's change, whatever is on record of it.
    pub fn apply(&self, branch: BranchId, payload: &[u8]) {
        let Some((account, change)) = parse(payload) else { return };
        {
            let mut books = self.lock();
            let held = books.held.remove(&branch).is_some();
            // What was held has left the account already.
            if change > 0 || !held {
                *books.balances.entry(account).or_default() += change;
            }
        }
        self.record(branch, Effect::Confirmed);
    }
}

impl Ledger for Bank {
    fn reserve(&mut self, branch: BranchId, payload: &[u8]) -> Reservation {
        let Some((account, change)) = parse(payload) else {
            return Reservation::Refused(Reason::refused("no such instruction", "PAYLOAD", false));
        };
        if change == 0 {
            return Reservation::ReadOnly;
        }
        {
            let mut books = self.lock();
            let Some(balance) = books.balances.get_mut(&account) else {
                return Reservation::Refused(Reason::refused("no such account", "ACCOUNT", false));
            };
            if *balance + change < 0 {
                return Reservation::Refused(Reason::refused("insufficient funds", "FUNDS", false));
            }
            if change < 0 {
                *balance += change;
                books.held.insert(branch, (account, -change));
            }
        }
        self.record(branch, Effect::Reserved);
        Reservation::Reserved
    }

    fn confirm(&mut self, branch: BranchId, payload: &[u8]) {
        self.apply(branch, payload);
    }

    fn cancel(&mut self, branch: BranchId, _: &[u8]) {
        {
            let mut books = self.lock();
            if let Some((account, amount)) = books.held.remove(&branch) {
                *books.balances.entry(account).or_default() += amount;
            }
        }
        self.record(branch, Effect::Cancelled);
    }
}

/// The payload of a branch, with that much of no interest behind it.
#[must_use]
pub fn payload(account: u32, change: i64, filler: usize) -> String {
    format!("{account}:{change}:{:x<filler$}", "")
}

fn parse(payload: &[u8]) -> Option<(u32, i64)> {
    let mut parts = std::str::from_utf8(payload).ok()?.split(':');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
