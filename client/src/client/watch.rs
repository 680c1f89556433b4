//! Following what becomes of transactions, over the loss of any node.
//!
//! ```text
//!   node 2 ── 17 18 ✗        its stream breaks, or is silent
//!   node 3 ───── 18 21 22 ─▶ behind the last index that came: what came already is dropped
//! ```

use std::time::Duration;

use futures_util::{Stream, stream};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Request, Status, Streaming};
use verdict_proto::v1::{self, transactions_client::TransactionsClient, watch_event::Event};
use verdict_protocol::{BranchNumber, LogTime, Outcome, Reason, ResourceName, Settlement, Xid};

use super::{
    CallError, RefusalCode, Verdict,
    error::{Judgement, judge},
};
use crate::wire::{FromWire as _, ToWire, WireError};

/// A node says something every second, if only that nothing has happened.
const SILENCE: Duration = Duration::from_secs(3);

/// What to watch for. Each that is set leaves out what does not fit to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchQuery {
    /// Behind which index of the log to begin: where somebody has stopped before ([`Watch::seen`]). None begins with
    /// what happens from now on.
    pub after: Option<u64>,
    /// Only this transaction.
    pub xid: Option<Xid>,
    /// Only transactions with a branch at this resource, and the branches there.
    pub resource: Option<ResourceName>,
    /// Only decisions, and those with this outcome.
    pub outcome: Option<Outcome>,
}

/// What a watcher is told, in the order of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    Transition(Transition),
    /// What happened at these indices can't be told any more. Of the first of them some may have been told.
    Gap {
        first: u64,
        last: u64,
    },
    /// Everything up to here was told.
    Mark {
        index: u64,
    },
}

/// A step that a transaction took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Where in the log. Several may share an entry.
    pub index: u64,
    /// Its place in that entry, from 1, counting those that are left out.
    pub number: u32,
    /// When, in log time.
    pub at: LogTime,
    pub xid: Xid,
    /// Where its branches are as far as they are known by then; of a step of one branch, where that one is.
    pub resources: Vec<ResourceName>,
    pub step: Step,
}

/// What happened to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Registered, before it was asked to commit. One that is first heard of by its commit has no such step.
    Begun,
    /// The list is closed, and some have not voted. A list that comes with all votes is decided at once.
    Voting,
    /// All others have promised, and this branch decides.
    Delegated {
        branch: BranchNumber,
    },
    Decided {
        outcome: Outcome,
        reason: Option<Reason>,
    },
    /// A branch has ended. One that refused or changed nothing has no such step.
    Settled {
        branch: BranchNumber,
        settlement: Settlement,
    },
    /// A branch refused after it had promised.
    PromiseBroken {
        branch: BranchNumber,
    },
    /// Every branch is settled, or an operator has seen what is not.
    Ended,
}

/// A watcher. It goes on at another node when one is lost, and no transition comes twice.
///
/// [`Watch::next`] may be dropped at any time: nothing is lost.
#[derive(Debug)]
pub struct Watch {
    verdict: Verdict,
    filter: v1::WatchFilter,
    place: Option<Place>,
    stream: Option<Streaming<v1::WatchEvent>>,
    /// Which node it is, or the next one to try.
    node: u64,
    /// In a row, without anything new.
    failures: u32,
    /// Since when no node was heard.
    silent: Option<Instant>,
}

/// What came already.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Everything up to this index.
    index: u64,
    /// And of the next one, transitions up to this number.
    number: u32,
}

impl Verdict {
    /// Watches transactions. Nothing is sent before [`Watch::next`].
    #[must_use]
    pub fn watch(&self, query: WatchQuery) -> Watch {
        let WatchQuery { after, xid, resource, outcome } = query;
        let filter = v1::WatchFilter {
            xid: xid.map(ToWire::to_wire).unwrap_or_default(),
            resource: resource.map(String::from).unwrap_or_default(),
            outcome: outcome.map_or(v1::Outcome::Unspecified, ToWire::to_wire).into(),
        };
        Watch {
            verdict: self.clone(),
            filter,
            place: after.map(|index| Place { index, number: 0 }),
            stream: None,
            node: self.caller.random(),
            failures: 0,
            silent: None,
        }
    }
}

impl Watch {
    /// The last index of which everything was told: [`WatchQuery::after`] of whoever goes on later.
    #[must_use]
    pub fn seen(&self) -> Option<u64> {
        self.place.map(|place| place.index)
    }

