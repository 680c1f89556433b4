//! Three replicas in simulation: nodes are killed and lose their power, links are cut, and nothing acknowledged is
//! lost; one seed gives one history.
#![cfg(madsim)]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use madsim::runtime::{Handle, NodeHandle, Runtime};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use support::{Book, Net, disconnect, join, options};
use verdict_raft_log::files::Spawn;
use verdict_raft_log::files::testing::SimDisk;
use verdict_raft_log::{NodeId, ProposeError, Replica};

const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

/// A node of the simulation.
struct Node {
    id: NodeId,
    /// The simulation's name of it; a handle is good only until the node is killed.
    place: madsim::task::NodeId,
    disk: SimDisk,
    book: Book,
    replica: Option<Replica>,
}

fn handle(place: madsim::task::NodeId) -> NodeHandle {
    Handle::current().get_node(place).unwrap()
}

struct World {
    net: Arc<Net>,
    nodes: Vec<Node>,
    rng: StdRng,
    trace: Arc<Mutex<Vec<String>>>,
    start: tokio::time::Instant,
}

impl World {
    async fn new(seed: u64) -> Self {
        let net = Arc::new(Net::default());
        *net.delay.lock().unwrap() =
            Some(|| Duration::from_micros(madsim::rand::Rng::gen_range(&mut madsim::rand::thread_rng(), 100..3000)));
        let nodes = NODES.map(|id| Node {
            id,
            place: Handle::current().create_node().name(format!("node-{id}")).build().id(),
            disk: SimDisk::new(),
            book: Book::default(),
            replica: None,
        });
        for node in &nodes {
            let at = node.place;
            let place = move |work: BoxFuture<'static, ()>| drop(handle(at).spawn(work));
            net.places.lock().unwrap().insert(node.id, Arc::new(place));
        }
        let rng = StdRng::seed_from_u64(seed);
        let start = tokio::time::Instant::now();
        let mut world = Self { net, nodes: nodes.into(), rng, trace: Arc::default(), start };
        for at in 0..3 {
            world.launch(at).await;
        }
        world
    }

    fn note(&self, what: String) {
        self.trace.lock().unwrap().push(format!("{:?} {what}", self.start.elapsed()));
    }

    async fn launch(&mut self, at: usize) {
        let mut options = options(NODES[at], &NODES);
        (options.snapshot_every, options.keep_entries) = (40, 5);
        let node = &mut self.nodes[at];
        node.book = Book::default();
        let (net, book, disk) = (Arc::clone(&self.net), node.book.clone(), Arc::new(node.disk.mount()));
        let spawn = Spawn::Task { write: Duration::from_micros(50), sync: Duration::from_millis(1) };
        let started = handle(node.place).spawn(async move { join(&net, options, disk, spawn, book).await });
        node.replica = Some(started.await.unwrap());
        self.note(format!("node {} started", at + 1));
    }

    /// Ends a node's process, or its machine.
    fn kill(&mut self, at: usize, power: bool) {
        let node = &mut self.nodes[at];
        disconnect(&self.net, node.id);
        node.replica = None;
        Handle::current().kill(node.place);
        Handle::current().restart(node.place);
        if power {
            node.disk.crash(&mut self.rng);
        }
        self.note(format!("node {} killed, power {power}", at + 1));
    }

    fn running(&self) -> Vec<Replica> {
        self.nodes.iter().filter_map(|node| node.replica.clone()).collect()
    }

    fn describe(&self) -> String {
        let mut lines: Vec<String> = self.trace.lock().unwrap().iter().rev().take(40).rev().cloned().collect();
        lines.extend(self.running().iter().map(|replica| format!("{:?}", replica.status())));
        lines.join("\n")
    }

    /// Proposes once on whoever seems to lead; whether it was acknowledged.
    async fn propose(&self, entry: &str) -> bool {
        // A deposed leader may not know it yet.
        let leads = self.running().into_iter().filter(|replica| replica.status().leads());
        let Some(replica) = leads.max_by_key(|replica| replica.status().term) else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            return false;
        };
        let proposed = replica.propose(Bytes::from(entry.to_owned()));
        let answer = match tokio::time::timeout(Duration::from_secs(2), proposed).await {
            Ok(Ok(applied)) => Some(applied.position),
            Ok(Err(ProposeError::TooLarge { .. })) => unreachable!("entries are small"),
            Ok(Err(_)) | Err(_) => None,
        };
        self.note(format!("{entry}: {answer:?}"));
        if answer.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        answer.is_some()
    }
}

/// Runs a history; returns what happened.
fn history(seed: u64) -> Vec<String> {
    // A thread of its own: hash maps draw their keys once a thread.
    let run = move || {
        Runtime::with_seed_and_config(seed, madsim::Config::default()).block_on(async move {
            let mut world = World::new(seed).await;
            let mut acknowledged = Vec::new();
            let mut down: Option<usize> = None;
            for i in 0..400 {
                if i % 25 == 24 {
                    match down.take() {
                        Some(at) => world.launch(at).await,
                        None => {
                            let at = world.rng.random_range(0..3);
                            match world.rng.random_range(0..3) {
                                0 => {
                                    world.net.isolate(NODES[at], &NODES);
                                    tokio::time::sleep(Duration::from_millis(700)).await;
                                    world.net.heal();
                                }
                                kind => {
                                    world.kill(at, kind == 1);
                                    down = Some(at);
                                }
                            }
                        }
                    }
                }
                let entry = format!("entry {i}");
                if world.propose(&entry).await {
                    acknowledged.push(entry);
                }
            }
            if let Some(at) = down {
                world.launch(at).await;
            }
            check(&mut world, &acknowledged).await;
            let trace = world.trace.lock().unwrap().clone();
            trace
        })
    };
    std::thread::spawn(run).join().unwrap()
}

/// All nodes have applied the same, and all that was acknowledged.
async fn check(world: &mut World, acknowledged: &[String]) {
    assert!(acknowledged.len() > 150, "only {} entries got through", acknowledged.len());
    let mut i = 0;
    while !world.propose(&format!("last {i}")).await {
        i += 1;
        assert!(i < 1000, "nobody leads in the end:\n{}", world.describe());
    }
    for replica in world.running() {
        let caught_up = async {
            while replica.read_barrier().await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), caught_up).await.expect("a node does not catch up");
    }
    let books: Vec<_> = world.nodes.iter().map(|node| node.book.applied.lock().unwrap().clone()).collect();
    assert_eq!(books[0], books[1]);
    assert_eq!(books[0], books[2]);
    let applied: BTreeSet<&[u8]> = books[0].iter().map(|(_, entry)| &entry[..]).collect();
    for entry in acknowledged {
        assert!(applied.contains(entry.as_bytes()), "{entry} was acknowledged and is lost");
    }
    world.note(format!("{books:?}"));
    world.note(format!("{:?} {}", world.net.sent.lock().unwrap(), madsim::rand::random::<u64>()));
}

#[test]
fn nothing_acknowledged_is_lost() {
    for seed in 0..20 {
        println!("seed {seed}");
        history(seed);
    }
}

#[test]
fn one_seed_gives_one_history() {
    for seed in 100..105 {
        let (first, second) = (history(seed), history(seed));
        for (one, two) in first.iter().zip(&second) {
            assert_eq!(one, two, "seed {seed}");
        }
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
    assert_ne!(history(1), history(2));
}
