//! Participants that answer when a test lets them.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::timeout};
use verdict_client::{
    BranchId, Conclusion,
    participant::{NotAnswered, OnePhase, Prepare, ResourceManager, Settle, Settled, Voted},
};

use super::RESOURCES;

/// A gate before each participant's prepare, and one before its commit (also in one phase); all are open at first.
#[derive(Clone)]
pub(crate) struct Gates {
    prepare: BTreeMap<&'static str, Arc<Gate>>,
    commit: BTreeMap<&'static str, Arc<Gate>>,
}

#[derive(Debug, Default)]
pub(crate) struct Gate {
    closed: AtomicBool,
    arrived: AtomicUsize,
    changed: Notify,
}

impl Gates {
    pub(crate) fn new() -> Self {
        let gates = || RESOURCES.into_iter().map(|resource| (resource, Arc::default())).collect();
        Self { prepare: gates(), commit: gates() }
    }

    pub(crate) fn prepare(&self, resource: &str) -> &Arc<Gate> {
        &self.prepare[resource]
    }

    pub(crate) fn commit(&self, resource: &str) -> &Arc<Gate> {
        &self.commit[resource]
    }

    /// For [`super::Cluster::start_with`].
    pub(crate) fn wrap(&self) -> impl Fn(&str, Arc<dyn ResourceManager>) -> Arc<dyn ResourceManager> + use<> {
        let gates = self.clone();
        move |resource, inner| {
            let (prepare, commit) = (Arc::clone(gates.prepare(resource)), Arc::clone(gates.commit(resource)));
            Arc::new(Gated { inner, prepare, commit })
        }
    }
}

impl Gate {
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Waits until so many calls have come to the gate.
    pub(crate) async fn arrived(&self, calls: usize) {
        let arrived = self.until(|gate| gate.arrived.load(Ordering::SeqCst) >= calls);
        timeout(Duration::from_secs(20), arrived).await.expect("the call comes within 20 s");
    }

    async fn pass(&self) {
        self.arrived.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_waiters();
        self.until(|gate| !gate.closed.load(Ordering::SeqCst)).await;
    }

    async fn until(&self, condition: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.changed.notified();
            if condition(self) {
                return;
            }
            changed.await;
        }
    }
}

struct Gated {
    inner: Arc<dyn ResourceManager>,
    prepare: Arc<Gate>,
    commit: Arc<Gate>,
}

impl fmt::Debug for Gated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gated").finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl ResourceManager for Gated {
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        self.prepare.pass().await;
        self.inner.prepare(request).await
    }

    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.commit.pass().await;
        self.inner.commit(request).await
    }

    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.inner.rollback(request).await
    }

    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        self.commit.pass().await;
        self.inner.commit_one_phase(request).await
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        self.inner.recover(limit).await
    }
}
