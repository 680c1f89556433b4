//! The textbook's coordinator: one machine, one disk, presumed nothing.
//!
//! Before PREPARE goes out it writes BEGIN, unforced: a crash of the process does not lose it, and it costs no time. At
//! the first NO, or when all votes are in, it forces the decision and sends it to all who did not vote NO. Restarted,
//! it reads its disk: what has begun and is not decided, it aborts, for its votes are lost; what is decided, it sends.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use madsim::runtime::{Handle, NodeHandle};
use tokio::{
    sync::{Notify, mpsc},
    time::sleep,
};
use verdict_protocol::Outcome;

use super::{
    DIES_AT, FSYNC, Figures, HOP, HOT_ROW_PAUSE, OUTAGE, PARTICIPANTS, Situation,
    row::Row,
    seen::{Seen, What, commits_in_a_second},
    wire::exactly,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Address {
    Coordinator,
    Participant(usize),
}

#[derive(Clone, Copy, Debug)]
enum Message {
    /// From the client, who is beside the coordinator.
    Begin {
        transaction: u128,
        votes: [bool; 3],
    },
    Prepare {
        transaction: u128,
        yes: bool,
    },
    Vote {
        transaction: u128,
        from: usize,
        yes: bool,
    },
    Decision {
        transaction: u128,
    },
    Acknowledgement,
}

/// Messages that wait for one machine: more than the hot row's transactions send in all.
const INBOX: usize = 4_096;

/// The network and the coordinator's disk: what outlives the processes.
struct World {
    seen: Seen,
    inboxes: Mutex<BTreeMap<Address, mpsc::Sender<Message>>>,
    /// Where messages live that are on their way.
    wire: NodeHandle,
    /// What stands on the coordinator's disk of each transaction: begun, and perhaps decided.
    disk: Mutex<BTreeMap<u128, Option<Outcome>>>,
    /// The coordinator crashes as soon as COMMIT is on its disk.
    dies_decided: bool,
    crash: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    fn start(dies_decided: bool) -> (Arc<Self>, NodeHandle) {
        let handle = Handle::current();
        let node = |name: &str, last: u8| {
            let ip = std::net::Ipv4Addr::new(10, 1, 0, last).into();
            handle.create_node().name(name).ip(ip)
        };
        let world = Arc::new(Self {
            seen: Seen::default(),
            inboxes: Mutex::default(),
            wire: node("wire", 1).build(),
            disk: Mutex::default(),
            dies_decided,
            crash: Notify::new(),
        });
        for (number, name) in (0..).zip(PARTICIPANTS) {
            let (own, row) = (Arc::clone(&world), Row::new(number, world.seen.clone()));
            let machine = node(name, 10 + u8::try_from(number).expect("three")).build();
            drop(machine.spawn(participant(own, number, row)));
        }
        let own = Arc::clone(&world);
        let coordinator = node("coordinator", 2).init(move || coordinator(Arc::clone(&own))).build();
        (world, coordinator)
    }

    fn open(&self, address: Address) -> mpsc::Receiver<Message> {
        let (sender, inbox) = mpsc::channel(INBOX);
        lock(&self.inboxes).insert(address, sender);
        inbox
    }

    /// A message takes its way, whatever becomes of its sender; nobody takes it in where nobody is.
    fn send(self: &Arc<Self>, to: Address, message: Message) {
        self.seen.add(What::Message);
        let world = Arc::clone(self);
        drop(self.wire.spawn(async move {
            exactly(HOP).await;
            world.deliver(to, message);
        }));
    }

    fn deliver(&self, to: Address, message: Message) {
        if let Some(inbox) = lock(&self.inboxes).get(&to) {
            // A machine that is down has no inbox that is open.
            let full = matches!(inbox.try_send(message), Err(mpsc::error::TrySendError::Full(_)));
            assert!(!full, "more messages than the scenario has");
        }
    }

    async fn force(&self, transaction: u128, outcome: Outcome) {
        sleep(FSYNC).await;
        self.seen.add(What::Forced);
        lock(&self.disk).insert(transaction, Some(outcome));
        if self.dies_decided && outcome == Outcome::Committed {
            self.crash.notify_one();
            std::future::pending().await
        }
    }

    fn tell(self: &Arc<Self>, to: usize, transaction: u128, outcome: Outcome) {
        self.seen.add(What::Tells(outcome));
        self.send(Address::Participant(to), Message::Decision { transaction });
    }
}

async fn participant(world: Arc<World>, number: usize, row: Row<u128>) {
    let mut inbox = world.open(Address::Participant(number));
    while let Some(message) = inbox.recv().await {
        let (world, row) = (Arc::clone(&world), row.clone());
        // Transactions wait for the row, the inbox does not.
        drop(tokio::spawn(async move {
            let answer = match message {
                Message::Prepare { transaction, yes } => {
                    row.prepare(transaction, yes).await;
                    Message::Vote { transaction, from: number, yes }
                }
                Message::Decision { transaction } => {
                    row.settle(transaction).await;
                    Message::Acknowledgement
                }
                Message::Begin { .. } | Message::Vote { .. } | Message::Acknowledgement => return,
            };
            world.send(Address::Coordinator, answer);
        }));
    }
}

/// One life of the coordinator's process.
async fn coordinator(world: Arc<World>) {
    let mut inbox = world.open(Address::Coordinator);
    let found = lock(&world.disk).clone();
    for (transaction, decided) in found {
        let outcome = decided.unwrap_or(Outcome::Aborted);
        if decided.is_none() {
            world.force(transaction, outcome).await;
        }
        for to in 0..PARTICIPANTS.len() {
            world.tell(to, transaction, outcome);
        }
    }
    let mut votes: BTreeMap<u128, BTreeMap<usize, bool>> = BTreeMap::new();
    while let Some(message) = inbox.recv().await {
        match message {
            Message::Begin { transaction, votes: will } => {
                lock(&world.disk).insert(transaction, None);
                votes.insert(transaction, BTreeMap::new());
                for (to, yes) in will.into_iter().enumerate() {
                    world.seen.add(What::Asks);
                    world.send(Address::Participant(to), Message::Prepare { transaction, yes });
                }
            }
            Message::Vote { transaction, from, yes } => {
                // A vote that comes after the decision changes nothing.
                let Some(so_far) = votes.get_mut(&transaction) else { continue };
                so_far.insert(from, yes);
                if yes && so_far.len() < PARTICIPANTS.len() {
                    continue;
                }
                let outcome = if yes { Outcome::Committed } else { Outcome::Aborted };
                let so_far = votes.remove(&transaction).unwrap_or_default();
                world.force(transaction, outcome).await;
                for to in (0..PARTICIPANTS.len()).filter(|to| so_far.get(to) != Some(&false)) {
                    world.tell(to, transaction, outcome);
                }
            }
            Message::Acknowledgement => world.seen.add(What::Acknowledged),
            Message::Prepare { .. } | Message::Decision { .. } => {}
        }
    }
}

/// One transaction in this situation.
pub(super) async fn transaction(situation: Situation) -> Figures {
    let (world, machine) = World::start(situation == Situation::DiesDecided);
    sleep(Duration::from_millis(10)).await;
    world.deliver(Address::Coordinator, Message::Begin { transaction: 1, votes: situation.votes() });
    match situation {
        Situation::AllYes | Situation::OneNo => {}
        Situation::DiesWaiting => {
            sleep(DIES_AT).await;
            outage(&machine).await;
        }
        Situation::DiesDecided => {
            world.crash.notified().await;
            outage(&machine).await;
        }
    }
    // Longer than anything that is still on its way.
    sleep(Duration::from_millis(100)).await;
    Figures::of(&world.seen).expect("the transaction has ended")
}

async fn outage(machine: &NodeHandle) {
    Handle::current().kill(machine.id());
    sleep(OUTAGE).await;
    Handle::current().restart(machine.id());
}

/// More transactions than the row takes, all after the same row.
pub(super) async fn hot_row() -> usize {
    let (world, _machine) = World::start(false);
    sleep(Duration::from_millis(10)).await;
    for transaction in 1..=500 {
        world.deliver(Address::Coordinator, Message::Begin { transaction, votes: [true; 3] });
        sleep(HOT_ROW_PAUSE).await;
    }
    sleep(Duration::from_secs(2)).await;
    commits_in_a_second(&world.seen, 0)
}
