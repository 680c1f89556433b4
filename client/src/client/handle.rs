//! The client's handle.

use std::{sync::Arc, time::Duration};

use verdict_proto::v1::{
    self, branches_client::BranchesClient, operator_client::OperatorClient, sessions_client::SessionsClient,
    transactions_client::TransactionsClient,
};
use verdict_protocol::{
    BranchId, BranchNumber, Credential, IdError, Key, Resolution, SessionName, SessionRef, Settlement, State, Word, Xid,
};

use super::{
    Begun, CallError, Clock, ClusterStatus, Decision, Enlisted, ListQuery, Options, OptionsError, Order, Page,
    RefusalCode, Session, Transaction, TransactionStatus,
    call::{Caller, NoAnswer},
};
use crate::{
    participant::Voted,
    wire::{FromWire, ToWire, WireError, millis},
};

/// Talks to a Verdict cluster. Cheap to clone; clones share the connections and what is known of the leader.
///
/// Every call may be repeated, since the cluster takes each once; this handle does so by itself, at one node after
/// another, until there is an answer or the deadline has passed. A timeout is never taken for an answer: it ends as
/// [`CallError::Unknown`]. Dropping a call's future does not undo what it asked for.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub(super) caller: Arc<Caller>,
    pub(super) deadline: Duration,
    clock: Arc<dyn Clock>,
}

impl Verdict {
    /// Connects lazily: no node needs to be up. Call it within a tokio runtime.
    ///
    /// # Errors
    /// [`OptionsError`] if there is no node or an address is none.
    pub fn new(options: Options) -> Result<Self, OptionsError> {
        let caller = Arc::new(Caller::new(&options)?);
        Ok(Self { caller, deadline: options.deadline, clock: options.clock })
    }

    /// This handle with another deadline for its calls.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// A new xid: the time, and random bits.
    #[must_use]
    pub fn new_xid(&self) -> Xid {
        // One group for now: groups are for clusters that split the work.
        Xid::new(self.clock.now(), 0, self.caller.random())
    }

    /// A new transaction, of which the cluster hears first with its first branch or its commit. The cheapest way.
    #[must_use]
    pub fn transaction(&self) -> Transaction {
        self.resume(self.new_xid())
    }

    /// A transaction whose xid is known, from a client that died or to ask again.
    #[must_use]
    pub fn resume(&self, xid: Xid) -> Transaction {
        Transaction::new(self.clone(), xid)
    }

