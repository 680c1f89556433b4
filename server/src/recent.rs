//! The last transitions that this node has applied, by their index in the log: what whoever watches is told.
//!
//! ```text
//!   apply ─▶ push ─▶ │ 17  18  21  22 │ ─▶ each watcher reads behind its own index, in pieces
//!                    └─ the oldest go ┘     one that is slower than that finds a gap, and is told so
//! ```
//!
//! Promise: applying never waits for a watcher, and takes no more memory for one, however slow it is. After a restart
//! the log fills this again as far as it is applied again; what a snapshot brought was never here.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Notify, futures::Notified};
use verdict_protocol::{LogTime, Transition};

/// What is kept at most, in bytes.
const KEPT_BYTES: usize = 16 << 20;
/// Entries that are read at a time, and their bytes: a watcher holds no more, and apply waits no longer for it.
const PIECE: usize = 256;
const PIECE_BYTES: usize = 256 << 10;

/// The transitions of one entry.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) index: u64,
    pub(crate) at: LogTime,
    /// In their order; a transition's place among them, from 1, is its number.
    pub(crate) transitions: Arc<[Transition]>,
    bytes: usize,
}

/// What stands behind an index.
#[derive(Debug)]
pub(crate) enum Read {
    /// Nothing that is applied yet.
    Nothing,
    /// What follows is not kept any more, or never was, up to this index.
    Gap { to: u64 },
    /// All transitions up to this index.
    Some { entries: Vec<Kept>, to: u64 },
}

#[derive(Debug)]
pub(crate) struct Recent {
    ring: Mutex<Ring>,
    /// Transitions that are kept at most.
    most: usize,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Ring {
    /// Up to here nothing is kept.
    lost: u64,
    /// The last index that was applied.
    applied: u64,
    entries: VecDeque<Kept>,
    transitions: usize,
    bytes: usize,
}

impl Recent {
    pub(crate) fn new(most: usize) -> Self {
        Self { ring: Mutex::default(), most, changed: Notify::new() }
    }

    /// The entry at `index` was applied, and these are its transitions.
    pub(crate) fn push(&self, index: u64, at: LogTime, transitions: Vec<Transition>) {
        let mut ring = self.lock();
        ring.applied = index;
        if !transitions.is_empty() {
            let bytes = transitions.iter().map(Transition::size).sum();
            ring.transitions += transitions.len();
            ring.bytes += bytes;
            ring.entries.push_back(Kept { index, at, transitions: transitions.into(), bytes });
            while ring.transitions > self.most || ring.bytes > KEPT_BYTES {
                ring.forget_first();
            }
        }
        drop(ring);
        self.changed.notify_waiters();
    }

    /// The state was replaced by that of a snapshot up to `index`. It may be the very state that was there.
    pub(crate) fn replaced(&self, index: u64) {
        let mut ring = self.lock();
        if index != ring.applied {
            *ring = Ring { lost: index, applied: index, ..Ring::default() };
        }
        drop(ring);
        self.changed.notify_waiters();
    }

    /// The last index that was applied.
    pub(crate) fn applied(&self) -> u64 {
        self.lock().applied
    }

    /// What stands behind `after`.
    pub(crate) fn read(&self, after: u64) -> Read {
        let ring = self.lock();
        if after < ring.lost {
            return Read::Gap { to: ring.lost };
        }
        if after >= ring.applied {
            return Read::Nothing;
        }
        let first = ring.entries.partition_point(|entry| entry.index <= after);
        let mut bytes = 0;
        let fits = |entry: &&Kept| {
            let fits = bytes < PIECE_BYTES;
            bytes += entry.bytes;
            fits
        };
        let entries: Vec<Kept> = ring.entries.range(first..).take(PIECE).take_while(fits).cloned().collect();
        let is_all = first + entries.len() == ring.entries.len();
        let to = if is_all { ring.applied } else { entries.last().map_or(after, |entry| entry.index) };
        Read::Some { entries, to }
    }

    /// Ends when something was applied since this was called.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn forget_first(&mut self) {
        let Some(first) = self.entries.pop_front() else { return };
        self.transitions -= first.transitions.len();
        self.bytes -= first.bytes;
        self.lost = first.index;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use verdict_protocol::{ResourceName, Step, Xid};

