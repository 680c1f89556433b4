//! What is seen of a transaction, and the figures that follow from it: the same for both coordinators.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use verdict_protocol::Outcome;

use super::WALLET;
use crate::history::now;

/// Something that happened to a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The coordinator sends PREPARE to a participant.
    Asks,
    /// It sends the decision to one.
    Tells(Outcome),
    /// A participant's acknowledgement has come back.
    Acknowledged,
    /// Any message between the coordinator and a participant is sent, those above included.
    Message,
    /// A message between Verdict's nodes.
    PeerMessage,
    /// A participant's row is locked, or free again.
    Locked(usize),
    Free(usize),
    /// A write was forced: by a participant or a classic coordinator, or by one of Verdict's nodes.
    Forced,
    NodeForced,
}

/// Everything that was seen. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen(Arc<Mutex<Vec<(Duration, What)>>>);

impl Seen {
    pub(super) fn add(&self, what: What) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((now(), what));
    }

    pub(super) fn events(&self) -> Vec<(Duration, What)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A duration to a tenth of a millisecond: the simulator's runtime adds some nanoseconds for each step of a task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(u128);

impl Millis {
    #[must_use]
    pub const fn new(whole: u128, tenths: u128) -> Self {
        Self(whole * 10 + tenths)
    }
}

impl From<Duration> for Millis {
    fn from(duration: Duration) -> Self {
        Self((duration.as_micros() + 50) / 100)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, tenths) = (self.0 / 10, self.0 % 10);
        match whole {
            ..1_000 => write!(f, "{whole}.{tenths} ms"),
            _ => write!(f, "{},{:03}.{tenths} ms", whole / 1_000, whole % 1_000),
        }
    }
}

impl fmt::Debug for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The figures of a transaction. Times count from when PREPARE went out first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    pub outcome: Outcome,
    /// The first participant is sent the decision.
    pub sent: Millis,
    /// The last row is free.
    pub free: Millis,
    pub wallet_free: Millis,
    /// The longest that a row was locked.
    pub held: Millis,
    /// The last acknowledgement is back.
    pub acknowledged: Millis,
    /// Between the coordinator and the participants, until then.
    pub messages: usize,
    /// Between Verdict's nodes, heartbeats included.
    pub peer_messages: usize,
    /// By participants and a classic coordinator.
    pub forced: usize,
    /// By Verdict's nodes, all three together.
    pub node_forced: usize,
}

impl Figures {
    /// None while nothing is decided and acknowledged.
    pub(super) fn of(seen: &Seen) -> Option<Self> {
        let events = seen.events();
        let begun = events.iter().find(|(_, what)| *what == What::Asks)?.0;
        let since = |at: Duration| at.saturating_sub(begun);
        let last = |wanted: fn(&What) -> bool| events.iter().rfind(|(_, what)| wanted(what)).map(|(at, _)| *at);
        let (sent, outcome) = events.iter().find_map(|(at, what)| match what {
            What::Tells(outcome) => Some((*at, *outcome)),
            _ => None,
        })?;
        let acknowledged = last(|what| *what == What::Acknowledged)?;
        let count = |wanted: What| events.iter().filter(|(at, what)| *at <= acknowledged && *what == wanted).count();
        let held = |participant: usize| {
            let locked = events.iter().find(|(_, what)| *what == What::Locked(participant))?.0;
            let free = events.iter().find(|(_, what)| *what == What::Free(participant))?.0;
            Some((free, free.saturating_sub(locked)))
        };
        let rows: Vec<_> = (0..super::PARTICIPANTS.len()).filter_map(held).collect();
        Some(Self {
            outcome,
            sent: since(sent).into(),
            free: since(rows.iter().map(|(free, _)| *free).max()?).into(),
            wallet_free: since(rows.get(WALLET)?.0).into(),
            held: rows.iter().map(|(_, held)| *held).max()?.into(),
            acknowledged: since(acknowledged).into(),
            messages: count(What::Message),
            peer_messages: count(What::PeerMessage),
            forced: count(What::Forced),
            node_forced: count(What::NodeForced),
        })
    }
}

/// The most rows of one participant that became free within one second, once it was busy.
pub(super) fn commits_in_a_second(seen: &Seen, participant: usize) -> usize {
    let events = seen.events();
    let free: Vec<Duration> =
        events.iter().filter(|(_, what)| *what == What::Free(participant)).map(|(at, _)| *at).collect();
    let second = Duration::from_secs(1);
    let within = |from: &Duration| free.iter().filter(|at| **at > *from && **at <= *from + second).count();
    free.first().map_or(0, within)
}
