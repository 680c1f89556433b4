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
use verdict_protocol::Xid;

use crate::{
    bank::Books,
    chart::Chart,
    dangers,
    faults::{Faults, mend_all},
    history::{Answer, Event, History, What, now},
    invariants::{self, Evidence, i07_not_blocked},
    logs,
    oracle::Oracle,
    plan::{Place, Plan},
    report::{Report, Violation},
    vault::Vault,
    workload::look_up,
    world::{Shared, World},
};

/// How long everything may take to settle once the faults have ended, in simulated time: the longest vote or the grace
/// of a presumption, then what I7 allows, and a client that begins its last call when all that is over.
pub const SETTLES_WITHIN: Duration = Duration::from_secs(15);
/// Late messages live so long at most.
const LATE_MESSAGES: Duration = Duration::from_secs(5);
/// A simulation that is longer than this does not end.
const LIMIT: Duration = Duration::from_secs(600);

/// How a scenario ended.
struct Ended {
    healed: Result<Duration, Vec<String>>,
    finals: BTreeMap<Xid, Answer>,
    /// What banks answered wrongly about branches that they do not know.
    contract: Vec<String>,
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
    let contract = world.shared.ask_of_strangers().await;
    let simulated = now();
    world.end().await;
    Ended { contract, healed, finals, shared: Arc::clone(&world.shared), simulated }
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
    let memories = shared.memories.iter().map(|memory| memory.ledger().books());
    let books: Vec<Books> = memories.chain(shared.vaults.values().map(Vault::books)).collect();
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
        contract: ended.contract.clone(),
        tight: shared.sky.tight(),
        settled_at: shared.journal.settled_at(),
        terms: log.iter().map(|(index, logged)| (*index, logged.term)).collect(),
        durability: shared.journal.durability(),
        watched: shared.notebook.pages(),
        touched: shared.vaults.values().flat_map(Vault::touched).collect(),
    };
    let violations = invariants::check(&evidence);
    let (counters, in_doubt) = dangers::count(&evidence);
    let (blocked, late) = (i07_not_blocked::in_doubt(&evidence), i07_not_blocked::undecided(&evidence));
    let longest = blocked.iter().chain(&late).max_by_key(|lasted| lasted.of);
    let longest = longest.map(|lasted| (lasted.of, lasted.what.clone()));
    let of = |lasted: Vec<i07_not_blocked::Lasted>| lasted.into_iter().map(|lasted| lasted.of).collect();
    let spreads = [(IN_DOUBT, in_doubt), (BLOCKED, of(blocked)), (LATE, of(late))];
    Report {
        seed,
        simulated: ended.simulated,
        violations,
        counters,
        spreads: spreads.into(),
        longest,
        ..Report::default()
    }
}
