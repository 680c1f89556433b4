//! The conformance suite passes for the participants that we ship, and fails for ones with a seeded bug.

#![cfg(not(madsim))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use tonic::transport::{
    Endpoint,
    server::{Server, TcpIncoming},
};
use verdict_client::{
    BranchId, ClusterId, Conclusion, LogTime, Options, ResourceName, Settlement, Verdict, Vote,
    conformance::{self, Case, Effects, Failure, Subject},
    participant::{
        NotAnswered, OnePhase, ParticipantOptions, Participants, Prepare, RemoteParticipant, ResourceManager, Settle,
        Settled, Stamp, Voted, rules::Record,
    },
    resource::memory::Memory,
};
use verdict_proto::v1::participant_server::ParticipantServer;

use common::{Seats, seats_payload};

struct InMemory {
    memory: Memory<Seats>,
    manager: Arc<dyn ResourceManager>,
    bug: Option<Bug>,
}

impl InMemory {
    fn new(bug: Option<Bug>) -> Self {
        let memory = Memory::new(Seats::default());
        let manager = wrap(memory.open(), bug, &memory);
        Self { memory, manager, bug }
    }
}

#[tonic::async_trait]
impl Subject for InMemory {
    fn manager(&self) -> Arc<dyn ResourceManager> {
        self.manager.clone()
    }

    async fn restart(&mut self) {
        if self.bug == Some(Bug::VoteNotDurable) {
            self.memory = Memory::new(Seats::default());
        }
        self.manager = wrap(self.memory.open(), self.bug, &self.memory);
    }

    fn resource(&self) -> ResourceName {
        "seats".try_into().unwrap()
    }

    fn payload(&self, vote: Vote) -> Option<Bytes> {
        Some(seats_payload(vote))
    }

    async fn effects(&mut self) -> Effects {
        self.memory.ledger().effects()
    }

    async fn records(&mut self) -> u64 {
        self.memory.len() as u64
    }
}

/// The seeded bugs. `None` in their place must pass: that is M0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// M12
    CommitNotIdempotent,
    /// M13
    NoTombstone,
    /// M23
    UnknownCommitDone,
    /// M47
    UnknownPrepareReadOnly,
    VoteNotDurable,
    /// Settles at a message of any cluster, in any incarnation.
    BelievesAnybody,
    RefusesOutcomesOfOldTerms,
    ForgetsPayload,
    OnePhaseTwice,
    /// Drops a promise that the horizon has passed.
    ReapsPromises,
    /// Who voted READ_ONLY does the work when it is asked after a restart.
    ForgetsThatItOnlyRead,
    /// Drops what is finished, and tombstones, a day before the horizon.
    ForgetsTooEarly,
    /// Never hears of a horizon.
    KeepsForEver,
    /// A restored cluster, whose terms start again, is taken for a deposed leader.
    TermBeforeIncarnation,
    IncarnationNotDurable,
    BelievesDeposedLeaders,
    /// A fence is answered and not kept.
    FenceForgotten,
}

fn wrap(manager: impl ResourceManager, bug: Option<Bug>, memory: &Memory<Seats>) -> Arc<dyn ResourceManager> {
    match bug {
        None => Arc::new(manager),
        Some(bug) => {
            let seen = Mutex::default();
            Arc::new(Buggy { manager, bug, memory: memory.clone(), terms: Mutex::default(), seen })
        }
    }
}

#[derive(Debug)]
struct Buggy<M> {
    manager: M,
    bug: Bug,
    memory: Memory<Seats>,
    terms: Mutex<BTreeMap<ClusterId, u64>>,
    /// The newest incarnation, and what was asked to prepare: forgotten at a restart.
    seen: Mutex<(u64, BTreeSet<BranchId>)>,
}

impl<M> Buggy<M> {
    fn stamp(&self, stamp: Stamp) -> Stamp {
        match self.bug {
            Bug::BelievesAnybody => Stamp { cluster: ClusterId([0; 16]), incarnation: 1, term: 1, ..stamp },
            Bug::IncarnationNotDurable => Stamp { incarnation: 1, term: 1, ..stamp },
            Bug::BelievesDeposedLeaders => Stamp { term: 1, ..stamp },
            Bug::ForgetsTooEarly => Stamp { horizon: stamp.horizon.plus(86_400_000), ..stamp },
            Bug::KeepsForEver => Stamp { horizon: LogTime::default(), ..stamp },
            _ => stamp,
        }
    }

