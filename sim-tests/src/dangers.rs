//! Where a run went: counts of what happened, and of the situations that are dangerous.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use verdict_client::Watched;
use verdict_protocol::{BranchId, Outcome, Vote, Xid};

use crate::{
    history::{Answer, Ask, Effect, Event, What},
    invariants::Evidence,
    plan::Place,
    report::Counters,
    spread::Spread,
    world::{Span, majorities},
};

/// The counters of a run, and how long its branches were in doubt.
#[must_use]
pub fn count(evidence: &Evidence) -> (Counters, Spread) {
    let mut count = Count { evidence, counters: Counters::new(), in_doubt: Spread::default(), now: Now::default() };
    count.the_whole();
    for event in &evidence.events {
        count.event(event);
        count.spoken(event);
    }
    (count.counters, count.in_doubt)
}

struct Count<'a> {
    evidence: &'a Evidence,
    counters: Counters,
    in_doubt: Spread,
    now: Now,
}

/// How things stand at an event.
#[derive(Default)]
struct Now {
    prepares: BTreeMap<BranchId, u32>,
    outcomes: BTreeMap<BranchId, u32>,
    /// Branches in doubt, since when and where.
    promised: BTreeMap<BranchId, (Duration, Place)>,
    /// Who has had a stream before.
    attached: BTreeSet<Place>,
    /// Transactions all of whose votes are cast, as far as their participants go.
    votes: BTreeMap<Xid, BTreeSet<u32>>,
}

