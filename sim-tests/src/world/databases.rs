//! A node's way to a database, which can be cut; and what the database said to its agent.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::sleep;
use verdict_client::{
    participant::NotAnswered,
    resource::xa::{BranchName, Fate, Finding, Finished, Held, Identity, XaDatabase},
};
use verdict_protocol::{ClusterId, Outcome, ResourceName, Settlement};
use verdict_server::Databases;

use super::{ELECTION_MOST, Shared, Timeline, bank_name, links::HANGS};
use crate::{
    history::{What, now},
    plan::Place,
    vault::Vault,
};

/// All databases, as this node reaches them.
pub(super) fn reached_by(node: u64, shared: &Arc<Shared>) -> Databases {
    let reached = |(bank, vault): (&usize, &Vault)| -> (ResourceName, Arc<dyn XaDatabase>) {
        let (place, vault) = (Place::Bank(*bank), vault.clone());
        (bank_name(*bank), Arc::new(Reached { node: Place::Node(node), place, vault, shared: Arc::clone(shared) }))
    };
    shared.vaults.iter().map(reached).collect()
}

struct Reached {
    node: Place,
    place: Place,
    vault: Vault,
    shared: Arc<Shared>,
}

impl Reached {
    /// One way or the other: a connection that is cut does not answer.
    async fn way(&self) -> Result<(), NotAnswered> {
        let Self { node, place, vault, shared } = self;
        if !vault.is_up() {
            return Err(NotAnswered::unavailable("the database is down"));
        }
        if shared.sky.is_cut(*node, *place) || shared.sky.is_cut(*place, *node) {
            sleep(HANGS).await;
            return Err(NotAnswered::unavailable("the database does not answer"));
        }
        Ok(())
    }

    /// Asks, and if it takes longer than any election timeout says so in the timeline, heard or given up.
    async fn timed<T>(&self, asked: impl Future<Output = T>) -> T {
        let _taken = Taken { place: self.place, since: now(), timeline: &self.shared.timeline };
        asked.await
    }

    /// The agent may take it for an acknowledgement.
    fn acknowledges(&self, name: BranchName, outcome: Outcome) {
        let settled = What::Settled { branch: name.branch, outcome, settlement: Settlement::Done };
        self.shared.history.record(self.place, settled);
    }
}

struct Taken<'a> {
    place: Place,
    since: Duration,
    timeline: &'a Timeline,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if now() - self.since > ELECTION_MOST {
            self.timeline.slow(self.place, self.since);
        }
    }
}

#[tonic::async_trait]
impl XaDatabase for Reached {
    async fn probe(&self) -> Result<Identity, NotAnswered> {
        self.way().await?;
        self.timed(self.vault.probe()).await
    }

    async fn check(&self) -> Result<Vec<Finding>, NotAnswered> {
        self.vault.check().await
    }

    async fn list_prepared(&self, cluster: ClusterId, limit: usize) -> Result<Vec<Held>, NotAnswered> {
        self.way().await?;
        self.timed(self.vault.list_prepared(cluster, limit)).await
    }

    async fn holds(&self, name: BranchName) -> Result<bool, NotAnswered> {
        self.way().await?;
        self.timed(self.vault.holds(name)).await
    }

    async fn finish(&self, name: BranchName, outcome: Outcome, evidence: &[u8]) -> Result<Finished, NotAnswered> {
        self.way().await?;
        let finished = self.timed(self.vault.finish(name, outcome, evidence)).await?;
        match (finished, outcome) {
            (Finished::Done, outcome) => {
                self.shared.history.record(self.place, What::LeftBehind { branch: name.branch });
                self.acknowledges(name, outcome);
            }
            (Finished::NotPrepared, Outcome::Aborted) => self.acknowledges(name, outcome),
            (Finished::NotPrepared | Finished::InSession | Finished::RolledBack, _) => {}
        }
        Ok(finished)
    }

    async fn fate(&self, name: BranchName, evidence: &[u8]) -> Result<Fate, NotAnswered> {
        self.way().await?;
        let fate = self.timed(self.vault.fate(name, evidence)).await?;
        if fate == Fate::Committed {
            self.acknowledges(name, Outcome::Committed);
        }
        Ok(fate)
    }
}

impl fmt::Debug for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reached").field("node", &self.node).field("vault", &self.vault).finish_non_exhaustive()
    }
}
