//! A database that prepares by itself, simulated: applications work on it in sessions of their own, and an agent ends
//! what they leave prepared.
//!
//! ```text
//!   client ── Connection ── prepare, finish ──▶ Vault ◀── list, finish, fate ── Agent ◀── Verdict
//! ```
//!
//! What real databases do differently is switched on by seed:
//!
//! | | like PostgreSQL | like MariaDB |
//! |---|---|---|
//! | ended while its session is connected | by anybody | by that session alone; an agent can close it if it knows which |
//! | how an ended branch is judged | by its transaction's number | by a row that was written with it |
//! | room for prepared branches | at times for three | any |
//!
//! All of it may take long, and fail. What a connection has sent is done even if its client dies meanwhile: a branch may be
//! prepared long after it was given up. Others' branches stand beside ours, some under the same transaction's id.

mod connection;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use rand::{RngExt as _, rngs::StdRng};
use tokio::time::sleep;
use verdict_client::{
    participant::{NotAnswered, Voted},
    resource::{
        Reservation,
        memory::Ledger as _,
        xa::{BranchName, Fate, Finding, Finished, Held, Identity, XaDatabase},
    },
};
use verdict_protocol::{BranchId, ClusterId, LogTime, Outcome, Reason, Xid};

pub use self::connection::Connection;
use crate::{
    bank::{Bank, Books},
    chance::{pick, stream},
    history::{History, What},
    plan::{Place, Plan},
    world::lock,
};

/// Whose quirks it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brand {
    Postgres,
    MariaDb,
}

/// A cluster that is not ours and uses the same databases.
const OTHERS: ClusterId = ClusterId([0xee; 16]);
/// How often a branch of theirs has the name of one of ours, but for the cluster.
const TWINS: f64 = 0.05;
/// How often a question of the agent's fails.
const FAILS: f64 = 0.02;
/// How often something takes long, and how long at most.
const SLOW: f64 = 0.03;
const SLOWEST_MS: u64 = 2_500;

/// A database. Clones are the same one.
#[derive(Clone)]
pub struct Vault(Arc<Inner>);

struct Inner {
    place: Place,
    history: History,
    brand: Brand,
    /// The most branches that stand prepared at a time.
    room: usize,
    /// Whether it is a calm seed: nothing is slow and nothing fails.
    even: bool,
    /// From now on it is as if the seed were calm.
    calm: AtomicBool,
    bank: Bank,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: StdRng,
    up: bool,
    connections: BTreeSet<u64>,
    last_connection: u64,
    last_number: u64,
    prepared: BTreeMap<BranchName, Row>,
    /// How transactions ended, by their numbers.
    ended: BTreeMap<u64, Fate>,
    /// What was written with branches that were committed.
    written: BTreeSet<BranchName>,
    /// Branches of others, which nobody of ours may touch.
    others: BTreeSet<BranchName>,
}

/// A branch that stands prepared.
#[derive(Clone, Debug)]
struct Row {
    connection: u64,
    number: u64,
    payload: Bytes,
}

impl Vault {
    #[must_use]
    pub fn open(plan: &Plan, bank: usize, history: History) -> Self {
        let (place, mut random) = (Place::Bank(bank), stream(plan.seed, &format!("vault {bank}")));
        let brand = *pick(&mut random, &[Brand::Postgres, Brand::MariaDb]);
        let full = brand == Brand::Postgres && random.random_bool(0.2);
        let state = State {
            random,
            up: false,
            connections: BTreeSet::new(),
            last_connection: 0,
            last_number: 0,
            prepared: BTreeMap::new(),
            ended: BTreeMap::new(),
            written: BTreeSet::new(),
            others: BTreeSet::new(),
        };
        let vault = Self(Arc::new(Inner {
            place,
            history: history.clone(),
            brand,
            room: if full { 3 } else { usize::MAX },
            even: plan.is_calm(),
            calm: AtomicBool::new(false),
            bank: Bank::open(place, history),
            state: Mutex::new(state),
        }));
        let xid = Xid::new(LogTime::from_millis(0), 0, 0);
        vault.state().stands_for_others(BranchId { xid, number: 1 });
        vault
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    /// A copy of its books.
    #[must_use]
    pub fn books(&self) -> Books {
        self.0.bank.books()
    }

    /// How many branches of ours stand prepared.
    #[must_use]
    pub fn held(&self) -> usize {
        let state = self.state();
        state.prepared.len() - state.others.len()
    }

    /// Branches of others that somebody ended.
    #[must_use]
    pub fn touched(&self) -> Vec<String> {
        let state = self.state();
        let gone = state.others.iter().filter(|name| !state.prepared.contains_key(name));
        gone.map(|name| format!("{name} at {}", self.0.place)).collect()
    }

    /// Nothing is slow and nothing fails any more.
    pub fn calms_down(&self) {
        self.0.calm.store(true, Ordering::Relaxed);
    }

    /// Its process has started.
    pub fn starts(&self) {
        self.state().up = true;
    }

    /// Its process ends: all connections are lost. What is prepared stands.
    pub fn crash(&self) {
        let state = &mut *self.state();
        state.up = false;
        state.connections.clear();
    }

    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state().up
    }

    fn is_even(&self) -> bool {
        self.0.even || self.0.calm.load(Ordering::Relaxed)
    }

    /// How long something takes on its way.
    fn travel(&self) -> Duration {
        let slow = !self.is_even();
        let random = &mut self.state().random;
        if slow && random.random_bool(SLOW) {
            return Duration::from_millis(random.random_range(1..=SLOWEST_MS));
        }
        Duration::from_micros(random.random_range(50..=2_000))
    }