impl Count<'_> {
    fn add(&mut self, name: &'static str, times: u64) {
        *self.counters.entry(name).or_default() += times;
    }

    fn the_whole(&mut self) {
        let evidence = self.evidence;
        let outcomes = evidence.oracle.cases.values().filter_map(|case| case.outcome);
        let all = outcomes.clone().count() as u64;
        let committed = outcomes.filter(|sentence| sentence.outcome == Outcome::Committed).count() as u64;
        self.add("transactions committed", committed);
        self.add("transactions aborted", all - committed);
        self.add("calm seeds", u64::from(evidence.plan.is_calm()));
        let pages = &evidence.watched;
        let told = pages.iter().flat_map(|page| &page.told);
        let gaps = told.clone().filter(|told| matches!(told, Watched::Gap { .. })).count() as u64;
        self.add("steps that a watcher was told", told.count() as u64 - gaps);
        self.add("gaps that a watcher was told of", gaps);
        self.add("times that a watcher went on", pages.len().saturating_sub(1) as u64);
        let healed = evidence.healed.as_ref().map_or(0, |took| u64::try_from(took.as_millis()).unwrap_or(0));
        self.add("milliseconds until all was settled, at most", healed);
        self.add("seeds that settled in more than 5 s", u64::from(healed > 5_000));
        self.majorities_back();
    }

    /// Moments at which a majority came to be connected, and none was before.
    fn majorities_back(&mut self) {
        let evidence = self.evidence;
        let sets = majorities(evidence.plan.nodes).into_iter();
        let mut spans: Vec<Span> = sets.flat_map(|places| evidence.timeline.connected(&places, evidence.end)).collect();
        spans.sort_unstable();
        let mut until = None;
        let mut back = Vec::new();
        for (begin, end) in spans {
            if until.is_some_and(|until| until < begin) {
                back.push(begin);
            }
            until = until.max(Some(end));
        }
        let mut promised = BTreeMap::new();
        let mut doubts: Vec<Span> = Vec::new();
        for event in &evidence.events {
            let What::Effect { branch, effect } = &event.what else { continue };
            match effect {
                Effect::Reserved => drop(promised.insert(*branch, event.at)),
                Effect::Confirmed | Effect::Cancelled => {
                    doubts.extend(promised.remove(branch).map(|since| (since, event.at)));
                }
            }
        }
        let doubtful = |at: &&Duration| doubts.iter().any(|(since, until)| since < *at && *at < until);
        let times = back.iter().filter(doubtful).count() as u64;
        self.add("! a majority came back while branches were in doubt", times);
    }

    /// Whether a transaction's list was closed and it was not decided, at that time.
    fn voting(&self, at: Duration) -> bool {
        let evidence = self.evidence;
        let settled_at = |index: u64| evidence.settled_at.get(&index).copied();
        evidence.oracle.cases.values().filter(|case| case.closed).any(|case| {
            let closed = case.due.and_then(|(index, _)| settled_at(index));
            let decided = case.outcome.map_or(Some(evidence.end), |sentence| settled_at(sentence.index));
            closed.is_some_and(|closed| closed < at) && decided.is_some_and(|decided| at < decided)
        })
    }

    /// Transactions all of whose branches had promised, and whose outcome was logged later by another leader.
    fn votes_in_hand(&self, at: Duration) -> bool {
        let evidence = self.evidence;
        self.now.votes.iter().any(|(xid, votes)| {
            let Some(case) = evidence.oracle.cases.get(xid) else { return false };
            let all = !case.branches.is_empty() && case.branches.keys().all(|number| votes.contains(number));
            let decided = case.outcome.and_then(|sentence| evidence.settled_at.get(&sentence.index));
            let asked = case.due.and_then(|(index, _)| evidence.settled_at.get(&index));
            all && asked.is_some_and(|asked| *asked < at) && decided.is_some_and(|decided| *decided > at)
        })
    }

    fn event(&mut self, event: &Event) {
        let Event { at, who, what } = event;
        match what {
            What::Killed { power, led, prepared } => {
                self.add(if *power { "power losses" } else { "kills" }, 1);
                self.add("! a leader died while branches were in doubt", u64::from(*led && *prepared > 0));
                let last = *led && self.votes_in_hand(*at);
                self.add("! the leader died between the last vote and its append", u64::from(last));
                let own = self.now.promised.values().any(|(_, place)| place == who);
                self.add("! a participant died between vote and outcome", u64::from(own));
            }
            What::Resumed { deposed, prepared } => {
                let times = u64::from(*deposed && *prepared > 0);
                self.add("! a deposed leader was resumed with work in hand", times);
            }
            What::Leads { .. } => self.add("elections", 1),
            What::Stopped(_) => self.add("nodes that stopped themselves", 1),
            What::NotStarted(_) => self.add("starts that failed", 1),
            What::DiskFailed { .. } => self.add("! a write or a sync of the log failed", 1),
            What::TornTail { .. } => self.add("! a torn tail was cut", 1),
            What::SnapshotCame => {
                self.add("! a snapshot was sent to a follower", 1);
                let times = u64::from(self.voting(*at));
                self.add("! a snapshot was sent while transactions were voting", times);
            }
            What::Purged { .. } => {
                let times = u64::from(!self.now.promised.is_empty());
                self.add("! a log was purged while branches were in doubt", times);
            }
            What::Fetched => self.add("! a node fetched from a peer what its disk had lost", 1),
            What::Overtaken => self.add("! an append was overtaken by others", 1),
            What::Attached { .. } => {
                let own = self.now.promised.values().any(|(_, place)| place == who);
                let again = !self.now.attached.insert(*who);
                self.add("streams attached", 1);
                let times = u64::from(again && own);
                self.add("! a stream was attached again while a branch of it was in doubt", times);
            }
            What::Conflict { .. } => self.add("! a seat that was promised was refused to another", 1),
            What::ListsRead { seen, .. } => {
                let times = u64::from(seen.len() > 1 && seen.iter().all(|(_, times)| *times > 0));
                self.add("! a reader found a transaction in all its lists", times);
            }
            What::Concluded { fence: true, committed: false, .. } => {
                self.add("! a branch was fenced before it decided", 1)
            }
            What::Concluded { fence: true, committed: true, .. } => self.add("! a fence came after the decision", 1),
            What::Concluded { .. } => self.add("! a branch was given the decision", 1),
            What::KeyGranted { .. } => self.add("! a key was given to an attempt", 1),
            What::SessionOpened { epoch, .. } => {
                let times = u64::from(*epoch > 1);
                self.add("! a session was taken over", times);
            }
            What::Drove { .. } => self.add("! a client settled what it had prepared", 1),
            What::LeftBehind { .. } => self.add("! an agent ended what was left prepared in its database", 1),
            What::InSession { .. } => self.add("! a branch could be ended by its session alone", 1),
            What::Forged { .. } => self.add("! somebody voted for a branch that is not his", 1),
            What::Answered { ask: Ask::Resolve(Outcome::Aborted), answer: Answer::Decided { reason, .. }, .. }
                if reason.starts_with("OPERATOR") =>
            {
                self.add("! an operator aborted a transaction", 1);
            }
            What::Answered { ask: Ask::Resolve(_) | Ask::Forget, answer: Answer::Refused(_), .. } => {
                self.add("! an operator was refused", 1);
            }
            What::Asked { .. } => self.add("calls of clients", 1),
            What::Answered { answer: Answer::Unknown, .. } => self.add("calls without an answer", 1),
            What::Answered { answer: Answer::Refused(_), .. } => self.add("calls that were refused", 1),
            What::PrepareCame { .. }
            | What::Voted { .. }
            | What::OutcomeCame { .. }
            | What::Effect { .. }
            | What::AfterDiskFailed(_)
            | What::Answered { .. }
            | What::Ordered { .. }
            | What::Settled { .. }
            | What::NotAnswered { .. }
            | What::SaidEnded { .. }
            | What::Started
            | What::Strikes(_)
            | What::Passes(_)
            | What::FaultsEnd
            | What::Fault(_)
            | What::Note(_) => {}
        }
    }

    /// What nodes and participants say to each other.
    fn spoken(&mut self, event: &Event) {
        let Event { at, who, what } = event;
        match what {
            What::PrepareCame { branch, .. } => {
                let times = self.now.prepares.entry(*branch).or_insert(0);
                *times += 1;
                let twice = u64::from(*times == 2);
                self.add("! a branch was asked to prepare twice", twice);
            }
            What::Voted { branch, vote } => {
                if *vote != Vote::Refused {
                    self.now.votes.entry(branch.xid).or_default().insert(branch.number);
                }
                let decided = self.sentence(branch.xid).and_then(|(_, _, at)| at);
                let late = *vote == Vote::Prepared && decided.is_some_and(|decided| decided < *at);
                self.add("! a vote came after the decision", u64::from(late));
            }
            What::OutcomeCame { branch, term, outcome } => {
                let times = self.now.outcomes.entry(*branch).or_insert(0);
                *times += 1;
                let twice = u64::from(*times == 2);
                self.add("! an outcome came twice", twice);
                let early = *outcome == Outcome::Aborted
                    && !self.now.prepares.contains_key(branch)
                    && !self.evidence.plan.is_database(*who);
                self.add("! a rollback came before its prepare", u64::from(early));
                let elsewhere = self.sentence(branch.xid).is_some_and(|(_, logged, _)| logged < *term);
                self.add("! an outcome was told by another node than the one that logged it", u64::from(elsewhere));
            }
            What::Effect { branch, effect: Effect::Reserved } => {
                self.now.promised.insert(*branch, (*at, *who));
                let given_up =
                    self.sentence(branch.xid).is_some_and(|(_, _, decided)| decided.is_some_and(|it| it < *at));
                let late = given_up && self.evidence.plan.is_database(*who);
                self.add("! a database prepared what was decided before", u64::from(late));
            }
            What::Effect { branch, effect: Effect::Confirmed | Effect::Cancelled } => {
                if let Some((since, _)) = self.now.promised.remove(branch) {
                    self.in_doubt.record(at.saturating_sub(since));
                }
            }
            _ => {}
        }
    }

    fn sentence(&self, xid: Xid) -> Option<(Outcome, u64, Option<Duration>)> {
        let sentence = self.evidence.oracle.cases.get(&xid)?.outcome?;
        Some((sentence.outcome, sentence.term, self.evidence.settled_at.get(&sentence.index).copied()))
    }
}
