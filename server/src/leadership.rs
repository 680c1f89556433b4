//! Watches who leads, and keeps the coordinator's time.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tracing::info;
use verdict_protocol::{ClusterId, Rules};
use verdict_raft_log::Replica;

use crate::{engine::Engine, walls::Walls};

/// How often log time is steered towards the majority's clocks.
const STEER_EVERY: Duration = Duration::from_secs(1);
/// How often a leader looks whether its cluster is founded.
const FOUND_EVERY: Duration = Duration::from_millis(50);
/// How long a first leader waits for the clocks of nodes that it has not heard yet.
const CLOCKS_WITHIN: Duration = Duration::from_secs(2);

/// Tells the engine who leads, until it is dropped.
pub(crate) async fn watch(engine: Arc<Engine>, replica: Replica) {
    let mut seen = replica.status();
    let mut led: Option<u64> = None;
    loop {
        engine.set_leader(seen.leader);
        let leads = seen.leads().then_some(seen.term);
        if leads != led {
            if led.is_some() {
                info!(term = led, "leads no more");
                engine.deposed();
            }
            if let Some(term) = leads {
                info!(term, "leads");
                engine.lead(term);
            }
            led = leads;
        }
        seen = replica.status_changed(&seen).await;
    }
}

/// Wakes the coordinator when it wants to be, until it is dropped.
pub(crate) async fn keep_time(engine: Arc<Engine>) {
    loop {
        let due = engine.until_wake();
        tokio::select! {
            biased;
            () = engine.alarm.notified() => {}
            () = sleep(due.unwrap_or(Duration::MAX / 4)), if due.is_some() => engine.wake(),
        }
    }
}

/// Steers log time, until it is dropped.
pub(crate) async fn steer(engine: Arc<Engine>) {
    loop {
        sleep(STEER_EVERY).await;
        engine.steer();
    }
}

/// Founds the cluster if this node leads one that is not founded yet, and ends when it is.
///
/// A first leader waits a while for the clocks of all nodes, so that one that is wrong does not set the time.
pub(crate) async fn found(engine: Arc<Engine>, walls: Arc<Walls>, nodes: usize, cluster: ClusterId, rules: Rules) {
    let mut waited = Duration::ZERO;
    while !engine.is_founded() {
        if engine.leads() {
            if walls.readings().len() >= nodes || waited >= CLOCKS_WITHIN {
                engine.found(cluster, rules);
            }
            waited += FOUND_EVERY;
        }
        sleep(FOUND_EVERY).await;
    }
}