    use super::*;

    const AT: LogTime = LogTime::from_millis(1);

    fn transitions(count: usize) -> Vec<Transition> {
        let of = |random| Transition { xid: Xid::new(AT, 0, random), resources: [].into(), step: Step::Begun };
        (0..count as u64).map(of).collect()
    }

    fn indices(recent: &Recent, after: u64) -> (Vec<u64>, u64) {
        match recent.read(after) {
            Read::Some { entries, to } => (entries.iter().map(|entry| entry.index).collect(), to),
            other => panic!("{other:?}"),
        }
    }

    fn gap(recent: &Recent, after: u64) -> Option<u64> {
        match recent.read(after) {
            Read::Gap { to } => Some(to),
            Read::Some { .. } | Read::Nothing => None,
        }
    }

    #[test]
    fn what_is_kept_is_read_behind_an_index_and_what_is_not_is_a_gap() {
        let recent = Recent::new(5);
        for (index, count) in [(3, 2), (4, 0), (7, 1), (8, 2), (9, 0)] {
            recent.push(index, AT, transitions(count));
        }
        assert_eq!(indices(&recent, 0), (vec![3, 7, 8], 9));
        assert_eq!(indices(&recent, 7), (vec![8], 9));
        assert_eq!(indices(&recent, 8), (vec![], 9), "nothing happened up to 9");
        assert!(matches!(recent.read(9), Read::Nothing));
        assert!(matches!(recent.read(4711), Read::Nothing), "it is waited for");
        recent.push(12, AT, transitions(1));
        assert_eq!((gap(&recent, 0), gap(&recent, 2), gap(&recent, 3)), (Some(3), Some(3), None));
        assert_eq!(indices(&recent, 3), (vec![7, 8, 12], 12));
    }

    #[test]
    fn an_entry_that_is_more_than_may_be_kept_is_a_gap() {
        let recent = Recent::new(5);
        recent.push(1, AT, transitions(1));
        recent.push(2, AT, transitions(6));
        assert_eq!((gap(&recent, 0), gap(&recent, 1)), (Some(2), Some(2)));
        recent.push(3, AT, transitions(5));
        assert_eq!(indices(&recent, 2), (vec![3], 3));
    }

    #[test]
    fn bytes_are_bounded_whatever_the_count() {
        let recent = Recent::new(usize::MAX);
        let name: ResourceName = "r".repeat(64).as_str().try_into().unwrap();
        let resources: Arc<[ResourceName]> = std::iter::repeat_n(name, 1_000).collect();
        for index in 1..1_000 {
            let wide = transitions(2).into_iter().map(|one| Transition { resources: resources.clone(), ..one });
            recent.push(index, AT, wide.collect());
        }
        let ring = recent.lock();
        let counted: usize = ring.entries.iter().flat_map(|entry| entry.transitions.iter()).map(Transition::size).sum();
        assert_eq!(ring.bytes, counted);
        assert!(counted <= KEPT_BYTES && counted > KEPT_BYTES / 2, "{counted}");
        drop(ring);
        assert!(gap(&recent, 0).is_some());
    }

    #[test]
    fn a_reader_gets_pieces_and_all_of_them() {
        let recent = Recent::new(usize::MAX);
        let last = 3 * PIECE as u64 + 7;
        for index in 1..=last {
            recent.push(index, AT, transitions(1));
        }
        let (mut after, mut read) = (0, Vec::new());
        while after < last {
            let (entries, to) = indices(&recent, after);
            assert!(entries.len() <= PIECE && to == *entries.last().unwrap());
            read.extend(entries);
            after = to;
        }
        assert_eq!(read, (1..=last).collect::<Vec<_>>());
    }

    #[test]
    fn a_snapshot_is_a_gap_unless_it_brings_what_was_there() {
        let recent = Recent::new(100);
        recent.push(1, AT, transitions(1));
        recent.replaced(1);
        assert_eq!(indices(&recent, 0), (vec![1], 1));
        recent.replaced(40);
        assert_eq!((gap(&recent, 0), gap(&recent, 39), gap(&recent, 40)), (Some(40), Some(40), None));
        recent.push(41, AT, transitions(1));
        assert_eq!(indices(&recent, 40), (vec![41], 41));
    }
}
