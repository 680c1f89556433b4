//! A transaction in its client's hands.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use verdict_proto::v1;
use verdict_protocol::{BranchId, BranchNumber, Credential, ResourceName, SessionRef, Xid};

use super::{Branch, CallError, Decision, Enlisted, LocalBranch, RefusalCode, Verdict, local::Driven};
use crate::{
    context::{Context, ContextError},
    participant::Voted,
    wire::{ToWire, millis},
};

/// A transaction in its client's hands: branches are added, then it is committed or rolled back.
///
/// The handle may be dropped at any time. A transaction that was never asked to commit is aborted by its timeout; one
/// that was is decided without its client.
#[derive(Debug)]
pub struct Transaction {
    pub(super) verdict: Verdict,
    pub(super) xid: Xid,
    branches: BTreeMap<BranchNumber, Branch>,
    /// Branches that this client prepares and settles itself.
    pub(super) driven: BTreeMap<BranchNumber, Driven>,
    credentials: Mutex<BTreeMap<BranchNumber, Credential>>,
    vote_timeout: Duration,
    delegate: Option<BranchNumber>,
    session: Option<SessionRef>,
    /// The last number that was handed out for a call.
    called: Option<BranchNumber>,
}

impl Transaction {
    /// The most bytes of a branch's payload.
    pub const MAX_PAYLOAD: usize = 4096;

    pub(super) fn new(verdict: Verdict, xid: Xid) -> Self {
        Self {
            verdict,
            xid,
            branches: BTreeMap::new(),
            driven: BTreeMap::new(),
            credentials: Mutex::default(),
            vote_timeout: Duration::ZERO,
            delegate: None,
            session: None,
            called: None,
        }
    }

    pub(super) fn under(self, session: SessionRef) -> Self {
        Self { session: Some(session), ..self }
    }

    #[must_use]
    pub fn xid(&self) -> Xid {
        self.xid
    }

    /// How long the branches may take to vote once commit is asked for. Zero takes the server's default.
    pub fn set_vote_timeout(&mut self, timeout: Duration) {
        self.vote_timeout = timeout;
    }

    /// Gives the decision to a branch: the only one, which then commits in one phase, or a last one that cannot prepare
    /// and commits once all others have promised. Nothing else decides from then on, so the transaction waits for that
    /// branch's database if it is away.
    pub fn decided_by(&mut self, number: BranchNumber) {
        self.delegate = Some(number);
    }

    /// Adds a branch, which commit will bring along: no call is made for it. Branches are numbered from 1.
    ///
    /// # Errors
    /// [`RefusalCode::Invalid`] for a payload over [`Transaction::MAX_PAYLOAD`].
    pub fn add(&mut self, resource: ResourceName, payload: Bytes) -> Result<BranchId, CallError> {
        let number = self.next_number();
        self.add_branch(Branch { number, resource, payload, vote: None })
    }

    /// Adds a branch with all that can be said of it: its number, and its vote if the client has prepared it itself.
    /// After a vote of PREPARED it must be left as it is until an outcome is known.
    ///
    /// # Errors
    /// [`RefusalCode::Mismatch`] if the number is taken by another branch, [`RefusalCode::Invalid`] for a payload
    /// over [`Transaction::MAX_PAYLOAD`].
    pub fn add_branch(&mut self, branch: Branch) -> Result<BranchId, CallError> {
        let refused = |code, text| Err(CallError::Refused { code, text });
        let number = branch.number;
        if branch.payload.len() > Self::MAX_PAYLOAD {
            let length = branch.payload.len();
            return refused(
                RefusalCode::Invalid,
                format!("branch {number}'s payload has {length} bytes, more than {}", Self::MAX_PAYLOAD),
            );
        }
        if self.called.is_some() && number > Context::MAX_STEP {
            let text = format!(
                "branch {number} may be that of a call of a call: {} are a transaction's own",
                Context::MAX_STEP
            );
            return refused(RefusalCode::Invalid, text);
        }
        if self.branches.get(&number).is_some_and(|known| *known != branch) {
            return refused(RefusalCode::Mismatch, format!("branch {number} is there already, and another one"));
        }
        self.branches.insert(number, branch);
        Ok(BranchId { xid: self.xid, number })
    }

    /// A context for a call to a service, which then enlists itself: the number of its branch is kept free. Commit does
    /// not list it: what is registered is part of the transaction. A call that is repeated goes in the same context. A
    /// transaction that is [resumed](Verdict::resume) does not know what it has handed out before.
    ///
    /// # Errors
    /// [`RefusalCode::Invalid`] once the transaction has handed out, or used itself, [`Context::MAX_STEP`] numbers.
    pub fn call(&mut self) -> Result<Context, CallError> {
        let number = self.next_number();
        let used_up = |error: ContextError| CallError::Refused { code: RefusalCode::Invalid, text: error.to_string() };
        if number > Context::MAX_STEP {
            return Err(used_up(ContextError::Step { step: number }));
        }
        let context = Context::new(self.xid, number).map_err(used_up)?;
        self.called = Some(number);
        Ok(context)
    }

