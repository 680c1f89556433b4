//! A participant's own service: accounts, seats and lists, which branches change.
//!
//! ```text
//!   money:ACCOUNT:CHANGE   below 0 takes (refused if it is not there), above 0 gives, 0 only looks
//!   seat:SEAT:book         refused if it is booked or somebody is about to book or free it
//!   seat:SEAT:free         refused if it is not booked, or somebody is about to free it
//!   list:LIST              appends the transaction's id
//! ```

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use verdict_client::resource::{Reservation, memory::Ledger};
use verdict_protocol::{BranchId, Reason, Xid};

use crate::{
    history::{Effect, History, What},
    plan::{ACCOUNTS, LISTS, OPENING, Place, SEATS},
};

/// Why a seat is refused that another branch is about to book or to free.
const SEAT_PROMISED: &str = "SEAT_PROMISED";

/// What a branch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deed {
    Money { account: u32, change: i64 },
    Book { seat: u32 },
    Free { seat: u32 },
    Append { list: u32 },
}

/// A bank. Clones are the same bank: a reservation that is refused changes nothing, so there is nothing to undo.
#[derive(Clone, Debug)]
pub struct Bank {
    place: Place,
    history: History,
    books: Arc<Mutex<Books>>,
}

/// The books as they stand, and what is promised to branches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {
    pub balances: BTreeMap<u32, i64>,
    /// Whether it is booked.
    pub seats: BTreeMap<u32, bool>,
    pub lists: BTreeMap<u32, Vec<Xid>>,
    pub promised: BTreeMap<BranchId, Deed>,
}

impl Books {
    /// All money, what is held back included.
    #[must_use]
    pub fn sum(&self) -> i64 {
        let held = self.promised.values().map(|deed| match deed {
            Deed::Money { change, .. } => (-change).max(0),
            Deed::Book { .. } | Deed::Free { .. } | Deed::Append { .. } => 0,
        });
        self.balances.values().sum::<i64>() + held.sum::<i64>()
    }

    /// Promises a deed, or says why not. Money that is taken leaves its account at once.
    fn promise(&mut self, branch: BranchId, deed: Deed) -> Result<(), Reason> {
        let refused = |text: &str, code: &str| Err(Reason::refused(text, code, false));
        match deed {
            Deed::Money { account, change } => {
                let Some(balance) = self.balances.get_mut(&account) else {
                    return refused("no such account", "ACCOUNT");
                };
                if *balance + change < 0 {
                    return refused("insufficient funds", "FUNDS");
                }
                *balance += change.min(0);
            }
            Deed::Book { seat } | Deed::Free { seat } => {
                let concerned =
                    |other: &&Deed| matches!(other, Deed::Book { seat: at } | Deed::Free { seat: at } if *at == seat);
                if self.promised.values().any(|other| concerned(&other)) {
                    return refused("the seat is promised to somebody else", SEAT_PROMISED);
                }
                if self.seats.get(&seat) != Some(&matches!(deed, Deed::Free { .. })) {
                    return refused("the seat is taken, or not taken", "SEAT");
                }
            }
            Deed::Append { list } => {
                if !self.lists.contains_key(&list) {
                    return refused("no such list", "LIST");
                }
            }
        }
        self.promised.insert(branch, deed);
        Ok(())
    }

    fn confirm(&mut self, branch: BranchId, deed: Deed) {
        let promised = self.promised.remove(&branch).is_some();
        match deed {
            Deed::Money { account, change } => {
                // What was held has left the account already.
                if change > 0 || !promised {
                    *self.balances.entry(account).or_default() += change;
                }
            }
            Deed::Book { seat } => drop(self.seats.insert(seat, true)),
            Deed::Free { seat } => drop(self.seats.insert(seat, false)),
            Deed::Append { list } => self.lists.entry(list).or_default().push(branch.xid),
        }
    }

    fn cancel(&mut self, branch: BranchId) {
        if let Some(Deed::Money { account, change }) = self.promised.remove(&branch) {
            *self.balances.entry(account).or_default() -= change.min(0);
        }
    }
}

impl Bank {
    #[must_use]
    pub fn open(place: Place, history: History) -> Self {
        let books = Books {
            balances: (0..ACCOUNTS).map(|account| (account, OPENING)).collect(),
            seats: (0..SEATS).map(|seat| (seat, false)).collect(),
            lists: (0..LISTS).map(|list| (list, Vec::new())).collect(),
            promised: BTreeMap::new(),
        };
        Self { place, history, books: Arc::new(Mutex::new(books)) }
    }

    /// A copy of its books.
    #[must_use]
    pub fn books(&self) -> Books {
        self.lock().clone()
    }

    /// How often this transaction stands in this list.
    #[must_use]
    pub fn appended(&self, list: u32, xid: Xid) -> usize {
        self.lock().lists.get(&list).map_or(0, |list| list.iter().filter(|other| **other == xid).count())
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, branch: BranchId, effect: Effect) {
        self.history.record(self.place, What::Effect { branch, effect });
    }

    /// Makes a branch's change, whatever is on record of it.
    pub fn apply(&self, branch: BranchId, payload: &[u8]) {
        let Some(deed) = Deed::parse(payload) else { return };
        self.lock().confirm(branch, deed);
        self.record(branch, Effect::Confirmed);
    }
}

impl Ledger for Bank {
    fn reserve(&mut self, branch: BranchId, payload: &[u8]) -> Reservation {
        let Some(deed) = Deed::parse(payload) else {
            return Reservation::Refused(Reason::refused("no such instruction", "PAYLOAD", false));
        };
        if matches!(deed, Deed::Money { change: 0, .. }) {
            return Reservation::ReadOnly;
        }
        let promised = self.lock().promise(branch, deed);
        if let Err(reason) = promised {
            if reason.source_code == SEAT_PROMISED {
                self.history.record(self.place, What::Conflict { branch });
            }
            return Reservation::Refused(reason);
        }
        self.record(branch, Effect::Reserved);
        Reservation::Reserved
    }

    fn confirm(&mut self, branch: BranchId, payload: &[u8]) {
        self.apply(branch, payload);
    }

    fn cancel(&mut self, branch: BranchId, _: &[u8]) {
        self.lock().cancel(branch);
        self.record(branch, Effect::Cancelled);
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Money { account, change } => write!(f, "money:{account}:{change}"),
            Self::Book { seat } => write!(f, "seat:{seat}:book"),
            Self::Free { seat } => write!(f, "seat:{seat}:free"),
            Self::Append { list } => write!(f, "list:{list}:append"),
        }
    }
}

impl Deed {
    /// The payload of a branch, with that much of no interest behind it.
    #[must_use]
    pub fn payload(self, filler: usize) -> String {
        format!("{self}:{:x<filler$}", "")
    }

    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(payload).ok()?.split(':');
        let (kind, which, how) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
        Some(match (kind, how) {
            ("money", change) => Self::Money { account: which, change: change.parse().ok()? },
            ("seat", "book") => Self::Book { seat: which },
            ("seat", "free") => Self::Free { seat: which },
            ("list", "append") => Self::Append { list: which },
            _ => return None,
        })
    }
}
