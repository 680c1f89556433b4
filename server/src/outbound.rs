//! Asking and telling participants. Each call is a task of its own that brings back an event, whatever becomes of it.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use verdict_client::participant::{OnePhase, Prepare, Settle, with_causes};
use verdict_protocol::{Event, Outcome, Recorded, ResourceName};

use crate::{engine::Engine, seams::Participants, tasks::Tasks};

/// How long one attempt to tell may take before it is made again.
const TELL_WITHIN: Duration = Duration::from_secs(2);
/// How long one attempt to ask may take at least: a participant that is slow to prepare is not asked twice for it.
const ASK_WITHIN: Duration = Duration::from_secs(2);

/// The participants. Calls under way are bounded by the branches of open transactions, one each.
#[derive(Debug)]
pub(crate) struct Outbound {
    participants: Participants,
    tasks: Tasks,
}

impl Outbound {
    pub(crate) fn new(participants: Participants, tasks: Tasks) -> Self {
        Self { participants, tasks }
    }

    pub(crate) fn knows(&self, resource: &ResourceName) -> bool {
        self.participants.contains_key(resource)
    }

    /// Asks a branch to prepare.
    pub(crate) fn ask(&self, engine: Arc<Engine>, request: Prepare) {
        let participant = self.participants.get(&request.resource).cloned();
        self.tasks.spawn(async move {
            let (branch, vote_timeout) = (request.branch, request.vote_timeout);
            let Some(participant) = participant else {
                return engine.handle(Event::NotAsked { branch, error: unknown(&request.resource) });
            };
            // A third of what is left: an answer that got lost leaves time to ask again.
            let within = vote_timeout.min(ASK_WITHIN.max(vote_timeout / 3));
            engine.handle(match timeout(within, participant.prepare(request)).await {
                Ok(Ok(voted)) => Event::Voted { branch, vote: voted.vote, reason: voted.reason },
                Ok(Err(error)) => Event::NotAsked { branch, error: with_causes(&error) },
                Err(_) => Event::NotAsked { branch, error: format!("no vote within {within:?}") },
            });
        });
    }

    /// Gives a branch the decision.
    pub(crate) fn delegate(&self, engine: Arc<Engine>, request: OnePhase) {
        let participant = self.participants.get(&request.resource).cloned();
        self.tasks.spawn(async move {
            let branch = request.branch;
            let Some(participant) = participant else {
                return engine.handle(Event::NotAsked { branch, error: unknown(&request.resource) });
            };
            engine.handle(match timeout(ASK_WITHIN, participant.commit_one_phase(request)).await {
                Ok(Ok(conclusion)) => Event::Concluded { branch, conclusion },
                Ok(Err(error)) => Event::NotAsked { branch, error: with_causes(&error) },
                Err(_) => Event::NotAsked { branch, error: format!("no decision within {ASK_WITHIN:?}") },
            });
        });
    }

    /// Tells a branch its outcome.
    pub(crate) fn tell(&self, engine: Arc<Engine>, request: Settle, outcome: Recorded<Outcome>) {
        let participant = self.participants.get(&request.resource).cloned();
        self.tasks.spawn(async move {
            let branch = request.branch;
            let Some(participant) = participant else {
                return engine.handle(Event::NotTold { branch, error: unknown(&request.resource) });
            };
            let told = async {
                match outcome.value() {
                    Outcome::Committed => participant.commit(request).await,
                    Outcome::Aborted => participant.rollback(request).await,
                }
            };
            engine.handle(match timeout(TELL_WITHIN, told).await {
                Ok(Ok(settled)) => Event::Acknowledged { branch, settlement: settled.settlement },
                Ok(Err(error)) => Event::NotTold { branch, error: with_causes(&error) },
                Err(_) => Event::NotTold { branch, error: format!("no acknowledgement within {TELL_WITHIN:?}") },
            });
        });
    }
}

fn unknown(resource: &ResourceName) -> String {
    format!("resource {resource} is not in this node's configuration: add it to [resources]")
}
