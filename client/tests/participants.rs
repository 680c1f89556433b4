//! The participant's server: the duty to ask, calls whose caller goes away, stopping.

#![cfg(not(madsim))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::Semaphore;
use tonic::{Code, Request};
use verdict_client::{
    BranchId, ClusterId, Conclusion, LogTime, ResourceName, Verdict, Vote, Xid,
    participant::{
        InquiryOptions, NotAnswered, OnePhase, ParticipantOptions, Participants, Prepare, ResourceManager, Settle,
        Settled, Stamp, Voted, rules::Record,
    },
    resource::memory::Memory,
    wire::ToWire,
};
use verdict_proto::v1::{self, branch_order, error_detail::Code as Detail, participant_server::Participant};

use common::{
    Seats,
    cluster::{Answer, Node, dead, fails, options},
};

const STAMP: Stamp = Stamp { cluster: ClusterId([7; 16]), incarnation: 1, term: 1, horizon: LogTime::from_millis(1) };

fn branch(n: u64) -> BranchId {
    BranchId { xid: Xid::new(LogTime::from_millis(1_700_000_000_000), 0, n), number: 1 }
}

fn seats() -> ResourceName {
    "seats".try_into().unwrap()
}

fn prepare(n: u64) -> Prepare {
    let payload = Bytes::from_static(b"one seat");
    Prepare {
        stamp: STAMP,
        branch: branch(n),
        resource: seats(),
        payload,
        vote_timeout: Duration::from_secs(9),
        credential: None,
    }
}

fn quick() -> ParticipantOptions {
    let inquiry = InquiryOptions {
        inquire_after: Duration::from_millis(100),
        sweep_every: Duration::from_millis(20),
        deadline: Duration::from_millis(400),
        at_once: 4,
    };
    ParticipantOptions { inquiry, ..ParticipantOptions::default() }
}

fn order(order: branch_order::Order) -> Answer {
    Answer::Order(v1::BranchOrder { order: order.into(), retry_after_ms: 30, stamp: Some(STAMP.to_wire()) })
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), wait).await.is_ok(), "not within 10 s: {what}");
}

#[tokio::test]
async fn a_branch_in_doubt_asks_until_it_is_told() {
    for (told, record, confirmed) in
        [(branch_order::Order::Commit, Record::Committed, 1), (branch_order::Order::Rollback, Record::RolledBack, 0)]
    {
        let node = Node::start(move |before| match before {
            0 => fails(Code::Unavailable, Detail::NotLeader, None, 10),
            1 | 2 => order(branch_order::Order::Wait),
            3 => order(branch_order::Order::Unspecified),
            _ => order(told),
        });
        let memory = Memory::new(Seats::default());
        // Prepared by a process that has died since.
        assert_eq!(memory.open().prepare(prepare(1)).await.unwrap().vote, Vote::Prepared);
        let verdict = Verdict::new(options(&[node.address])).unwrap();
        let participants = Participants::start([(seats(), Arc::new(memory.open()) as _)], verdict, quick());
        eventually("settled", || memory.record(branch(1)) == Some(record)).await;
        assert_eq!((memory.ledger().reserved, memory.ledger().confirmed), (0, confirmed));
        let asked = node.calls();
        assert!(asked >= 5);
        assert!(node.xids().iter().all(|xid| *xid == branch(1).xid));
        participants.stop().await;
    }
}

#[tokio::test]
async fn a_branch_that_is_told_in_time_does_not_ask_and_one_with_nobody_to_ask_keeps_its_promise() {
    let node = Node::start(|_| order(branch_order::Order::Rollback));
    let memory = Memory::new(Seats::default());
    let manager = memory.open();
    let mut patient = quick();
    patient.inquiry.inquire_after = Duration::from_secs(60);
    let verdict = Verdict::new(options(&[node.address])).unwrap();
    let (counted, sweeps) = Counted::new(memory.open());
    let participants = Participants::start([(seats(), Arc::new(counted) as _)], verdict, patient);
    manager.prepare(prepare(1)).await.unwrap();
    sweeps.acquire_many(10).await.unwrap().forget();
    let settle = Settle { stamp: STAMP, branch: branch(1), resource: seats(), payload: Bytes::new() };
    assert_eq!(manager.commit(settle).await.unwrap(), Settled::DONE);
    participants.stop().await;
    assert_eq!(node.calls(), 0);

    manager.prepare(prepare(2)).await.unwrap();
    let (counted, sweeps) = Counted::new(memory.open());
    let verdict = Verdict::new(options(&[dead()])).unwrap();
    let participants = Participants::start([(seats(), Arc::new(counted) as _)], verdict, quick());
    // Sweeps go on while nobody is there to ask.
    let swept = tokio::time::timeout(Duration::from_secs(20), sweeps.acquire_many(12)).await.unwrap();
    drop(swept);
    assert_eq!(memory.record(branch(2)), Some(Record::Prepared));
    participants.stop().await;
}

