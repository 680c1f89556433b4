//! A participant that fails as a test says, and counts what it is asked.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use verdict_client::{
    BranchId, Conclusion,
    participant::{NotAnswered, OnePhase, Prepare, ResourceManager, Settle, Settled, Voted},
};

/// What goes wrong at one resource, and how often it was asked what.
#[derive(Clone, Default)]
pub(crate) struct Troubles(Arc<State>);

#[derive(Default)]
struct State {
    /// So many prepares fail.
    failing_prepares: AtomicUsize,
    commits_fail: AtomicBool,
    /// It promises, and its database then drops the branch.
    reaps: AtomicBool,
    prepares: AtomicUsize,
    commits: AtomicUsize,
    decides: AtomicUsize,
}

impl Troubles {
    pub(crate) fn fail_prepares(&self, times: usize) {
        self.0.failing_prepares.store(times, SeqCst);
    }

    pub(crate) fn fail_commits(&self, fail: bool) {
        self.0.commits_fail.store(fail, SeqCst);
    }

    pub(crate) fn reap(&self) {
        self.0.reaps.store(true, SeqCst);
    }

    /// How often it was asked to prepare.
    pub(crate) fn prepares(&self) -> usize {
        self.0.prepares.load(SeqCst)
    }

    /// How often it was told to commit.
    pub(crate) fn commits(&self) -> usize {
        self.0.commits.load(SeqCst)
    }

    /// How often the decision was given to it.
    pub(crate) fn decides(&self) -> usize {
        self.0.decides.load(SeqCst)
    }

    /// For [`super::Cluster::start_with`]: the troubles are `resource`'s.
    pub(crate) fn at(
        &self,
        resource: &'static str,
    ) -> impl Fn(&str, Arc<dyn ResourceManager>) -> Arc<dyn ResourceManager> + use<> {
        let troubles = self.clone();
        move |name, inner| {
            if name == resource { Arc::new(Troubled { inner, troubles: troubles.clone() }) } else { inner }
        }
    }
}

struct Troubled {
    inner: Arc<dyn ResourceManager>,
    troubles: Troubles,
}

impl fmt::Debug for Troubled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Troubled").finish_non_exhaustive()
    }
}

fn failing_over() -> NotAnswered {
    NotAnswered::unavailable("the database is failing over to its standby")
}

#[tonic::async_trait]
impl ResourceManager for Troubled {
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        let state = &self.troubles.0;
        state.prepares.fetch_add(1, SeqCst);
        if state.failing_prepares.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Err(failing_over());
        }
        if state.reaps.load(SeqCst) {
            return Ok(Voted::PREPARED);
        }
        self.inner.prepare(request).await
    }

    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered> {
        let state = &self.troubles.0;
        state.commits.fetch_add(1, SeqCst);
        if state.commits_fail.load(SeqCst) {
            return Err(failing_over());
        }
        self.inner.commit(request).await
    }

    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.inner.rollback(request).await
    }

    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        self.troubles.0.decides.fetch_add(1, SeqCst);
        self.inner.commit_one_phase(request).await
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        self.inner.recover(limit).await
    }
}
