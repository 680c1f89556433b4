//! Watches who leads, and keeps the coordinator's time.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tracing::{info, warn};
use verdict_protocol::{ClusterId, Rules, Secret};
use verdict_raft_log::Replica;

use crate::{engine::Engine, streams::Streams, walls::Walls};

/// How often a leader with streams makes sure that it still leads.
const CONFIRM_EVERY: Duration = Duration::from_secs(1);
/// How often log time is steered towards the majority's clocks.
const STEER_EVERY: Duration = Duration::from_secs(1);
/// How often a leader looks whether its cluster is founded.
const FOUND_EVERY: Duration = Duration::from_millis(50);
/// How long a first leader waits for the clocks of nodes that it has not heard yet.
const CLOCKS_WITHIN: Duration = Duration::from_secs(2);

/// Tells the engine and the streams who leads, until it is dropped.
pub(crate) async fn watch(engine: Arc<Engine>, streams: Streams, replica: Replica) {
    let mut seen = replica.status();
    let mut led: Option<u64> = None;
    loop {
        engine.set_leader(seen.leader);
        let leads = seen.leads().then_some(seen.term);
        if leads != led {
            if led.is_some() {
                info!(term = led, "leads no more");
                engine.deposed();
                streams.depose();
            }
            if let Some(term) = leads {
                info!(term, "leads");
                engine.lead(term);
                streams.lead();
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

/// Ends the streams of a leader that no majority confirms, until it is dropped: it may have been deposed and not have
/// heard of it, and the participants are asked by the next.
pub(crate) async fn confirm(streams: Streams, replica: Replica) {
    loop {
        sleep(CONFIRM_EVERY).await;
        if !streams.is_empty()
            && let Err(error) = replica.read_barrier().await
        {
            warn!(%error, "no majority confirms that this node leads: its participants are to look elsewhere");
            streams.end_all();
        }
    }
}

/// Founds the cluster if this node leads one that is not founded yet, and ends when it is.
///
/// A first leader waits for the clocks of all nodes, or after a while for those of a majority that agree: one that is
/// wrong must not set the time, and of two that differ nobody knows which it is.
pub(crate) async fn found(
    engine: Arc<Engine>,
    walls: Arc<Walls>,
    nodes: usize,
    cluster: ClusterId,
    secret: Secret,
    rules: Rules,
) {
    let mut waited = Duration::ZERO;
    let mut told = false;
    while !engine.is_founded() {
        if engine.leads() {
            let readings = walls.readings();
            let agree = agree(&readings, nodes, rules.max_skew_ms);
            if readings.len() >= nodes || (waited >= CLOCKS_WITHIN && agree) {
                engine.found(cluster, secret, rules);
            } else if waited >= CLOCKS_WITHIN && !std::mem::replace(&mut told, true) {
                warn!(
                    clocks_ms = ?readings,
                    "the clocks of the nodes that are there differ too much to found the cluster: correct them, or start \
                     the others"
                );
            }
            waited += FOUND_EVERY;
        }
        sleep(FOUND_EVERY).await;
    }
}

/// Whether some clock has a majority of all nodes' clocks, itself among them, within `most_ms`.
fn agree(readings: &[u64], nodes: usize, most_ms: u64) -> bool {
    let near = |one: u64| readings.iter().filter(|other| one.abs_diff(**other) <= most_ms).count();
    readings.iter().any(|one| near(*one) * 2 > nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_clocks_that_differ_nobody_knows_which_is_wrong() {
        assert!(agree(&[7], 1, 0));
        assert!(!agree(&[7], 3, 5));
        assert!(agree(&[7, 12], 3, 5));
        assert!(!agree(&[7, 13], 3, 5));
        assert!(agree(&[7, 12, 900], 3, 5));
        assert!(!agree(&[7, 12, 900], 5, 5));
        assert!(agree(&[7, 9, 12, 900], 5, 5));
    }
}
