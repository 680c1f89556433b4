//! Watching over real processes: nothing twice, nothing left out in silence.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use support::{Cluster, name};
use tokio::{task::JoinHandle, time::timeout};
use tonic::{Code, transport::Channel};
use verdict_client::{
    CallError, Decision, ListQuery, Outcome, RefusalCode, Step, Transition, Verdict, Watch, WatchQuery, Watched, Xid,
    wire::detail,
};
use verdict_proto::v1::{self, error_detail, transactions_client::TransactionsClient, watch_event::Event};

const FROM_THE_BEGINNING: WatchQuery = WatchQuery { after: Some(0), xid: None, resource: None, outcome: None };

/// Clients that commit until they are told to stop.
struct Load {
    over: Arc<AtomicBool>,
    decisions: Arc<Mutex<BTreeMap<Xid, Decision>>>,
    lanes: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(cluster: &Cluster) -> Self {
        let (over, decisions) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(BTreeMap::new())));
        let lanes = (0..4).map(|lane| {
            let verdict = cluster.client().with_deadline(Duration::from_secs(30));
            let (over, decisions) = (Arc::clone(&over), Arc::clone(&decisions));
            tokio::spawn(async move {
                for round in 0.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let payload = if (lane + round) % 5 == 0 { "no" } else { "count" };
                    let decision = commit(&verdict, &["seats", "wallet"], payload).await;
                    decisions.lock().unwrap().insert(decision.xid, decision);
                }
            })
        });
        Self { over: Arc::clone(&over), decisions: Arc::clone(&decisions), lanes: lanes.collect() }
    }

    fn count(&self) -> usize {
        self.decisions.lock().unwrap().len()
    }

    async fn more(&self, cluster: &Cluster, count: usize) {
        let enough = self.count() + count;
        cluster.wait_for("more decisions", |_| self.count() >= enough).await;
    }

    /// All that was decided, in the order of the log.
    async fn stop(self) -> Vec<(u64, Xid, Outcome)> {
        self.over.store(true, Ordering::Relaxed);
        for lane in self.lanes {
            lane.await.unwrap();
        }
        let decisions = self.decisions.lock().unwrap();
        let mut all: Vec<_> = decisions.values().map(|one| (one.log_index, one.xid, one.outcome)).collect();
        all.sort_unstable();
        all
    }
}

async fn commit(verdict: &Verdict, resources: &[&str], payload: &'static str) -> Decision {
    let mut transaction = verdict.transaction();
    for resource in resources {
        transaction.add(name(resource), payload.into()).unwrap();
    }
    transaction.commit().await.unwrap()
}

async fn next(watch: &mut Watch) -> Watched {
    timeout(Duration::from_secs(20), watch.next()).await.expect("something is told within 20 s").unwrap()
}

/// Everything up to an index, without the marks.
async fn up_to(watch: &mut Watch, index: u64) -> Vec<Watched> {
    let mut told = Vec::new();
    while watch.seen().is_none_or(|seen| seen < index) {
        match next(watch).await {
            Watched::Mark { .. } => {}
            other => told.push(other),
        }
    }
    told
}

fn transitions(told: &[Watched]) -> impl Iterator<Item = &Transition> {
    told.iter().filter_map(|one| match one {
        Watched::Transition(transition) => Some(transition),
        Watched::Gap { .. } | Watched::Mark { .. } => None,
    })
}

fn gaps(told: &[Watched]) -> Vec<(u64, u64)> {
    let gap = |one: &Watched| match one {
        Watched::Gap { first, last } => Some((*first, *last)),
        Watched::Transition(_) | Watched::Mark { .. } => None,
    };
    told.iter().filter_map(gap).collect()
}

/// What was decided, in the order in which it was told. The log has more than one of an index only in one order, so
/// they are sorted within it.
fn decisions(told: &[Watched]) -> Vec<(u64, Xid, Outcome)> {
    let decided = |transition: &Transition| match transition.step {
        Step::Decided { outcome, .. } => Some((transition.index, transition.xid, outcome)),
        _ => None,
    };
    let mut all: Vec<_> = transitions(told).filter_map(decided).collect();
    assert!(all.is_sorted_by_key(|(index, ..)| *index), "not in the order of the log");
    all.sort_unstable();
    all
}

