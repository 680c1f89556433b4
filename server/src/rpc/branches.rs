//! What branches say of themselves.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use verdict_client::wire::ToWire as _;
use verdict_proto::v1::{BranchOrder, InquireRequest, VoteRequest, branches_server::Branches};
use verdict_protocol::{self as protocol, Order, Reply};

use super::{
    failure::Failure,
    route::{Call, Front},
};
use crate::wire;

/// When a branch that is still to wait asks again, in milliseconds.
const ASK_AGAIN_MS: u64 = 500;

#[derive(Debug)]
pub(super) struct Service(pub(super) Arc<Front>);

#[tonic::async_trait]
impl Branches for Service {
    async fn vote(&self, request: Request<VoteRequest>) -> Result<Response<BranchOrder>, Status> {
        self.0.route(request.into_inner()).await
    }

    async fn inquire(&self, request: Request<InquireRequest>) -> Result<Response<BranchOrder>, Status> {
        self.0.route(request.into_inner()).await
    }
}

impl Call for VoteRequest {
    const KIND: u32 = 7;
    type Reply = BranchOrder;

    async fn serve(self, front: &Front) -> Result<BranchOrder, Failure> {
        let branch = wire::branch_id(self.branch).map_err(Failure::Invalid)?;
        let (vote, reason) = wire::vote(self.vote, self.reason).map_err(Failure::Invalid)?;
        front.order(protocol::Request::Vote { branch, vote, reason }).await
    }
}

impl Call for InquireRequest {
    const KIND: u32 = 8;
    type Reply = BranchOrder;

    async fn serve(self, front: &Front) -> Result<BranchOrder, Failure> {
        let branch = wire::branch_id(self.branch).map_err(Failure::Invalid)?;
        // "Wait" must not come from a leader that is none any more: it would put the branch off for nothing.
        if front.engine.read(|ledger, _| ledger.order(branch)) == Order::Wait {
            front.read_barrier().await?;
        }
        front.order(protocol::Request::Inquire { branch, held_ms: self.held_ms }).await
    }
}

impl Front {
    async fn order(&self, request: protocol::Request) -> Result<BranchOrder, Failure> {
        match self.request(request).await? {
            Reply::Order { order, .. } => {
                Ok(wire::order(order, ASK_AGAIN_MS, self.engine.stamp().map(|stamp| stamp.to_wire())))
            }
            Reply::Refused(refusal) => Err(Failure::Refused(refusal)),
            Reply::Decided { .. }
            | Reply::Done { .. }
            | Reply::Session { .. }
            | Reply::Interrupted
            | Reply::NotLeader => Err(Failure::Interrupted),
        }
    }
}
