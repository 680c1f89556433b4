//! Watches who leads, and keeps the coordinator's time.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tracing::info;
use verdict_protocol::{ClusterId, Rules};
use verdict_raft_log::Replica;

use crate::engine::Engine;

/// How often log time is steered towards the majority's clocks.
const STEER_EVERY: Duration = Duration::from_secs(1);

/// Tells the engine who leads, until it is dropped. A first leader founds the cluster under `cluster`.
pub(crate) async fn watch(engine: Arc<Engine>, replica: Replica, cluster: ClusterId, rules: Rules) {
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
                engine.found(cluster, rules);
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

/// Steers log time, until it is dropped; founds the cluster again if that went astray.
pub(crate) async fn steer(engine: Arc<Engine>, cluster: ClusterId, rules: Rules) {
    loop {
        sleep(STEER_EVERY).await;
        engine.steer();
        engine.found(cluster, rules);
    }
}