#[track_caller]
fn is_in_order(told: &[Watched]) {
    let places: Vec<(u64, u32)> = transitions(told).map(|one| (one.index, one.number)).collect();
    assert!(places.is_sorted_by(|one, other| one < other), "twice, or out of order: {places:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_sees_every_decision_once_though_each_node_is_killed() {
    let mut cluster = Cluster::start().await;
    let mut watch = cluster.client().watch(FROM_THE_BEGINNING);
    let load = Load::start(&cluster);
    load.more(&cluster, 30).await;
    // The leader first; and whichever node it is that serves the watcher, it is one of them.
    let leader = cluster.leader().await;
    let others: Vec<u64> = cluster.nodes.keys().copied().filter(|node| *node != leader).collect();
    let watching = tokio::spawn(async move {
        let mut told = Vec::new();
        loop {
            match watch.next().await.unwrap() {
                Watched::Mark { .. } => {}
                other => told.push(other),
            }
            if matches!(told.last(), Some(Watched::Transition(last)) if matches!(&last.step, Step::Decided { reason: Some(why), .. } if why.text == "the end"))
            {
                return (told, watch);
            }
        }
    });
    for node in [vec![leader], others].concat() {
        cluster.kill(node);
        load.more(&cluster, 60).await;
        cluster.start_node(node);
        load.more(&cluster, 60).await;
    }
    let mut expected = load.stop().await;
    let end = cluster.client().transaction().rollback("the end").await.unwrap();
    expected.push((end.log_index, end.xid, end.outcome));
    let (told, _) = timeout(Duration::from_secs(20), watching).await.expect("the last one comes").unwrap();
    assert_eq!(gaps(&told), [], "the log reaches back to the beginning on every node");
    is_in_order(&told);
    assert_eq!(decisions(&told), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_tells_the_same_and_one_goes_on_at_another() {
    let cluster = Cluster::start().await;
    let load = Load::start(&cluster);
    load.more(&cluster, 100).await;
    load.stop().await;
    let end = commit(&cluster.client(), &["seats"], "read").await.log_index;

    let mut by_node = Vec::new();
    for node in cluster.nodes.keys() {
        by_node.push(up_to(&mut cluster.client_of(*node).watch(FROM_THE_BEGINNING), end).await);
    }
    assert!(by_node.iter().all(|told| *told == by_node[0] && !told.is_empty()));

    let mut whole = Vec::new();
    let mut seen = 0;
    for node in cluster.nodes.keys().cycle() {
        let query = WatchQuery { after: Some(seen), ..WatchQuery::default() };
        let mut watch = cluster.client_of(*node).watch(query);
        // A third of what there is at each, wherever that ends.
        whole.extend(up_to(&mut watch, (seen + end / 3 + 1).min(end)).await);
        seen = watch.seen().unwrap();
        if seen >= end {
            break;
        }
    }
    assert_eq!(whole, by_node[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_begins_with_what_happens_from_now_on_and_waits_for_what_is_to_come() {
    let cluster = Cluster::start().await;
    let verdict = cluster.client();
    let early = commit(&verdict, &["seats"], "read").await;
    // A follower may not have applied that yet.
    let mut watch = cluster.client_of(cluster.leader().await).watch(WatchQuery::default());
    assert!(matches!(next(&mut watch).await, Watched::Mark { index } if index >= early.log_index));
    let ahead = watch.seen().unwrap() + 40;
    let mut later = verdict.watch(WatchQuery { after: Some(ahead), ..WatchQuery::default() });
    let late = tokio::spawn(async move { (next(&mut later).await, later) });

    let mut xids = Vec::new();
    while cluster.last_index().await <= ahead + 10 {
        let decision = commit(&verdict, &["seats"], "read").await;
        xids.push(decision.xid);
    }
    let told = up_to(&mut watch, cluster.last_index().await).await;
    let decided: Vec<Xid> = decisions(&told).into_iter().map(|(_, xid, _)| xid).collect();
    assert_eq!(decided, xids, "and nothing that was before");
    let (first, _) = late.await.unwrap();
    assert!(matches!(&first, Watched::Transition(one) if one.index > ahead), "{first:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_leaves_out_what_does_not_fit() {
    let cluster = Cluster::start().await;
    let verdict = cluster.client();
    let both = commit(&verdict, &["seats", "wallet"], "count").await;
    let refused = commit(&verdict, &["wallet"], "no").await;
    let seats = commit(&verdict, &["seats"], "count").await;
    while !verdict.list(ListQuery::default()).await.unwrap().transactions.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let end = commit(&verdict, &["tickets"], "read").await.log_index;
    let told = async |query: WatchQuery| {
        let told = up_to(&mut verdict.watch(WatchQuery { after: Some(0), ..query }), end).await;
        transitions(&told).cloned().collect::<Vec<_>>()
    };

    let of_one = told(WatchQuery { xid: Some(both.xid), ..WatchQuery::default() }).await;
    assert!(of_one.iter().all(|one| one.xid == both.xid));
    let steps: Vec<&Step> = of_one.iter().map(|one| &one.step).collect();
    assert!(
        matches!(
            steps[..],
            [
                Step::Voting,
                Step::Decided { outcome: Outcome::Committed, reason: None },
                Step::Settled { .. },
                Step::Settled { .. },
                Step::Ended
            ]
        ),
        "{steps:?}"
    );
    let at_wallet = told(WatchQuery { resource: Some(name("wallet")), ..WatchQuery::default() }).await;
    assert!(at_wallet.iter().all(|one| one.resources.contains(&name("wallet")) && one.xid != seats.xid));
    assert_eq!(at_wallet.iter().filter(|one| matches!(one.step, Step::Settled { .. })).count(), 1, "{at_wallet:?}");
    let aborted = told(WatchQuery { outcome: Some(Outcome::Aborted), ..WatchQuery::default() }).await;
    assert_eq!(aborted.len(), 1);
    assert_eq!((aborted[0].xid, aborted[0].index), (refused.xid, refused.log_index));
    assert!(
        matches!(&aborted[0].step, Step::Decided { reason: Some(reason), .. } if reason.source_code == "E42"),
        "{aborted:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_snapshot_swallowed_is_a_gap() {
    let tables = "[log]\nsnapshot_every = 100\nkeep_entries = 10\n";
    let mut cluster = Cluster::start_as(&|_, manager| manager, tables).await;
    let leader = cluster.leader().await;
    let away = *cluster.nodes.keys().find(|node| **node != leader).unwrap();
    let load = Load::start(&cluster);
    load.more(&cluster, 20).await;
    cluster.kill(away);
    while cluster.last_index().await < 600 {
        load.more(&cluster, 20).await;
    }
    cluster.start_node(away);
    let patient = cluster.client_of(away).with_deadline(Duration::from_secs(20));
    while patient.cluster_status().await.unwrap().applied_index < 600 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    load.more(&cluster, 20).await;
    let expected = load.stop().await;
    let end = commit(&cluster.client(), &["seats"], "read").await;

    let told = up_to(&mut cluster.client_of(away).watch(FROM_THE_BEGINNING), end.log_index).await;
    let [(1, lost)] = gaps(&told)[..] else { panic!("one gap, from the beginning: {:?}", gaps(&told)) };
    assert!(lost >= 300 && lost < end.log_index, "{lost}");
    assert!(matches!(told[0], Watched::Gap { .. }));
    is_in_order(&told);
    let behind = expected.into_iter().filter(|(index, ..)| *index > lost);
    assert_eq!(decisions(&told), behind.chain([(end.log_index, end.xid, end.outcome)]).collect::<Vec<_>>());
    // Who stands behind it misses nothing.
    let query = WatchQuery { after: Some(lost), ..WatchQuery::default() };
    assert_eq!(up_to(&mut cluster.client_of(away).watch(query), end.log_index).await, told[1..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_is_too_slow_is_told_what_it_missed() {
    let tables = "[limits]\ntransitions = 200\n";
    let cluster = Cluster::start_as(&|_, manager| manager, tables).await;
    let leader = cluster.leader().await;
    let request = v1::WatchRequest { filter: None, after_index: Some(cluster.last_index().await) };
    let mut slow = transactions(&cluster, leader).await.watch(request).await.unwrap().into_inner();
    let first = slow.message().await.unwrap().unwrap();
    assert!(matches!(first.event, Some(Event::Mark(_))), "{first:?}");

    // More than the connection takes in for somebody who does not read.
    let load = Load::start(&cluster);
    let before = cluster.last_index().await;
    while cluster.last_index().await < before + 4_000 {
        load.more(&cluster, 100).await;
    }
    let decided = load.stop().await;
    let end = commit(&cluster.client(), &["seats"], "read").await.log_index;

    let (mut seen, mut missed, mut told) = (first.index, Vec::new(), Vec::new());
    while seen < end {
        let event = timeout(Duration::from_secs(20), slow.message()).await.unwrap().unwrap().unwrap();
        match event.event.unwrap() {
            Event::Gap(v1::Gap { first }) => {
                assert_eq!(first, seen + 1);
                missed.push((first, event.index));
            }
            Event::Transition(transition) if transition.step() == v1::transition::Step::Decided => {
                told.push(event.index);
            }
            Event::Transition(_) | Event::Mark(_) => {}
        }
        assert!(event.index >= seen);
        seen = event.index;
    }
    assert_eq!(missed.len(), 1, "{missed:?}");
    let lost = |index: u64| missed.iter().any(|(first, last)| (*first..=*last).contains(&index));
    told.retain(|index| *index < end);
    let kept: Vec<u64> = decided.iter().map(|(index, ..)| *index).filter(|index| !lost(*index)).collect();
    assert_eq!(told, kept);
    assert!(decided.iter().any(|(index, ..)| lost(*index)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_are_limited_and_wrong_questions_refused() {
    let cluster = Cluster::start_as(&|_, manager| manager, "[limits]\nwatchers = 2\n").await;
    let leader = cluster.leader().await;
    let mut client = transactions(&cluster, leader).await;
    let one = client.watch(v1::WatchRequest::default()).await.unwrap();
    let two = client.watch(v1::WatchRequest::default()).await.unwrap();
    let full = client.watch(v1::WatchRequest::default()).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert_eq!(detail(&full).unwrap().code(), error_detail::Code::Overloaded);
    assert!(full.message().contains("2 watchers") && full.message().contains("limits.watchers"), "{full}");
    let patient = cluster.client_of(leader).with_deadline(Duration::from_millis(300));
    let refused = patient.watch(WatchQuery::default()).next().await.unwrap_err();
    assert_eq!(refused.code(), Some(RefusalCode::Overloaded), "{refused}");
    drop((one, two));
    let mut watch = cluster.client_of(leader).watch(WatchQuery::default());
    assert!(matches!(next(&mut watch).await, Watched::Mark { .. }), "a place is free again");

    let wrong = [
        (v1::WatchFilter { xid: "short".into(), ..v1::WatchFilter::default() }, "xid"),
        (v1::WatchFilter { resource: "Seats!".to_owned(), ..v1::WatchFilter::default() }, "filter.resource"),
        (v1::WatchFilter { outcome: 9, ..v1::WatchFilter::default() }, "outcome"),
    ];
    for (filter, words) in wrong {
        let request = v1::WatchRequest { filter: Some(filter), after_index: None };
        let refused = client.watch(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(words), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hears_nobody_sends_its_watchers_away() {
    let mut cluster = Cluster::start().await;
    let leader = cluster.leader().await;
    let follower = *cluster.nodes.keys().find(|node| **node != leader).unwrap();
    let mut watch = cluster.client_of(follower).with_deadline(Duration::from_secs(2)).watch(WatchQuery::default());
    next(&mut watch).await;
    for node in cluster.nodes.clone().into_keys().filter(|node| *node != follower) {
        cluster.kill(node);
    }
    let away = timeout(Duration::from_secs(20), watch.next()).await.expect("it is told");
    assert!(matches!(away, Err(CallError::Unknown { .. })), "{away:?}");
    let seen = watch.seen();
    cluster.start_node(leader);
    let decision = commit(&cluster.client(), &["seats"], "read").await;
    let told = up_to(&mut watch, decision.log_index).await;
    assert!(seen.is_some() && gaps(&told).is_empty());
    assert_eq!(decisions(&told), [(decision.log_index, decision.xid, decision.outcome)]);
}

async fn transactions(cluster: &Cluster, node: u64) -> TransactionsClient<Channel> {
    let address = format!("http://{}", cluster.nodes[&node]);
    // What the connection takes in for somebody who does not read.
    const WINDOW: u32 = 65_535;
    let endpoint = Channel::from_shared(address).unwrap().initial_stream_window_size(WINDOW);
    let endpoint = endpoint.initial_connection_window_size(WINDOW);
    TransactionsClient::new(endpoint.connect().await.unwrap())
}
