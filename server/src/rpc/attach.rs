//! Streams of participants: from the hello to the end.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};
use tracing::{debug, info, warn};
use verdict_proto::v1::{Down, Up, Welcome};
use verdict_protocol::Event;

use super::{failure::Failure, route::Front};
use crate::streams::{AttachError, Attached, HEARTBEAT, MOST_STREAMS, SILENCE, Turn, Violation};

/// How long a hello may take to come.
const HELLO_WITHIN: Duration = Duration::from_secs(2);
/// How long the last word may take to leave.
const LAST_WORD_WITHIN: Duration = Duration::from_secs(1);
/// Frames on their way out: one is being sent while the next is gathered.
const FRAMES: usize = 1;

pub(super) type Downs = ReceiverStream<Result<Down, Status>>;

/// How a stream came to its end.
#[derive(Debug)]
enum End {
    /// The participant ended it, or is gone.
    Gone,
    Silent,
    Wrong(Violation),
    /// This node leads no more.
    Deposed,
}

impl From<AttachError> for Failure {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::NotLeader => Self::NoLeader,
            AttachError::Invalid(problem) => Self::Invalid(problem),
            AttachError::Unknown(_) | AttachError::NotStream(_) => Self::NoSuchResource(error.to_string()),
        }
    }
}

impl Front {
    /// Attaches a participant, if this node leads. Not brought to the leader: a stream in between would be one more that
    /// breaks.
    pub(super) async fn attach(self: &Arc<Self>, up: Streaming<Up>) -> Result<Response<Downs>, Status> {
        let frames = self.try_attach(up).await;
        self.respond(frames)
    }

    async fn try_attach(self: &Arc<Self>, mut up: Streaming<Up>) -> Result<Downs, Failure> {
        let elected = self.engine.leader() == Some(self.options.node);
        if !(self.engine.leads() || (elected && self.leads_soon().await)) {
            return Err(self.no_leader());
        }
        let limit = || Failure::TooManyStreams { limit: MOST_STREAMS };
        let place = self.streams.place().ok_or_else(limit)?;
        let Ok(Ok(Some(hello))) = timeout(HELLO_WITHIN, up.message()).await else { return Err(Failure::NoHello) };
        // One that was deposed and has not heard of it would keep the participant from the leader.
        self.read_barrier().await?;
        let (attached, resources) = self.streams.attach(hello, place, |name| self.engine.knows(name))?;

        let (down, frames) = mpsc::channel(FRAMES);
        let welcome = Welcome { node: self.options.node.0, heartbeat_ms: millis(HEARTBEAT) };
        let welcome = Down { welcome: Some(welcome), asks: Vec::new(), credit: Attached::FIRST_CREDIT };
        // There is room for one, and nobody else sends.
        drop(down.try_send(Ok(welcome)));
        let names: Vec<&str> = resources.iter().map(|name| name.as_str()).collect();
        info!(resources = names.join(", "), "a participant has attached");
        for resource in &resources {
            self.engine.handle(Event::Reached { resource: resource.clone() });
        }
        let front = Arc::clone(self);
        self.streams.tasks.spawn(async move {
            let end = drive(&attached, &mut up, &down).await;
            debug!(?end, "a participant's stream has ended");
            drop(attached);
            let last = match end {
                End::Gone => return,
                End::Silent => Status::unavailable(format!("the participant was silent for {SILENCE:?}")),
                End::Wrong(violation) => {
                    warn!(%violation, "a participant breaks the rules of its stream");
                    Failure::Invalid(violation.to_string()).into_status(None)
                }
                End::Deposed => front.no_leader().into_status(front.leader_elsewhere()),
            };
            drop(timeout(LAST_WORD_WITHIN, down.send(Err(last))).await);
        });
        Ok(ReceiverStream::new(frames))
    }
}

/// Carries frames both ways until the stream ends.
async fn drive(attached: &Attached, up: &mut Streaming<Up>, down: &mpsc::Sender<Result<Down, Status>>) -> End {
    let mut heard = Instant::now();
    let mut beat = heard + HEARTBEAT;
    loop {
        let due = match attached.turn() {
            Turn::End => return End::Deposed,
            Turn::Send => true,
            Turn::Wait => Instant::now() >= beat,
        };
        tokio::select! {
            biased;
            frame = up.message() => match frame {
                Ok(Some(frame)) => {
                    heard = Instant::now();
                    if let Err(violation) = attached.take_in(frame) {
                        return End::Wrong(violation);
                    }
                }
                Ok(None) | Err(_) => return End::Gone,
            },
            () = down.closed() => return End::Gone,
            room = down.reserve(), if due => match room {
                Ok(room) => {
                    room.send(Ok(attached.frame()));
                    beat = Instant::now() + HEARTBEAT;
                }
                Err(_) => return End::Gone,
            },
            () = attached.woken() => {}
            () = sleep_until(beat), if !due => {}
            () = sleep_until(heard + SILENCE) => return End::Silent,
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
