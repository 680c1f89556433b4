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
use verdict_client::{CallError, Outcome, Reason, RefusalCode, ResourceName, Verdict, Xid};

use super::{board::Board, bookings::Line};
use crate::participant::Kind;

/// How often a booking that was aborted for a passing reason is tried again, as a new transaction.
const MOST_ATTEMPTS: u32 = 20;

/// How long all bookings of a stage would take while a fault is on. Long enough for any fault, so that there is
/// always something under way that it can hit.
const STAGE_UNDER_FAULT: Duration = Duration::from_secs(6);

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
    verdict: &Verdict,
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
        let (verdict, board) = (verdict.clone(), Arc::clone(board));
        bookings.spawn(async move {
            let account = book(&verdict, line, &board).await;
            drop(slot);
            account
        });
    }
    let mut accounts = bookings.join_all().await;
    accounts.sort_by_key(|account| account.line.number);
    accounts
}

async fn book(verdict: &Verdict, line: Line, board: &Board) -> Account {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let (xid, answer) = attempt(verdict, &line, board, attempts < MOST_ATTEMPTS).await;
        match answer {
            Answer::Aborted(Some(reason)) if reason.retryable && attempts < MOST_ATTEMPTS => {
                sleep(Duration::from_millis(20) * attempts).await;
            }
            answer => return Account { line, xid, attempts, answer },
        }
    }
}

/// One transaction, asked about until it is answered.
async fn attempt(verdict: &Verdict, line: &Line, board: &Board, may_retry: bool) -> (Xid, Answer) {
    let mut booking = verdict.transaction();
    let xid = booking.xid();
    let payload = match serde_json::to_vec(&line.order) {
        Ok(payload) => payload,
        Err(error) => return (xid, Answer::Refused(format!("the order cannot be written: {error}"))),
    };
    for kind in Kind::ALL {
        let resource = ResourceName::try_from(kind.name()).expect("each kind's name is a resource's");
        if let Err(error) = booking.add(resource, payload.clone().into()) {
            return (xid, Answer::Refused(error.to_string()));
        }
    }
    let asked = Instant::now();
    board.asked();
    let answer = loop {
        match booking.commit().await {
            Ok(decision) => match decision.outcome {
                Outcome::Committed => break Answer::Committed,
                Outcome::Aborted => break Answer::Aborted(decision.reason),
            },
            // It may have been committed: the same commit again, until somebody knows.
            Err(CallError::Unknown { .. }) => board.unknown(),
            Err(CallError::Refused { code: RefusalCode::Overloaded, .. }) => sleep(Duration::from_millis(50)).await,
            Err(CallError::Refused { code, text }) => break Answer::Refused(format!("{code}: {text}")),
        }
    };
    let again = matches!(&answer, Answer::Aborted(Some(reason)) if reason.retryable && may_retry);
    board.decided(matches!(answer, Answer::Committed), asked.elapsed(), !again);
    (xid, answer)
}
