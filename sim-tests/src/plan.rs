//! What a seed stands for: the size of the world, which faults it knows, and how often each strikes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
    time::Duration,
};

use rand::{RngExt as _, rngs::StdRng};
use verdict_protocol::Rules;

use crate::{
    chance::{pick, stream},
    flaws::Flaw,
};

/// Accounts of each participant.
pub const ACCOUNTS: u32 = 5;
/// What each account holds at the beginning.
pub const OPENING: i64 = 100;
/// Seats of each participant.
pub const SEATS: u32 = 4;
/// Lists of each participant.
pub const LISTS: u32 = 2;

/// A kind of fault that strikes now and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A node's process dies; what it had written and not synced stays in the cache of its machine.
    KillNode,
    /// A node's machine loses its power.
    PowerLoss,
    /// All nodes lose their power.
    PowerLossEverywhere,
    KillBank,
    KillClient,
    /// Nodes, banks and clients at once.
    KillAll,
    /// The leader is asked to hand over.
    Transfer,
    /// A node neither hears nor is heard.
    Isolate,
    /// One direction between two places.
    CutOneWay,
    /// Between two places, both ways.
    CutPair,
    /// A node's process stands still for a while, and then goes on as if nothing had been.
    Pause,
    /// The same of a bank or a client.
    PauseOther,
    /// For a while a node's syncs take very long.
    SlowSync,
    /// A node dies when it has been sent a vote, before that is in its log.
    KillAtVote,
    /// A sync fails.
    FailSync,
    /// For a while a node's disk has no room for more.
    FullDisk,
    /// A bit flips on the disk of a node that is down; never on two nodes before the first is whole again.
    BitFlip,
    /// A node's wall clock jumps. Always the same node's: with two of three wrong there is no right time.
    ClockJump,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::KillNode,
        Self::PowerLoss,
        Self::PowerLossEverywhere,
        Self::KillBank,
        Self::KillClient,
        Self::KillAll,
        Self::Transfer,
        Self::Isolate,
        Self::CutOneWay,
        Self::CutPair,
        Self::Pause,
        Self::PauseOther,
        Self::SlowSync,
        Self::KillAtVote,
        Self::FailSync,
        Self::FullDisk,
        Self::BitFlip,
        Self::ClockJump,
    ];

    /// The shortest and the longest mean time between two, in milliseconds.
    const fn gaps(self) -> (u64, u64) {
        match self {
            Self::KillNode | Self::PowerLoss | Self::Transfer => (800, 6_000),
            Self::KillBank | Self::KillClient | Self::CutOneWay | Self::CutPair | Self::Pause | Self::PauseOther => {
                (800, 5_000)
            }
            Self::Isolate | Self::SlowSync | Self::KillAtVote => (1_500, 6_000),
            Self::ClockJump => (1_000, 6_000),
            Self::PowerLossEverywhere | Self::KillAll | Self::FailSync | Self::FullDisk | Self::BitFlip => {
                (4_000, 15_000)
            }
        }
    }
}

/// Its name on the command line: the variant's, in lower case with hyphens.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        f.pad(&name)
    }
}

/// How links behave towards each single message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Probabilities: that a message or its answer is lost; that it comes a second time; that it is late.
    pub loss: f64,
    pub duplicate: f64,
    pub late: f64,
    /// How late, at most.
    pub lateness: Duration,
}

/// How a bank behaves towards each single request to prepare: probabilities.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mood {
    /// It refuses for no reason.
    pub refuses: f64,
    /// Its vote takes long, at times longer than it may.
    pub stalls: f64,
    /// It dies when its vote is durable and not yet answered.
    pub dies_voting: f64,
    /// It dies between its vote and the outcome.
    pub dies_in_doubt: f64,
}

/// Whose clock it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Node(u64),
    Bank(usize),
    Client(usize),
    Admin,
}

