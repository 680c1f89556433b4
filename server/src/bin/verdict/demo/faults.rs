//! What goes wrong on purpose: at which part of the bookings, in which order, and what is waited for.
//!
//! ```text
//!   15 %  kill -9 the leader           over when another leads and a booking was committed
//!   35 %  start that node again        over when it has caught up with the leader
//!   55 %  SIGSTOP the leader, 3 s      over when it was resumed and follows the new one
//!   75 %  kill -9 a participant, 1 s   over when it was started again and a booking was committed
//! ```
//!
//! Where servers keep parts of the bookings, the last of them is killed in the place of a participant.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::Serialize;
use thiserror::Error;
use tokio::{
    net::TcpStream,
    time::{sleep, sleep_until, timeout},
};

use super::{
    board::Board,
    fleet::{Fleet, FleetError, Who},
    load::Pace,
    oracle::Oracle,
    progress::Progress,
};
use crate::{client::short, participant::Kind};

/// At which hundredths of the bookings.
const POINTS: [usize; 5] = [15, 35, 55, 75, 100];

const PAUSE: Duration = Duration::from_secs(3);
const PARTICIPANT_DOWN: Duration = Duration::from_secs(1);

/// How long any of the conditions may take: far more than a cluster needs, so that reaching it is a failure.
const WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug, Error)]
pub(crate) enum FaultError {
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error("{what}: not within {WITHIN:?}; the logs are in {}", dir.display())]
    TooLong { what: String, dir: PathBuf },
}

/// A fault that happened.
#[derive(Debug, Serialize)]
pub(super) struct Fault {
    pub(super) what: String,
    /// How many bookings had their answer.
    pub(super) at_booking: usize,
    pub(super) at_ms: u64,
    /// Until another node led, where one had to.
    pub(super) new_leader: Option<u64>,
    pub(super) new_leader_after_ms: Option<u64>,
    /// Until a booking was committed after it. None if none could be: those that were left had to be refused.
    pub(super) committed_after_ms: Option<u64>,
    /// The longest time around it in which a booking waited and none was committed.
    pub(super) longest_gap_ms: u64,
    #[serde(skip)]
    at: Instant,
}

/// Everything that the faults need to be made and seen.
#[derive(Debug)]
pub(super) struct Stage<'a> {
    pub(super) dir: PathBuf,
    pub(super) total: usize,
    pub(super) fleet: &'a mut Fleet,
    pub(super) oracle: &'a Oracle,
    pub(super) board: &'a Board,
    pub(super) pace: &'a Pace,
    pub(super) progress: &'a Progress,
}

