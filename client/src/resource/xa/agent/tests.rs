//! The agent over a database in memory, with the quirks of real ones.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use verdict_protocol::{BranchId, ClusterId, Conclusion, LogTime, Outcome, Settlement, Vote, Xid};

use super::*;
use crate::{
    participant::Stamp,
    resource::xa::{Finding, Held},
};

const OWN: ClusterId = ClusterId([0xab; 16]);
const OTHER: ClusterId = ClusterId([0xac; 16]);

#[derive(Debug)]
struct Database(Mutex<Tables>);

#[derive(Debug)]
struct Tables {
    prepared: BTreeMap<BranchName, Bytes>,
    /// By evidence.
    ended: BTreeMap<Bytes, Fate>,
    timeline: u32,
    /// The session that prepared is connected, and nobody else can end the branch.
    in_session: bool,
    /// So many calls fail first.
    failing: u32,
    finishes: u32,
}

impl Database {
    fn agent() -> (Arc<Self>, Agent<Self>) {
        let tables = Tables {
            prepared: BTreeMap::new(),
            ended: BTreeMap::new(),
            timeline: 1,
            in_session: false,
            failing: 0,
            finishes: 0,
        };
        let database = Arc::new(Self(Mutex::new(tables)));
        (Arc::clone(&database), Agent::new(database, Some(OWN)))
    }

    fn tables<T>(&self, change: impl FnOnce(&mut Tables) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn answer<T>(&self, answer: impl FnOnce(&mut Tables) -> T) -> Result<T, NotAnswered> {
        self.tables(|tables| match tables.failing.checked_sub(1) {
            Some(left) => {
                tables.failing = left;
                Err(NotAnswered::unavailable("the connection broke"))
            }
            None => Ok(answer(tables)),
        })
    }

    fn prepare(&self, cluster: ClusterId, number: u32) {
        let name = BranchName { cluster, branch: branch(number) };
        self.tables(|tables| tables.prepared.insert(name, evidence(number)));
    }

    /// Somebody else ends it.
    fn end(&self, number: u32, fate: Fate) {
        let name = BranchName { cluster: OWN, branch: branch(number) };
        self.tables(|tables| {
            tables.prepared.remove(&name);
            tables.ended.insert(evidence(number), fate);
        });
    }

    fn holds_now(&self, cluster: ClusterId, number: u32) -> bool {
        self.tables(|tables| tables.prepared.contains_key(&BranchName { cluster, branch: branch(number) }))
    }
}

#[tonic::async_trait]
impl XaDatabase for Database {
    async fn probe(&self) -> Result<Identity, NotAnswered> {
        self.answer(|tables| Identity { system: "7".into(), timeline: tables.timeline.to_string() })
    }

    async fn check(&self) -> Result<Vec<Finding>, NotAnswered> {
        self.answer(|_| Vec::new())
    }

    async fn list_prepared(&self, cluster: ClusterId, limit: usize) -> Result<Vec<Held>, NotAnswered> {
        self.answer(|tables| {
            let own = tables.prepared.iter().filter(|(name, _)| name.cluster == cluster);
            let held =
                |(name, evidence): (&BranchName, &Bytes)| Held { branch: name.branch, evidence: evidence.clone() };
            own.map(held).take(limit).collect()
        })
    }

    async fn holds(&self, name: BranchName) -> Result<bool, NotAnswered> {
        self.answer(|tables| tables.prepared.contains_key(&name))
    }

    async fn finish(&self, name: BranchName, outcome: Outcome, _: &[u8]) -> Result<Finished, NotAnswered> {
        self.answer(|tables| {
            tables.finishes += 1;
            if tables.in_session {
                return Finished::InSession;
            }
            let Some(evidence) = tables.prepared.remove(&name) else { return Finished::NotPrepared };
            let fate = if outcome == Outcome::Committed { Fate::Committed } else { Fate::Aborted };
            tables.ended.insert(evidence, fate);
            Finished::Done
        })
    }

