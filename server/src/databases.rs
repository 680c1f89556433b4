//! The databases that the configuration names: an agent for each, and its sweep while this node leads.
//!
//! ```text
//!   coordinator ── outcomes ──▶ Agent ──▶ database ◀── list prepared, probe ── a task of its own, one a database
//!                                 ▲                                              │ held for too long?
//!                                 └────────────── settle ◀── the ledger's word ◀─┘
//! ```
//!
//! Each database is looked at by a task of its own, over connections of its own: one that is down slows nothing else, and
//! when it is back it is told all that it missed. What is presumed is what the ledger presumes of any branch that asks.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::time::{Instant, sleep};
use tracing::{debug, error, warn};
use verdict_client::{
    Order,
    participant::{Inquirer, InquiryOptions, NoOrder, ResourceManager, Settle, Settled, Sweep, settle, with_causes},
    resource::xa::{Agent, Finding, Grade, XaDatabase},
};
use verdict_protocol::{self as protocol, BranchId, Event, Outcome, Reply, Request, ResourceName, Xid};
use verdict_raft_log::Replica;

use crate::{
    engine::Engine,
    options::{DatabaseOptions, Options, Reach},
    seams::{Databases, Participants},
    tasks::Tasks,
};

/// Branches that are looked at at a time in one database: the oldest. The rest have their turn when these are settled.
const LOOK_AT: usize = 10_000;
/// Branches of one database that are asked about and settled at a time.
const AT_ONCE: usize = 16;
/// When a branch that is still to wait is asked about again.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How often a node that does not lead looks whether a database is still the one that it was, so that it knows when it
/// comes to lead.
const PROBE_EVERY: Duration = Duration::from_secs(10);

/// The agents of one node.
#[derive(Debug)]
pub(crate) struct Agents(BTreeMap<ResourceName, (Arc<Agent<dyn XaDatabase>>, DatabaseOptions)>);

impl Agents {
    /// An agent for each resource that is reached so.
    ///
    /// # Errors
    /// A sentence that names a resource without its database.
    pub(crate) fn new(options: &Options, mut databases: Databases) -> Result<Self, String> {
        let mut agents = BTreeMap::new();
        for (name, reach) in &options.resources {
            let Reach::Database(options) = reach else { continue };
            let database = databases.remove(name).ok_or_else(|| format!("{name}: there is no such database"))?;
            let agent = Agent::new(database, None);
            let agent = match &options.identity {
                Some(identity) => agent.expecting(identity),
                None => agent,
            };
            agents.insert(name.clone(), (Arc::new(agent), options.clone()));
        }
        Ok(Self(agents))
    }

    /// Whom the coordinator asks and tells.
    pub(crate) fn participants(&self) -> Participants {
        let manager = |agent: &Arc<Agent<dyn XaDatabase>>| Arc::clone(agent) as Arc<dyn ResourceManager>;
        self.0.iter().map(|(name, (agent, _))| (name.clone(), manager(agent))).collect()
    }

    /// Starts the sweeps.
    pub(crate) fn start(self, engine: &Arc<Engine>, replica: &Replica, random: &mut StdRng, tasks: &Tasks) {
        for (name, (agent, options)) in self.0 {
            let random = Mutex::new(StdRng::from_rng(random));
            let desk = Desk { engine: Arc::clone(engine), replica: replica.clone(), random };
            tasks.spawn(sweeps(name, agent, options, desk));
        }
    }
}