impl Stage<'_> {
    /// Makes all faults, each once enough bookings are done.
    pub(super) async fn run(self) -> Result<Vec<Fault>, FaultError> {
        let mut faults = Vec::new();

        self.due(0).await;
        let killed = self.leader(None).await?;
        faults.push(self.begins(format!("kill -9 the leader, node {killed}")));
        self.fleet.kill(Who::Node(killed)).await?;
        let died = Instant::now();
        let second = self.leader(Some(killed)).await?;
        self.elected(&mut faults, second, died);
        self.commits(&mut faults, died, 0).await?;
        self.over();

        self.due(1).await;
        faults.push(self.begins(format!("start node {killed} again")));
        let started = Instant::now();
        self.fleet.start(Who::Node(killed))?;
        let leader = self.leader(None).await?;
        let goal = self.within("the leader tells how long its log is", self.oracle.node_is(leader, |_| true)).await?;
        let goal = goal.applied_index;
        let caught_up = self.oracle.node_is(killed, |status| status.leader.is_some() && status.applied_index >= goal);
        self.within("the node that came back catches up", caught_up).await?;
        self.tell(format!("node {killed} has caught up, {} after its start", short(started.elapsed())));
        self.commits(&mut faults, started, 1).await?;
        self.over();

        self.due(2).await;
        let paused = self.leader(None).await?;
        faults.push(self.begins(format!("pause the leader, node {paused}, for {}", short(PAUSE))));
        self.fleet.pause(Who::Node(paused))?;
        let stopped = Instant::now();
        let third = self.leader(Some(paused)).await?;
        self.elected(&mut faults, third, stopped);
        self.commits(&mut faults, stopped, 2).await?;
        sleep_until((stopped + PAUSE).into()).await;
        self.fleet.resume(Who::Node(paused))?;
        let follows = self.oracle.node_is(paused, |status| status.leader.is_some_and(|leader| leader != paused));
        self.within("the paused leader follows its successor", follows).await?;
        self.tell(format!("node {paused} was resumed and follows"));
        self.over();

        self.due(3).await;
        let last = self.fleet.servers().last().map(|server| (server.stock.kind(), server.brand.to_string()));
        let (kind, name) = last.unwrap_or_else(|| (Kind::Wallet, "the participant wallet".to_owned()));
        faults.push(self.begins(format!("kill -9 {name}, for {}", short(PARTICIPANT_DOWN))));
        let (who, address) = self.fleet.keeper(kind);
        let address = address.to_owned();
        self.fleet.kill(who).await?;
        let died = Instant::now();
        sleep(PARTICIPANT_DOWN).await;
        let by = died + PARTICIPANT_DOWN + WITHIN;
        loop {
            self.fleet.start_unless_running(who)?;
            if TcpStream::connect(&address).await.is_ok() {
                break;
            }
            if Instant::now() > by {
                let what = format!("{name} listens again");
                return Err(FaultError::TooLong { what, dir: self.dir.clone() });
            }
            sleep(Duration::from_millis(10)).await;
        }
        self.tell(format!("{name} was started again"));
        self.commits(&mut faults, died, 3).await?;
        self.over();
        Ok(faults)
    }

    /// Waits until the bookings have come to the `stage`-th point.
    async fn due(&self, stage: usize) {
        let point = self.point(stage);
        self.board.reach(|counts| counts.done >= point).await;
        self.pace.slow_down(point, self.point(stage + 1));
    }

    fn point(&self, stage: usize) -> usize {
        self.total * POINTS[stage] / 100
    }

    fn over(&self) {
        self.pace.full_speed();
    }

    fn begins(&self, what: String) -> Fault {
        self.tell(what.clone());
        Fault {
            what,
            at_booking: self.board.counts().done,
            at_ms: millis(self.board.start().elapsed()),
            new_leader: None,
            new_leader_after_ms: None,
            committed_after_ms: None,
            longest_gap_ms: 0,
            at: Instant::now(),
        }
    }

    fn elected(&self, faults: &mut [Fault], leader: u64, since: Instant) {
        self.tell(format!("node {leader} leads, {} later", short(since.elapsed())));
        if let Some(fault) = faults.last_mut() {
            fault.new_leader = Some(leader);
            fault.new_leader_after_ms = Some(millis(since.elapsed()));
        }
    }

    /// Waits until one more booking is committed, or all of this stage have their answer.
    async fn commits(&self, faults: &mut [Fault], since: Instant, stage: usize) -> Result<(), FaultError> {
        let (before, until) = (self.board.counts().committed, self.point(stage + 1));
        let moved_on = self.board.reach(|counts| counts.committed > before || counts.done >= until);
        self.within("a booking is committed", moved_on).await?;
        if let Some(fault) = faults.last_mut().filter(|_| self.board.counts().committed > before) {
            fault.committed_after_ms = Some(millis(since.elapsed()));
        }
        Ok(())
    }

    async fn leader(&self, except: Option<u64>) -> Result<u64, FaultError> {
        self.within("a node leads", self.oracle.leader(except)).await
    }

    async fn within<T>(&self, what: &str, condition: impl Future<Output = T>) -> Result<T, FaultError> {
        let late = |_| FaultError::TooLong { what: what.to_owned(), dir: self.dir.clone() };
        timeout(WITHIN, condition).await.map_err(late)
    }

    fn tell(&self, what: String) {
        self.progress.line(self.board, &what);
    }
}

/// Measures the gap around each fault: from it to the next one, or to the end.
pub(super) fn measure_gaps(faults: &mut [Fault], board: &Board) {
    let mut end = Instant::now();
    for fault in faults.iter_mut().rev() {
        fault.longest_gap_ms = millis(board.longest_stall(fault.at, end));
        end = fault.at;
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
