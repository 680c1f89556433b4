//! One call: attempts at one node after another until there is an answer or the deadline has passed.

use std::{
    future::Future,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rand::{Rng, rngs::StdRng};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Request, Response, Status, transport::Channel};

use super::{
    error::{CallError, Judgement, RefusalCode, judge},
    options::{Backoff, Options, OptionsError},
    routes::Routes,
};
use crate::wire::{self, WireError};

/// The shared state of all calls of one handle.
#[derive(Debug)]
pub(crate) struct Caller {
    attempt_timeout: Duration,
    backoff: Backoff,
    shared: Mutex<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) routes: Routes,
    random: StdRng,
}

/// An OK reply that does not answer the question.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// Not yet: ask again.
    Again(String),
    Refused(RefusalCode, String),
}

impl From<WireError> for NoAnswer {
    fn from(error: WireError) -> Self {
        Self::Again(format!("a reply that makes no sense: {error}"))
    }
}

impl Caller {
    pub(super) fn new(options: &Options) -> Result<Self, OptionsError> {
        let mut random = options.random()?;
        let routes = Routes::new(options, random.next_u64())?;
        let Options { attempt_timeout, backoff, .. } = *options;
        Ok(Self { attempt_timeout, backoff, shared: Mutex::new(Shared { routes, random }) })
    }

    pub(super) fn random(&self) -> u64 {
        self.shared().random.next_u64()
    }

    pub(super) fn jitter(&self, duration: Duration) -> Duration {
        super::options::jitter(duration, &mut self.shared().random)
    }

    /// One node after another, by a number that only grows.
    pub(super) fn node(&self, number: u64) -> (String, Channel) {
        self.shared().routes.nth(number)
    }

    /// The pause after so many failures in a row.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        self.backoff.pause(failures, &mut self.shared().random)
    }

    /// How long an attempt waits for its answer.
    pub(super) fn patience(&self) -> Duration {
        self.attempt_timeout
    }

    /// Sends `message` until `read` finds the answer in a reply, for at most `deadline`. The message must be one that
    /// can be sent twice.
    pub(super) async fn call<M, R, T, F>(
        &self,
        deadline: Duration,
        message: M,
        send: impl Fn(Channel, Request<M>) -> F,
        read: impl Fn(R) -> Result<T, NoAnswer>,
    ) -> Result<T, CallError>
    where
        M: Clone,
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let start = Instant::now();
        let mut attempts = 0;
        let rounds_of = self.shared().routes.configured();
        // Attempts that waited in vain. One that failed at once says nothing about how long an answer takes.
        let mut waited_in_vain = 0;
        let mut pauses = 0;
        let mut redirected = false;
        // An attempt without an answer may have been logged, whatever later attempts say.
        let mut only_overloaded = true;
        loop {
            let now = Instant::now();
            let (node, channel) = self.shared().routes.pick(now);
            let left = deadline.saturating_sub(now - start);
            let patience = self.attempt_timeout.saturating_mul(1 << (waited_in_vain / rounds_of).min(8)).min(left);
            attempts += 1;
            let mut request = Request::new(message.clone());
            request.set_timeout(patience);
            let reply = timeout(patience, send(channel, request)).await;
            waited_in_vain += u32::from(now.elapsed() >= patience);

            let (pause_at_least, status) = match reply {
                Ok(Ok(reply)) => {
                    let leader = reply.metadata().get(wire::LEADER_ADDRESS).and_then(|value| value.to_str().ok());
                    self.shared().routes.answered(&node, leader, Instant::now());
                    match read(reply.into_inner()) {
                        Ok(answer) => return Ok(answer),
                        Err(NoAnswer::Refused(code, text)) => return Err(CallError::Refused { code, text }),
                        Err(NoAnswer::Again(text)) => {
                            only_overloaded = false;
                            (Duration::ZERO, Status::internal(text))
                        }
                    }
                }
                Ok(Err(status)) => match judge(&status) {
                    Judgement::Refused(code) => {
                        self.shared().routes.answered(&node, None, Instant::now());
                        return Err(CallError::Refused { code, text: status.message().to_owned() });
                    }
                    Judgement::Overloaded { retry_after } => {
                        self.shared().routes.answered(&node, None, Instant::now());
                        (retry_after, status)
                    }
                    Judgement::NotLeader { leader, retry_after } => {
                        only_overloaded = false;
                        let moved = self.turn_away(&node, leader.as_deref());
                        if moved && !std::mem::replace(&mut redirected, true) {
                            continue;
                        }
                        (retry_after, status)
                    }
                    Judgement::Unanswered { leader, retry_after } => {
                        only_overloaded = false;
                        if wire::detail(&status).is_some() {
                            self.turn_away(&node, leader.as_deref());
                        } else {
                            self.shared().routes.unanswered(&node, now, Instant::now());
                        }
                        (retry_after, status)
                    }
                },
                Err(_) => {
                    only_overloaded = false;
                    self.shared().routes.unanswered(&node, now, Instant::now());
                    (Duration::ZERO, Status::deadline_exceeded(format!("no answer within {patience:?}")))
                }
            };
            redirected = false;
            pauses += 1;
            let pause = {
                let mut shared = self.shared();
                self.backoff.pause(pauses, &mut shared.random).max(pause_at_least)
            };
            let waited = start.elapsed();
            if waited + pause >= deadline {
                if only_overloaded {
                    let code = RefusalCode::Overloaded;
                    return Err(CallError::Refused { code, text: status.message().to_owned() });
                }
                return Err(CallError::Unknown { waited, attempts, node, last: Box::new(status) });
            }
            tracing::debug!(node, attempts, ?pause, %status, "no answer, asking again");
            sleep(pause).await;
        }
    }

    /// A node answered that it can't serve this now. True if it named another that is to be tried.
    pub(super) fn turn_away(&self, node: &str, leader: Option<&str>) -> bool {
        let mut shared = self.shared();
        let now = Instant::now();
        shared.routes.move_on(node);
        let leader = leader.filter(|leader| *leader != node);
        shared.routes.answered(node, leader, now);
        leader.is_some_and(|leader| shared.routes.pick(now).0 == leader)
    }

    /// Nothing panics while it is held, and what it guards is only where to ask next.
    pub(super) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
