//! The world of one seed: machines that can be killed, started, stopped for a while and cut off, each at any moment.
//!
//! ```text
//!   client-0 …  ──▶ node-1 node-2 node-3 ──▶ bank-0 bank-1 bank-2
//!                    disk   disk   disk       memory that outlives the process
//!   admin: an operator; asks for transfers of the leadership, and for the outcomes
//!   ether: where late messages live
//! ```

mod clock;
mod databases;
mod disk;
mod door;
mod links;
mod parts;
mod strangers;
mod teller;
mod timeline;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use madsim::runtime::{Handle, NodeHandle};
use rand::{Rng as _, rngs::StdRng};
use tokio::{sync::Notify, time::sleep};
use verdict_client::{
    Verdict,
    participant::{Stamp, rules::Record},
    resource::memory::Memory,
};
use verdict_protocol::ResourceName;
use verdict_raft_log::{
    Status,
    files::{Pace, testing::SimDisk},
};

pub use self::clock::BEGINNING_MS;
use self::{clock::SkewedClock, links::Sky, teller::Teller};
pub use self::{
    parts::{ELECTION_MOST, GRACE},
    timeline::{Span, Timeline, majorities},
};
use crate::{
    bank::Bank,
    chance::stream,
    flaws::Flaw,
    history::{History, What},
    logs::Journal,
    plan::{Place, Plan},
    vault::Vault,
    watching::Notebook,
    workload::Work,
};

/// What the parts of a world share.
#[derive(Debug)]
pub struct Shared {
    pub plan: Plan,
    pub history: History,
    pub sky: Arc<Sky>,
    pub disks: BTreeMap<u64, SimDisk>,
    /// How long each node's syncs take.
    pub paces: BTreeMap<u64, Pace>,
    pub journal: Journal,
    pub timeline: Timeline,
    pub memories: Vec<Memory<Bank>>,
    /// Databases that prepare by themselves.
    pub vaults: BTreeMap<usize, Vault>,
    pub work: Work,
    /// What somebody who watches has seen.
    pub notebook: Notebook,
    /// What each node said of itself last, since it was started.
    statuses: Mutex<BTreeMap<u64, Status>>,
    random: Mutex<StdRng>,
    /// The banks, as an application with a session of its own on them sees them.
    tellers: Mutex<BTreeMap<usize, Teller>>,
    /// The last stamp that any bank heard.
    heard: Arc<Mutex<Option<Stamp>>>,
    /// By how much the clock that may be far off has jumped, in milliseconds.
    pub jump: Arc<AtomicI64>,
    /// Who is to die now, and word of it.
    doomed: Mutex<Vec<Place>>,
    pub doom: Notify,
    /// From now on nobody misbehaves any more.
    pub calm: AtomicBool,
    /// The next node that is sent a vote dies.
    pub trap: AtomicBool,
    /// The node on whose disk a bit flipped, until it has started again.
    pub sick: Mutex<Option<u64>>,
}

/// The world. Its supervisor kills and starts its machines.
pub struct World {
    pub shared: Arc<Shared>,
    machines: BTreeMap<Place, NodeHandle>,
    down: Mutex<BTreeSet<Place>>,
    /// Who stands still, and whether it led when it began to.
    paused: Mutex<BTreeMap<Place, bool>>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("shared", &self.shared).field("down", &self.down).finish_non_exhaustive()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name by which a bank is enlisted.
#[must_use]
pub fn bank_name(bank: usize) -> ResourceName {
    ResourceName::try_from(format!("bank-{bank}").as_str()).expect("a short name")
}

/// The bank of this name.
#[must_use]
pub fn bank_of(name: &ResourceName) -> usize {
    name.as_str().trim_start_matches("bank-").parse().unwrap_or(usize::MAX)
}

/// Whose address it is.
fn place_of(address: IpAddr) -> Option<Place> {
    let IpAddr::V4(address) = address else { return None };
    let [_, _, kind, number] = address.octets();
    match kind {
        0 => Some(Place::Node(u64::from(number))),
        1 => Some(Place::Bank(usize::from(number) - 1)),
        2 => Some(Place::Client(usize::from(number) - 1)),
        3 => Some(Place::Admin),
        _ => None,
    }
}

fn address_of(place: Place) -> IpAddr {
    let text = match place {
        Place::Node(node) => format!("10.0.0.{node}"),
        Place::Bank(bank) => format!("10.0.1.{}", bank + 1),
        Place::Client(client) => format!("10.0.2.{}", client + 1),
        Place::Admin => "10.0.3.1".to_owned(),
    };
    text.parse().expect("an address")
}

impl Shared {
    /// A seed for something that starts now.
    pub fn draw(&self) -> u64 {
        lock(&self.random).next_u64()
    }

