//! What clients say.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use verdict_client::wire::ToWire as _;
use verdict_proto::v1::{
    BeginRequest, BranchCredential, CommitRequest, EnlistRequest, GetRequest, ListRequest, ListResponse,
    RollbackRequest, TransactionStatus, WatchRequest, transactions_server::Transactions,
};
use verdict_protocol::{self as protocol, BranchId, BranchNumber, Key, Reason, ReasonCode, Refusal, Reply, Xid};

use super::{
    failure::Failure,
    route::{Call, Front},
    watch::Events,
};
use crate::wire;

/// Transactions on a page, where List does not say.
const PAGE: usize = 100;
/// And at most.
const LONGEST_PAGE: usize = 1_000;

#[derive(Debug)]
pub(super) struct Service(pub(super) Arc<Front>);

#[tonic::async_trait]
impl Transactions for Service {
    type WatchStream = Events;

    async fn begin(&self, request: Request<BeginRequest>) -> Result<Response<TransactionStatus>, Status> {
        self.0.route(request.into_inner()).await
    }

    async fn enlist(&self, request: Request<EnlistRequest>) -> Result<Response<TransactionStatus>, Status> {
        self.0.route(request.into_inner()).await
    }

    async fn commit(&self, request: Request<CommitRequest>) -> Result<Response<TransactionStatus>, Status> {
        self.0.route(request.into_inner()).await
    }