    async fn fate(&self, _: BranchName, evidence: &[u8]) -> Result<Fate, NotAnswered> {
        self.answer(|tables| tables.ended.get(evidence).copied().unwrap_or(Fate::Unknown))
    }
}

fn branch(number: u32) -> BranchId {
    BranchId { xid: Xid::new(LogTime::from_millis(1_700_000_000_000), 7, 9), number }
}

fn evidence(number: u32) -> Bytes {
    format!("transaction {number}").into()
}

fn stamp() -> Stamp {
    Stamp { cluster: OWN, incarnation: 1, term: 1, horizon: LogTime::from_millis(5) }
}

fn settle(number: u32, payload: impl Into<Bytes>) -> Settle {
    let resource = "accounts".try_into().expect("a name");
    Settle { stamp: stamp(), branch: branch(number), resource, payload: payload.into() }
}

/// None: asked again.
async fn commit(agent: &Agent<Database>, number: u32, payload: impl Into<Bytes>) -> Option<Settlement> {
    agent.commit(settle(number, payload)).await.ok().map(|settled| settled.settlement)
}

async fn rollback(agent: &Agent<Database>, number: u32, payload: impl Into<Bytes>) -> Option<Settlement> {
    agent.rollback(settle(number, payload)).await.ok().map(|settled| settled.settlement)
}

#[tokio::test]
async fn outcomes_come_late_and_twice_and_are_answered_alike() {
    let (database, agent) = Database::agent();
    database.prepare(OWN, 1);
    database.prepare(OWN, 2);
    for _ in 0..2 {
        assert_eq!(commit(&agent, 1, evidence(1)).await, Some(Settlement::Done));
        assert_eq!(rollback(&agent, 2, evidence(2)).await, Some(Settlement::Done));
    }
    assert_eq!(rollback(&agent, 1, evidence(1)).await, Some(Settlement::HeuristicCommit));
    assert_eq!(commit(&agent, 2, evidence(2)).await, Some(Settlement::HeuristicRollback));
}

/// s44
#[tokio::test]
async fn unknown_is_success_on_rollback_and_never_on_commit() {
    let (_, agent) = Database::agent();
    assert_eq!(rollback(&agent, 1, "").await, Some(Settlement::Done));
    assert_eq!(commit(&agent, 1, "").await, Some(Settlement::HeuristicHazard));
    assert_eq!(commit(&agent, 1, "what the application makes of it").await, Some(Settlement::HeuristicHazard));
}

#[tokio::test]
async fn one_that_somebody_else_ended_is_judged_by_what_was_listed_or_brought() {
    let (database, agent) = Database::agent();
    (1..=4).for_each(|number| database.prepare(OWN, number));
    assert_eq!(agent.recover(9).await.expect("a list").len(), 4);
    database.end(1, Fate::Committed);
    database.end(2, Fate::Aborted);
    database.end(3, Fate::Open);
    database.end(4, Fate::Committed);
    assert_eq!(commit(&agent, 1, "").await, Some(Settlement::Done));
    assert_eq!(commit(&agent, 2, "nonsense").await, Some(Settlement::HeuristicRollback));
    assert_eq!(commit(&agent, 3, "").await, None, "asked again");
    // Not listed any more: only what was brought along tells.
    assert_eq!(agent.recover(9).await.expect("a list"), []);
    assert_eq!(commit(&agent, 4, "").await, Some(Settlement::HeuristicHazard));
    assert_eq!(commit(&agent, 4, evidence(4)).await, Some(Settlement::Done));
}

/// s43
#[tokio::test]
async fn a_branch_in_its_session_is_not_answered_until_that_is_gone() {
    let (database, agent) = Database::agent();
    database.prepare(OWN, 1);
    database.tables(|tables| tables.in_session = true);
    assert_eq!(commit(&agent, 1, evidence(1)).await, None);
    assert_eq!(rollback(&agent, 1, evidence(1)).await, None);
    database.tables(|tables| tables.in_session = false);
    assert_eq!(commit(&agent, 1, evidence(1)).await, Some(Settlement::Done));
}

/// s46, s49
#[tokio::test]
async fn a_scan_that_fails_loses_nothing_and_others_branches_are_not_seen() {
    let (database, agent) = Database::agent();
    database.prepare(OWN, 1);
    database.prepare(OTHER, 2);
    assert_eq!(agent.recover(9).await.expect("a list"), [branch(1)]);
    for failing in 1..=2 {
        database.tables(|tables| tables.failing = failing);
        while agent.recover(9).await.is_err() {}
    }
    database.end(1, Fate::Committed);
    assert_eq!(commit(&agent, 1, "").await, Some(Settlement::Done), "what was listed before is still known");
    let others = Settle { stamp: Stamp { cluster: OTHER, ..stamp() }, ..settle(2, "") };
    assert!(matches!(agent.rollback(others).await, Err(NotAnswered::WrongCluster { .. })));
    assert!(database.holds_now(OTHER, 2));
}

#[tokio::test]
async fn only_what_was_prepared_is_promised_and_nothing_is_decided_here() {
    let (database, agent) = Database::agent();
    let request = |number| Prepare {
        stamp: stamp(),
        branch: branch(number),
        resource: "accounts".try_into().expect("a name"),
        payload: Bytes::new(),
        vote_timeout: std::time::Duration::ZERO,
        credential: None,
    };
    database.prepare(OWN, 1);
    assert_eq!(agent.prepare(request(1)).await.expect("a vote"), Voted::PREPARED);
    assert_eq!(agent.prepare(request(2)).await.expect("a vote").vote, Vote::Refused);
    for fence in [false, true] {
        let Settle { stamp, branch, resource, payload } = settle(1, "");
        let decided = agent.commit_one_phase(OnePhase { stamp, branch, resource, payload, fence }).await;
        assert!(matches!(decided, Ok(Conclusion::Fenced(Some(_)))));
    }
    assert!(!database.holds_now(OWN, 1));
}

#[tokio::test]
async fn another_timeline_presumes_nothing_and_proves_nothing() {
    let (database, agent) = Database::agent();
    database.prepare(OWN, 1);
    agent.recover(9).await.expect("a list");
    assert!(agent.presumes());
    database.tables(|tables| tables.timeline = 2);
    agent.recover(9).await.expect("a list");
    assert!(!agent.presumes());
    // A recorded outcome still ends a branch; of one that is lost nothing is proved by numbers that may be taken again.
    assert_eq!(commit(&agent, 1, "").await, Some(Settlement::Done));
    assert_eq!(commit(&agent, 1, evidence(1)).await, Some(Settlement::HeuristicHazard));
    database.tables(|tables| tables.timeline = 1);
    agent.recover(9).await.expect("a list");
    assert!(agent.presumes());

    let agent = Agent::new(Arc::clone(&database), Some(OWN)).expecting("7/2");
    agent.recover(9).await.expect("a list");
    assert!(!agent.presumes());
    database.tables(|tables| tables.timeline = 2);
    agent.recover(9).await.expect("a list");
    assert!(agent.presumes());
}

#[tokio::test]
async fn an_agent_that_knows_no_cluster_yet_lists_nothing() {
    let (database, _) = Database::agent();
    let agent = Agent::new(database, None);
    assert!(agent.recover(9).await.is_err());
    agent.belongs_to(OWN).expect("the first");
    agent.belongs_to(OWN).expect("the same");
    assert!(matches!(agent.belongs_to(OTHER), Err(NotAnswered::WrongCluster { .. })));
    assert_eq!(agent.recover(9).await.expect("a list"), []);
}