    fn clock(&self, place: Place) -> Arc<SkewedClock> {
        let jump = if place == Place::Node(self.plan.far) { Arc::clone(&self.jump) } else { Arc::default() };
        let step_ms = if self.reuses_xids(place) { 60_000 } else { 1 };
        Arc::new(SkewedClock { skew: self.plan.skews.get(&place).copied().unwrap_or_default(), jump, step_ms })
    }

    /// The flaw: a coarse clock, and the same seed at each start.
    fn reuses_xids(&self, place: Place) -> bool {
        self.plan.flaw == Some(Flaw::XidReused) && matches!(place, Place::Client(_))
    }

    /// A client's handle at `place`.
    #[must_use]
    pub fn verdict(&self, place: Place) -> Verdict {
        self.verdict_of(place, 1..=self.plan.nodes)
    }

    fn verdict_of(&self, place: Place, nodes: RangeInclusive<u64>) -> Verdict {
        let nodes = nodes.map(|node| format!("{}:{}", address_of(Place::Node(node)), parts::NODE_PORT));
        let mut options = verdict_client::Options::new(nodes);
        options.clock = self.clock(place);
        let drawn = self.draw();
        options.seed = Some(if self.reuses_xids(place) { 1 } else { drawn });
        options.deadline = Duration::from_secs(4);
        Verdict::new(options).expect("the addresses are right")
    }

    /// What the nodes said of themselves last; those that are up.
    #[must_use]
    pub fn statuses(&self) -> BTreeMap<u64, Status> {
        lock(&self.statuses).clone()
    }

    /// The node that leads, as far as its own word goes.
    #[must_use]
    pub fn leader(&self) -> Option<u64> {
        let statuses = lock(&self.statuses);
        statuses
            .iter()
            .filter(|(_, status)| status.leads())
            .max_by_key(|(_, status)| status.term)
            .map(|(node, _)| *node)
    }

    /// This process is to die at once. Nothing, once nobody misbehaves any more.
    pub(crate) fn dooms(&self, place: Place) {
        if !self.calm.load(Ordering::Relaxed) {
            lock(&self.doomed).push(place);
            self.doom.notify_one();
        }
    }

    /// Whether a node that is sent a vote now is to die: only one is.
    fn dies_at_vote(&self) -> bool {
        self.trap.swap(false, Ordering::Relaxed) && !self.calm.load(Ordering::Relaxed)
    }

    /// Who is to die.
    pub(crate) fn take_doomed(&self) -> Vec<Place> {
        std::mem::take(&mut *lock(&self.doomed))
    }

    /// How many branches are held prepared, in all banks.
    #[must_use]
    pub fn in_doubt(&self) -> usize {
        let left: usize = self.vaults.values().map(Vault::held).sum();
        let branches: BTreeSet<_> = self.work.branches();
        let held = |(bank, branch)| {
            let memory: Option<&Memory<Bank>> = self.memories.get(bank);
            memory.is_some_and(|memory| memory.record(branch) == Some(Record::Prepared))
        };
        branches.into_iter().filter(|at| held(*at)).count() + left
    }
}

impl World {
    /// Makes the world of a plan; all its machines start.
    #[must_use]
    pub fn start(plan: Plan, history: History) -> Self {
        let handle = Handle::current();
        let ether = handle.create_node().name("ether").ip("10.0.4.1".parse().expect("an address")).build();
        let sky = Arc::new(Sky::new(plan.weather, stream(plan.seed, "sky"), history.clone(), ether));
        let memories =
            (0..plan.banks).map(|bank| Memory::new(Bank::open(Place::Bank(bank), history.clone()))).collect();
        let databases = plan.banks..plan.banks + plan.databases;
        let vaults = databases.map(|bank| (bank, Vault::open(&plan, bank, history.clone()))).collect();
        let shared = Arc::new(Shared {
            history,
            sky,
            disks: (1..=plan.nodes).map(|node| (node, SimDisk::new())).collect(),
            paces: (1..=plan.nodes).map(|node| (node, Pace::default())).collect(),
            doomed: Mutex::default(),
            doom: Notify::new(),
            calm: AtomicBool::new(false),
            trap: AtomicBool::new(false),
            journal: Journal::default(),
            timeline: Timeline::default(),
            memories,
            vaults,
            work: Work::new(plan.clients, plan.transactions),
            notebook: Notebook::default(),
            statuses: Mutex::default(),
            random: Mutex::new(stream(plan.seed, "shared")),
            tellers: Mutex::default(),
            heard: Arc::default(),
            jump: Arc::default(),
            sick: Mutex::default(),
            plan,
        });
        let mut machines = BTreeMap::new();
        for pace in shared.paces.values() {
            pace.set(shared.plan.sync);
        }
        let nodes = (1..=shared.plan.nodes).map(Place::Node);
        let clients = (0..shared.plan.clients).map(Place::Client);
        for place in nodes
            .chain((0..shared.plan.banks + shared.plan.databases).map(Place::Bank))
            .chain(clients)
            .chain([Place::Admin])
        {
            let own = Arc::clone(&shared);
            let machine = handle.create_node().name(place.to_string()).ip(address_of(place)).init(move || {
                let shared = Arc::clone(&own);
                async move {
                    match place {
                        Place::Node(node) => parts::node(shared, node).await,
                        Place::Bank(bank) if shared.vaults.contains_key(&bank) => parts::database(shared, bank).await,
                        Place::Bank(bank) => parts::bank(shared, bank).await,
                        Place::Client(client) => parts::client(shared, client).await,
                        Place::Admin => parts::admin(shared).await,
                    }
                }
            });
            machines.insert(place, machine.build());
        }
        Self { shared, machines, down: Mutex::default(), paused: Mutex::default() }
    }