/// Counts the sweeps.
#[derive(Debug)]
struct Counted<M> {
    manager: M,
    sweeps: Arc<Semaphore>,
}

impl<M> Counted<M> {
    fn new(manager: M) -> (Self, Arc<Semaphore>) {
        let sweeps = Arc::new(Semaphore::new(0));
        (Self { manager, sweeps: sweeps.clone() }, sweeps)
    }
}

#[tonic::async_trait]
impl<M: ResourceManager> ResourceManager for Counted<M> {
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        self.manager.prepare(request).await
    }
    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.manager.commit(request).await
    }
    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.manager.rollback(request).await
    }
    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        self.manager.commit_one_phase(request).await
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        self.sweeps.add_permits(1);
        self.manager.recover(limit).await
    }
}

/// Prepares in two steps; the gate is between them.
#[derive(Debug)]
struct Slow<M> {
    manager: M,
    started: Arc<Semaphore>,
    gate: Arc<Semaphore>,
}

#[tonic::async_trait]
impl<M: ResourceManager> ResourceManager for Slow<M> {
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        self.started.add_permits(1);
        self.gate.acquire().await.unwrap().forget();
        self.manager.prepare(request).await
    }
    async fn commit(&self, _: Settle) -> Result<Settled, NotAnswered> {
        panic!("a bug in the service")
    }
    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.manager.rollback(request).await
    }
    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        self.manager.commit_one_phase(request).await
    }
    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        self.manager.recover(limit).await
    }
}

#[tokio::test]
async fn a_call_whose_caller_has_gone_comes_to_its_end_and_stop_waits_for_it() {
    let memory = Memory::new(Seats::default());
    let (started, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let slow = Slow { manager: memory.open(), started: started.clone(), gate: gate.clone() };
    let verdict = Verdict::new(options(&[dead()])).unwrap();
    let limited = ParticipantOptions { in_flight: 2, ..ParticipantOptions::default() };
    let participants = Participants::start([(seats(), Arc::new(slow) as _)], verdict, limited);
    let handlers = participants.handlers();

    for n in 1..=2 {
        // Dropped at its deadline, as tonic does.
        let call = handlers.prepare(Request::new(prepare(n).to_wire()));
        let started = started.acquire();
        tokio::select! {
            biased;
            _ = call => panic!("the gate is shut"),
            permit = started => permit.unwrap().forget(),
        }
    }
    let full = handlers.prepare(Request::new(prepare(3).to_wire())).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);

    let stopping = tokio::spawn(participants.stop());
    let refused = tokio::time::timeout(Duration::from_secs(9), async {
        loop {
            let refused = handlers.prepare(Request::new(prepare(3).to_wire())).await.unwrap_err();
            if refused.code() == Code::Unavailable {
                return refused;
            }
            tokio::task::yield_now().await;
        }
    });
    assert!(refused.await.unwrap().message().contains("stopping"));
    assert!(!stopping.is_finished());
    gate.add_permits(2);
    stopping.await.unwrap();
    assert_eq!(memory.record(branch(1)), Some(Record::Prepared));
    assert_eq!(memory.record(branch(2)), Some(Record::Prepared));
    assert_eq!(memory.record(branch(3)), None);
}

#[tokio::test]
async fn bad_messages_and_panics_are_told_apart() {
    let memory = Memory::new(Seats::default());
    let slow = Slow { manager: memory.open(), started: Arc::new(Semaphore::new(0)), gate: Arc::new(Semaphore::new(0)) };
    let verdict = Verdict::new(options(&[dead()])).unwrap();
    let participants = Participants::start([(seats(), Arc::new(slow) as _)], verdict, ParticipantOptions::default());
    let handlers = participants.handlers();

    let good = prepare(1).to_wire();
    let other = v1::PrepareRequest { resource: "wallet".to_owned(), ..good.clone() };
    let status = handlers.prepare(Request::new(other)).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert!(status.message().contains("no resource wallet here, only seats"), "{status}");
    for (bad, says) in [
        (v1::PrepareRequest { stamp: None, ..good.clone() }, "stamp is missing"),
        (v1::PrepareRequest { branch: None, ..good.clone() }, "branch is missing"),
        (v1::PrepareRequest { branch: Some(v1::BranchId::default()), ..good.clone() }, "an xid is 16 bytes"),
        (v1::PrepareRequest { resource: "Seats!".to_owned(), ..good.clone() }, "a resource name is"),
    ] {
        let status = handlers.prepare(Request::new(bad)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(says), "{status}");
    }
    let settle = Settle { stamp: STAMP, branch: branch(1), resource: seats(), payload: Bytes::new() };
    let status = handlers.commit(Request::new(settle.clone().to_wire())).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    // A panic takes nothing else with it.
    assert!(handlers.rollback(Request::new(settle.to_wire())).await.is_ok());
    participants.stop().await;
}
