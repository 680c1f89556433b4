//! A participant's one row: a lock that transactions wait for in line, and a disk that takes [`FSYNC`] a write.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    sync::{Mutex as Lock, OwnedMutexGuard},
    time::sleep,
};

use super::{
    FSYNC,
    seen::{Seen, What},
};

/// The row of one participant, locked by transactions of which `K` is the name. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Row<K> {
    participant: usize,
    seen: Seen,
    lock: Arc<Lock<()>>,
    holders: Arc<Mutex<BTreeMap<K, OwnedMutexGuard<()>>>>,
}

impl<K: Copy + Ord> Row<K> {
    pub(super) fn new(participant: usize, seen: Seen) -> Self {
        Self { participant, seen, lock: Arc::default(), holders: Arc::default() }
    }

    fn holders<T>(&self, with: impl FnOnce(&mut BTreeMap<K, OwnedMutexGuard<()>>) -> T) -> T {
        with(&mut self.holders.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn force(&self) {
        sleep(FSYNC).await;
        self.seen.add(What::Forced);
    }

    /// Locks the row for a transaction, and forces PREPARED; or, if it votes NO, lets go of it at once. A repeat has
    /// nothing more to do.
    pub(super) async fn prepare(&self, transaction: K, yes: bool) {
        if self.holders(|holders| holders.contains_key(&transaction)) {
            return;
        }
        let guard = Arc::clone(&self.lock).lock_owned().await;
        self.seen.add(What::Locked(self.participant));
        if yes {
            self.holders(|holders| holders.insert(transaction, guard));
            self.force().await;
        } else {
            drop(guard);
            self.seen.add(What::Free(self.participant));
        }
    }

    /// Forces the outcome and lets go of the row. A repeat has nothing more to do.
    pub(super) async fn settle(&self, transaction: K) {
        if !self.holders(|holders| holders.contains_key(&transaction)) {
            return;
        }
        self.force().await;
        if self.holders(|holders| holders.remove(&transaction)).is_some() {
            self.seen.add(What::Free(self.participant));
        }
    }
}
