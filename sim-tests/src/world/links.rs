//! The links between nodes and from nodes to banks: messages are lost, late, doubled, cut off. (What comes to a node
//! by a service, from clients and banks and forwarded by nodes, passes its [door](super::door).)
//!
//! The simulated network itself carries everything: it would try again after up to ten seconds, which no network does.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use madsim::runtime::{Handle, NodeHandle};
use rand::{RngExt as _, rngs::StdRng};
use tokio::time::{sleep, timeout};
use verdict_client::participant::{NotAnswered, OnePhase, Prepare, ResourceManager, Settle, Settled, Voted};
use verdict_protocol::{BranchId, Conclusion, ResourceName, Vote};
use verdict_raft_log::{LinkError, MessageKind, NodeId, PeerLink};
use verdict_server::{GrpcLinks, Links, Participants};

use super::lock;
use crate::{
    flaws::Flaw,
    history::{History, What, now},
    plan::{Place, Weather},
    world::{Shared, bank_of},
};

/// After how long a bank that does not answer counts as prepared, where that is the flaw.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often a node may ask or tell one branch within a second: twice what the backoff allows, for a node that is
/// elected twice.
const MOST_A_SECOND: usize = 14;
/// How much more often a message is lost than a stream breaks at a frame.
const BREAKS: f64 = 0.1;
/// How long a call to a bank that is lost hangs.
pub(super) const HANGS: Duration = Duration::from_secs(2);

/// All links.
pub struct Sky {
    state: Mutex<State>,
    pub(super) history: History,
    /// Where messages live on whose sender is dead.
    ether: Mutex<Option<NodeHandle>>,
}

#[derive(Debug)]
struct State {
    random: StdRng,
    weather: Weather,
    cut: BTreeSet<(Place, Place)>,
    /// When each branch was asked or told something by a node within the last second.
    lately: BTreeMap<(u64, BranchId, &'static str), VecDeque<Duration>>,
    tight: Vec<String>,
}

/// What becomes of one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    pub late: Duration,
    pub lost: bool,
    pub answer_lost: bool,
    pub again_after: Option<Duration>,
}

