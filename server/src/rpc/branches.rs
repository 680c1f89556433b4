//! What branches say of themselves.

use std::sync::Arc;

use tonic::{Request, Response, Status, Streaming};
use verdict_client::wire::ToWire as _;
use verdict_proto::v1::{
    BranchOrder, InquireRequest, ReportSettledRequest, ReportSettledResponse, Up, VoteRequest,
    branches_server::Branches,
};
use verdict_protocol::{self as protocol, BranchId, Order, Refusal, Reply};

use super::{
    attach::Downs,
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
    type AttachStream = Downs;

    async fn vote(&self, request: Request<VoteRequest>) -> Result<Response<BranchOrder>, Status> {
        self.0.route(request.into_inner()).await
    }

    async fn report_settled(
        &self,
        request: Request<ReportSettledRequest>,
    ) -> Result<Response<ReportSettledResponse>, Status> {
        self.0.route(request.into_inner()).await
    }

    async fn inquire(&self, request: Request<InquireRequest>) -> Result<Response<BranchOrder>, Status> {
        self.0.route(request.into_inner()).await
    }

    async fn attach(&self, request: Request<Streaming<Up>>) -> Result<Response<Downs>, Status> {
        self.0.attach(request.into_inner()).await
    }
}

impl Call for VoteRequest {
    const KIND: u32 = 7;
    type Reply = BranchOrder;

    async fn serve(self, front: &Front) -> Result<BranchOrder, Failure> {
        let branch = wire::branch_id(self.branch).map_err(Failure::Invalid)?;
        let (vote, reason) = wire::vote(self.vote, self.reason).map_err(Failure::Invalid)?;
        front.admits(branch, &self.credential)?;
        front.order(protocol::Request::Vote { branch, vote, reason }).await
    }
}

impl Call for ReportSettledRequest {
    const KIND: u32 = 30;
    type Reply = ReportSettledResponse;

    async fn serve(self, front: &Front) -> Result<ReportSettledResponse, Failure> {
        let xid = wire::xid(&self.xid).map_err(Failure::Invalid)?;
        let mut branches = Vec::new();
        for settled in self.branches {
            front.admits(BranchId { xid, number: settled.number }, &settled.credential)?;
            let settlement = wire::settlement(settled.settlement).map_err(Failure::Invalid)?;
            branches.push((settled.number, settlement));
        }
        // "Not decided" must not come from a leader that is none any more.
        if front.engine.read(|ledger, _| ledger.outcome(xid)).is_none() {
            front.read_barrier().await?;
        }
        match front.request(protocol::Request::ReportSettled { xid, branches }).await? {
            Reply::Refused(refusal) => Err(Failure::Refused(refusal)),
            Reply::Done { .. } => Ok(ReportSettledResponse {}),
            Reply::Order { .. }
            | Reply::Decided { .. }
            | Reply::Session { .. }
            | Reply::Interrupted
            | Reply::NotLeader => Err(Failure::Interrupted),
        }
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
    /// Only who was handed the branch's credential speaks for it. Judged where the command is applied, also for a call that
    /// another node forwarded; the answer never changes, so it need not be judged again in the log.
    fn admits(&self, branch: BranchId, credential: &[u8]) -> Result<(), Failure> {
        if wire::admits(&self.engine, branch, credential) {
            Ok(())
        } else {
            Err(Failure::Refused(Refusal::Forbidden { number: branch.number }))
        }
    }

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
