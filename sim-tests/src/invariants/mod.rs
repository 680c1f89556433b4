//! The sentences that must hold, one a file. Their numbers are those of the list of invariants.

mod backoff;
mod contract;
mod databases;
mod ended;
mod grace;
mod i01_one_outcome;
mod i02_never_changes;
mod i03_every_vote;
mod i04_calm_commits;
mod i05_settles;
mod i06_acknowledged;
pub mod i07_not_blocked;
mod i08_effects;
mod i09_no_late_work;
mod i10_deposed;
mod i10_sessions;
mod i11_one_attempt;
mod i11_same_answer;
mod i12_status_forward;
mod i13_lists;
mod i13_money;
mod i13_seats;
mod i16_one_log;
mod i17_one_state;
mod i19_disk_failed;
mod log_time;
mod one_order;
mod own_voice;
mod storage;
mod watched;

use std::{collections::BTreeMap, time::Duration};

use verdict_protocol::{BranchId, Outcome, Vote, Xid};

use crate::{
    bank::{Books, Deed},
    history::{Answer, Event, What},
    logs::Durability,
    oracle::Oracle,
    plan::Plan,
    report::Violation,
    watching::Page,
    world::Timeline,
};

/// What a run left behind.
#[derive(Debug)]
pub struct Evidence {
    pub plan: Plan,
    pub events: Vec<Event>,
    /// What the cluster said of each transaction at the end.
    pub finals: BTreeMap<Xid, Answer>,
    pub oracle: Oracle,
    pub books: Vec<Books>,
    /// How long it took until all was settled, or what was not.
    pub healed: Result<Duration, Vec<String>>,
    /// What is wrong with the log as such.
    pub log: Vec<String>,
    /// Sections of snapshots that differ between nodes.
    pub sections: Vec<String>,
    /// What was up and connected, and when the run ended.
    pub timeline: Timeline,
    pub end: Duration,
    /// What banks answered wrongly about branches that they do not know.
    pub contract: Vec<String>,
    /// Retries that came too fast.
    pub tight: Vec<String>,
    /// When the first node had applied an entry, by its index.
    pub settled_at: BTreeMap<u64, Duration>,
    /// The term of each settled entry.
    pub terms: BTreeMap<u64, u64>,
    /// When which entry was synced on which disk.
    pub durability: Durability,
    /// What somebody who watched was told, in each life of his process.
    pub watched: Vec<Page>,
    /// Others' branches that somebody ended.
    pub touched: Vec<String>,
}

type Check = fn(&Evidence) -> Vec<String>;

const ALL: [(&str, Check); 31] = [
    ("I1 one outcome", i01_one_outcome::check),
    ("I2 an outcome never changes", i02_never_changes::check),
    ("I3 committed only with every vote", i03_every_vote::check),
    ("I4 without faults it commits", i04_calm_commits::check),
    ("I5 everything settles", i05_settles::check),
    ("I6 what was acknowledged stays", i06_acknowledged::check),
    ("I7 nobody is blocked while a majority is connected", i07_not_blocked::check),
    ("I8 at most one effect", i08_effects::check),
    ("I9 no late work", i09_no_late_work::check),
    ("I10 a deposed leader changes nothing", i10_deposed::check),
    ("I10 a session is its own", i10_sessions::check),
    ("I11 a retry has the same answer", i11_same_answer::check),
    ("I11 one attempt for a key", i11_one_attempt::check),
    ("I12 a status never goes back", i12_status_forward::check),
    ("I13 money", i13_money::check),
    ("I13 no seat twice", i13_seats::check),
    ("I13 lists are whole", i13_lists::check),
    ("I16 one log", i16_one_log::check),
    ("I17 one state", i17_one_state::check),
    ("I19 a failed disk acknowledges nothing", i19_disk_failed::check),
    ("ended only when settled", ended::check),
    ("log time is the majority's", log_time::check),
    ("retries wait", backoff::check),
    ("a stranger is nobody's branch", contract::check),
    ("what counts as settled at a database is so", databases::settled),
    ("what is others' is never touched", databases::touched),
    ("nothing is presumed before its grace", grace::check),
    ("an xid stands for one order", one_order::check),
    ("a branch votes for itself", own_voice::check),
    ("an honest disk never looks damaged", storage::check),
    ("a watcher misses nothing in silence", watched::check),
];

/// The most that is said of one invariant.
const MOST: usize = 5;

/// Checks everything.
#[must_use]
pub fn check(evidence: &Evidence) -> Vec<Violation> {
    let of = |(invariant, check): (&'static str, Check)| {
        check(evidence).into_iter().take(MOST).map(move |what| Violation { invariant, what })
    };
    ALL.into_iter().flat_map(of).collect()
}

impl Evidence {
    /// Every word about an outcome: who, when, of which transaction, which outcome, and where it stands in the log if
    /// that was said.
    fn told(&self) -> impl Iterator<Item = Told> + '_ {
        let said = self.events.iter().filter_map(|event| {
            let who = || format!("{} at {:?}", event.who, event.at);
            match &event.what {
                What::Answered { xid, ask, answer: Answer::Decided { outcome, index, .. }, .. } => Some(Told {
                    who: format!("{} ({ask:?})", who()),
                    xid: *xid,
                    outcome: *outcome,
                    index: Some(*index),
                }),
                What::OutcomeCame { branch, outcome, .. } if self.has_no_part(*branch, *outcome) => None,
                What::OutcomeCame { branch, outcome, .. } => Some(Told {
                    who: format!("{} (branch {})", who(), branch.number),
                    xid: branch.xid,
                    outcome: *outcome,
                    index: None,
                }),
                _ => None,
            }
        });
        let last = self.finals.iter().filter_map(|(xid, answer)| match answer {
            Answer::Decided { outcome, index, .. } => Some(Told {
                who: "the cluster at the end".to_owned(),
                xid: *xid,
                outcome: *outcome,
                index: Some(*index),
            }),
            _ => None,
        });
        said.chain(last)
    }

    /// What each branch was ordered to do, and at which bank.
    fn deeds(&self) -> BTreeMap<BranchId, (usize, Deed)> {
        let ordered = self.events.iter().filter_map(|event| match &event.what {
            What::Ordered { xid, branches } => Some((*xid, branches)),
            _ => None,
        });
        let of = |(xid, branches): (Xid, &Vec<(u32, usize, String)>)| {
            let deed = move |(number, bank, text): &(u32, usize, String)| {
                Some((BranchId { xid, number: *number }, (*bank, Deed::parse(text.as_bytes())?)))
            };
            branches.iter().filter_map(deed).collect::<Vec<_>>()
        };
        ordered.flat_map(of).collect()
    }

    /// Whether this is what a branch hears that is not in the closed list of its transaction, or voted READ_ONLY in it: it
    /// rolls back, whatever the others do.
    fn has_no_part(&self, branch: BranchId, outcome: Outcome) -> bool {
        let case = self.oracle.cases.get(&branch.xid);
        let out = |vote: &Option<Vote>| *vote == Some(Vote::ReadOnly);
        outcome == Outcome::Aborted
            && case
                .is_some_and(|case| case.closed && case.branches.get(&branch.number).is_none_or(|(_, vote)| out(vote)))
    }

    /// Whether the cluster may have forgotten this transaction.
    fn may_be_forgotten(&self, xid: Xid) -> bool {
        xid.birth().as_millis() < self.oracle.horizon()
    }
}

/// A word about an outcome.
struct Told {
    who: String,
    xid: Xid,
    outcome: Outcome,
    index: Option<u64>,
}