    /// Registers a new transaction, to be aborted unless it is asked to commit within `timeout` (zero takes the
    /// server's default). A transaction that means to live for long is begun: others have to commit within
    /// `retention.lifetime_ms` of their birth.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn begin(&self, timeout: Duration) -> Result<Transaction, CallError> {
        let transaction = self.transaction();
        self.register(transaction.xid(), timeout, None, None).await?;
        Ok(transaction)
    }

    /// Begins once for this idempotency key: only one attempt at a time has the right to work under it, and none once one
    /// has committed. After an attempt was aborted the key is free. A key is 1 to 128 bytes of text, and is kept for
    /// `retention.keys_ms` after the commit.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn begin_once(&self, key: impl Into<String>, timeout: Duration) -> Result<Begun, CallError> {
        let transaction = self.transaction();
        let taken = self.register(transaction.xid(), timeout, Some(key_of(key.into())?), None).await?;
        Ok(taken.map_or(Begun::Ours(transaction), Begun::Taken))
    }

    /// Registers a transaction; what it returns is the one that has the key instead.
    pub(super) async fn register(
        &self,
        xid: Xid,
        timeout: Duration,
        key: Option<Key>,
        session: Option<&SessionRef>,
    ) -> Result<Option<TransactionStatus>, CallError> {
        let keyed = key.is_some();
        let request = v1::BeginRequest {
            xid: xid.to_wire(),
            timeout_ms: millis(timeout),
            key: key.map(String::from).unwrap_or_default(),
            session: session.cloned().map(ToWire::to_wire),
        };
        let read = |reply: v1::TransactionStatus| {
            let status = TransactionStatus::from_wire(reply.clone())?;
            match status.xid {
                own if own == xid => acknowledged(&reply).map(|()| None),
                _ if keyed => Ok(Some(status)),
                other => Err(NoAnswer::Again(format!("asked to begin {xid}, told about {other}"))),
            }
        };
        self.caller
            .call(
                self.deadline,
                request,
                |channel, request| async move { TransactionsClient::new(channel).begin(request).await },
                read,
            )
            .await
    }

    /// Opens a session for this instance: whoever worked under it before is fenced. What he had not asked to commit is
    /// aborted; this waits, within the deadline, until what he had is decided. A retry is the same instance; another handle
    /// is another one.
    ///
    /// # Errors
    /// [`CallError`]; [`RefusalCode::Fenced`] if yet another instance has opened it meanwhile.
    pub async fn open_session(&self, name: impl Into<String>) -> Result<Session, CallError> {
        let invalid = |error: IdError| CallError::Refused { code: RefusalCode::Invalid, text: error.to_string() };
        let name = SessionName::try_from(name.into()).map_err(invalid)?;
        let instance: Vec<u8> = [self.caller.random(), self.caller.random()].map(u64::to_be_bytes).concat();
        let request = v1::OpenSessionRequest { name: name.to_string(), instance: instance.into() };
        let epoch = self
            .caller
            .call(
                self.deadline,
                request,
                |channel, request| async move { SessionsClient::new(channel).open(request).await },
                |reply| Ok(reply.epoch),
            )
            .await?;
        Ok(Session::new(self.clone(), SessionRef { name, epoch }))
    }

    pub(super) async fn enlist(&self, branch: BranchId, branches: Vec<v1::Branch>) -> Result<Credential, CallError> {
        let request = v1::EnlistRequest { xid: branch.xid.to_wire(), branches };
        self.caller
            .call(
                self.deadline,
                request,
                |channel, request| async move { TransactionsClient::new(channel).enlist(request).await },
                |reply| {
                    acknowledged(&reply)?;
                    let mut credentials = credentials(&reply)?.into_iter();
                    let own = credentials.find(|(number, _)| *number == branch.number);
                    own.map(|(_, credential)| credential).ok_or(WireError::Missing { field: "credentials" }.into())
                },
            )
            .await
    }

    pub(super) async fn commit(
        &self,
        xid: Xid,
        request: v1::CommitRequest,
        within: Duration,
    ) -> Result<(Decision, Vec<(BranchNumber, Credential)>), CallError> {
        self.caller
            .call(
                within,
                request,
                |channel, request| async move { TransactionsClient::new(channel).commit(request).await },
                |reply| {
                    let credentials = credentials(&reply)?;
                    Ok((decision(xid, reply)?, credentials))
                },
            )
            .await
    }

    pub(super) async fn rollback(&self, xid: Xid, reason: String) -> Result<Decision, CallError> {
        let request = v1::RollbackRequest { xid: xid.to_wire(), reason };
        self.caller
            .call(
                self.deadline,
                request,
                |channel, request| async move { TransactionsClient::new(channel).rollback(request).await },
                |reply| decision(xid, reply),
            )
            .await
    }

    /// Looks a transaction up. Linearizable, on whichever node answers.
    ///
    /// # Errors
    /// [`CallError`]. A transaction that the cluster does not know is no error, but [`State::Unknown`]: its commit
    /// may still be on its way.
    pub async fn get(&self, xid: Xid) -> Result<TransactionStatus, CallError> {
        self.caller
            .call(
                self.deadline,
                v1::GetRequest { xid: xid.to_wire() },
                |channel, request| async move { TransactionsClient::new(channel).get(request).await },
                |reply| Ok(TransactionStatus::from_wire(reply)?),
            )
            .await
    }

    /// Lists transactions.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn list(&self, query: ListQuery) -> Result<Page, CallError> {
        let request = v1::ListRequest {
            limit: query.limit,
            in_doubt: query.in_doubt,
            older_than_ms: millis(query.older_than),
            after_xid: query.after.map(ToWire::to_wire).unwrap_or_default(),
        };
        self.caller
            .call(
                self.deadline,
                request,
                |channel, request| async move { TransactionsClient::new(channel).list(request).await },
                |reply| Ok(Page::from_wire(reply)?),
            )
            .await
    }

    /// Pushes a branch's vote, before, while or after its list is closed; answered when a majority has it.
    ///
    /// # Errors
    /// [`CallError`]; [`RefusalCode::Forbidden`] if this is not the branch's credential.
    pub async fn vote(&self, branch: Enlisted, voted: Voted) -> Result<Order, CallError> {
        let request = v1::VoteRequest {
            branch: Some(branch.branch.to_wire()),
            credential: branch.credential.to_wire(),
            vote: voted.vote.to_wire().into(),
            reason: voted.reason.map(ToWire::to_wire),
        };
        self.caller
            .call(
                self.deadline,
                request,
                |channel, request| async move { BranchesClient::new(channel).vote(request).await },
                |reply| Ok(Order::from_wire(reply)?),
            )
            .await
    }

    /// Says how branches of a transaction were settled whose votes this client had brought along. The cluster does not
    /// wait for it: without it, it tells the branches itself after `timeouts.settle_grace_ms`.
    ///
    /// # Errors
    /// [`CallError`]; [`RefusalCode::Undecided`] if there is no outcome yet.
    pub async fn report_settled(&self, xid: Xid, settled: Vec<(Enlisted, Settlement)>) -> Result<(), CallError> {
        let branches = settled.into_iter().map(|(Enlisted { branch, credential }, settlement)| v1::SettledBranch {
            number: branch.number,
            settlement: settlement.to_wire().into(),
            credential: credential.to_wire(),
        });
        let request = v1::ReportSettledRequest { xid: xid.to_wire(), branches: branches.collect() };
        self.caller
            .call(
                self.deadline,
                request,
                |channel, request| async move { BranchesClient::new(channel).report_settled(request).await },
                |_| Ok(()),
            )
            .await
    }

    /// Asks what to do with a branch that has been held prepared for `held`.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn inquire(&self, branch: BranchId, held: Duration) -> Result<Order, CallError> {
        let request = v1::InquireRequest { branch: Some(branch.to_wire()), held_ms: millis(held) };
        self.caller
            .call(
                self.deadline,
                request,
                |channel, request| async move { BranchesClient::new(channel).inquire(request).await },
                |reply| Ok(Order::from_wire(reply)?),
            )
            .await
    }

    /// The cluster as the node that answers sees it.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn cluster_status(&self) -> Result<ClusterStatus, CallError> {
        self.caller
            .call(
                self.deadline,
                v1::ClusterStatusRequest {},
                |channel, request| async move { OperatorClient::new(channel).cluster_status(request).await },
                |reply| Ok(ClusterStatus::from_wire(reply)?),
            )
            .await
    }

    /// Hands the leadership to node `to`, or to one that the leader chooses. Returns the new leader.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn transfer_leader(&self, to: Option<u64>) -> Result<u64, CallError> {
        self.caller
            .call(
                self.deadline,
                v1::TransferLeaderRequest { to: to.unwrap_or(0) },
                |channel, request| async move { OperatorClient::new(channel).transfer_leader(request).await },
                |reply| match reply.leader {
                    0 => Err(NoAnswer::Again("the transfer has not ended in a leader yet".to_owned())),
                    leader => Ok(leader),
                },
            )
            .await
    }

    /// Records an operator's word on what the protocol cannot settle by itself.
    ///
    /// # Errors
    /// [`CallError`]; [`RefusalCode::NeedsForce`] where it can break atomicity and `force` is not set.
    pub async fn resolve(
        &self,
        xid: Xid,
        resolution: Resolution,
        word: Word,
        force: bool,
    ) -> Result<TransactionStatus, CallError> {
        use v1::resolve_request::Resolution as Wire;
        let resolution = Some(match resolution {
            Resolution::Decide(outcome) => Wire::Outcome(outcome.to_wire().into()),
            Resolution::Settle { number, settlement } => {
                Wire::Branch(v1::BranchSettlement { number, settlement: settlement.to_wire().into() })
            }
        });
        let request = v1::ResolveRequest { xid: xid.to_wire(), word: Some(word.to_wire()), force, resolution };
        self.caller
            .call(
                self.deadline,
                request,
                |channel, request| async move { OperatorClient::new(channel).resolve(request).await },
                |reply| Ok(TransactionStatus::from_wire(reply)?),
            )
            .await
    }

    /// Stops showing a transaction whose branches are settled, some of them otherwise than decided.
    ///
    /// # Errors
    /// [`CallError`]; [`RefusalCode::NeedsForce`] where a branch has not acknowledged and `force` is not set.
    pub async fn forget(&self, xid: Xid, word: Word, force: bool) -> Result<TransactionStatus, CallError> {
        self.caller
            .call(
                self.deadline,
                v1::ForgetRequest { xid: xid.to_wire(), word: Some(word.to_wire()), force },
                |channel, request| async move { OperatorClient::new(channel).forget(request).await },
                |reply| Ok(TransactionStatus::from_wire(reply)?),
            )
            .await
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(crate) fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    pub(crate) fn jitter(&self, duration: Duration) -> Duration {
        self.caller.jitter(duration)
    }
}

