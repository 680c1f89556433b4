//! Books the lines of the file, many at a time, and never takes silence for an answer.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    sync::{Notify, Semaphore},
    task::JoinSet,
    time::sleep,
};
use verdict_client::{CallError, Outcome, Reason, RefusalCode, ResourceName, Transaction, Verdict, Xid};

use super::{board::Board, bookings::Line, databases::Till};
use crate::participant::{Kind, Order};

/// How often a booking that was aborted for a passing reason is tried again, as a new transaction.
const MOST_ATTEMPTS: u32 = 20;

/// How long all bookings of a stage would take while a fault is on. Long enough for any fault, so that there is
/// always something under way that it can hit.
const STAGE_UNDER_FAULT: Duration = Duration::from_secs(6);

/// How long a booking leaves a database alone that is away.
const DATABASE_REST: Duration = Duration::from_millis(250);

/// Where bookings are made.
#[derive(Clone, Debug)]
pub(super) struct Desk {
    pub(super) verdict: Verdict,
    /// Databases that the bookings work on themselves; the other kinds' participants do as they are told.
    pub(super) tills: Vec<Till>,
}

/// What became of a line of the file.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) line: Line,
    pub(super) xid: Xid,
    pub(super) attempts: u32,
    pub(super) answer: Answer,
}

#[derive(Clone, Debug)]
pub(super) enum Answer {
    Committed,
    Aborted(Option<Reason>),
    /// The cluster refused the call. It should not: the audit fails.
    Refused(String),
}

/// Bookings come as fast as they are answered; while a fault is on they come one after another at an even pace, so
/// that the file is not at its end before the fault is over.
#[derive(Debug, Default)]
pub(super) struct Pace {
    fault: Mutex<Option<Fault>>,
    over: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    /// Where the next fault is due: bookings from there on wait for this one to be over.
    until: usize,
    every: Duration,
}

impl Pace {
    pub(super) fn slow_down(&self, from: usize, until: usize) {
        let lines = u32::try_from(until.saturating_sub(from)).unwrap_or(u32::MAX).max(1);
        self.set(Some(Fault { until, every: STAGE_UNDER_FAULT / lines }));
    }

    pub(super) fn full_speed(&self) {
        self.set(None);
        self.over.notify_waiters();
    }

    /// Waits until booking number `index` may start.
    async fn wait(&self, index: usize) {
        let mut paced = false;
        loop {
            let over = self.over.notified();
            match self.get() {
                None => return,
                Some(fault) if index >= fault.until => over.await,
                Some(_) if paced => return,
                Some(fault) => {
                    tokio::select! {
                        () = sleep(fault.every) => paced = true,
                        () = over => return,
                    }
                }
            }
        }
    }

    fn get(&self) -> Option<Fault> {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, fault: Option<Fault>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }
}

/// Books all lines, at most `in_flight` at a time. The accounts come in the order of the file.
pub(super) async fn book_all(
    desk: &Desk,
    lines: Vec<Line>,
    in_flight: usize,
    board: &Arc<Board>,
    pace: &Pace,
) -> Vec<Account> {
    let slots = Arc::new(Semaphore::new(in_flight));
    let mut bookings = JoinSet::new();
    for (index, line) in lines.into_iter().enumerate() {
        pace.wait(index).await;
        let slot = Arc::clone(&slots).acquire_owned().await.expect("nobody closes it");
        let (desk, board) = (desk.clone(), Arc::clone(board));
        bookings.spawn(async move {
            let account = book(&desk, line, &board).await;
            drop(slot);
            account
        });
    }
    let mut accounts = bookings.join_all().await;
    accounts.sort_by_key(|account| account.line.number);
    accounts
}

async fn book(desk: &Desk, line: Line, board: &Board) -> Account {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let (xid, answer) = attempt(desk, &line, board, attempts < MOST_ATTEMPTS).await;
        match answer {
            Answer::Aborted(Some(reason)) if reason.retryable && attempts < MOST_ATTEMPTS => {
                sleep(Duration::from_millis(20) * attempts).await;
            }
            answer => return Account { line, xid, attempts, answer },
        }
    }
}

/// One transaction, asked about until it is answered.
async fn attempt(desk: &Desk, line: &Line, board: &Board, may_retry: bool) -> (Xid, Answer) {
    let mut booking = desk.verdict.transaction();
    let xid = booking.xid();
    board.asked();
    let worked = work(desk, &mut booking, &line.order).await;
    let asked = Instant::now();
    let answer = loop {
        let decided = match &worked {
            Ok(()) => booking.commit().await,
            Err(no) => booking.rollback(no.text()).await,
        };
        match (decided.map(|decision| (decision.outcome, decision.reason)), &worked) {
            (Ok((Outcome::Committed, _)), _) => break Answer::Committed,
            (Ok((Outcome::Aborted, reason)), Ok(())) => break Answer::Aborted(reason),
            (Ok((Outcome::Aborted, _)), Err(No::Refused(reason))) => break Answer::Aborted(Some(reason.clone())),
            (Ok((Outcome::Aborted, _)), Err(No::Wrong(text))) => break Answer::Refused(text.clone()),
            // It may have been committed: the same again, until somebody knows.
            (Err(CallError::Unknown { .. }), _) => board.unknown(),
            (Err(CallError::Refused { code: RefusalCode::Overloaded, .. }), _) => {
                sleep(Duration::from_millis(50)).await;
            }
            (Err(CallError::Refused { code, text }), _) => break Answer::Refused(format!("{code}: {text}")),
        }
    };
    let took = asked.elapsed();
    // What it has of the databases is given back before anything else is asked of them.
    drop(booking);
    if matches!(&worked, Err(No::Refused(reason)) if reason.retryable) {
        sleep(DATABASE_REST).await;
    }
    let again = matches!(&answer, Answer::Aborted(Some(reason)) if reason.retryable && may_retry);
    board.decided(matches!(answer, Answer::Committed), took, !again);
    (xid, answer)
}

/// Why a booking does not come to its commit.
enum No {
    Refused(Reason),
    /// It should not be.
    Wrong(String),
}

impl No {
    fn text(&self) -> &str {
        match self {
            Self::Refused(reason) => &reason.text,
            Self::Wrong(text) => text,
        }
    }
}

/// Makes a branch for each part: works on it, or says what its participant is to do.
async fn work(desk: &Desk, booking: &mut Transaction, order: &Order) -> Result<(), No> {
    let payload = serde_json::to_vec(order);
    let payload = payload.map_err(|error| No::Wrong(format!("the order cannot be written: {error}")))?;
    for kind in Kind::ALL {
        if let Some(till) = desk.tills.iter().find(|till| till.stock.kind() == kind) {
            till.take(booking, order).await.map_err(No::Refused)?;
            continue;
        }
        let resource = ResourceName::try_from(kind.name()).expect("each kind's name is a resource's");
        let added = booking.add(resource, payload.clone().into());
        added.map_err(|error| No::Wrong(error.to_string()))?;
    }
    Ok(())
}