/// How a wall clock differs from the true time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Skew {
    pub offset_ms: i64,
    /// In millionths.
    pub drift: i64,
}

/// What a seed stands for.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub flaw: Option<Flaw>,
    /// Nodes of the cluster.
    pub nodes: u64,
    /// Participants.
    pub banks: usize,
    /// Databases that prepare by themselves, each with an agent: the participants behind these.
    pub databases: usize,
    /// Participants that have no door and open a stream to the cluster.
    pub streams: BTreeSet<usize>,
    /// Each with the mean time between two.
    pub faults: BTreeMap<Fault, Duration>,
    /// How long faults strike and clients work.
    pub length: Duration,
    pub clients: usize,
    /// Transactions that all clients begin, at most.
    pub transactions: u64,
    /// Transactions that a client works on at a time.
    pub lanes: usize,
    /// The longest pause of a lane between two transactions.
    pub think: Duration,
    pub latency: Range<Duration>,
    pub weather: Weather,
    /// Of every bank.
    pub mood: Mood,
    /// How long a sync takes.
    pub sync: Duration,
    pub skews: BTreeMap<Place, Skew>,
    /// The node whose clock may be far off.
    pub far: u64,
    pub snapshot_every: u64,
    pub keep_entries: u64,
    /// The size of a file of the log: small ones are filled, and purged, within a run.
    pub segment_bytes: u64,
    pub rules: Rules,
    /// How long a client has to settle what it prepared itself.
    pub settle_grace: Duration,
    /// Whether somebody watches.
    pub watches: bool,
    /// Transitions that each node keeps for whoever watches.
    pub watch_keeps: usize,
    /// Whether an operator looks after transactions that stay open.
    pub operated: bool,
}

impl Plan {
    /// Draws what the seed stands for. A flaw does not change what is drawn.
    #[must_use]
    pub fn draw(seed: u64, flaw: Option<Flaw>) -> Self {
        let random = &mut stream(seed, "plan");
        let watching = &mut stream(seed, "watching");
        let calm = random.random_bool(0.06);
        let mut faults = BTreeMap::new();
        let share = *pick(random, &[0.2, 0.4, 0.7]);
        for fault in Fault::ALL {
            let (least, most) = fault.gaps();
            let (drawn, gap) = (random.random_bool(share), random.random_range(least..=most));
            if drawn && !calm {
                faults.insert(fault, Duration::from_millis(gap));
            }
        }
        let weather = weather(random);
        let mood = mood(random);
        // Larger worlds work less long, or a seed would cost more.
        let nodes = *pick(random, &[3, 3, 3, 3, 5]);
        let banks = random.random_range(2..=6);
        let clients = *pick(random, &[2, 2, 3, 3, 4, 4, 6, 8]);
        let lanes = if clients > 4 { random.random_range(1..=2) } else { random.random_range(2..=4) };
        let longest = if nodes > 3 { 9_000 } else { 16_000 };
        let far = random.random_range(1..=nodes);
        let mut plan = Self {
            seed,
            flaw,
            nodes,
            banks,
            databases: *pick(&mut stream(seed, "databases"), &[0, 0, 1, 2]),
            streams: streams(seed, banks),
            faults,
            length: Duration::from_millis(random.random_range(4_000..longest)),
            clients,
            transactions: u64::MAX,
            lanes,
            think: Duration::from_millis(*pick(random, &[0, 10, 40, 200])),
            latency: Duration::from_micros(100)..Duration::from_micros(*pick(random, &[300, 1_500, 4_000])),
            weather: if calm { Weather::default() } else { weather },
            mood: if calm { Mood::default() } else { mood },
            sync: Duration::from_micros(*pick(random, &[1_000, 1_000, 3_000, 10_000])),
            skews: skews(random, (nodes, banks, clients), far),
            far,
            snapshot_every: *pick(random, &[20, 60, 5_000]),
            keep_entries: *pick(random, &[0, 10, 500]),
            segment_bytes: *pick(random, &[8 << 10, 32 << 10, 1 << 20]),
            rules: Rules::default(),
            settle_grace: Duration::from_millis(*pick(random, &[0, 200, 1_000])),
            watches: watching.random_bool(0.5),
            watch_keeps: *pick(watching, &[30, 300, 50_000]),
            operated: !calm && stream(seed, "operator").random_bool(0.25),
        };
        if random.random_bool(0.25) {
            plan.rules = Rules { retention_ms: 4_000, max_lifetime_ms: 8_000, bucket_ms: 1_000, ..plan.rules };
        }
        plan
    }

