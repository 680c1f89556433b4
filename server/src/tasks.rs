//! Owned spawns: every task of a node ends when the node stops.

use std::{future::Future, sync::Arc};

use tokio::sync::Semaphore;

/// Spawns tasks that end when it is told to stop.
#[derive(Clone, Debug)]
pub(crate) struct Tasks {
    /// Never has a permit; closing it wakes every task.
    stopped: Arc<Semaphore>,
}

impl Tasks {
    pub(crate) fn new() -> Self {
        Self { stopped: Arc::new(Semaphore::new(0)) }
    }

    /// Runs `work` until it is done or the node stops.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stopped = Arc::clone(&self.stopped);
        drop(tokio::spawn(async move {
            tokio::select! {
                biased;
                _ = stopped.acquire() => {}
                () = work => {}
            }
        }));
    }

    pub(crate) fn stop(&self) {
        self.stopped.close();
    }
}
