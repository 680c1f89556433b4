//! Who belongs to the cluster.
//!
//! New nodes first receive the log without a ballot, until they have nearly all of it; then one change, through a
//! joint membership, gives and takes ballots. What was done stays done if a step fails or the leader changes; asking
//! again with the same members goes on from there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::BasicNode;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft_rt::watch::WatchReceiver;

use super::core::Running;
use super::machine::Machine;
use super::types::TypeConfig;
use crate::{MembersError, NodeId};

/// How long a new node may take to catch up, and a change to be settled.
const STEP_WITHIN: Duration = Duration::from_secs(60);

type Failed = RaftError<TypeConfig, ClientWriteError<TypeConfig>>;

/// Makes these the nodes that have ballots. The nodes that are not among them are told nothing more.
pub(crate) async fn change<M: Machine>(
    replica: &Running<M>,
    members: BTreeMap<NodeId, String>,
) -> Result<(), MembersError> {
    if members.is_empty() {
        return Err(MembersError::Refused("a cluster needs at least one member".to_owned()));
    }
    let known = replica.raft.metrics().borrow_watched().membership_config.clone();
    for (id, address) in &members {
        if known.get_node(&id.0).is_none() {
            let joins = replica.raft.add_learner(id.0, BasicNode::new(address), true);
            step(&format!("node {id} catching up"), joins).await?;
        }
    }
    let voters: BTreeSet<u64> = members.keys().map(|id| id.0).collect();
    step("the change of members", replica.raft.change_membership(voters, false)).await
}

async fn step<T>(what: &str, work: impl Future<Output = Result<T, Failed>>) -> Result<(), MembersError> {
    match tokio::time::timeout(STEP_WITHIN, work).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(refusal(error)),
        Err(_) => Err(MembersError::TimedOut { what: what.to_owned() }),
    }
}

fn refusal(error: Failed) -> MembersError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(to) | ClientWriteError::LogEntryDiscarded(to)) => {
            MembersError::NotLeader { leader: to.leader_id.map(NodeId) }
        }
        RaftError::APIError(ClientWriteError::ChangeMembershipError(ChangeMembershipError::InProgress(_))) => {
            MembersError::Refused("another change is under way; ask again when it is done".to_owned())
        }
        RaftError::APIError(other) => MembersError::Refused(other.to_string()),
        RaftError::Fatal(fatal) => MembersError::Stopped { reason: fatal.to_string() },
    }
}