    /// Everything that can be killed.
    pub fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.machines.keys().copied().filter(|place| *place != Place::Admin)
    }

    /// The machine from which people look at the cluster.
    #[must_use]
    pub fn admin(&self) -> &NodeHandle {
        &self.machines[&Place::Admin]
    }

    /// Whether it was killed, or has ended by itself.
    #[must_use]
    pub fn is_down(&self, place: Place) -> bool {
        lock(&self.down).contains(&place) || Handle::current().is_exit(self.machines[&place].id())
    }

    /// Whether its process has ended, and nobody killed it.
    #[must_use]
    pub fn has_ended(&self, place: Place) -> bool {
        !lock(&self.down).contains(&place) && Handle::current().is_exit(self.machines[&place].id())
    }

    /// Kills a process; with `power`, its machine loses what was not synced. Nothing, if it is down.
    pub fn kill(&self, place: Place, power: bool) {
        if !lock(&self.down).insert(place) {
            return;
        }
        let Shared { history, disks, statuses, work, random, .. } = &*self.shared;
        let led = self.shared.leader().map(Place::Node) == Some(place);
        history.record(place, What::Killed { power, led, prepared: self.shared.in_doubt() });
        Handle::current().kill(self.machines[&place].id());
        self.shared.timeline.serves(place, false);
        if lock(&self.paused).remove(&place).is_some() {
            self.shared.timeline.stands_still(place, false);
        }
        match place {
            Place::Node(node) => {
                lock(statuses).remove(&node);
                if power {
                    disks[&node].crash(&mut *lock(random));
                } else {
                    // What the dead process has open can't be written any more.
                    drop(disks[&node].mount());
                }
            }
            Place::Client(client) => work.died(client),
            Place::Bank(bank) => {
                if let Some(vault) = self.shared.vaults.get(&bank) {
                    vault.crash();
                }
            }
            Place::Admin => {}
        }
    }

    /// Starts what is down.
    pub fn start_again(&self, place: Place) {
        if !self.is_down(place) {
            return;
        }
        if lock(&self.down).remove(&place) {
            Handle::current().restart(self.machines[&place].id());
        } else {
            // It had ended by itself.
            Handle::current().kill(self.machines[&place].id());
            Handle::current().restart(self.machines[&place].id());
        }
    }

    /// Lets a process stand still.
    pub fn pause(&self, place: Place) {
        let leads = self.shared.leader().map(Place::Node) == Some(place);
        if !self.is_down(place) && !lock(&self.paused).contains_key(&place) {
            lock(&self.paused).insert(place, leads);
            Handle::current().pause(self.machines[&place].id());
            self.shared.timeline.stands_still(place, true);
        }
    }

    /// Lets it go on.
    pub fn resume(&self, place: Place) {
        if let Some(led) = lock(&self.paused).remove(&place) {
            let deposed = led && self.shared.leader().map(Place::Node) != Some(place);
            self.shared.history.record(place, What::Resumed { deposed, prepared: self.shared.in_doubt() });
            Handle::current().resume(self.machines[&place].id());
            self.shared.timeline.stands_still(place, false);
        }
    }

    /// Ends everything that runs: what still waits for something would keep the whole world in memory.
    pub async fn end(&self) {
        for machine in self.machines.values() {
            Handle::current().kill(machine.id());
        }
        self.shared.sky.close();
        // What was killed is dropped when its turn comes.
        sleep(Duration::from_millis(1)).await;
    }

    /// Cuts the way from one place to another.
    pub fn cut(&self, from: Place, to: Place) {
        self.shared.sky.cut(from, to);
        self.shared.timeline.cut(from, to, true);
    }

    /// Mends it.
    pub fn mend(&self, from: Place, to: Place) {
        if self.shared.sky.mend(from, to) {
            self.shared.timeline.cut(from, to, false);
        }
    }
}
