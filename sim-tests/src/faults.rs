//! Faults: each kind that the plan names strikes by itself, again and again, until it is told to stop.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use rand::{RngExt as _, rngs::StdRng};
use tokio::{task::JoinHandle, time::sleep};
use verdict_raft_log::NodeId;

use crate::{
    chance::{pick, stream},
    history::What,
    plan::{FAR_MS, Fault, Place},
    vault::Vault,
    world::{World, lock},
};

/// Faults that strike. Told to stop, those under way are mended by [`mend_all`].
#[derive(Debug)]
pub struct Faults(Vec<JoinHandle<()>>);

impl Faults {
    #[must_use]
    pub fn start(world: &Arc<World>) -> Self {
        let plan = &world.shared.plan;
        let strike = |(fault, gap): (&Fault, &Duration)| {
            let random = stream(plan.seed, &format!("{fault:?}"));
            tokio::spawn(strikes(Arc::clone(world), *fault, *gap, random))
        };
        let mut tasks: Vec<_> = plan.faults.iter().map(strike).collect();
        tasks.push(tokio::spawn(watch_over(Arc::clone(world))));
        tasks.push(tokio::spawn(carry_off(Arc::clone(world), stream(plan.seed, "doom"))));
        Self(tasks)
    }

    pub fn stop(self) {
        for task in self.0 {
            task.abort();
        }
    }
}

/// Whatever ended by itself is started again after a while, as a supervisor of processes would.
async fn watch_over(world: Arc<World>) {
    loop {
        sleep(Duration::from_secs(2)).await;
        for place in world.places().collect::<Vec<_>>() {
            if world.has_ended(place) {
                world.start_again(place);
            }
        }
    }
}

/// Kills who is doomed, at once, and starts it again after a while.
async fn carry_off(world: Arc<World>, mut random: StdRng) {
    loop {
        world.shared.doom.notified().await;
        for place in world.shared.take_doomed() {
            world.kill(place, random.random_bool(0.3) && matches!(place, Place::Node(_)));
            let (world, pause) = (Arc::clone(&world), for_a_while(&mut random, 2_000));
            drop(tokio::spawn(async move {
                sleep(pause).await;
                world.start_again(place);
            }));
        }
    }
}

/// Ends all faults: links are mended, everything that is down is started, the weather is fine.
pub fn mend_all(world: &World) {
    world.shared.sky.clear();
    world.shared.calm.store(true, Ordering::Relaxed);
    for pace in world.shared.paces.values() {
        pace.set(world.shared.plan.sync);
    }
    world.shared.vaults.values().for_each(Vault::calms_down);
    let places: Vec<Place> = world.places().collect();
    for place in &places {
        for other in &places {
            world.mend(*place, *other);
        }
        world.resume(*place);
        world.start_again(*place);
    }
    for disk in world.shared.disks.values() {
        disk.fail_syncs(0, 0);
        disk.set_room(None);
    }
}

async fn strikes(world: Arc<World>, fault: Fault, gap: Duration, mut random: StdRng) {
    loop {
        let pause = gap.mul_f64(random.random_range(0.1..2.0));
        sleep(pause).await;
        world.shared.history.record(Place::Admin, What::Strikes(fault));
        strike(&world, fault, &mut random).await;
        world.shared.history.record(Place::Admin, What::Passes(fault));
    }
}

/// A node: the leader more often than not.
fn a_node(world: &World, random: &mut StdRng) -> Place {
    let any = random.random_range(1..=world.shared.plan.nodes);
    let leader = world.shared.leader().filter(|_| random.random_bool(0.6));
    Place::Node(leader.unwrap_or(any))
}

fn some(world: &World, random: &mut StdRng, of: fn(&Place) -> bool) -> Place {
    let places: Vec<Place> = world.places().filter(of).collect();
    *pick(random, &places)
}

fn for_a_while(random: &mut StdRng, most_ms: u64) -> Duration {
    // Mostly short: what is back soon meets what it left behind.
    let most = if random.random_bool(0.6) { most_ms / 8 } else { most_ms };
    Duration::from_millis(random.random_range(1..=most.max(1)))
}

