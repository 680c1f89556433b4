//! One stream, from its hello to its end.
//!
//! Credit bounds both sides. The participant takes at most its window of requests at a time: a request's credit goes
//! back with its reply, so replies that wait for the cluster's credit are within the window too.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt as _, Stream, StreamExt as _, future::BoxFuture, stream, stream::FuturesUnordered};
use prost::Message as _;
use tokio::{
    sync::{Semaphore, mpsc},
    time::{Instant, sleep_until, timeout},
};
use tonic::{Request, Status, Streaming, transport::Channel};
use verdict_proto::v1::{self, ask, branches_client::BranchesClient, reply};

use super::{super::server::Shared, broken};

/// A stream that is silent for so many of the cluster's heartbeats is cut off.
const HEARTBEATS: u32 = 4;
/// The most requests that are taken at a time.
const MOST_CREDIT: u32 = 4_096;
/// Frames on their way out: one is being sent while the next is gathered.
const FRAMES: usize = 1;
/// Replies in one frame, and its bytes: more begin another. One alone may be longer, up to gRPC's 4 MiB.
const FRAME_REPLIES: usize = 256;
const FRAME_BYTES: usize = 256 << 10;

/// How a stream came to its end.
pub(super) enum Way {
    /// In good order: the participant stops, and the last reply has gone.
    Left,
    /// Otherwise; as gRPC says it.
    Ended(Status),
}

/// A stream that was welcomed.
pub(super) struct Session {
    up: mpsc::Sender<v1::Up>,
    down: Streaming<v1::Down>,
    work: Work,
}

/// What was asked on it, and what there is to say.
struct Work {
    shared: Arc<Shared>,
    /// Requests under way.
    under_way: FuturesUnordered<BoxFuture<'static, v1::Reply>>,
    /// Replies that wait for a frame.
    replies: Vec<v1::Reply>,
    /// Requests that the cluster may still send.
    granted: u32,
    /// Replies that may still be sent.
    credit: u32,
    heartbeat: Duration,
    leaving: Leaving,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    No,
    /// The cluster is to be told.
    Wanted,
    Told,
}

impl Session {
    /// Says hello and waits for the welcome, for so long; returns the number of the node at the other end.
    pub(super) async fn open(shared: &Arc<Shared>, channel: Channel, within: Duration) -> Result<(Self, u64), Status> {
        let granted = shared.options.in_flight.clamp(1, MOST_CREDIT);
        let (up, frames) = mpsc::channel(FRAMES);
        let resources = shared.managers.keys().cloned().map(String::from).collect();
        let hello = v1::Up { hello: Some(v1::Hello { resources }), credit: granted, ..v1::Up::default() };
        let opening = async {
            let frames = stream::once(async { hello }).chain(received(frames));
            let mut down = BranchesClient::new(channel).attach(Request::new(frames)).await?.into_inner();
            match down.message().await? {
                Some(v1::Down { welcome: Some(welcome), asks, credit }) if asks.is_empty() => {
                    Ok((down, welcome, credit))
                }
                Some(_) | None => Err(broken("the stream began without a welcome")),
            }
        };
        let opened = timeout(within, opening).await;
        let (down, welcome, credit) = opened.map_err(|_| broken("the stream was not opened in time"))??;
        let work = Work {
            shared: Arc::clone(shared),
            under_way: FuturesUnordered::new(),
            replies: Vec::new(),
            granted,
            credit,
            heartbeat: Duration::from_millis(welcome.heartbeat_ms.max(1)),
            leaving: Leaving::No,
        };
        Ok((Self { up, down, work }, welcome.node))
    }