impl fmt::Debug for Sky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sky").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Sky {
    #[must_use]
    pub fn new(weather: Weather, random: StdRng, history: History, ether: NodeHandle) -> Self {
        Self {
            state: Mutex::new(State {
                random,
                weather,
                cut: BTreeSet::new(),
                lately: BTreeMap::new(),
                tight: Vec::new(),
            }),
            history,
            ether: Mutex::new(Some(ether)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on every message arrives, once and in time, except where a link is cut.
    pub fn clear(&self) {
        self.lock().weather = Weather::default();
    }

    /// The end: nothing is sent any more. Lets go of the machine that holds this, or neither would ever be dropped.
    pub fn close(&self) {
        if let Some(ether) = lock(&self.ether).take() {
            Handle::current().kill(ether.id());
        }
    }

    /// Does something on nobody's machine: it lives on when whoever sent it dies.
    pub(crate) fn lives_on(&self, what: impl Future<Output = ()> + Send + 'static) {
        if let Some(ether) = &*lock(&self.ether) {
            drop(ether.spawn(what));
        }
    }

    pub fn cut(&self, from: Place, to: Place) {
        self.lock().cut.insert((from, to));
    }

    /// Whether it was cut.
    pub fn mend(&self, from: Place, to: Place) -> bool {
        self.lock().cut.remove(&(from, to))
    }

    pub(super) fn is_cut(&self, from: Place, to: Place) -> bool {
        self.lock().cut.contains(&(from, to))
    }

    /// Retries that came too fast.
    #[must_use]
    pub fn tight(&self) -> Vec<String> {
        self.lock().tight.clone()
    }

    fn count(&self, node: u64, branch: BranchId, what: &'static str) {
        let State { lately, tight, .. } = &mut *self.lock();
        let times = lately.entry((node, branch, what)).or_default();
        let now = now();
        times.push_back(now);
        while times.front().is_some_and(|first| *first + Duration::from_secs(1) < now) {
            times.pop_front();
        }
        if times.len() > MOST_A_SECOND && tight.len() < MOST_A_SECOND {
            tight
                .push(format!("{} times within a second before {now:?}, node {node} had {branch} {what}", times.len()));
        }
    }

    pub(super) fn fate(&self, from: Place, to: Place) -> Fate {
        let State { random, weather, cut, .. } = &mut *self.lock();
        let lateness = u64::try_from(weather.lateness.as_micros()).unwrap_or(0).max(1);
        let mut delay = || Duration::from_micros(random.random_range(0..lateness));
        let (late, again) = (delay(), delay());
        Fate {
            late: if random.random_bool(weather.late) { late } else { Duration::ZERO },
            lost: random.random_bool(weather.loss) || cut.contains(&(from, to)),
            answer_lost: random.random_bool(weather.loss) || cut.contains(&(to, from)),
            again_after: random.random_bool(weather.duplicate).then_some(again * 3),
        }
    }
}

/// What becomes of one frame of a stream: none is lost or comes twice, but the stream may break.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameFate {
    pub late: Duration,
    pub breaks: bool,
}

impl Sky {
    pub(super) fn frame_fate(&self) -> FrameFate {
        let State { random, weather, .. } = &mut *self.lock();
        let lateness = u64::try_from(weather.lateness.as_micros()).unwrap_or(0).max(1);
        let late = Duration::from_micros(random.random_range(0..lateness));
        FrameFate {
            late: if random.random_bool(weather.late) { late } else { Duration::ZERO },
            breaks: random.random_bool(weather.loss * BREAKS),
        }
    }
}

/// One node's links.
#[derive(Clone, Debug)]
pub(super) struct SimLinks {
    pub node: u64,
    pub shared: Arc<Shared>,
    pub sky: Arc<Sky>,
    pub flaw: Option<Flaw>,
}

impl Links for SimLinks {
    fn participants(&self, resources: &BTreeMap<ResourceName, String>) -> Result<Participants, String> {
        let plain = GrpcLinks.participants(resources)?;
        let wrap = |(name, inner): (ResourceName, Arc<dyn ResourceManager>)| {
            let to = Place::Bank(bank_of(&name));
            let wrapped = FaultyBank { links: self.clone(), to, inner };
            (name, Arc::new(wrapped) as Arc<dyn ResourceManager>)
        };
        Ok(plain.into_iter().map(wrap).collect())
    }

    /// On top of what becomes of the stream itself at its [door](super::door).
    fn stream(&self, resource: &ResourceName, plain: Arc<dyn ResourceManager>) -> Arc<dyn ResourceManager> {
        Arc::new(FaultyBank { links: self.clone(), to: Place::Bank(bank_of(resource)), inner: plain })
    }

    fn peers(&self, _: NodeId, plain: Arc<dyn PeerLink>) -> Arc<dyn PeerLink> {
        Arc::new(FaultyPeers { links: self.clone(), plain, sent: AtomicU64::new(0), newest: Arc::default() })
    }
}

struct FaultyPeers {
    links: SimLinks,
    plain: Arc<dyn PeerLink>,
    sent: AtomicU64,
    /// The last message that has gone out to each peer, by the order in which they were to be sent.
    newest: Arc<Mutex<BTreeMap<NodeId, u64>>>,
}

impl FaultyPeers {
    /// Sends a message when its time has come, whether or not anybody still waits for the answer.
    fn send(
        &self,
        after: Duration,
        number: u64,
        to: NodeId,
        (kind, body, within): (MessageKind, Bytes, Duration),
    ) -> impl Future<Output = Result<Bytes, LinkError>> + use<> {
        let (plain, newest) = (Arc::clone(&self.plain), Arc::clone(&self.newest));
        let (history, from) = (self.links.sky.history.clone(), Place::Node(self.links.node));
        async move {
            if !after.is_zero() {
                sleep(after).await;
            }
            let overtaken = {
                let mut newest = lock(&newest);
                let newest = newest.entry(to).or_default();
                *newest = number.max(*newest);
                *newest > number
            };
            if overtaken && kind == MessageKind::Append {
                history.record(from, What::Overtaken);
            }
            plain.call(to, kind, body, within).await
        }
    }
}

impl PeerLink for FaultyPeers {
    fn call(
        &self,
        to: NodeId,
        kind: MessageKind,
        body: Bytes,
        within: Duration,
    ) -> BoxFuture<'_, Result<Bytes, LinkError>> {
        Box::pin(async move {
            let SimLinks { node, sky, .. } = &self.links;
            let (from, there) = (Place::Node(*node), Place::Node(to.0));
            let fate = sky.fate(from, there);
            sky.history.note(from, format_args!("sends {there} {kind:?} of {} bytes{fate}", body.len()));
            let carried = async {
                if fate.lost {
                    return std::future::pending().await;
                }
                let number = self.sent.fetch_add(1, Ordering::Relaxed) + 1;
                if let Some(after) = fate.again_after {
                    // Nobody waits for the answer to a copy.
                    drop(tokio::spawn(self.send(fate.late + after, number, to, (kind, body.clone(), within))));
                }
                let sending = self.send(fate.late, number, to, (kind, body, within));
                let answer = if fate.late.is_zero() {
                    sending.await
                } else {
                    // It arrives even if it is given up meanwhile: behind what was sent after it.
                    tokio::spawn(sending).await.unwrap_or(Err(LinkError::TimedOut))
                };
                if fate.answer_lost || sky.is_cut(there, from) {
                    return std::future::pending().await;
                }
                answer
            };
            let answer = timeout(within, carried).await.unwrap_or(Err(LinkError::TimedOut));
            match kind {
                MessageKind::PutSections if answer.is_ok() => sky.history.record(there, What::SnapshotCame),
                MessageKind::Fetch if answer.is_ok() => sky.history.record(from, What::Fetched),
                _ => {}
            }
            match &answer {
                Ok(body) => sky.history.note(from, format_args!("has of {there} {kind:?}: {} bytes", body.len())),
                Err(error) => sky.history.note(from, format_args!("has of {there} {kind:?}: {error}")),
            }
            answer
        })
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { late, lost, answer_lost, again_after } = self;
        if !late.is_zero() {
            write!(f, ", {late:?} late")?;
        }
        if *lost {
            f.write_str(", LOST")?;
        } else if *answer_lost {
            f.write_str(", its answer LOST")?;
        }
        match again_after {
            Some(after) => write!(f, ", again after {after:?}"),
            None => Ok(()),
        }
    }
}