pub(super) fn key_of(text: String) -> Result<Key, CallError> {
    let invalid = |error: IdError| CallError::Refused { code: RefusalCode::Invalid, text: error.to_string() };
    Key::try_from(text).map_err(invalid)
}

fn credentials(reply: &v1::TransactionStatus) -> Result<Vec<(BranchNumber, Credential)>, WireError> {
    let parse = |of: &v1::BranchCredential| Ok((of.number, Credential::from_wire(of.credential.as_ref())?));
    reply.credentials.iter().map(parse).collect()
}

/// Begin and Enlist: any state is an acknowledgement, except that there will be no transaction.
fn acknowledged(reply: &v1::TransactionStatus) -> Result<(), NoAnswer> {
    match State::from_wire(reply.state)? {
        State::Expired => Err(expired()),
        State::Unknown => Err(NoAnswer::Again("acknowledged, but the transaction is unknown".to_owned())),
        State::Active | State::Voting | State::Delegated | State::Decided | State::Ended => Ok(()),
    }
}

/// Commit and Rollback: only an outcome is an answer.
fn decision(asked: Xid, reply: v1::TransactionStatus) -> Result<Decision, NoAnswer> {
    let status = TransactionStatus::from_wire(reply)?;
    if status.xid != asked {
        return Err(NoAnswer::Again(format!("asked about {asked}, told about {}", status.xid)));
    }
    match (status.decision, status.state) {
        (Some(decision), _) => Ok(decision),
        (None, State::Expired) => Err(expired()),
        (None, State::Decided | State::Ended) => Err(WireError::Missing { field: "outcome" }.into()),
        (None, State::Active | State::Voting | State::Delegated | State::Unknown) => {
            Err(NoAnswer::Again(format!("the transaction is not decided yet: {:?}", status.state)))
        }
    }
}

fn expired() -> NoAnswer {
    let text = "the transaction will not commit from now on; whether it did is no longer kept";
    NoAnswer::Refused(RefusalCode::Expired, text.to_owned())
}