    /// Answers what comes, until the stream ends or the participant leaves.
    pub(super) async fn run(self, leaving: &Semaphore) -> Way {
        let Self { up, mut down, mut work } = self;
        let mut up = Some(up);
        let mut heard = Instant::now();
        let mut beat = heard + work.heartbeat;
        loop {
            if work.is_over() {
                // The cluster ends its side once it has read everything.
                up = None;
            }
            let due = up.is_some() && (work.has_news() || Instant::now() >= beat);
            tokio::select! {
                biased;
                frame = down.message() => {
                    heard = Instant::now();
                    match frame {
                        Ok(Some(frame)) => {
                            if let Err(wrong) = work.take_in(frame) {
                                return Way::Ended(wrong);
                            }
                        }
                        Ok(None) if up.is_none() => return Way::Left,
                        Ok(None) => return Way::Ended(broken("the cluster ended the stream")),
                        Err(status) => return Way::Ended(status),
                    }
                }
                Some(reply) = work.under_way.next(), if !work.under_way.is_empty() => work.gather(reply),
                _ = leaving.acquire(), if work.leaving == Leaving::No => work.leaving = Leaving::Wanted,
                room = reserve(up.as_ref()), if due => {
                    match room {
                        Some(room) => room.send(work.frame()),
                        None => return Way::Ended(broken("the stream has broken")),
                    }
                    beat = Instant::now() + work.heartbeat;
                }
                () = sleep_until(beat), if !due && up.is_some() => {}
                () = sleep_until(heard + work.heartbeat * HEARTBEATS) => {
                    return Way::Ended(broken("the cluster was silent for too long"));
                }
            }
        }
    }
}

impl Work {
    fn take_in(&mut self, frame: v1::Down) -> Result<(), Status> {
        self.credit = self.credit.saturating_add(frame.credit);
        for v1::Ask { id, body } in frame.asks {
            self.granted =
                self.granted.checked_sub(1).ok_or_else(|| broken("the cluster asks for more than it may"))?;
            let shared = Arc::clone(&self.shared);
            self.under_way.push(async move { v1::Reply { id, body: Some(answer(&shared, body).await) } }.boxed());
        }
        Ok(())
    }

    /// Takes a reply, and those that are ready with it: they share a frame.
    fn gather(&mut self, reply: v1::Reply) {
        self.replies.push(reply);
        while let Some(Some(reply)) = self.under_way.next().now_or_never() {
            self.replies.push(reply);
        }
    }

    /// Whether the participant leaves, and has nothing more to say.
    fn is_over(&self) -> bool {
        self.leaving == Leaving::Told && self.under_way.is_empty() && self.replies.is_empty()
    }

    /// Whether there is something to say that does not wait for the heartbeat.
    fn has_news(&self) -> bool {
        self.leaving == Leaving::Wanted || (!self.replies.is_empty() && self.credit > 0)
    }

    fn frame(&mut self) -> v1::Up {
        let most = FRAME_REPLIES.min(usize::try_from(self.credit).unwrap_or(usize::MAX));
        let mut bytes = 0;
        let fits = self.replies.iter().take(most).take_while(|reply| {
            bytes += reply.encoded_len();
            bytes <= FRAME_BYTES
        });
        let count = fits.count().max(1).min(most).min(self.replies.len());
        let rest = self.replies.split_off(count);
        let replies = std::mem::replace(&mut self.replies, rest);
        let answered = u32::try_from(count).unwrap_or(u32::MAX);
        self.credit = self.credit.saturating_sub(answered);
        let leaving = self.leaving != Leaving::No;
        let credit = if leaving { 0 } else { answered };
        self.granted += credit;
        if leaving {
            self.leaving = Leaving::Told;
        }
        v1::Up { hello: None, replies, credit, leaving }
    }
}

async fn reserve(up: Option<&mpsc::Sender<v1::Up>>) -> Option<mpsc::Permit<'_, v1::Up>> {
    up?.reserve().await.ok()
}

/// The frames of a channel, as a stream.
fn received(frames: mpsc::Receiver<v1::Up>) -> impl Stream<Item = v1::Up> {
    stream::unfold(frames, |mut frames| async move { frames.recv().await.map(|frame| (frame, frames)) })
}

async fn answer(shared: &Shared, body: Option<ask::Body>) -> reply::Body {
    let answered = match body {
        Some(ask::Body::Prepare(request)) => shared.prepare(request).await.map(reply::Body::Prepare),
        Some(ask::Body::Commit(request)) => shared.commit(request).await.map(reply::Body::Settle),
        Some(ask::Body::Rollback(request)) => shared.rollback(request).await.map(reply::Body::Settle),
        Some(ask::Body::CommitOnePhase(request)) => {
            shared.commit_one_phase(request).await.map(reply::Body::CommitOnePhase)
        }
        Some(ask::Body::Recover(request)) => shared.recover(request).await.map(reply::Body::Recover),
        None => Err(Status::unimplemented("the request is of a newer version: update this participant")),
    };
    answered.unwrap_or_else(|status| {
        let code = i32::from(status.code()).unsigned_abs();
        reply::Body::NotAnswered(v1::NotAnswered { code, text: status.message().to_owned() })
    })
}