    /// Says how a branch voted that this client has prepared itself; it is added or enlisted already. The client settles
    /// it too, and says so with [`Verdict::report_settled`]; if that takes too long, the cluster tells the branch.
    ///
    /// # Errors
    /// [`RefusalCode::UnknownBranch`] if there is no such branch.
    pub fn brings(&mut self, number: BranchNumber, voted: Voted) -> Result<(), CallError> {
        self.added(number)?.vote = Some(voted);
        Ok(())
    }

    /// Leaves a branch to this client, which has worked on it in a session of its own: commit prepares it there, brings
    /// its vote along, and settles it. It is added or enlisted already.
    ///
    /// # Errors
    /// [`RefusalCode::UnknownBranch`] if there is no such branch.
    pub fn drive(&mut self, number: BranchNumber, branch: Arc<dyn LocalBranch>) -> Result<(), CallError> {
        self.added(number)?;
        self.driven.insert(number, Driven::new(branch));
        Ok(())
    }

    fn added(&mut self, number: BranchNumber) -> Result<&mut Branch, CallError> {
        self.branches.get_mut(&number).ok_or_else(|| {
            let text = format!("there is no branch {number}: add it first");
            CallError::Refused { code: RefusalCode::UnknownBranch, text }
        })
    }

    /// Adds a branch and registers it with the cluster at once, so that it is rolled back if this client dies before
    /// it commits. On an error it stays added: commit brings it along.
    ///
    /// # Errors
    /// As [`Transaction::add`], and the call's own.
    pub async fn enlist(&mut self, resource: ResourceName, payload: Bytes) -> Result<Enlisted, CallError> {
        let branch = self.add(resource, payload)?;
        self.register(branch).await
    }

    /// As [`Transaction::enlist`], with a number of the caller's own.
    ///
    /// # Errors
    /// As [`Transaction::add_branch`], and the call's own.
    pub async fn enlist_as(
        &mut self,
        number: BranchNumber,
        resource: ResourceName,
        payload: Bytes,
    ) -> Result<Enlisted, CallError> {
        let branch = self.add_branch(Branch { number, resource, payload, vote: None })?;
        self.register(branch).await
    }

    async fn register(&self, branch: BranchId) -> Result<Enlisted, CallError> {
        let branches = self.branches.get(&branch.number).cloned().map(ToWire::to_wire).into_iter().collect();
        let credential = self.verdict.enlist(branch, branches).await?;
        self.credentials().insert(branch.number, credential);
        Ok(Enlisted { branch, credential })
    }

    /// Nothing panics while it is held.
    fn credentials(&self) -> MutexGuard<'_, BTreeMap<BranchNumber, Credential>> {
        self.credentials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn credential(&self, number: BranchNumber) -> Option<Credential> {
        self.credentials().get(&number).copied()
    }

    /// Closes the list of branches, has all of them prepared, and returns the one outcome. Branches that this client
    /// drives are prepared before, and settled after it.
    ///
    /// # Errors
    /// [`CallError::Unknown`] says nothing about the outcome: call it again, or [`Verdict::get`]. On
    /// [`CallError::Refused`] this commit is not taken; [`RefusalCode::Mismatch`] and [`RefusalCode::Expired`] leave
    /// open what an earlier one came to. Driven branches are then rolled back as soon as ABORTED is recorded.
    pub async fn commit(&self) -> Result<Decision, CallError> {
        if self.driven.is_empty() { self.close().await } else { self.commit_driven().await }
    }

    pub(super) async fn close(&self) -> Result<Decision, CallError> {
        let branches = self.branches.values().map(|branch| {
            let driven = self.driven.get(&branch.number);
            let (voted, payload) = (driven.and_then(Driven::voted), driven.and_then(Driven::payload));
            let branch = Branch {
                vote: voted.or_else(|| branch.vote.clone()),
                payload: payload.unwrap_or_else(|| branch.payload.clone()),
                ..branch.clone()
            };
            let credential = self.credential(branch.number).map(ToWire::to_wire).unwrap_or_default();
            v1::Branch { credential, ..branch.to_wire() }
        });
        let request = v1::CommitRequest {
            xid: self.xid.to_wire(),
            branches: branches.collect(),
            vote_timeout_ms: millis(self.vote_timeout),
            delegate: self.delegate,
            session: self.session.clone().map(ToWire::to_wire),
        };
        let (decision, credentials) = self.verdict.commit(self.xid, request, self.patience()).await?;
        self.credentials().extend(credentials);
        Ok(decision)
    }

    /// How long a commit may take.
    pub(super) fn patience(&self) -> Duration {
        self.verdict.deadline().saturating_add(self.vote_timeout)
    }

    /// Gives up. The answer is the recorded outcome, which may be COMMITTED if commit was asked for before: obey it.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub async fn rollback(&self, reason: impl Into<String>) -> Result<Decision, CallError> {
        if self.driven.is_empty() {
            self.verdict.rollback(self.xid, reason.into()).await
        } else {
            self.rollback_driven(reason.into()).await
        }
    }

    /// The number that [`Transaction::add`] gives next.
    pub(crate) fn next_number(&self) -> BranchNumber {
        let own = self.branches.last_key_value().map(|(number, _)| *number);
        own.max(self.called).map_or(1, |number| number.saturating_add(1))
    }
}