    /// Whether nothing goes wrong in this seed.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        let Mood { refuses, stalls, dies_voting, dies_in_doubt } = self.mood;
        let even = [self.weather.loss, self.weather.late, refuses, stalls, dies_voting, dies_in_doubt];
        self.faults.is_empty() && self.flaw.is_none() && even.iter().all(|probability| *probability == 0.0)
    }

    /// Whether a database is there, which prepares by itself and keeps no tombstones.
    #[must_use]
    pub fn is_database(&self, place: Place) -> bool {
        matches!(place, Place::Bank(bank) if bank >= self.banks)
    }

    /// Whether outcomes are forgotten within the run.
    #[must_use]
    pub fn forgets(&self) -> bool {
        self.rules.retention_ms < 60_000
    }
}

/// None in some worlds, all in others.
fn streams(seed: u64, banks: usize) -> BTreeSet<usize> {
    let random = &mut stream(seed, "streams");
    let share = *pick(random, &[0.0, 0.3, 0.6, 1.0]);
    (0..banks).filter(|_| random.random_bool(share)).collect()
}

const YEAR_MS: i64 = 365 * 24 * 3_600_000;
/// How far a clock may be off, in milliseconds.
pub const FAR_MS: [i64; 6] = [-YEAR_MS, -3_600_000, -2_000, 2_000, 3_600_000, YEAR_MS];

fn weather(random: &mut StdRng) -> Weather {
    Weather {
        loss: *pick(random, &[0.0, 0.0, 0.01, 0.06]),
        duplicate: *pick(random, &[0.0, 0.02, 0.15]),
        late: *pick(random, &[0.0, 0.02, 0.15]),
        lateness: Duration::from_millis(*pick(random, &[10, 100, 1_500])),
    }
}

fn mood(random: &mut StdRng) -> Mood {
    Mood {
        refuses: *pick(random, &[0.0, 0.02, 0.1]),
        stalls: *pick(random, &[0.0, 0.0, 0.01, 0.04]),
        dies_voting: *pick(random, &[0.0, 0.0, 0.005, 0.02]),
        dies_in_doubt: *pick(random, &[0.0, 0.0, 0.005, 0.02]),
    }
}

/// Most clocks are a little off. One node's may be far off: it must not matter.
fn skews(random: &mut StdRng, (nodes, banks, clients): (u64, usize, usize), far_node: u64) -> BTreeMap<Place, Skew> {
    let nodes = (1..=nodes).map(Place::Node);
    let places: Vec<Place> = nodes.chain((0..banks).map(Place::Bank)).chain((0..clients).map(Place::Client)).collect();
    let mut skews = BTreeMap::new();
    for place in places {
        let offset_ms = random.random_range(-800..=800);
        skews.insert(place, Skew { offset_ms, drift: random.random_range(-20_000..=20_000) });
    }
    let (far, offset_ms) = (random.random_bool(0.2), *pick(random, &FAR_MS));
    if far {
        skews.insert(Place::Node(far_node), Skew { offset_ms, drift: 0 });
    }
    let (ahead, client) = (random.random_bool(0.05), random.random_range(0..clients));
    if ahead {
        // Beyond the skew that the rules allow.
        skews.insert(Place::Client(client), Skew { offset_ms: 600_000, drift: 0 });
    }
    skews
}