    fn stale(&self, stamp: &Stamp) -> Result<(), NotAnswered> {
        let mut terms = self.terms.lock().unwrap();
        let seen = terms.entry(stamp.cluster).or_default();
        if self.bug == Bug::RefusesOutcomesOfOldTerms && stamp.term < *seen {
            return Err(NotAnswered::StaleTerm { message: stamp.term, seen: *seen });
        }
        *seen = stamp.term.max(*seen);
        let incarnation = &mut self.seen.lock().unwrap().0;
        if self.bug == Bug::IncarnationNotDurable && stamp.incarnation < *incarnation {
            return Err(NotAnswered::StaleIncarnation { message: stamp.incarnation, seen: *incarnation });
        }
        *incarnation = stamp.incarnation.max(*incarnation);
        Ok(())
    }
}

#[tonic::async_trait]
impl<M: ResourceManager> ResourceManager for Buggy<M> {
    async fn prepare(&self, mut request: Prepare) -> Result<Voted, NotAnswered> {
        self.stale(&request.stamp)?;
        if self.bug == Bug::TermBeforeIncarnation
            && request.stamp.term < self.terms.lock().unwrap()[&request.stamp.cluster]
        {
            return Err(NotAnswered::StaleTerm { message: request.stamp.term, seen: u64::MAX });
        }
        request.stamp = self.stamp(request.stamp);
        if self.bug == Bug::ForgetsThatItOnlyRead && self.memory.record(request.branch) == Some(Record::ReadOnly) {
            return Ok(if self.seen.lock().unwrap().1.contains(&request.branch) {
                Voted::READ_ONLY
            } else {
                Voted::PREPARED
            });
        }
        self.seen.lock().unwrap().1.insert(request.branch);
        match self.manager.prepare(request).await {
            Ok(Voted { vote: Vote::Refused, .. }) if self.bug == Bug::UnknownPrepareReadOnly => Ok(Voted::READ_ONLY),
            voted => voted,
        }
    }

    async fn commit(&self, mut request: Settle) -> Result<Settled, NotAnswered> {
        self.stale(&request.stamp)?;
        request.stamp = self.stamp(request.stamp);
        let again = self.memory.record(request.branch).is_some();
        let empty = request.payload.is_empty();
        let settled = self.manager.commit(request).await?;
        match self.bug {
            Bug::CommitNotIdempotent if again => self.memory.change(|seats| seats.confirm_one()),
            Bug::ForgetsPayload if empty => self.memory.change(|seats| seats.confirmed = 0),
            Bug::UnknownCommitDone if settled.settlement == Settlement::HeuristicHazard => return Ok(Settled::DONE),
            _ => {}
        }
        Ok(settled)
    }

    async fn rollback(&self, mut request: Settle) -> Result<Settled, NotAnswered> {
        self.stale(&request.stamp)?;
        request.stamp = self.stamp(request.stamp);
        if self.bug == Bug::ReapsPromises {
            for branch in self.manager.recover(usize::MAX).await? {
                if branch.xid.birth() < request.stamp.horizon {
                    self.manager.rollback(Settle { branch, ..request.clone() }).await?;
                }
            }
        }
        if self.bug == Bug::NoTombstone && self.memory.record(request.branch).is_none() {
            return Ok(Settled::DONE);
        }
        self.manager.rollback(request).await
    }

    async fn commit_one_phase(&self, mut request: OnePhase) -> Result<Conclusion, NotAnswered> {
        request.stamp = self.stamp(request.stamp);
        let record = self.memory.record(request.branch);
        match self.bug {
            Bug::OnePhaseTwice if record.is_some() => self.memory.change(|seats| seats.confirm_one()),
            Bug::FenceForgotten if request.fence && record.is_none() => return Ok(Conclusion::Fenced(None)),
            _ => {}
        }
        self.manager.commit_one_phase(request).await
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        self.manager.recover(limit).await
    }
}

fn cases(result: Result<(), Vec<Failure>>) -> Vec<Case> {
    result.err().unwrap_or_default().into_iter().map(|failure| failure.case).collect()
}

#[tokio::test]
async fn m0_memory_conforms() {
    assert_eq!(conformance::run(async || InMemory::new(None)).await, Ok(()));
}