    /// What comes next.
    ///
    /// # Errors
    /// [`CallError::Unknown`] if no node was heard for the handle's deadline: ask again to go on where it was.
    /// [`RefusalCode::Overloaded`] if all had as many watchers as they may have; another [`CallError::Refused`] for a
    /// question that makes no sense.
    pub async fn next(&mut self) -> Result<Watched, CallError> {
        loop {
            let heard = match &mut self.stream {
                None => self.connect().await,
                Some(stream) => match timeout(SILENCE, stream.message()).await {
                    Ok(Ok(Some(event))) => match self.take(event) {
                        Ok(Some(watched)) => return Ok(watched),
                        Ok(None) => Ok(()),
                        Err(error) => Err(error.into()),
                    },
                    Ok(Ok(None)) => Err(Status::unavailable("the node ended the stream")),
                    Ok(Err(status)) => Err(status),
                    Err(_) => Err(Status::deadline_exceeded(format!("the node was silent for {SILENCE:?}"))),
                },
            };
            if let Err(status) = heard {
                self.stream = None;
                self.move_on(status).await?;
            }
        }
    }

    /// The same as a stream, which ends only after an error that asking again would not mend.
    pub fn into_stream(self) -> impl Stream<Item = Result<Watched, CallError>> + Send {
        stream::unfold(Some(self), |watch| async {
            let mut watch = watch?;
            let next = watch.next().await;
            let code = next.as_ref().err().and_then(CallError::code);
            let goes_on = code.is_none_or(|code| code == RefusalCode::Overloaded);
            Some((next, goes_on.then_some(watch)))
        })
    }

    async fn connect(&mut self) -> Result<(), Status> {
        let (_, channel) = self.verdict.caller.node(self.node);
        let after_index = self.place.map(|place| place.index);
        let request = v1::WatchRequest { filter: Some(self.filter.clone()), after_index };
        let mut client = TransactionsClient::new(channel);
        let answer = timeout(self.verdict.caller.patience(), client.watch(Request::new(request))).await;
        let response = answer.map_err(|_| Status::deadline_exceeded("the node did not answer"))??;
        self.stream = Some(response.into_inner());
        Ok(())
    }

    /// To the next node, after a pause. An error if no node was heard for too long, or none will ever answer this.
    async fn move_on(&mut self, status: Status) -> Result<(), CallError> {
        if let Judgement::Refused(code) = judge(&status) {
            return Err(CallError::Refused { code, text: status.message().to_owned() });
        }
        let (node, _) = self.verdict.caller.node(self.node);
        self.node = self.node.wrapping_add(1);
        self.failures = self.failures.saturating_add(1);
        let pause = self.verdict.caller.pause(self.failures);
        let waited = self.silent.get_or_insert_with(Instant::now).elapsed();
        if waited + pause >= self.verdict.deadline {
            self.silent = None;
            if let Judgement::Overloaded { .. } = judge(&status) {
                return Err(CallError::Refused { code: RefusalCode::Overloaded, text: status.message().to_owned() });
            }
            let (attempts, last) = (self.failures, Box::new(status));
            return Err(CallError::Unknown { waited, attempts, node, last });
        }
        tracing::debug!(node, ?pause, %status, "watching goes on at another node");
        sleep(pause).await;
        Ok(())
    }

    /// None for what came already, and for what only a newer version understands.
    fn take(&mut self, event: v1::WatchEvent) -> Result<Option<Watched>, WireError> {
        let v1::WatchEvent { index, number, more, event } = event;
        self.silent = None;
        let seen = self.place.unwrap_or_default();
        let is_new = self.place.is_none() || index > seen.index;
        let watched = match event {
            Some(Event::Mark(_)) => is_new.then_some(Watched::Mark { index }),
            Some(Event::Gap(v1::Gap { first })) => {
                is_new.then(|| Watched::Gap { first: first.max(seen.index + 1), last: index })
            }
            Some(Event::Transition(transition)) => {
                let again = index == seen.index + 1 && number <= seen.number;
                let transition = Transition::from_wire((index, number, transition))?;
                (is_new && !again).then_some(Watched::Transition(transition))
            }
            None => None,
        };
        if is_new && (watched.is_some() || !more) {
            self.place = Some(if more { Place { index: index - 1, number } } else { Place { index, number: 0 } });
        }
        if watched.is_some() {
            self.failures = 0;
        }
        Ok(watched)
    }
}
