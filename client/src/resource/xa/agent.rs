//! Who settles what an application left prepared, by the cluster's word alone.
//!
//! ```text
//!   Recover ──▶ list, then probe ──▶ is it the database that was agreed upon?   no: nothing is presumed aborted there
//!   outcome ──▶ finish ──▶ not prepared? its fate, by the evidence that was listed or brought along ──▶ judge
//! ```
//!
//! Nothing is kept on a disk: whom to believe is learnt anew from the first message after a start, so an agent is told
//! by nobody but its own cluster's nodes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use verdict_protocol::{BranchId, ClusterId, Conclusion, Outcome, Reason};

use super::{BranchName, Fate, Finished, Identity, XaDatabase, judge, judge_fate};
use crate::participant::{
    Fence, NotAnswered, OnePhase, Prepare, Purpose, ResourceManager, Settle, Settled, Stamp, Voted,
};

/// Ends the prepared branches of one cluster in one database; those of others it does not see. It does no work of its
/// own: what an application has not prepared it refuses.
///
/// Databases keep no tombstones: a branch that is prepared after its rollback is found by the next sweep, and the cluster
/// asked about it.
#[derive(Debug)]
pub struct Agent<D: ?Sized> {
    known: Mutex<Known>,
    database: Arc<D>,
}

#[derive(Debug, Default)]
struct Known {
    fence: Fence,
    /// What the last look found prepared, with its evidence: one that is ended by others meanwhile can be judged by it.
    held: Arc<BTreeMap<BranchId, Bytes>>,
    /// As [`Identity`] writes itself: the database whose word counts.
    agreed: Option<String>,
    /// The one that the last look found.
    found: Option<Identity>,
}

impl Known {
    fn is_agreed(&self) -> bool {
        self.found.as_ref().is_none_or(|found| self.agreed.as_ref() == Some(&found.to_string()))
    }
}

impl<D: XaDatabase + ?Sized> Agent<D> {
    /// An agent of one cluster; none takes the one that speaks first. It takes the database that it finds first for the
    /// one that it is, unless [`Agent::expecting`] says which.
    #[must_use]
    pub fn new(database: Arc<D>, cluster: Option<ClusterId>) -> Self {
        let fence = Fence { cluster, ..Fence::default() };
        Self { known: Mutex::new(Known { fence, ..Known::default() }), database }
    }

    /// Names the database, as its [`Identity`] writes itself. At any other one nothing is presumed.
    #[must_use]
    pub fn expecting(self, identity: impl Into<String>) -> Self {
        self.known().agreed = Some(identity.into());
        self
    }

    #[must_use]
    pub fn database(&self) -> &Arc<D> {
        &self.database
    }

    /// Which cluster it belongs to, before it hears of it in a message.
    ///
    /// # Errors
    /// [`NotAnswered::WrongCluster`] if it belongs to another.
    pub fn belongs_to(&self, cluster: ClusterId) -> Result<(), NotAnswered> {
        match *self.known().fence.cluster.get_or_insert(cluster) {
            own if own == cluster => Ok(()),
            own => Err(NotAnswered::WrongCluster { own, other: cluster }),
        }
    }

    /// Looks whether it is still the database that was agreed upon.
    ///
    /// # Errors
    /// [`NotAnswered`] if the database can't be asked.
    pub async fn probe(&self) -> Result<(), NotAnswered> {
        let found = self.database.probe().await?;
        self.finds(found);
        Ok(())
    }

    /// Nothing panics while it is held.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, stamp: &Stamp, branch: BranchId, purpose: Purpose) -> Result<BranchName, NotAnswered> {
        self.known().fence.admit(stamp, purpose)?;
        Ok(BranchName { cluster: stamp.cluster, branch })
    }

    async fn settle(&self, request: Settle, outcome: Outcome) -> Result<Settled, NotAnswered> {
        let name = self.admit(&request.stamp, request.branch, Purpose::Outcome)?;
        let listed = self.known().held.get(&request.branch).cloned().unwrap_or_default();
        let evidence = if request.payload.is_empty() { &listed } else { &request.payload };
        let finished = self.database.finish(name, outcome, evidence).await?;
        match judge(name, outcome, finished) {
            Some(judged) => judged,
            None => judge_fate(name, outcome, self.fate(name, [&listed, &request.payload]).await?),
        }
    }

    /// What this agent saw itself goes before what was brought along.
    async fn fate(&self, name: BranchName, evidence: [&Bytes; 2]) -> Result<Fate, NotAnswered> {
        // Of another database's transactions this one knows nothing, though it may have some of the same number.
        if !self.known().is_agreed() {
            return Ok(Fate::Unknown);
        }
        for evidence in evidence {
            if !evidence.is_empty() {
                let fate = self.database.fate(name, evidence).await?;
                if fate != Fate::Unknown {
                    return Ok(fate);
                }
            }
        }
        Ok(Fate::Unknown)
    }

    fn finds(&self, found: Identity) {
        let mut known = self.known();
        if known.found.as_ref() == Some(&found) {
            return;
        }
        let agreed = known.agreed.get_or_insert_with(|| found.to_string()).clone();
        if agreed == found.to_string() {
            tracing::info!(database = ?self.database, identity = %found, "the database that it is to be");
        } else {
            tracing::error!(
                database = ?self.database, %agreed, %found,
                "the database is another one, was failed over or restored: it may have lost what it acknowledged. Nothing \
                 is presumed aborted there until an operator agrees to the new identity"
            );
        }
        known.found = Some(found);
    }
}

#[tonic::async_trait]
impl<D: XaDatabase + ?Sized> ResourceManager for Agent<D> {
    /// The vote of a branch that its application prepared, and did not come to bring along. Late or doubled, it says what
    /// is so now: REFUSED once the branch has ended, which nobody counts any more.
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        let name = self.admit(&request.stamp, request.branch, Purpose::Promise)?;
        if self.database.holds(name).await? {
            return Ok(Voted::PREPARED);
        }
        Ok(Voted::refused(Reason::refused("its application has not prepared it", "", true)))
    }

    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.settle(request, Outcome::Committed).await
    }

    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.settle(request, Outcome::Aborted).await
    }

    /// Never commits: an agent has no work to do.
    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        let name = self.admit(&request.stamp, request.branch, Purpose::Outcome)?;
        if self.database.finish(name, Outcome::Aborted, &request.payload).await? == Finished::InSession {
            return Err(NotAnswered::unavailable(format!("{name} can't be ended as long as its session is connected")));
        }
        let why = "a database that its application prepares can't be the one that decides";
        Ok(Conclusion::Fenced(Some(Reason::refused(why, "", false))))
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        let Some(cluster) = self.known().fence.cluster else {
            return Err(NotAnswered::unavailable("the agent has not been told yet which cluster it belongs to"));
        };
        // In this order: what was listed at the database after a failover is never taken for that of the one before.
        let held = self.database.list_prepared(cluster, limit).await?;
        self.probe().await?;
        self.known().held = Arc::new(held.iter().map(|held| (held.branch, held.evidence.clone())).collect());
        Ok(held.into_iter().map(|held| held.branch).collect())
    }

    fn presumes(&self) -> bool {
        self.known().is_agreed()
    }
}

#[cfg(test)]
mod tests;
