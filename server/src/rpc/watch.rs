//! Whoever watches: each reads what this node has applied, at his own pace, and is told where he missed something.

use std::{collections::VecDeque, pin::Pin, sync::Arc, time::Duration};

use futures_util::{Stream, stream};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, timeout},
};
use tonic::{Response, Status};
use verdict_proto::v1::{Gap, Mark, WatchEvent, WatchRequest, watch_event::Event};
use verdict_protocol::Refusal;

use super::{failure::Failure, route::Front};
use crate::{
    recent::{Kept, Read},
    wire::{self, Wanted},
};

/// How long nothing is told before a mark is: a watcher that hears nothing for longer is cut off.
const MARK_EVERY: Duration = Duration::from_secs(1);
/// A node that was not in touch with the others for so long sends its watchers away: it may be the only one that does
/// not go on.
const LONELY_AFTER: Duration = Duration::from_secs(2);

pub(super) type Events = Pin<Box<dyn Stream<Item = Result<WatchEvent, Status>> + Send>>;

#[derive(Debug)]
struct Watcher {
    front: Arc<Front>,
    wanted: Wanted,
    /// Everything up to here is told, or waits in `next`.
    after: u64,
    next: VecDeque<WatchEvent>,
    told: Option<Instant>,
    _place: OwnedSemaphorePermit,
}

impl Front {
    pub(super) fn watch(self: &Arc<Self>, request: WatchRequest) -> Result<Response<Events>, Status> {
        self.respond(self.watcher(request).map(Watcher::events))
    }

    fn watcher(self: &Arc<Self>, request: WatchRequest) -> Result<Watcher, Failure> {
        let wanted = Wanted::from_wire(request.filter).map_err(Failure::Invalid)?;
        if !self.engine.is_founded() {
            return Err(Refusal::NotFounded.into());
        }
        self.in_touch()?;
        let place = Arc::clone(&self.watchers).try_acquire_owned();
        let place = place.map_err(|_| Failure::TooManyWatchers { limit: self.options.watch.watchers })?;
        let after = request.after_index.unwrap_or_else(|| self.recent.applied());
        Ok(Watcher { front: Arc::clone(self), wanted, after, next: VecDeque::new(), told: None, _place: place })
    }

    /// An error if the others may go on without this node.
    fn in_touch(&self) -> Result<(), Failure> {
        if let Some(failure) = self.stopped() {
            return Err(failure);
        }
        let leader = self.engine.leader().ok_or(Failure::NoLeader)?;
        let hears = if leader == self.options.node {
            (self.walls.heard_within(LONELY_AFTER) + 1) * 2 > self.options.nodes.len()
        } else {
            self.walls.silent_for(leader).is_some_and(|silent| silent <= LONELY_AFTER)
        };
        if hears { Ok(()) } else { Err(Failure::NoLeader) }
    }
}

impl Watcher {
    fn events(self) -> Events {
        Box::pin(stream::unfold(Some(self), |watcher| async {
            let mut watcher = watcher?;
            match watcher.next().await {
                Ok(event) => Some((Ok(event), Some(watcher))),
                Err(failure) => Some((Err(failure.into_status(watcher.front.leader())), None)),
            }
        }))
    }

    async fn next(&mut self) -> Result<WatchEvent, Failure> {
        let event = loop {
            if let Some(event) = self.next.pop_front() {
                break event;
            }
            if self.told.is_none() {
                break self.mark()?;
            }
            let front = Arc::clone(&self.front);
            let changed = front.recent.changed();
            let read = front.recent.read(self.after);
            let due = self.told.map_or(Duration::ZERO, |told| MARK_EVERY.saturating_sub(told.elapsed()));
            match read {
                Read::Gap { to } => {
                    let first = self.after + 1;
                    self.after = to;
                    break WatchEvent { index: to, event: Some(Event::Gap(Gap { first })), ..WatchEvent::default() };
                }
                Read::Some { entries, to } => {
                    self.after = to;
                    entries.iter().for_each(|entry| self.take(entry));
                    if self.next.is_empty() && due.is_zero() {
                        break self.mark()?;
                    }
                }
                Read::Nothing => {
                    if timeout(due, changed).await.is_err() {
                        break self.mark()?;
                    }
                }
            }
        };
        self.told = Some(Instant::now());
        Ok(event)
    }

    fn take(&mut self, entry: &Kept) {
        let wanted = &self.wanted;
        let numbered = (1..).zip(entry.transitions.iter());
        let fitting = numbered.filter(|(_, transition)| wanted.fits(transition));
        let begin = self.next.len();
        self.next.extend(fitting.map(|(number, transition)| WatchEvent {
            index: entry.index,
            number,
            more: true,
            event: Some(Event::Transition(wire::transition(entry.at, transition))),
        }));
        if let Some(last) = self.next.range_mut(begin..).next_back() {
            last.more = false;
        }
    }

    /// Nothing up to here is left to tell; of what is not applied yet, nothing is said.
    fn mark(&self) -> Result<WatchEvent, Failure> {
        self.front.in_touch()?;
        let index = self.after.min(self.front.recent.applied());
        Ok(WatchEvent { index, event: Some(Event::Mark(Mark {})), ..WatchEvent::default() })
    }
}
