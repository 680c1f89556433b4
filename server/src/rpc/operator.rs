//! What operators ask for.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use tracing::warn;
use verdict_client::wire::ToWire as _;
use verdict_proto::v1::{
    ClusterStatusRequest, ClusterStatusResponse, ForgetRequest, NodeStatus, ResolveRequest, TransactionStatus,
    TransferLeaderRequest, TransferLeaderResponse, operator_server::Operator,
};
use verdict_protocol as protocol;
use verdict_raft_log::NodeId;

use super::{
    failure::Failure,
    route::{Call, Front},
};
use crate::{engine::INCARNATION, wire};

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

    async fn resolve(&self, request: Request<ResolveRequest>) -> Result<Response<TransactionStatus>, Status> {
        self.0.route(request.into_inner()).await
    }

    async fn forget(&self, request: Request<ForgetRequest>) -> Result<Response<TransactionStatus>, Status> {
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

impl Call for ResolveRequest {
    const KIND: u32 = 10;
    type Reply = TransactionStatus;

    async fn serve(self, front: &Front) -> Result<TransactionStatus, Failure> {
        let xid = wire::xid(&self.xid).map_err(Failure::Invalid)?;
        let word = wire::word(self.word).map_err(Failure::Invalid)?;
        let resolution = wire::resolution(self.resolution).map_err(Failure::Invalid)?;
        warn!(%xid, ?resolution, %word, force = self.force, "an operator resolves");
        front.change(xid, protocol::Request::Resolve { xid, resolution, word, force: self.force }).await
    }
}

impl Call for ForgetRequest {
    const KIND: u32 = 11;
    type Reply = TransactionStatus;

    async fn serve(self, front: &Front) -> Result<TransactionStatus, Failure> {
        let xid = wire::xid(&self.xid).map_err(Failure::Invalid)?;
        let word = wire::word(self.word).map_err(Failure::Invalid)?;
        warn!(%xid, %word, force = self.force, "an operator lets a transaction be forgotten");
        front.change(xid, protocol::Request::Forget { xid, word, force: self.force }).await
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