async fn strike(world: &World, fault: Fault, random: &mut StdRng) {
    match fault {
        Fault::KillNode => kill(world, vec![a_node(world, random)], false, random).await,
        Fault::PowerLoss => kill(world, vec![a_node(world, random)], true, random).await,
        Fault::PowerLossEverywhere => {
            kill(world, (1..=world.shared.plan.nodes).map(Place::Node).collect(), true, random).await
        }
        Fault::KillBank => {
            let bank = some(world, random, |place| matches!(place, Place::Bank(_)));
            kill(world, vec![bank], false, random).await;
        }
        Fault::KillClient => {
            let client = some(world, random, |place| matches!(place, Place::Client(_)));
            kill(world, vec![client], false, random).await;
        }
        Fault::KillAll => {
            let power = random.random_bool(0.5);
            kill(world, world.places().collect(), power, random).await;
        }
        Fault::Transfer => transfer(world, random),
        Fault::Isolate => {
            let node = a_node(world, random);
            let others = world.places().filter(|place| *place != node);
            let links = others.flat_map(|other| [(node, other), (other, node)]).collect();
            cut(world, links, random).await;
        }
        Fault::CutOneWay | Fault::CutPair => {
            let node = a_node(world, random);
            let other = some(world, random, |_| true);
            if other == node {
                return;
            }
            let (from, to) = if random.random_bool(0.5) { (node, other) } else { (other, node) };
            let links = if fault == Fault::CutPair { vec![(from, to), (to, from)] } else { vec![(from, to)] };
            cut(world, links, random).await;
        }
        Fault::Pause => pause(world, a_node(world, random), random).await,
        Fault::PauseOther => {
            let other = some(world, random, |place| !matches!(place, Place::Node(_)));
            pause(world, other, random).await;
        }
        Fault::SlowSync => {
            let Place::Node(node) = a_node(world, random) else { return };
            let each = Duration::from_millis(random.random_range(20..=1_500));
            world.shared.history.record(Place::Node(node), What::Fault(format!("each sync takes {each:?}")));
            world.shared.paces[&node].set(each);
            sleep(for_a_while(random, 4_000)).await;
            world.shared.history.record(Place::Node(node), What::Fault("syncs as before".to_owned()));
            world.shared.paces[&node].set(world.shared.plan.sync);
        }
        Fault::KillAtVote => world.shared.trap.store(true, Ordering::Relaxed),
        Fault::FailSync => {
            let Place::Node(node) = a_node(world, random) else { return };
            world.shared.history.record(Place::Node(node), What::Fault("a sync will fail".to_owned()));
            world.shared.disks[&node].fail_syncs(random.random_range(0..4), 1);
        }
        Fault::FullDisk => {
            let Place::Node(node) = a_node(world, random) else { return };
            let room = random.random_range(0..64 << 10);
            world.shared.history.record(Place::Node(node), What::Fault(format!("has room for {room} bytes more")));
            world.shared.disks[&node].set_room(Some(room));
            sleep(for_a_while(random, 4_000)).await;
            world.shared.history.record(Place::Node(node), What::Fault("has room again".to_owned()));
            world.shared.disks[&node].set_room(None);
        }
        Fault::BitFlip => flip(world, random).await,
        Fault::ClockJump => {
            let by = *pick(random, &FAR_MS);
            world
                .shared
                .history
                .record(Place::Node(world.shared.plan.far), What::Fault(format!("clock off by {by} ms")));
            world.shared.jump.store(by, Ordering::Relaxed);
        }
    }
}

async fn pause(world: &World, place: Place, random: &mut StdRng) {
    world.shared.history.record(place, What::Fault("stands still".to_owned()));
    world.pause(place);
    sleep(for_a_while(random, 3_000)).await;
    world.resume(place);
    world.shared.history.record(place, What::Fault("goes on".to_owned()));
}

async fn kill(world: &World, places: Vec<Place>, power: bool, random: &mut StdRng) {
    for place in &places {
        world.kill(*place, power && matches!(place, Place::Node(_)));
    }
    sleep(for_a_while(random, 3_000)).await;
    for place in places {
        world.start_again(place);
        if random.random_bool(0.3) {
            sleep(for_a_while(random, 500)).await;
        }
    }
}

/// A bit of the log or of a snapshot: of a ballot there is no second copy, and a node says so and stays away.
async fn flip(world: &World, random: &mut StdRng) {
    let node = random.random_range(1..=world.shared.plan.nodes);
    // The others must have everything: then what is lost here can be given back.
    let statuses = world.shared.statuses();
    let whole = |other: u64| statuses.get(&other).is_some_and(|status| status.applied.is_some_and(|at| at.index > 0));
    if lock(&world.shared.sick).is_some() || !(1..=world.shared.plan.nodes).all(|other| other == node || whole(other)) {
        return;
    }
    *lock(&world.shared.sick) = Some(node);
    world.kill(Place::Node(node), false);
    let disk = &world.shared.disks[&node];
    let files: Vec<(String, u64)> = disk
        .sizes()
        .into_iter()
        .filter(|(name, size)| {
            *size > 0 && (name.ends_with(".seg") || name.ends_with(".sec") || name.ends_with(".manifest"))
        })
        .collect();
    if !files.is_empty() {
        let (name, size) = pick(random, &files);
        // What matters of a log file is mostly in its first part.
        let reach = if random.random_bool(0.7) { (*size).min(8 << 10) } else { *size };
        let bit = random.random_range(0..reach * 8);
        let flipped = disk.flip_bit(name, bit).is_ok();
        world.shared.history.record(Place::Node(node), What::Fault(format!("bit {bit} of {name} flips: {flipped}")));
    }
    sleep(for_a_while(random, 1_000)).await;
    world.start_again(Place::Node(node));
}

async fn cut(world: &World, links: Vec<(Place, Place)>, random: &mut StdRng) {
    let named: Vec<String> = links.iter().map(|(from, to)| format!("{from}>{to}")).collect();
    world.shared.history.record(Place::Admin, What::Fault(format!("cut {}", named.join(" "))));
    for (from, to) in &links {
        world.cut(*from, *to);
    }
    sleep(for_a_while(random, 4_000)).await;
    world.shared.history.record(Place::Admin, What::Fault(format!("mended {}", named.join(" "))));
    for (from, to) in &links {
        world.mend(*from, *to);
    }
}

fn transfer(world: &World, random: &mut StdRng) {
    let to = random.random_bool(0.7).then(|| NodeId(random.random_range(1..=world.shared.plan.nodes)));
    world.shared.history.record(Place::Admin, What::Fault(format!("asks the leader to hand over to {to:?}")));
    let shared = Arc::clone(&world.shared);
    drop(world.admin().spawn(async move {
        let verdict = shared.verdict(Place::Admin).with_deadline(Duration::from_secs(2));
        let answer = match verdict.transfer_leader(to.map(|node| node.0)).await {
            Ok(leader) => format!("node {leader} leads"),
            Err(error) => error.to_string(),
        };
        shared.history.record(Place::Admin, What::Fault(format!("handed over: {answer}")));
    }));
}
