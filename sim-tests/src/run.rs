//! One seed from its beginning to its verdict.
//!
//! ```text
//!   faults strike and clients work ─▶ faults end, all that is down is started ─▶ all must settle ─▶ the checks
//! ```

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use madsim::runtime::Runtime;
use tokio::time::sleep;
use verdict_client::ListQuery;
use verdict_protocol::{Outcome, Xid};

use crate::{
    bank::Books,
    chart::Chart,
    faults::{Faults, mend_all},
    history::{Answer, Effect, Event, History, What, now},
    invariants::{self, Evidence, i07_not_blocked},
    logs,
    oracle::Oracle,
    plan::{Place, Plan},
    report::{Counters, Report, Violation},
    spread::Spread,
    workload::look_up,
    world::{Shared, World},
};

/// How long everything may take to settle once the faults have ended, in simulated time: the grace of a presumption, a
/// vote, the pauses of whoever asks in vain, and the ten seconds after which the simulated network tries again.
pub const SETTLES_WITHIN: Duration = Duration::from_secs(60);
/// Late messages live so long at most.
const LATE_MESSAGES: Duration = Duration::from_secs(5);
/// A simulation that is longer than this does not end.
const LIMIT: Duration = Duration::from_secs(600);

/// How a scenario ended.
struct Ended {
    healed: Result<Duration, Vec<String>>,
    finals: BTreeMap<Xid, Answer>,
    shared: Arc<Shared>,
    simulated: Duration,
}

/// Runs a plan on this thread, which must be a fresh one: hash maps draw their order from it. A `wordy` one keeps the
/// whole trace.
#[must_use]
pub fn run(plan: Plan, wordy: bool) -> Report {
    let seed = plan.seed;
    let history = History::new(wordy);
    let mut config = madsim::Config::default();
    config.net.send_latency = plan.latency.clone();
    let mut runtime = Runtime::with_seed_and_config(seed, config);
    runtime.set_time_limit(LIMIT);
    let scenario = scenario(plan.clone(), history.clone());
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(scenario)));
    let mut report = match ended {
        Ok(ended) => judge(plan, &history, &ended),
        Err(panic) => {
            // Its tasks are in no state to be dropped.
            std::mem::forget(runtime);
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let what = said.unwrap_or_else(|| "a panic without a word".to_owned());
            Report { seed, violations: vec![Violation { invariant: "panic", what }], ..Report::default() }
        }
    };
    (report.hash, report.lines) = history.hash();
    let events = history.events();
    report.chart = Chart::of(&events);
    if wordy || !report.passed() {
        report.trace = events.iter().map(Event::to_string).collect();
    }
    report
}

async fn scenario(plan: Plan, history: History) -> Ended {
    let length = plan.length;
    let world = Arc::new(World::start(plan, history.clone()));
    let faults = Faults::start(&world);
    sleep(length).await;
    faults.stop();
    history.record(Place::Admin, What::FaultsEnd);
    world.shared.work.close();
    let mut healed = settle(&world).await;
    if healed.is_ok() {
        // What is still on its way may not begin anything anew.
        sleep(LATE_MESSAGES).await;
        healed = settle(&world).await.and(healed);
    }
    let finals = finals(&world).await;
    Ended { healed, finals, shared: Arc::clone(&world.shared), simulated: now() }
}

