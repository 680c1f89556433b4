//! The right to work: under an idempotency key that others want too, in a session that others open, and as the branch
//! that decides.

use std::time::Duration;

use rand::RngExt as _;
use verdict_client::{Begun, Branch, Transaction};
use verdict_protocol::BranchNumber;

use super::Lane;
use crate::{bank::Deed, chance::pick, history::What};

/// So many keys are drawn from: a key that was used is wanted again before long.
const KEYS: u32 = 60;
/// And so many sessions.
const DESKS: u32 = 3;
/// How long what was begun may stay open.
const TIMEOUT: Duration = Duration::from_millis(1_500);

/// How often one branch is given the decision, where that is possible.
const DELEGATED: f64 = 0.2;

impl Lane {
    /// Gives the decision to a branch that changes something, now and then.
    pub(super) fn delegate(&self, mut transaction: Transaction) -> Transaction {
        let (xid, random) = (transaction.xid(), &mut *self.random());
        let changes = |branch: &Branch| {
            let deed = Deed::parse(&branch.payload);
            deed.is_some_and(|deed| !matches!(deed, Deed::Money { change: 0, .. }))
        };
        let ordered = self.shared.work.ordered(xid);
        let numbers: Vec<BranchNumber> = ordered.iter().filter(|of| changes(of)).map(|of| of.number).collect();
        if random.random_bool(DELEGATED) && !numbers.is_empty() {
            let number = *pick(random, &numbers);
            transaction.decided_by(number);
            self.shared.work.delegate(xid, number);
        }
        transaction
    }

    /// Does the work if nobody else has the right to; sometimes gives up, or vanishes with it.
    pub(super) async fn once(&self) {
        let key = format!("order {}", self.random().random_range(0..KEYS));
        let Ok(Begun::Ours(transaction)) = self.verdict.begin_once(key.as_str(), TIMEOUT).await else { return };
        self.history().record(self.place, What::KeyGranted { key, xid: transaction.xid() });
        let transaction = self.order(transaction);
        let how = self.random().random_range(0..10);
        match how {
            0..6 => {}
            6..8 => return self.rollback(&transaction).await,
            _ => return,
        }
        self.commit(&transaction).await;
    }

    /// Works until it is done or fenced.
    pub(super) async fn in_session(&self) {
        let name = format!("desk {}", self.random().random_range(0..DESKS));
        let Ok(session) = self.verdict.open_session(name.as_str()).await else { return };
        let epoch = session.reference().epoch;
        self.history().record(self.place, What::SessionOpened { name, epoch });
        let times = self.random().random_range(1..=3);
        for _ in 0..times {
            let begun = if self.chance(0.5) { session.begin(TIMEOUT).await } else { Ok(session.transaction()) };
            let Ok(transaction) = begun else { return };
            self.commit(&self.delegate(self.order(transaction))).await;
        }
    }
}
