//! I13, of seats: no seat is ever booked twice; it is promised to one at a time, and free again after an abort.

use std::collections::{BTreeMap, BTreeSet};

use verdict_protocol::{BranchId, Outcome, Vote};

use super::Evidence;
use crate::{
    bank::Deed,
    history::{Effect, What},
    plan::Place,
};

/// A seat as the history of its effects has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seat {
    booked: bool,
    promised: Option<BranchId>,
}

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut wrong = Vec::new();
    let deeds = evidence.deeds();
    let mut seats: BTreeMap<(Place, u32), Seat> = BTreeMap::new();
    for event in &evidence.events {
        let What::Effect { branch, effect } = event.what else { continue };
        let Some((seat, books)) = deeds.get(&branch).and_then(|(_, deed)| of_seat(*deed)) else { continue };
        let known = seats.entry((event.who, seat)).or_default();
        let right = match effect {
            Effect::Reserved => known.promised.is_none() && known.booked != books,
            Effect::Confirmed | Effect::Cancelled => known.promised == Some(branch),
        };
        if !right {
            wrong.push(format!("{} at {:?}: {effect:?} of {branch} at seat {seat}, {known:?}", event.who, event.at));
        }
        match effect {
            Effect::Reserved => known.promised = Some(branch),
            Effect::Confirmed => *known = Seat { booked: books, promised: None },
            Effect::Cancelled => known.promised = None,
        }
    }
    if evidence.healed.is_ok() {
        wrong.extend(by_the_log(evidence));
    }
    wrong
}

/// A booking comes after a return, and the other way round: at the end a seat is booked as often more than it was
/// returned as its bank says: once or never.
fn by_the_log(evidence: &Evidence) -> Vec<String> {
    let mut booked: BTreeMap<(usize, u32), i64> = BTreeMap::new();
    for (branch, (bank, deed)) in evidence.deeds() {
        let Some((seat, books)) = of_seat(deed) else { continue };
        let Some(case) = evidence.oracle.cases.get(&branch.xid) else { continue };
        let committed = case.outcome.is_some_and(|sentence| sentence.outcome == Outcome::Committed);
        let promised = case.branches.get(&branch.number).is_some_and(|(_, vote)| *vote == Some(Vote::Prepared));
        if committed && promised {
            *booked.entry((bank, seat)).or_default() += if books { 1 } else { -1 };
        }
    }
    let mut all: BTreeSet<(usize, u32)> = booked.keys().copied().collect();
    all.extend(
        evidence.books.iter().enumerate().flat_map(|(bank, books)| books.seats.keys().map(move |at| (bank, *at))),
    );
    let differs = all.into_iter().filter_map(|(bank, seat)| {
        let by_log = booked.get(&(bank, seat)).copied().unwrap_or_default();
        let there = evidence.books.get(bank).and_then(|books| books.seats.get(&seat)).copied().unwrap_or_default();
        (by_log != i64::from(there))
            .then(|| format!("seat {seat} at bank {bank}: booked {by_log} times by the log, {there} in its books"))
    });
    differs.collect()
}

fn of_seat(deed: Deed) -> Option<(u32, bool)> {
    match deed {
        Deed::Book { seat } => Some((seat, true)),
        Deed::Free { seat } => Some((seat, false)),
        Deed::Money { .. } | Deed::Append { .. } => None,
    }
}