#[derive(Debug)]
struct FaultyBank {
    links: SimLinks,
    to: Place,
    inner: Arc<dyn ResourceManager>,
}

impl FaultyBank {
    /// Draws what becomes of a message.
    fn fate(&self, what: &'static str, branch: BranchId, term: u64) -> Fate {
        let SimLinks { node, sky, .. } = &self.links;
        let (from, to) = (Place::Node(*node), self.to);
        sky.count(*node, branch, what);
        let fate = sky.fate(from, to);
        sky.history.note(from, format_args!("asks {to} to {what} {branch} in term {term}{fate}"));
        fate
    }

    async fn carry<Q, A, F>(
        &self,
        fate: Fate,
        question: Q,
        send: impl Fn(Arc<dyn ResourceManager>, Q) -> F + Send + 'static,
    ) -> Result<A, NotAnswered>
    where
        Q: Clone + Send + 'static,
        A: Send + 'static,
        F: Future<Output = Result<A, NotAnswered>> + Send + 'static,
    {
        let SimLinks { node, sky, .. } = &self.links;
        let (from, to) = (Place::Node(*node), self.to);
        let lost = || NotAnswered::unavailable("the message or its answer was lost");
        if !fate.late.is_zero() {
            sleep(fate.late).await;
        }
        if let Some(after) = fate.again_after {
            let copy = send(Arc::clone(&self.inner), question.clone());
            sky.lives_on(async move {
                sleep(after).await;
                drop(copy.await);
            });
        }
        if fate.lost {
            sleep(HANGS).await;
            return Err(lost());
        }
        let answer = send(Arc::clone(&self.inner), question).await;
        if fate.answer_lost || sky.is_cut(to, from) {
            sleep(HANGS).await;
            return Err(lost());
        }
        answer
    }
}

#[tonic::async_trait]
impl ResourceManager for FaultyBank {
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        if self.links.flaw == Some(Flaw::VoteInvented) && request.branch.number == 2 {
            return Ok(Voted::PREPARED);
        }
        let fate = self.fate("prepare", request.branch, request.stamp.term);
        let send = |to: Arc<dyn ResourceManager>, request| async move { to.prepare(request).await };
        let asked = self.carry(fate, request, send);
        let voted = if self.links.flaw == Some(Flaw::TimeoutIsYes) {
            timeout(PATIENCE, asked).await.unwrap_or(Ok(Voted::PREPARED))
        } else {
            asked.await
        };
        if voted.as_ref().is_ok_and(|voted| voted.vote == Vote::Prepared) && self.links.shared.dies_at_vote() {
            // The node dies with the vote in its hands.
            self.links.shared.dooms(Place::Node(self.links.node));
            return std::future::pending().await;
        }
        voted
    }

    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered> {
        let fate = self.fate("commit", request.branch, request.stamp.term);
        let send = |to: Arc<dyn ResourceManager>, request| async move { to.commit(request).await };
        self.carry(fate, request, send).await
    }

    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        let fate = self.fate("roll back", request.branch, request.stamp.term);
        let send = |to: Arc<dyn ResourceManager>, request| async move { to.rollback(request).await };
        self.carry(fate, request, send).await
    }

    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        let what = if request.fence { "fence" } else { "decide" };
        let fate = self.fate(what, request.branch, request.stamp.term);
        let send = |to: Arc<dyn ResourceManager>, request| async move { to.commit_one_phase(request).await };
        self.carry(fate, request, send).await
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        self.inner.recover(limit).await
    }
}
