//! What clients do beside the cluster: hold sessions of their own on the banks, look at single nodes; and, at the very
//! end, what the banks say of branches that nobody knows.

use verdict_client::{
    Verdict,
    participant::{Prepare, ResourceManager as _, Settle, Stamp},
};
use verdict_protocol::{BranchId, ClusterId, LogTime, Settlement, Vote, Xid};

use super::{BEGINNING_MS, Shared, bank_name, lock, teller::Teller};
use crate::{bank::Deed, history::now, plan::Place};

impl Shared {
    /// A session on a bank, and the newest stamp that any bank has heard; none before there is one.
    pub(crate) fn teller(&self, bank: usize) -> Option<(Teller, Stamp)> {
        let stamp = (*lock(&self.heard))?;
        Some((lock(&self.tellers).get(&bank)?.clone(), stamp))
    }

    /// The cluster's name, once somebody has heard it.
    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        lock(&self.heard).map(|stamp| stamp.cluster)
    }

    /// A client's handle at `place` that asks one node only.
    pub(crate) fn eye(&self, place: Place, node: u64) -> Verdict {
        self.verdict_of(place, node..=node).with_deadline(std::time::Duration::from_millis(2_500))
    }

    /// Tells each bank to commit a branch that it never heard of, and asks it to prepare one that it was told to roll
    /// back; what it answers wrongly.
    pub(crate) async fn ask_of_strangers(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let born = BEGINNING_MS.unsigned_abs() + u64::try_from(now().as_millis()).unwrap_or(0);
        for bank in 0..self.memories.len() {
            let Some((teller, stamp)) = self.teller(bank) else { continue };
            let (bank_number, resource) = (bank as u64, bank_name(bank));
            let of = |number| BranchId { xid: Xid::new(LogTime::from_millis(born), 0, bank_number), number };
            let settle = |number| {
                let resource = resource.clone();
                Settle { stamp, branch: of(number), resource, payload: bytes::Bytes::new() }
            };
            // Not by the teller: nobody is to take this for the cluster's word.
            let committed = teller.manager.commit(settle(1)).await;
            if committed.is_ok_and(|settled| settled.settlement == Settlement::Done) {
                wrong.push(format!("bank {bank} says that it committed a branch that it never heard of"));
            }
            drop(teller.manager.rollback(settle(2)).await);
            let (branch, payload) = (of(2), Deed::Append { list: 0 }.payload(0).into());
            let vote_timeout = std::time::Duration::ZERO;
            let request =
                Prepare { stamp, branch, resource: resource.clone(), payload, vote_timeout, credential: None };
            let voted = teller.manager.prepare(request).await;
            if voted.is_ok_and(|voted| voted.vote != Vote::Refused) {
                wrong.push(format!("bank {bank} prepares a branch that it was told to roll back"));
            }
        }
        // They hold all that they share.
        lock(&self.tellers).clear();
        wrong
    }
}
