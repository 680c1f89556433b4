//! What operators ask for.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use verdict_client::wire::ToWire as _;
use verdict_proto::v1::{
    ClusterStatusRequest, ClusterStatusResponse, NodeStatus, TransferLeaderRequest, TransferLeaderResponse,
    operator_server::Operator,
};
use verdict_raft_log::NodeId;

use super::{
    failure::Failure,
    route::{Call, Front},
};
use crate::engine::INCARNATION;

#[derive(Debug)]
pub(super) struct Service(pub(super) Arc<Front>);

#[tonic::async_trait]
impl Operator for Service {
    /// Answered by the node that was asked, as it sees the cluster: also when there is no leader.
    async fn cluster_status(
        &self,
        _: Request<ClusterStatusRequest>,
    ) -> Result<Response<ClusterStatusResponse>, Status> {
        Ok(Response::new(self.0.cluster_status()))
    }

    async fn transfer_leader(
        &self,
        request: Request<TransferLeaderRequest>,
    ) -> Result<Response<TransferLeaderResponse>, Status> {
        self.0.route(request.into_inner()).await
    }
}

impl Call for TransferLeaderRequest {
    const KIND: u32 = 9;
    type Reply = TransferLeaderResponse;

    async fn serve(self, front: &Front) -> Result<TransferLeaderResponse, Failure> {
        let to = (self.to != 0).then_some(NodeId(self.to));
        if to == Some(front.options.node) {
            return Ok(TransferLeaderResponse { leader: self.to });
        }
        front.replica.transfer_leadership(to).await?;
        Ok(TransferLeaderResponse { leader: front.replica.status().leader.map_or(0, |leader| leader.0) })
    }
}

impl Front {
    fn cluster_status(&self) -> ClusterStatusResponse {
        let status = self.replica.status();
        let nodes = status.members.iter().map(|member| NodeStatus {
            node: member.node.0,
            address: member.address.clone(),
            voter: member.voter,
            matched_index: member.matched.unwrap_or(0),
        });
        let log_time_ms = self.engine.now().as_millis();
        self.engine.read(|ledger, _| ClusterStatusResponse {
            node: self.options.node.0,
            leader: status.leader.map_or(0, |leader| leader.0),
            term: status.term,
            cluster: ledger.cluster().map(|cluster| cluster.to_wire()).unwrap_or_default(),
            incarnation: INCARNATION,
            nodes: nodes.collect(),
            last_index: status.last_index.unwrap_or(0),
            applied_index: status.applied.map_or(0, |applied| applied.index),
            log_time_ms,
            open_transactions: ledger.open_count() as u64,
            in_doubt: ledger.in_doubt_count(),
            ended_transactions: ledger.outcome_count() as u64,
        })
    }
}
