//! Clients that work on databases: they prepare in sessions of their own, bring the votes with their evidence along, and
//! settle; or die, or vanish, at any point of that.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use verdict_client::{
    Branch, LocalBranch,
    participant::{NotAnswered, Settled, Voted},
    resource::xa::BranchName,
};
use verdict_protocol::{BranchId, Outcome, Reason, Xid};

use super::Lane;
use crate::{history::What, vault::Connection, world::bank_of};

/// A session on a database, whose branch has voted.
#[derive(Debug)]
struct VaultSession {
    lane: Lane,
    connection: Arc<Connection>,
    name: BranchName,
    voted: Voted,
}

impl Lane {
    /// Moves something between databases, and participants of other kinds.
    pub(super) async fn drive_vaults(&self) {
        let plan = &self.shared.plan;
        let xid = self.order_at(self.verdict.transaction(), plan.banks + plan.databases).xid();
        // Whoever takes it up must list what was listed, the evidence too.
        self.shared.work.withhold(xid);
        let ordered = self.shared.work.ordered(xid);
        let sessions = join_all(ordered.iter().map(|branch| self.prepares_at_vault(xid, branch))).await;
        let mut transaction = self.verdict.resume(xid);
        let mut listed = Vec::new();
        for (branch, session) in ordered.into_iter().zip(sessions) {
            let (number, evidence) = (branch.number, session.as_ref().map(|(_, evidence)| evidence.clone()));
            let branch = Branch { payload: evidence.unwrap_or_else(|| branch.payload.clone()), ..branch };
            transaction.add_branch(branch.clone()).expect("the numbers differ");
            match session {
                Some((session, _)) => transaction.drive(number, Arc::new(session)).expect("it was just added"),
                None => self.drives(&mut transaction, &branch),
            }
            listed.push(branch);
        }
        self.shared.work.list(xid, listed);
        if self.chance(0.06) {
            return;
        }
        if self.chance(0.06) {
            return self.rollback(&transaction).await;
        }
        self.commit(&transaction).await;
    }

    /// None: the branch is not a database's.
    async fn prepares_at_vault(&self, xid: Xid, branch: &Branch) -> Option<(VaultSession, Bytes)> {
        let vault = self.shared.vaults.get(&bank_of(&branch.resource))?;
        let connection = Connection::open(vault);
        let id = BranchId { xid, number: branch.number };
        let Some(cluster) = self.shared.cluster() else {
            let voted = Voted::refused(Reason::refused("the cluster has no name yet", "", true));
            let name = BranchName { cluster: verdict_protocol::ClusterId([0; 16]), branch: id };
            return Some((VaultSession { lane: self.clone(), connection, name, voted }, Bytes::new()));
        };
        let name = BranchName { cluster, branch: id };
        let prepared = connection.prepare(&self.shared, name, branch.payload.clone()).await;
        let (voted, evidence) = prepared.unwrap_or_else(|error| {
            (Voted::refused(Reason::refused(format!("not known to be prepared: {error}"), "", true)), Bytes::new())
        });
        Some((VaultSession { lane: self.clone(), connection, name, voted }, evidence))
    }
}

#[tonic::async_trait]
impl LocalBranch for VaultSession {
    async fn prepare(&self, _: BranchId) -> Result<Voted, NotAnswered> {
        Ok(self.voted.clone())
    }

    async fn settle(&self, branch: BranchId, outcome: Outcome) -> Result<Settled, NotAnswered> {
        self.connection.finish(&self.lane.shared, self.name, outcome).await?;
        self.lane.history().record(self.lane.place, What::Drove { branch });
        Ok(Settled::DONE)
    }
}