#[tokio::test]
async fn s22_a_prepare_that_is_retried_after_the_commit_has_no_effect() {
    assert_eq!(conformance::check(Case::PrepareAfterCommit, &mut InMemory::new(None)).await, Ok(()));
}

#[tokio::test]
async fn s23_a_marker_that_was_cleaned_away_lets_nothing_in() {
    assert_eq!(conformance::check(Case::ForgottenTombstone, &mut InMemory::new(None)).await, Ok(()));
}

#[tokio::test]
async fn seeded_bugs_are_caught() {
    for (bug, case) in [
        (Bug::CommitNotIdempotent, Case::CommitTwice),
        (Bug::NoTombstone, Case::RollbackBeforePrepare),
        (Bug::UnknownCommitDone, Case::UnknownCommit),
        (Bug::UnknownPrepareReadOnly, Case::BehindTheHorizon),
        (Bug::VoteNotDurable, Case::PreparedIsDurable),
        (Bug::BelievesAnybody, Case::AnotherCluster),
        (Bug::RefusesOutcomesOfOldTerms, Case::OutcomeOfAnOldTerm),
        (Bug::ForgetsPayload, Case::OutcomeWithoutPayload),
        (Bug::OnePhaseTwice, Case::OnePhaseCommitsOnce),
        (Bug::FenceForgotten, Case::FenceComesFirst),
        (Bug::ReapsPromises, Case::PreparedOutlivesTheHorizon),
        (Bug::ForgetsThatItOnlyRead, Case::ReadOnlyIsRemembered),
        (Bug::ForgetsTooEarly, Case::KeptUntilTheHorizon),
        (Bug::KeepsForEver, Case::RecordsAreDropped),
        (Bug::UnknownCommitDone, Case::ForgottenTombstone),
        (Bug::TermBeforeIncarnation, Case::OlderIncarnation),
        (Bug::IncarnationNotDurable, Case::OlderIncarnation),
        (Bug::BelievesDeposedLeaders, Case::PrepareOfAnOldTerm),
    ] {
        let failed = cases(conformance::run(async || InMemory::new(Some(bug))).await);
        assert!(failed.contains(&case), "{bug:?} should fail {case}, it failed {failed:?}");
    }
}

/// The same participant behind gRPC, on a real socket.
struct OverGrpc {
    inner: InMemory,
    participants: Option<Participants>,
    server: tokio::task::JoinHandle<()>,
    remote: Arc<RemoteParticipant>,
}

impl OverGrpc {
    fn new() -> Self {
        let inner = InMemory::new(None);
        let (participants, server, remote) = serve(&inner);
        Self { inner, participants: Some(participants), server, remote }
    }
}

fn serve(inner: &InMemory) -> (Participants, tokio::task::JoinHandle<()>, Arc<RemoteParticipant>) {
    // Nobody listens there: nothing is in doubt for long enough to ask.
    let verdict = Verdict::new(Options::new(["127.0.0.1:1"])).unwrap();
    let managers = [(inner.resource(), inner.manager())];
    let participants = Participants::start(managers, verdict, ParticipantOptions::default());
    let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().with_nodelay(Some(true));
    let address = incoming.local_addr().unwrap();
    let router = Server::builder().add_service(ParticipantServer::new(participants.handlers()));
    let server = tokio::spawn(async move { router.serve_with_incoming(incoming).await.unwrap() });
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let remote = RemoteParticipant::new(inner.resource(), &endpoint, Duration::from_secs(20));
    (participants, server, Arc::new(remote))
}

#[tonic::async_trait]
impl Subject for OverGrpc {
    fn manager(&self) -> Arc<dyn ResourceManager> {
        self.remote.clone()
    }

    async fn restart(&mut self) {
        self.participants.take().unwrap().stop().await;
        self.server.abort();
        self.inner.restart().await;
        let (participants, server, remote) = serve(&self.inner);
        (self.participants, self.server, self.remote) = (Some(participants), server, remote);
    }

    fn resource(&self) -> ResourceName {
        self.inner.resource()
    }

    fn payload(&self, vote: Vote) -> Option<Bytes> {
        self.inner.payload(vote)
    }

    async fn effects(&mut self) -> Effects {
        self.inner.effects().await
    }

    async fn records(&mut self) -> u64 {
        self.inner.records().await
    }
}

#[tokio::test]
async fn grpc_conforms() {
    assert_eq!(conformance::run(async || OverGrpc::new()).await, Ok(()));
}
