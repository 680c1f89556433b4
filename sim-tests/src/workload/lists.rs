//! Lists: a transaction appends its id to lists at several banks. Who waits until it has ended finds it in all of them
//! or in none.

use std::time::Duration;

use rand::{RngExt as _, rngs::StdRng};
use tokio::time::sleep;
use verdict_protocol::{State, Xid};

use super::Lane;
use crate::{bank::Deed, history::What, plan::LISTS, world::bank_of};

/// A reader asks so often whether the transaction has ended.
const LOOKS: u32 = 10;

/// Draws the lists.
pub(super) fn draw(random: &mut StdRng, banks: usize) -> Vec<(usize, Deed)> {
    let first = random.random_range(0..banks);
    let count = random.random_range(2..=banks.min(4));
    (0..count).map(|step| ((first + step) % banks, Deed::Append { list: random.random_range(0..LISTS) })).collect()
}

impl Lane {
    /// Waits until a transaction has ended, and then looks into the lists that it names.
    pub(super) async fn read_lists(&self, xid: Xid) {
        for _ in 0..LOOKS {
            if self.look_up_state(xid).await == Some(State::Ended) {
                return self.read_now(xid);
            }
            let pause = self.random().random_range(20..400);
            sleep(Duration::from_millis(pause)).await;
        }
    }

    fn read_now(&self, xid: Xid) {
        let mut seen = Vec::new();
        for branch in self.shared.work.ordered(xid) {
            if let Some(Deed::Append { list }) = Deed::parse(&branch.payload) {
                let times = self.shared.memories[bank_of(&branch.resource)].ledger().appended(list, xid);
                seen.push((branch.number, times));
            }
        }
        self.history().record(self.place, What::ListsRead { xid, seen });
    }
}
