//! Participants that have opened a stream to this node, which leads, and are asked through it.
//!
//! ```text
//!   manager(resource) ── call ──▶ waiting, by resource ──▶ a stream with credit takes it ──▶ frame of asks
//!        ▲                                                                                     │
//!        └──────────── answer, by the ask's id ◀──────────── frame of replies ◀────────────────┘
//! ```
//!
//! Calls wait for a resource, not for a stream: of several streams whichever has room takes the next, so one that is
//! slow or silent holds up only what it was sent. Nothing is sent twice here and nothing kept: a call whose stream ends
//! is not answered, and the coordinator asks again.
//!
//! Only a leader has streams. Whoever else is asked for one says where the leader is, and a leader that is deposed, or
//! that no majority confirms any more, ends its streams.

mod manager;
mod registry;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use thiserror::Error;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use verdict_client::participant::ResourceManager;
use verdict_proto::v1::{Down, Hello, Up};
use verdict_protocol::ResourceName;

use self::{manager::StreamParticipant, registry::Registry};
use crate::tasks::Tasks;

/// How often each side says something, be it nothing.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long a stream may be silent: four heartbeats.
pub(crate) const SILENCE: Duration = Duration::from_secs(4);

/// Streams of one node at a time, those that have not said hello yet among them.
pub(crate) const MOST_STREAMS: usize = 1_024;
/// Names in one hello.
const MOST_RESOURCES: usize = 64;
/// Calls that wait for room on a stream, for each resource: about a second's work of a fast participant.
const MOST_WAITING: usize = 4_096;
/// Requests that one stream is sent and has not answered: more credit than this is not taken.
const MOST_CREDIT: u32 = 4_096;
/// Replies that a participant may be ahead of this node's reading them.
const REPLIES: u32 = 1_024;
/// Asks in one frame, and their bytes: more begin another.
const FRAME_ASKS: usize = 256;
const FRAME_BYTES: usize = 256 << 10;

/// The streams of a node.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    registry: Arc<Mutex<Registry>>,
    /// One for each stream.
    places: Arc<Semaphore>,
    /// Where their drivers run.
    pub(crate) tasks: Tasks,
}

/// A stream that said hello. Dropped, it is attached no more.
#[derive(Debug)]
pub(crate) struct Attached {
    streams: Streams,
    id: u64,
    /// Something is to be sent, or the stream is to end.
    woken: Arc<Notify>,
    _place: Place,
}

/// The right to have a stream.
#[derive(Debug)]
pub(crate) struct Place(#[allow(dead_code, reason = "it is held")] OwnedSemaphorePermit);

/// Why a stream is not attached.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum AttachError {
    #[error("this node does not lead")]
    NotLeader,
    #[error("{0}")]
    Invalid(String),
    #[error("no resource {0} is configured: add {0} = \"stream\" to [resources] on every node")]
    Unknown(ResourceName),
    #[error(
        "resource {0} is reached at its endpoint: write {0} = \"stream\" in [resources] on every node to attach it"
    )]
    NotStream(ResourceName),
}

/// What a participant may not do on its stream, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub(crate) struct Violation(&'static str);

/// What a stream's driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There is something to send.
    Send,
    Wait,
    /// This node leads no more.
    End,
}

impl Streams {
    /// `declared`: the resources that are reached by stream.
    pub(crate) fn new(declared: impl IntoIterator<Item = ResourceName>, tasks: Tasks) -> Self {
        let registry = Arc::new(Mutex::new(Registry::new(declared)));
        Self { registry, places: Arc::new(Semaphore::new(MOST_STREAMS)), tasks }
    }

    /// Room for one more stream; none if there are too many.
    pub(crate) fn place(&self) -> Option<Place> {
        Arc::clone(&self.places).try_acquire_owned().ok().map(Place)
    }

    /// What asks this resource, through whatever streams serve it.
    pub(crate) fn manager(&self, resource: ResourceName) -> Arc<dyn ResourceManager> {
        Arc::new(StreamParticipant::new(resource, self.clone()))
    }

    /// From now on streams are taken.
    pub(crate) fn lead(&self) {
        self.lock().leads = true;
    }

    /// No more: those that are there end.
    pub(crate) fn depose(&self) {
        let mut registry = self.lock();
        registry.leads = false;
        registry.end_all();
    }

    /// Ends all streams, and takes others.
    pub(crate) fn end_all(&self) {
        self.lock().end_all();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Attaches a stream, from its first frame. `elsewhere` says which resources are configured to be reached otherwise.
    pub(crate) fn attach(
        &self,
        first: Up,
        place: Place,
        elsewhere: impl Fn(&ResourceName) -> bool,
    ) -> Result<(Attached, BTreeSet<ResourceName>), AttachError> {
        let invalid = |text: &str| AttachError::Invalid(text.to_owned());
        let hello: Hello = first.hello.ok_or_else(|| invalid("the first frame must be a hello"))?;
        if first.credit == 0 {
            return Err(invalid("credit: a participant takes at least one request at a time"));
        }
        if hello.resources.is_empty() || hello.resources.len() > MOST_RESOURCES {
            let problem = format!("hello.resources: name 1 to {MOST_RESOURCES}, not {}", hello.resources.len());
            return Err(AttachError::Invalid(problem));
        }
        let mut resources = BTreeSet::new();
        let mut registry = self.lock();
        for name in hello.resources {
            let resource = ResourceName::try_from(name)
                .map_err(|error| AttachError::Invalid(format!("hello.resources: {error}")))?;
            if !registry.declares(&resource) {
                let wrong = if elsewhere(&resource) { AttachError::NotStream } else { AttachError::Unknown };
                return Err(wrong(resource));
            }
            resources.insert(resource);
        }
        if !registry.leads {
            return Err(AttachError::NotLeader);
        }
        let woken = Arc::new(Notify::new());
        let id = registry.attach(resources.clone(), first.credit, Arc::clone(&woken));
        Ok((Attached { streams: self.clone(), id, woken, _place: place }, resources))
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attached {
    /// The credit for replies that goes with the welcome.
    pub(crate) const FIRST_CREDIT: u32 = REPLIES;

    pub(crate) fn turn(&self) -> Turn {
        self.streams.lock().turn(self.id)
    }

    /// Waits until its turn may have changed.
    pub(crate) async fn woken(&self) {
        self.woken.notified().await;
    }

    /// The next frame; an empty one is a heartbeat.
    pub(crate) fn frame(&self) -> Down {
        self.streams.lock().frame(self.id)
    }

    pub(crate) fn take_in(&self, frame: Up) -> Result<(), Violation> {
        self.streams.lock().take_in(self.id, frame)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.streams.lock().detach(self.id);
    }
}
