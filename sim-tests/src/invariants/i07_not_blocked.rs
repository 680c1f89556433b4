//! I7: while a majority has been connected for T, no transaction whose vote deadline has passed stays undecided, and no
//! reachable participant stays in doubt, longer than X. T is 3 and X 10 times the largest election timeout.
//! (Transactions that were delegated wait for their delegate, and are no part of it until they are decided.)
//!
//! Counted is the time within one unbroken connection of one majority, from the later of its beginning and the vote
//! deadline; of a branch that was decided before its deadline, from the decision. A participant must be reachable from
//! every node of that majority all the while. As X is more than T, whatever lasts longer than X has been connected
//! for T. A branch of whose transaction the log knows nothing has the grace of a presumption as its deadline, counted as
//! participants count it: from its promise or the start of the process that holds it, whichever is later. Of a branch that
//! a database holds, the leader's agent counts from when it first saw it: from the last change of the leader at most. What
//! a database takes to answer a question, if that is longer than any election timeout, is its own and not counted.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use verdict_protocol::{BranchId, Xid};

use super::Evidence;
use crate::{
    history::{Effect, What},
    plan::Place,
    world::{ELECTION_MOST, GRACE, Span, majorities},
};

/// X.
pub const BOUND: Duration = ELECTION_MOST.saturating_mul(10);

/// How long something lasted that should be over, and what it was.
#[derive(Clone, Debug)]
pub struct Lasted {
    pub what: String,
    pub of: Duration,
}

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let (undecided, in_doubt) = (undecided(evidence), in_doubt(evidence));
    let mut long: Vec<Lasted> = undecided.into_iter().chain(in_doubt).filter(|lasted| lasted.of > BOUND).collect();
    long.sort_by_key(|lasted| std::cmp::Reverse(lasted.of));
    long.into_iter().map(|lasted| format!("{} for {:?} with a majority connected", lasted.what, lasted.of)).collect()
}

/// The longest part of `from..to` that lies within one of the spans, less what of it was slow.
fn longest(spans: &[Span], slow: &[Span], from: Duration, to: Duration) -> Duration {
    let within = |(begin, end): Span, from: Duration, to: Duration| to.min(end).saturating_sub(from.max(begin));
    let counted = |(begin, end): Span| {
        let (from, to) = (from.max(begin), to.min(end));
        let slow: Duration = slow.iter().map(|span| within(*span, from, to)).sum();
        to.saturating_sub(from) - slow
    };
    spans.iter().copied().map(counted).max().unwrap_or_default()
}

/// When a transaction should have been decided, by the log and by true time.
fn deadlines(evidence: &Evidence) -> BTreeMap<Xid, Duration> {
    let cases = evidence.oracle.cases.iter().filter(|(_, case)| case.delegate.is_none());
    let due = cases.filter_map(|(xid, case)| {
        let (index, after_ms) = case.due?;
        Some((*xid, *evidence.settled_at.get(&index)? + Duration::from_millis(after_ms)))
    });
    due.collect()
}

fn decided(evidence: &Evidence, xid: Xid) -> Option<Duration> {
    let sentence = evidence.oracle.cases.get(&xid)?.outcome?;
    evidence.settled_at.get(&sentence.index).copied()
}

/// How long transactions stayed undecided that should not have been.
#[must_use]
pub fn undecided(evidence: &Evidence) -> Vec<Lasted> {
    let majorities = majorities(evidence.plan.nodes).into_iter();
    let spans: Vec<Span> = majorities.flat_map(|places| evidence.timeline.connected(&places, evidence.end)).collect();
    let of = |(xid, due): (Xid, Duration)| {
        let of = longest(&spans, &[], due, decided(evidence, xid).unwrap_or(evidence.end));
        Lasted { what: format!("{xid}, due at {due:?}, stayed undecided"), of }
    };
    deadlines(evidence).into_iter().map(of).collect()
}

/// How long branches stayed in doubt that should not have been.
#[must_use]
pub fn in_doubt(evidence: &Evidence) -> Vec<Lasted> {
    let majorities = majorities(evidence.plan.nodes);
    let mut reached: BTreeMap<Place, (Vec<Span>, Vec<Span>)> = BTreeMap::new();
    let due = deadlines(evidence);
    let led = evidence.events.iter().filter(|event| matches!(event.what, What::Leads { .. })).map(|event| event.at);
    let led: Vec<Duration> = led.collect();
    let mut starts: BTreeMap<Place, Vec<Duration>> = BTreeMap::new();
    for event in evidence.events.iter().filter(|event| event.what == What::Started) {
        starts.entry(event.who).or_default().push(event.at);
    }
    let mut promised: BTreeMap<BranchId, Duration> = BTreeMap::new();
    let mut all = Vec::new();
    let mut ended = |place: Place, branch: BranchId, promised: Duration, settled: Duration| {
        let (spans, slow) = reached.entry(place).or_insert_with(|| {
            let with = |nodes: &Vec<Place>| [nodes.as_slice(), &[place]].concat();
            let spans = majorities.iter().flat_map(|nodes| evidence.timeline.connected(&with(nodes), evidence.end));
            (spans.collect(), evidence.timeline.slowness(place))
        });
        let decided = decided(evidence, branch.xid);
        let of = if let Some(due) = due.get(&branch.xid) {
            let from = decided.map_or(*due, |decided| decided.min(*due)).max(promised);
            longest(spans, slow, from, settled)
        } else if evidence.oracle.cases.get(&branch.xid).is_some_and(|case| case.delegate.is_some()) {
            // It waits for its delegate, and then for nothing.
            decided.map_or(Duration::ZERO, |decided| longest(spans, slow, decided.max(promised), settled))
        } else {
            // Undecided, it waits for its grace; decided, for nothing.
            let undecided = settled.min(decided.unwrap_or(settled));
            let led = led.iter().filter(|_| evidence.plan.is_database(place));
            let lives = starts.get(&place).into_iter().flatten().chain(led).copied();
            let since = lives.filter(|start| *start > promised).chain([promised]).collect::<BTreeSet<_>>();
            let until = since.iter().copied().skip(1).chain([undecided]);
            let waits = since
                .iter()
                .zip(until)
                .map(|(since, until)| longest(spans, slow, *since + GRACE, until.min(undecided)));
            waits.chain([longest(spans, slow, undecided.max(promised), settled)]).max().unwrap_or_default()
        };
        all.push(Lasted { what: format!("{branch} at {place}, promised at {promised:?}, stayed in doubt"), of });
    };
    let mut places = BTreeMap::new();
    for event in &evidence.events {
        match &event.what {
            What::Effect { branch, effect: Effect::Reserved } => {
                promised.insert(*branch, event.at);
                places.insert(*branch, event.who);
            }
            What::Effect { branch, effect: Effect::Confirmed | Effect::Cancelled } => {
                if let Some(since) = promised.remove(branch) {
                    ended(event.who, *branch, since, event.at);
                }
            }
            _ => {}
        }
    }
    for (branch, since) in promised {
        ended(places[&branch], branch, since, evidence.end);
    }
    all
}