/// Sweeps one database, until it is dropped.
async fn sweeps(name: ResourceName, agent: Arc<Agent<dyn XaDatabase>>, options: DatabaseOptions, desk: Desk) {
    let inquiry = InquiryOptions {
        inquire_after: options.settle_after,
        sweep_every: options.sweep_every,
        at_once: AT_ONCE,
        ..InquiryOptions::default()
    };
    let mut sweep = Sweep::new(name.clone(), Arc::clone(&agent) as _, inquiry, LOOK_AT);
    let (mut probe_at, mut checked) = (Instant::now(), false);
    loop {
        if !checked && Instant::now() >= probe_at {
            match agent.database().check().await {
                Ok(found) => {
                    report(&name, found);
                    checked = true;
                }
                Err(_) => probe_at = Instant::now() + PROBE_EVERY,
            }
        }
        if let Some(cluster) = desk.engine.read(|ledger, coordinator| ledger.cluster().filter(|_| coordinator.leads()))
        {
            if let Err(error) = agent.belongs_to(cluster) {
                error!(resource = %name, %error, "the database's agent serves another cluster");
            }
            let was_away = sweep.is_failing();
            sweep.once(&desk).await;
            if was_away && !sweep.is_failing() {
                desk.engine.handle(Event::Reached { resource: name.clone() });
            }
        } else if Instant::now() >= probe_at {
            if let Err(error) = agent.probe().await {
                debug!(resource = %name, error = with_causes(&error), "can't be looked at");
            }
            probe_at = Instant::now() + PROBE_EVERY;
        }
        sleep(desk.jitter(options.sweep_every)).await;
    }
}

/// Says once what is wrong with a database's settings.
fn report(name: &ResourceName, found: Vec<Finding>) {
    for Finding { setting, value, grade, advice } in found {
        match grade {
            Grade::Fine => {}
            Grade::Warning => warn!(resource = %name, setting, value, advice, "the database could be set better"),
            Grade::Error => error!(resource = %name, setting, value, advice, "a vote of the database is worth nothing"),
        }
    }
}

/// The ledger of this node, which leads, in the place of a call to the cluster.
struct Desk {
    engine: Arc<Engine>,
    replica: Replica,
    random: Mutex<StdRng>,
}

#[tonic::async_trait]
impl Inquirer for Desk {
    async fn inquire(&self, branch: BranchId, held: Duration) -> Result<Order, NoOrder> {
        let unreachable = |text: &str| NoOrder::Unreachable(text.to_owned());
        // "Wait" must not come from a leader that is none any more.
        if self.engine.read(|ledger, _| ledger.order(branch)) == protocol::Order::Wait {
            self.replica.read_barrier().await.map_err(|error| NoOrder::Unreachable(error.to_string()))?;
        }
        let held_ms = u64::try_from(held.as_millis()).unwrap_or(u64::MAX);
        let order = match self.engine.request(Request::Inquire { branch, held_ms }).await {
            Some(Reply::Order { order, .. }) => order,
            Some(Reply::Refused(refusal)) => return Err(NoOrder::Refused(refusal.to_string())),
            Some(
                Reply::Decided { .. }
                | Reply::Done { .. }
                | Reply::Session { .. }
                | Reply::Interrupted
                | Reply::NotLeader,
            ) => return Err(unreachable("the leadership was lost")),
            None => return Err(unreachable("this node has too many calls")),
        };
        let stamp = self.engine.stamp().ok_or_else(|| unreachable("the cluster is not founded"))?;
        Ok(match order {
            protocol::Order::Wait => Order::Wait { retry_after: ASK_AGAIN },
            protocol::Order::Commit(_) => Order::Commit(stamp),
            protocol::Order::Rollback(_) | protocol::Order::RollbackUnlisted => Order::Rollback(stamp),
        })
    }

    async fn is_decided(&self, xid: Xid) -> Result<bool, NoOrder> {
        Ok(self.engine.read(|ledger, _| ledger.outcome(xid).is_some()))
    }

    async fn settle(
        &self,
        manager: &Arc<dyn ResourceManager>,
        request: Settle,
        outcome: Outcome,
    ) -> Result<Settled, String> {
        settle(&**manager, request, outcome).await.map_err(|error| with_causes(&error))
    }

    /// Between half of it and all of it.
    fn jitter(&self, pause: Duration) -> Duration {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        pause.mul_f64(random.random_range(0.5..=1.0))
    }
}
