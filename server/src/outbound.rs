//! Asking and telling participants. Each call is a task of its own that brings back an event, whatever becomes of it.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::timeout;
use verdict_client::participant::{NotAnswered, OnePhase, Prepare, Settle, with_causes};
use verdict_protocol::{Event, Outcome, Recorded, ResourceName};

use crate::{engine::Engine, seams::Participants, tasks::Tasks};

/// How long one attempt to tell may take before it is made again.
const TELL_WITHIN: Duration = Duration::from_secs(2);
/// How long one attempt to ask may take at least.
const ASK_WITHIN: Duration = Duration::from_secs(2);

/// How long a message waits for its answer before it is sent a second time beside it, and twice as long before a third: one
/// that got lost costs this much. Whoever is only slow takes the twin for what it is, and answers both.
const SEND_AGAIN: Duration = Duration::from_millis(500);

/// Sends a message, and again while there is no answer, for so long. The first answer counts; an error only if nothing else
/// is under way.
async fn answered<T>(
    within: Duration,
    mut send: impl FnMut() -> BoxFuture<'static, Result<T, NotAnswered>>,
) -> Option<Result<T, NotAnswered>> {
    let mut under_way = FuturesUnordered::new();
    under_way.push(send());
    let until_answered = async {
        let mut pause = SEND_AGAIN;
        loop {
            match timeout(pause, under_way.next()).await {
                Ok(Some(Ok(answer))) => return Ok(answer),
                Ok(Some(Err(error))) if under_way.is_empty() => return Err(error),
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => {
                    under_way.push(send());
                    pause *= 2;
                }
            }
        }
    };
    timeout(within, until_answered).await.ok()
}

/// The participants. Calls under way are bounded by the branches of open transactions: one each, and its twins, two within
/// two seconds and one more each time that doubles.
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
            let prepare = || {
                let (participant, request) = (Arc::clone(&participant), request.clone());
                async move { participant.prepare(request).await }.boxed()
            };
            engine.handle(match answered(within, prepare).await {
                Some(Ok(voted)) => Event::Voted { branch, vote: voted.vote, reason: voted.reason },
                Some(Err(error)) => Event::NotAsked { branch, error: with_causes(&error) },
                None => Event::NotAsked { branch, error: format!("no vote within {within:?}") },
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
            let decide = || {
                let (participant, request) = (Arc::clone(&participant), request.clone());
                async move { participant.commit_one_phase(request).await }.boxed()
            };
            engine.handle(match answered(ASK_WITHIN, decide).await {
                Some(Ok(conclusion)) => Event::Concluded { branch, conclusion },
                Some(Err(error)) => Event::NotAsked { branch, error: with_causes(&error) },
                None => Event::NotAsked { branch, error: format!("no decision within {ASK_WITHIN:?}") },
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
            let tell = || {
                let (participant, request) = (Arc::clone(&participant), request.clone());
                async move {
                    match outcome.value() {
                        Outcome::Committed => participant.commit(request).await,
                        Outcome::Aborted => participant.rollback(request).await,
                    }
                }
                .boxed()
            };
            engine.handle(match answered(TELL_WITHIN, tell).await {
                Some(Ok(settled)) => Event::Acknowledged { branch, settlement: settled.settlement },
                Some(Err(error)) => Event::NotTold { branch, error: with_causes(&error) },
                None => Event::NotTold { branch, error: format!("no acknowledgement within {TELL_WITHIN:?}") },
            });
        });
    }
}

fn unknown(resource: &ResourceName) -> String {
    format!("resource {resource} is not in this node's configuration: add it to [resources]")
}