/// Waits until everything is decided and settled; else says what is not.
async fn settle(world: &Arc<World>) -> Result<Duration, Vec<String>> {
    let begun = now();
    loop {
        mend_all(world);
        let unsettled = unsettled(world).await;
        let took = now().saturating_sub(begun);
        if unsettled.is_empty() {
            return Ok(took);
        }
        if took > SETTLES_WITHIN {
            return Err(unsettled);
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn unsettled(world: &Arc<World>) -> Vec<String> {
    let shared = &world.shared;
    let mut open = Vec::new();
    let statuses = shared.statuses();
    for place in world.places().filter(|place| world.is_down(*place)) {
        open.push(format!("{place} is down"));
    }
    let Some(leader) = shared.leader() else {
        open.push("nobody leads".to_owned());
        return open;
    };
    let applied = |node: &u64| statuses.get(node).and_then(|status| status.applied.as_ref()).map(|at| at.index);
    for node in statuses.keys().filter(|node| applied(node) != applied(&leader)) {
        open.push(format!("node {node} has applied {:?}, the leader {:?}", applied(node), applied(&leader)));
    }
    let busy = shared.work.busy();
    if busy > 0 {
        open.push(format!("{busy} clients still wait for an answer"));
    }
    let held = shared.in_doubt();
    if held > 0 {
        open.push(format!("{held} branches are held prepared"));
    }
    if open.is_empty() {
        open.extend(listed(world).await);
    }
    open
}

/// What the cluster itself says is open.
async fn listed(world: &Arc<World>) -> Vec<String> {
    let shared = Arc::clone(&world.shared);
    let listing = world.admin().spawn(async move {
        let verdict = shared.verdict(Place::Admin);
        verdict.list(ListQuery { limit: 5, ..ListQuery::default() }).await
    });
    match listing.await {
        Ok(Ok(page)) => page.transactions.iter().map(|open| format!("open: {open:?}")).collect(),
        Ok(Err(error)) => vec![format!("the open transactions are not listed: {error}")],
        Err(error) => vec![format!("the listing ended: {error}")],
    }
}

/// What the cluster says at the end of each transaction.
async fn finals(world: &Arc<World>) -> BTreeMap<Xid, Answer> {
    let shared = Arc::clone(&world.shared);
    let asking = world.admin().spawn(async move {
        let verdict = shared.verdict(Place::Admin);
        let mut finals = BTreeMap::new();
        for xids in shared.work.xids().chunks(16) {
            let ask = |xid: &Xid| {
                let (verdict, xid) = (verdict.clone(), *xid);
                (xid, tokio::spawn(async move { look_up(&verdict, xid).await }))
            };
            let asked: Vec<_> = xids.iter().map(ask).collect();
            for (xid, answer) in asked {
                finals.insert(xid, answer.await.unwrap_or(Answer::Unknown));
            }
        }
        finals
    });
    asking.await.unwrap_or_default()
}

const IN_DOUBT: &str = "in doubt, per branch";
const BLOCKED: &str = "in doubt, per branch, with a majority connected (I7)";
const LATE: &str = "undecided past the deadline, per transaction, with a majority connected (I7)";

fn judge(plan: Plan, history: &History, ended: &Ended) -> Report {
    let seed = plan.seed;
    let events = history.events();
    let shared = &ended.shared;
    let (log, mut wrong) = shared.journal.settled();
    let oracle = Oracle::judge(&log).unwrap_or_else(|error| {
        wrong.push(error);
        Oracle::default()
    });
    let books: Vec<Books> = shared.memories.iter().map(|memory| memory.ledger().books()).collect();
    let sections = logs::sections(&shared.disks);
    let evidence = Evidence {
        plan,
        events,
        finals: ended.finals.clone(),
        oracle,
        books,
        healed: ended.healed.clone(),
        log: wrong,
        sections,
        timeline: shared.timeline.clone(),
        end: ended.simulated,
        settled_at: shared.journal.settled_at(),
    };
    let violations = invariants::check(&evidence);
    let (counters, in_doubt) = count(&evidence);
    let of = |lasted: Vec<i07_not_blocked::Lasted>| lasted.into_iter().map(|lasted| lasted.of).collect();
    let spreads = [
        (IN_DOUBT, in_doubt),
        (BLOCKED, of(i07_not_blocked::in_doubt(&evidence))),
        (LATE, of(i07_not_blocked::undecided(&evidence))),
    ];
    Report { seed, simulated: ended.simulated, violations, counters, spreads: spreads.into(), ..Report::default() }
}

fn count(evidence: &Evidence) -> (Counters, Spread) {
    let mut counters = Counters::new();
    let mut add = |name: &'static str, count: u64| *counters.entry(name).or_default() += count;
    let outcomes = evidence.oracle.cases.values().filter_map(|case| case.outcome);
    let committed = outcomes.clone().filter(|sentence| sentence.outcome == Outcome::Committed).count() as u64;
    add("transactions committed", committed);
    add("transactions aborted", outcomes.count() as u64 - committed);
    add("calm seeds", u64::from(evidence.plan.is_calm()));
    let healed = evidence.healed.as_ref().map_or(0, |took| u64::try_from(took.as_millis()).unwrap_or(0));
    add("milliseconds until all was settled, at most", healed);
    let (mut prepares, mut outcomes) = (BTreeMap::new(), BTreeMap::new());
    let (mut since, mut in_doubt) = (BTreeMap::new(), Spread::default());
    for Event { at, what, .. } in &evidence.events {
        match what {
            What::Killed { power, led, prepared } => {
                add(if *power { "power losses" } else { "kills" }, 1);
                add("! a leader died while branches were in doubt", u64::from(*led && *prepared > 0));
            }
            What::Leads { .. } => add("elections", 1),
            What::Stopped(_) => add("nodes that stopped themselves", 1),
            What::NotStarted(_) => add("starts that failed", 1),
            What::TornTail { .. } => add("! a torn tail was cut", 1),
            What::SnapshotCame => add("! a snapshot was sent to a follower", 1),
            What::Fetched => add("! a node fetched from a peer what its disk had lost", 1),
            What::PrepareCame { branch, .. } => {
                let times = prepares.entry(*branch).or_insert(0);
                *times += 1;
                add("! a branch was asked to prepare twice", u64::from(*times == 2));
            }
            What::OutcomeCame { branch, term, outcome } => {
                let times = outcomes.entry(*branch).or_insert(0);
                *times += 1;
                add("! an outcome came twice", u64::from(*times == 2));
                let early = *outcome == Outcome::Aborted && !prepares.contains_key(branch);
                add("! a rollback came before its prepare", u64::from(early));
                let logged = evidence.oracle.cases.get(&branch.xid).and_then(|case| case.outcome);
                let elsewhere = logged.is_some_and(|sentence| sentence.term < *term);
                add("! an outcome was told by another node than the one that logged it", u64::from(elsewhere));
            }
            What::Effect { branch, effect: Effect::Reserved } => {
                since.insert(*branch, *at);
            }
            What::Overtaken => add("! an append was overtaken by others", 1),
            What::ListsRead { .. } => add("readers that had waited for the end", 1),
            What::Effect { branch, effect: Effect::Confirmed | Effect::Cancelled } => {
                if let Some(since) = since.remove(branch) {
                    in_doubt.record(at.saturating_sub(since));
                }
            }
            What::Asked { .. } => add("calls of clients", 1),
            What::Answered { answer: Answer::Unknown, .. } => add("calls without an answer", 1),
            What::Answered { answer: Answer::Refused(_), .. } => add("calls that were refused", 1),
            What::Answered { .. }
            | What::Ordered { .. }
            | What::Voted { .. }
            | What::Settled { .. }
            | What::NotAnswered { .. }
            | What::Started
            | What::Strikes(_)
            | What::Passes(_)
            | What::FaultsEnd
            | What::Fault(_)
            | What::Note(_) => {}
        }
    }
    (counters, in_doubt)
}
