//! The duty to ask: a branch that is held prepared and hears nothing asks what became of its transaction.
//!
//! Every `sweep_every` the branches held prepared are read from each manager. One that has been held for
//! `inquire_after`, by this process's monotonic clock since it first saw it, is asked about until it is settled, with
//! pauses as the cluster says and jitter. So, with the cluster up, a branch hears its outcome at most
//! `inquire_after + 2 × sweep_every` plus one call after it was decided, even if nobody tells it. Each manager is swept by
//! itself: one that is slow or away holds up no other.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{task::JoinHandle, time::sleep};
use verdict_protocol::{BranchId, Outcome, ResourceName, Xid};

use super::{
    ResourceManager, Settle, Settled,
    server::Shared,
    sweep::{Inquirer, NoOrder, Sweep, settle},
    with_causes,
};
use crate::{CallError, Order, Verdict};

/// When participants ask, each resource for itself.
#[derive(Clone, Copy, Debug)]
pub struct InquiryOptions {
    /// How long a branch is held prepared before it asks. Longer than transactions usually take: asking earlier only
    /// costs calls.
    pub inquire_after: Duration,
    /// How often the managers are asked what they hold.
    pub sweep_every: Duration,
    /// How long one question may take.
    pub deadline: Duration,
    /// How many questions are under way at a time.
    pub at_once: usize,
}

impl Default for InquiryOptions {
    fn default() -> Self {
        Self {
            inquire_after: Duration::from_secs(3),
            sweep_every: Duration::from_secs(1),
            deadline: Duration::from_secs(2),
            at_once: 16,
        }
    }
}

/// The pause after a sweep that reached no cluster grows to this many times `sweep_every`. One question tried the
/// cluster, whatever is held, so that is little; and whoever leads next is to hear of it soon.
const MOST_BACKOFF: u32 = 2;

/// The sweeps of a process that serves managers.
#[derive(Debug)]
pub(super) struct Inquiry {
    tasks: Vec<JoinHandle<()>>,
}

impl Inquiry {
    pub(super) fn start(shared: &Arc<Shared>, verdict: Verdict) -> Self {
        let verdict = verdict.with_deadline(shared.options.inquiry.deadline);
        let (options, limit) = (shared.options.inquiry, shared.options.recover_limit);
        let sweep = |(resource, manager): (&ResourceName, &Arc<dyn ResourceManager>)| {
            let sweep = Sweep::new(resource.clone(), Arc::clone(manager), options, limit);
            tokio::spawn(sweeps(sweep, Arc::downgrade(shared), verdict.clone(), options.sweep_every))
        };
        Self { tasks: shared.managers.iter().map(sweep).collect() }
    }

    /// Settling that has begun runs in tasks of its own and comes to its end.
    pub(super) fn stop(&self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Drop for Inquiry {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn sweeps(mut sweep: Sweep, shared: Weak<Shared>, verdict: Verdict, every: Duration) {
    let mut pause = every;
    loop {
        sleep(verdict.jitter(pause)).await;
        let Some(shared) = shared.upgrade() else { return };
        let reached = sweep.once(&Asking { shared, verdict: verdict.clone() }).await;
        pause = if reached { every } else { (pause * 2).min(every * MOST_BACKOFF) };
    }
}

/// The cluster is asked by calls; what it says is done beside the calls of others.
struct Asking {
    shared: Arc<Shared>,
    verdict: Verdict,
}

#[tonic::async_trait]
impl Inquirer for Asking {
    async fn inquire(&self, branch: BranchId, held: Duration) -> Result<Order, NoOrder> {
        Ok(self.verdict.inquire(branch, held).await?)
    }

    async fn is_decided(&self, xid: Xid) -> Result<bool, NoOrder> {
        match self.verdict.get(xid).await {
            Ok(status) => Ok(status.decision.is_some()),
            // As good as: what is not known is not recorded.
            Err(CallError::Refused { .. }) => Ok(false),
            Err(error @ CallError::Unknown { .. }) => Err(error.into()),
        }
    }

    async fn settle(
        &self,
        manager: &Arc<dyn ResourceManager>,
        request: Settle,
        outcome: Outcome,
    ) -> Result<Settled, String> {
        let manager = Arc::clone(manager);
        let told = self.shared.run(async move { settle(&*manager, request, outcome).await }).await;
        told.map_err(|error| error.to_string())?.map_err(|error| with_causes(&error))
    }

    fn jitter(&self, pause: Duration) -> Duration {
        self.verdict.jitter(pause)
    }
}
