//! Which processes ran and which links were whole, at any time: from this follows when a majority was connected.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use super::lock;
use crate::{history::now, plan::Place};

/// From when until when.
pub type Span = (Duration, Duration);

/// What was up and connected. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Timeline(Arc<Mutex<Vec<(Duration, Change)>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// A process serves, or serves no more.
    Serves(Place, bool),
    /// It stands still, or goes on.
    StandsStill(Place, bool),
    /// One way between two places is cut, or is not.
    Cut(Place, Place, bool),
    /// It has just answered, or was given up, what it was asked then.
    Slow(Place, Duration),
}

impl Timeline {
    fn add(&self, change: Change) {
        lock(&self.0).push((now(), change));
    }

    pub(super) fn serves(&self, place: Place, does: bool) {
        self.add(Change::Serves(place, does));
    }

    pub(super) fn stands_still(&self, place: Place, does: bool) {
        self.add(Change::StandsStill(place, does));
    }

    pub(super) fn cut(&self, from: Place, to: Place, is: bool) {
        self.add(Change::Cut(from, to, is));
    }

    pub(super) fn slow(&self, place: Place, since: Duration) {
        self.add(Change::Slow(place, since));
    }

    /// When it took its time to answer: spans in order that do not touch.
    #[must_use]
    pub fn slowness(&self, of: Place) -> Vec<Span> {
        let changes = lock(&self.0);
        let slow = changes.iter().filter_map(|(at, change)| match change {
            Change::Slow(place, since) if *place == of => Some((*since, *at)),
            Change::Slow(..) | Change::Serves(..) | Change::StandsStill(..) | Change::Cut(..) => None,
        });
        let mut spans: Vec<Span> = Vec::new();
        for (since, until) in slow.collect::<BTreeSet<_>>() {
            match spans.last_mut() {
                Some(last) if since <= last.1 => last.1 = until.max(last.1),
                Some(_) | None => spans.push((since, until)),
            }
        }
        spans
    }

    /// When all of these served, went on, and reached each other, both ways: spans without a gap, until `end`.
    #[must_use]
    pub fn connected(&self, places: &[Place], end: Duration) -> Vec<Span> {
        let mut serving: BTreeMap<Place, bool> = places.iter().map(|place| (*place, false)).collect();
        let mut still = BTreeSet::new();
        let mut cuts = BTreeSet::new();
        let mut spans = Vec::new();
        let mut since = None;
        for (at, change) in lock(&self.0).iter() {
            match change {
                Change::Serves(place, does) => {
                    if let Some(serves) = serving.get_mut(place) {
                        *serves = *does;
                    }
                }
                Change::StandsStill(place, true) if serving.contains_key(place) => drop(still.insert(*place)),
                Change::StandsStill(place, _) => drop(still.remove(place)),
                Change::Cut(from, to, true) if serving.contains_key(from) && serving.contains_key(to) => {
                    cuts.insert((*from, *to));
                }
                Change::Cut(from, to, _) => drop(cuts.remove(&(*from, *to))),
                Change::Slow(..) => {}
            }
            let connected = still.is_empty() && cuts.is_empty() && serving.values().all(|serves| *serves);
            if connected {
                since.get_or_insert(*at);
            } else {
                spans.extend(since.take().map(|since| (since, *at)));
            }
        }
        spans.extend(since.map(|since| (since, end)));
        spans
    }
}

/// Every set of more than half of so many nodes.
#[must_use]
pub fn majorities(nodes: u64) -> Vec<Vec<Place>> {
    let of = |set: u64| (1..=nodes).filter(|node| set & 1 << node != 0).map(Place::Node).collect::<Vec<_>>();
    let sets = (0..2_u64 << nodes).step_by(2).map(of);
    sets.filter(|places| places.len() as u64 * 2 > nodes).collect()
}