    async fn rollback(&self, request: Request<RollbackRequest>) -> Result<Response<TransactionStatus>, Status> {
        self.0.route(request.into_inner()).await
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<TransactionStatus>, Status> {
        self.0.route(request.into_inner()).await
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        self.0.route(request.into_inner()).await
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Events>, Status> {
        self.0.watch(request.into_inner())
    }
}

impl Call for BeginRequest {
    const KIND: u32 = 1;
    type Reply = TransactionStatus;

    async fn serve(self, front: &Front) -> Result<TransactionStatus, Failure> {
        let xid = wire::xid(&self.xid).map_err(Failure::Invalid)?;
        let timeout_ms = front.timeout_ms(self.timeout_ms)?;
        let key = wire::key(self.key).map_err(Failure::Invalid)?;
        let session = wire::session(self.session).map_err(Failure::Invalid)?;
        let begin = protocol::Request::Begin { xid, timeout_ms, key: key.clone(), session };
        match front.change(xid, begin).await {
            Err(Failure::Refused(Refusal::KeyTaken { holder })) => Ok(front.status_under(key.as_ref(), holder)),
            answered => answered,
        }
    }
}

impl Call for EnlistRequest {
    const KIND: u32 = 2;
    type Reply = TransactionStatus;

    async fn serve(self, front: &Front) -> Result<TransactionStatus, Failure> {
        let xid = wire::xid(&self.xid).map_err(Failure::Invalid)?;
        if self.branches.is_empty() {
            return Err(Failure::Invalid("branches: name at least one".to_owned()));
        }
        let branches = wire::new_branches(self.branches, |name| front.engine.knows(name)).map_err(Failure::Invalid)?;
        let timeout_ms = front.timeout_ms(0)?;
        let numbers: Vec<_> = branches.iter().map(|branch| branch.number).collect();
        let status = front.change(xid, protocol::Request::Enlist { xid, branches, timeout_ms }).await?;
        Ok(front.with_credentials(status, xid, numbers))
    }
}

impl Call for CommitRequest {
    const KIND: u32 = 3;
    type Reply = TransactionStatus;

    async fn serve(self, front: &Front) -> Result<TransactionStatus, Failure> {
        let xid = wire::xid(&self.xid).map_err(Failure::Invalid)?;
        let knows = |name: &_| front.engine.knows(name);
        let admits = |number, credential: &[u8]| wire::admits(&front.engine, BranchId { xid, number }, credential);
        let branches = wire::listed_branches(self.branches, knows, admits).map_err(Failure::Invalid)?;
        let brought =
            branches.iter().filter(|listed| listed.vote.is_some()).map(|listed| listed.branch.number).collect();
        let session = wire::session(self.session).map_err(Failure::Invalid)?;
        let (default, most) = (millis(front.options.vote_timeout), millis(front.options.max_vote_timeout));
        let vote_timeout_ms = if self.vote_timeout_ms == 0 { default } else { self.vote_timeout_ms };
        if vote_timeout_ms > most {
            return Err(Failure::Invalid(format!(
                "vote_timeout_ms: {vote_timeout_ms} is above the {most} allowed: see timeouts.max_vote_ms"
            )));
        }
        let delegate = self.delegate;
        let commit = protocol::Request::Commit { xid, branches, vote_timeout_ms, delegate, session };
        let status = front.change(xid, commit).await?;
        Ok(front.with_credentials(status, xid, brought))
    }
}

impl Call for RollbackRequest {
    const KIND: u32 = 4;
    type Reply = TransactionStatus;

    async fn serve(self, front: &Front) -> Result<TransactionStatus, Failure> {
        let xid = wire::xid(&self.xid).map_err(Failure::Invalid)?;
        let text = if self.reason.is_empty() { "the client rolled back".to_owned() } else { self.reason };
        let reason = Reason::new(ReasonCode::Rollback, text);
        front.change(xid, protocol::Request::Rollback { xid, reason }).await
    }
}

impl Call for GetRequest {
    const KIND: u32 = 5;
    type Reply = TransactionStatus;

    async fn serve(self, front: &Front) -> Result<TransactionStatus, Failure> {
        let xid = wire::xid(&self.xid).map_err(Failure::Invalid)?;
        front.read_barrier().await?;
        Ok(front.status(xid))
    }
}

impl Call for ListRequest {
    const KIND: u32 = 6;
    type Reply = ListResponse;

    async fn serve(self, front: &Front) -> Result<ListResponse, Failure> {
        let after = match self.after_xid.as_ref() {
            [] => None,
            bytes => Some(wire::xid(bytes).map_err(|error| Failure::Invalid(format!("after_xid: {error}")))?),
        };
        let limit = match usize::try_from(self.limit) {
            Ok(0) => PAGE,
            Ok(limit) => limit.min(LONGEST_PAGE),
            Err(_) => LONGEST_PAGE,
        };
        front.read_barrier().await?;
        let now = front.engine.now();
        Ok(front.engine.read(|ledger, coordinator| {
            let mut found = ledger.open_after(after).filter(|(_, open)| {
                (!self.in_doubt || open.is_in_doubt()) && wire::age_ms(ledger, open) >= self.older_than_ms
            });
            let transactions =
                found.by_ref().take(limit).map(|(xid, _)| wire::status(ledger, coordinator, now, xid)).collect();
            ListResponse { transactions, more: found.next().is_some() }
        }))
    }
}

impl Front {
    /// Changes something and answers the transaction's status after it.
    pub(super) async fn change(&self, xid: Xid, request: protocol::Request) -> Result<TransactionStatus, Failure> {
        match self.request(request).await? {
            Reply::Decided { .. } | Reply::Done { .. } | Reply::Order { .. } | Reply::Session { .. } => {
                Ok(self.status(xid))
            }
            Reply::Refused(refusal) => Err(Failure::Refused(refusal)),
            Reply::Interrupted | Reply::NotLeader => Err(Failure::Interrupted),
        }
    }

    /// A status with what shows that the one who hears it may speak for these branches.
    fn with_credentials(
        &self,
        mut status: TransactionStatus,
        xid: Xid,
        numbers: Vec<BranchNumber>,
    ) -> TransactionStatus {
        self.engine.read(|ledger, _| {
            status.credentials = numbers
                .into_iter()
                .filter_map(|number| {
                    let credential = ledger.credential(BranchId { xid, number })?.to_wire();
                    Some(BranchCredential { number, credential })
                })
                .collect();
        });
        status
    }

    fn status(&self, xid: Xid) -> TransactionStatus {
        let now = self.engine.now();
        self.engine.read(|ledger, coordinator| wire::status(ledger, coordinator, now, xid))
    }

    /// The status of the transaction that has the key. Its outcome may be forgotten: then the key knows that it committed.
    fn status_under(&self, key: Option<&Key>, holder: Xid) -> TransactionStatus {
        let now = self.engine.now();
        self.engine.read(|ledger, coordinator| {
            let committed = key.and_then(|key| ledger.key_holder(key)).and_then(|(_, outcome)| outcome);
            wire::status_as(ledger, coordinator, now, holder, committed)
        })
    }

    fn timeout_ms(&self, asked: u64) -> Result<u64, Failure> {
        let rules = self.engine.read(|ledger, _| *ledger.rules());
        let most = rules.longest_lifetime_ms;
        match asked {
            0 => Ok(millis(self.options.timeout).min(rules.max_lifetime_ms)),
            asked if asked <= most => Ok(asked),
            asked => Err(Failure::Invalid(format!(
                "timeout_ms: {asked} is above the {most} that a transaction may live: see retention.longest_lifetime_ms"
            ))),
        }
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