    /// On the agent's way to it, and back.
    async fn reach(&self) -> Result<(), NotAnswered> {
        sleep(self.travel()).await;
        if !self.is_even() && self.state().random.random_bool(FAILS) {
            return Err(NotAnswered::unavailable("the connection broke"));
        }
        Ok(())
    }

    fn prepare(&self, connection: u64, name: BranchName, payload: &Bytes) -> Result<(Voted, Bytes), NotAnswered> {
        let refused = |text: &str, code: &str| Ok((Voted::refused(Reason::refused(text, code, true)), Bytes::new()));
        if !self.state().connections.contains(&connection) {
            return Err(NotAnswered::unavailable("the connection is closed"));
        }
        if self.held() >= self.0.room {
            return refused("maximum number of prepared transactions reached", "53200");
        }
        match self.0.bank.clone().reserve(name.branch, payload) {
            Reservation::Refused(reason) => Ok((Voted::refused(reason), Bytes::new())),
            Reservation::ReadOnly => Ok((Voted::READ_ONLY, Bytes::new())),
            Reservation::Reserved => {
                let state = &mut *self.state();
                state.last_number += 1;
                let row = Row { connection, number: state.last_number, payload: payload.clone() };
                let evidence = self.evidence(&row);
                state.prepared.insert(name, row);
                if state.random.random_bool(TWINS) {
                    state.stands_for_others(name.branch);
                }
                Ok((Voted::PREPARED, evidence))
            }
        }
    }

    /// What goes along with the vote.
    fn evidence(&self, row: &Row) -> Bytes {
        match self.0.brand {
            Brand::Postgres => row.number.to_string().into(),
            Brand::MariaDb => row.connection.to_string().into(),
        }
    }

    /// `own` is the connection that it is done on, if it is a client's.
    fn end(&self, name: BranchName, outcome: Outcome, own: Option<u64>, evidence: &[u8]) -> Finished {
        let row = {
            let state = &mut *self.state();
            let Some(row) = state.prepared.get(&name) else { return Finished::NotPrepared };
            let holder = row.connection;
            let bound = self.0.brand == Brand::MariaDb && state.connections.contains(&holder) && own != Some(holder);
            if bound {
                self.0.history.record(self.0.place, What::InSession { branch: name.branch });
                if number(evidence) == Some(holder) {
                    state.connections.remove(&holder);
                }
                return Finished::InSession;
            }
            let row = state.prepared.remove(&name).expect("it stands there");
            let fate = if outcome == Outcome::Committed { Fate::Committed } else { Fate::Aborted };
            state.ended.insert(row.number, fate);
            if outcome == Outcome::Committed {
                state.written.insert(name);
            }
            row
        };
        match outcome {
            Outcome::Committed => self.0.bank.clone().confirm(name.branch, &row.payload),
            Outcome::Aborted => self.0.bank.clone().cancel(name.branch, &row.payload),
        }
        Finished::Done
    }
}

impl State {
    fn stands_for_others(&mut self, branch: BranchId) {
        let name = BranchName { cluster: OTHERS, branch };
        self.last_number += 1;
        self.prepared.insert(name, Row { connection: 0, number: self.last_number, payload: Bytes::new() });
        self.others.insert(name);
    }
}

fn number(evidence: &[u8]) -> Option<u64> {
    std::str::from_utf8(evidence).ok()?.parse().ok()
}

#[tonic::async_trait]
impl XaDatabase for Vault {
    async fn probe(&self) -> Result<Identity, NotAnswered> {
        self.reach().await?;
        Ok(Identity { system: self.0.place.to_string(), timeline: "1".to_owned() })
    }

    async fn check(&self) -> Result<Vec<Finding>, NotAnswered> {
        Ok(Vec::new())
    }

    async fn list_prepared(&self, cluster: ClusterId, limit: usize) -> Result<Vec<Held>, NotAnswered> {
        self.reach().await?;
        let state = self.state();
        let ours = state.prepared.iter().filter(|(name, _)| name.cluster == cluster).take(limit);
        let evidence = |row| match self.0.brand {
            Brand::Postgres => self.evidence(row),
            // A list of what is prepared names no sessions.
            Brand::MariaDb => Bytes::new(),
        };
        Ok(ours.map(|(name, row)| Held { branch: name.branch, evidence: evidence(row) }).collect())
    }

    async fn holds(&self, name: BranchName) -> Result<bool, NotAnswered> {
        self.reach().await?;
        Ok(self.state().prepared.contains_key(&name))
    }

    async fn finish(&self, name: BranchName, outcome: Outcome, evidence: &[u8]) -> Result<Finished, NotAnswered> {
        self.reach().await?;
        let finished = self.end(name, outcome, None, evidence);
        // Done, and not heard of.
        self.reach().await?;
        Ok(finished)
    }

    async fn fate(&self, name: BranchName, evidence: &[u8]) -> Result<Fate, NotAnswered> {
        self.reach().await?;
        let state = self.state();
        let stands = state.prepared.contains_key(&name);
        Ok(match self.0.brand {
            _ if stands => Fate::Open,
            Brand::Postgres => {
                let ended = number(evidence).and_then(|number| state.ended.get(&number));
                ended.copied().unwrap_or(Fate::Unknown)
            }
            Brand::MariaDb if state.written.contains(&name) => Fate::Committed,
            Brand::MariaDb => Fate::Aborted,
        })
    }
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Vault").field(&self.0.place).field(&self.0.brand).finish()
    }
}
