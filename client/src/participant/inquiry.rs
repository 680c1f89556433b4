//! The duty to ask: a branch that is held prepared and hears nothing asks what became of its transaction.
//!
//! Every `sweep_every` the branches held prepared are read from each manager. One that has been held for
//! `inquire_after`, by this process's monotonic clock since it first saw it, is asked about until it is settled, with
//! pauses as the cluster says and jitter. So, with the cluster up, a branch hears its outcome at most
//! `inquire_after + 2 × sweep_every` plus one call after it was decided, even if nobody tells it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use verdict_protocol::{BranchId, ResourceName, Settlement};

use super::{ResourceManager, Settle, Settled, server::Shared, with_causes};
use crate::{CallError, Order, Verdict};

/// When participants ask.
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

/// A branch that the cluster refuses to answer about, or that can't take its outcome, is asked about again after this
/// many sweeps.
const REFUSED_SWEEPS: u32 = 8;

#[derive(Debug)]
pub(super) struct Inquiry {
    task: JoinHandle<()>,
}

impl Inquiry {
    pub(super) fn start(shared: Arc<Shared>, verdict: Verdict) -> Self {
        let verdict = verdict.with_deadline(shared.options.inquiry.deadline);
        Self { task: tokio::spawn(sweeps(Arc::downgrade(&shared), verdict, shared.options.inquiry)) }
    }

    /// Settling that has begun runs in tasks of its own and comes to its end.
    pub(super) fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for Inquiry {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A branch in doubt.
#[derive(Debug)]
struct Doubt {
    seen: Instant,
    ask_at: Instant,
}

/// What came of asking about one branch.
enum Asked {
    Settled,
    AgainAfter(Duration),
    Unreachable,
}

async fn sweeps(shared: Weak<Shared>, verdict: Verdict, options: InquiryOptions) {
    let mut doubts: BTreeMap<(ResourceName, BranchId), Doubt> = BTreeMap::new();
    let mut pause = options.sweep_every;
    loop {
        sleep(verdict.jitter(pause)).await;
        let Some(shared) = shared.upgrade() else { return };
        let due = look(&shared, &mut doubts, &options).await;
        let reached = ask(&shared, &verdict, &mut doubts, due, &options).await;
        pause = if reached { options.sweep_every } else { (pause * 2).min(options.sweep_every * MOST_BACKOFF) };
    }
}

/// Brings `doubts` up to what the managers hold; returns those to ask about now, and for how long each is held.
async fn look(
    shared: &Shared,
    doubts: &mut BTreeMap<(ResourceName, BranchId), Doubt>,
    options: &InquiryOptions,
) -> Vec<(ResourceName, BranchId, Duration)> {
    for (resource, manager) in &shared.managers {
        let held = match manager.recover(shared.options.recover_limit).await {
            Ok(held) => held,
            Err(error) => {
                let error = with_causes(&error);
                tracing::warn!(%resource, error, "can't read which branches are in doubt");
                continue;
            }
        };
        let held: BTreeSet<BranchId> = held.into_iter().collect();
        doubts.retain(|(of, branch), _| of != resource || held.contains(branch));
        let now = Instant::now();
        for branch in held {
            let doubt = || Doubt { seen: now, ask_at: now + options.inquire_after };
            doubts.entry((resource.clone(), branch)).or_insert_with(doubt);
        }
    }
    let now = Instant::now();
    let due = doubts.iter().filter(|(_, doubt)| doubt.ask_at <= now);
    due.map(|((resource, branch), doubt)| (resource.clone(), *branch, now - doubt.seen)).collect()
}

/// False if the cluster could not be reached.
async fn ask(
    shared: &Shared,
    verdict: &Verdict,
    doubts: &mut BTreeMap<(ResourceName, BranchId), Doubt>,
    due: Vec<(ResourceName, BranchId, Duration)>,
    options: &InquiryOptions,
) -> bool {
    let answers = stream::iter(due).map(|(resource, branch, held)| async move {
        let asked = ask_one(shared, verdict, &resource, branch, held, options).await;
        ((resource, branch), asked)
    });
    let mut answers = answers.buffer_unordered(options.at_once.max(1));
    while let Some((key, asked)) = answers.next().await {
        match asked {
            Asked::Settled => {
                doubts.remove(&key);
            }
            Asked::AgainAfter(pause) => {
                if let Some(doubt) = doubts.get_mut(&key) {
                    doubt.ask_at = Instant::now() + verdict.jitter(pause);
                }
            }
            // The others would not reach it either: leave them for the next sweep.
            Asked::Unreachable => return false,
        }
    }
    true
}

async fn ask_one(
    shared: &Shared,
    verdict: &Verdict,
    resource: &ResourceName,
    branch: BranchId,
    held: Duration,
    options: &InquiryOptions,
) -> Asked {
    let later = Asked::AgainAfter(options.sweep_every * REFUSED_SWEEPS);
    let (stamp, commit) = match verdict.inquire(branch, held).await {
        Ok(Order::Wait { retry_after }) => return Asked::AgainAfter(retry_after),
        Ok(Order::Commit(stamp)) => (stamp, true),
        Ok(Order::Rollback(stamp)) => (stamp, false),
        Err(error @ CallError::Unknown { .. }) => {
            tracing::warn!(%resource, %branch, ?held, %error, "in doubt, and nobody to ask");
            return Asked::Unreachable;
        }
        Err(error @ CallError::Refused { .. }) => {
            tracing::warn!(%resource, %branch, ?held, %error, "in doubt, and the cluster refuses to answer");
            return later;
        }
    };
    let Some(manager) = shared.managers.get(resource).cloned() else { return later };
    let request = Settle { stamp, branch, resource: resource.clone(), payload: Bytes::new() };
    match shared.run(settle(manager, request, commit)).await {
        Ok(Ok(Settled { settlement: Settlement::Done, .. })) => {
            tracing::info!(%resource, %branch, ?held, commit, "in doubt, asked, settled");
            Asked::Settled
        }
        Ok(Ok(Settled { settlement, reason })) => {
            tracing::error!(%resource, %branch, commit, ?settlement, ?reason, "the branch was finished otherwise");
            Asked::Settled
        }
        Ok(Err(error)) => {
            let error = with_causes(&error);
            tracing::warn!(%resource, %branch, commit, error, "told the outcome, can't take it yet");
            later
        }
        Err(error) => {
            tracing::warn!(%resource, %branch, commit, %error, "told the outcome, can't take it now");
            later
        }
    }
}

async fn settle(
    manager: Arc<dyn ResourceManager>,
    request: Settle,
    commit: bool,
) -> Result<Settled, super::NotAnswered> {
    if commit { manager.commit(request).await } else { manager.rollback(request).await }
}
