//! What each way to commit costs three real nodes and three participants: appends up to the decision, and questions. The
//! rows of the table in docs/protocol.md; votes that are brought along are counted in `brought.rs`.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use support::{Cluster, RESOURCES, Troubles, name};
use verdict_client::{Outcome, State, Verdict};

/// One commit of branches with these payloads; the last one decides if it is to.
struct Way {
    what: &'static str,
    payloads: &'static [&'static str],
    delegated: bool,
    /// Up to the entry that decides.
    appends: u64,
    /// Of each participant: prepares, commits, decisions that were given to it.
    asked: &'static [(usize, usize, usize)],
}

const WAYS: [Way; 5] = [
    Way {
        what: "asked by Verdict",
        payloads: &["work", "work", "work"],
        delegated: false,
        appends: 2,
        asked: &[(1, 1, 0); 3],
    },
    Way {
        what: "asked, one only reads",
        payloads: &["read", "work", "work"],
        delegated: false,
        appends: 2,
        asked: &[(1, 0, 0), (1, 1, 0), (1, 1, 0)],
    },
    Way {
        what: "asked, all only read",
        payloads: &["read", "read", "read"],
        delegated: false,
        appends: 2,
        asked: &[(1, 0, 0); 3],
    },
    Way {
        what: "last resource",
        payloads: &["work", "work", "work"],
        delegated: true,
        appends: 3,
        asked: &[(1, 1, 0), (1, 1, 0), (0, 0, 1)],
    },
    Way { what: "one phase", payloads: &["work"], delegated: true, appends: 2, asked: &[(0, 0, 1)] },
];

async fn commit(cluster: &Cluster, verdict: &Verdict, troubles: &[Troubles; 3], way: &Way) {
    let count = || troubles.each_ref().map(|at| (at.prepares(), at.commits(), at.decides()));
    let earlier = count();
    let before = cluster.last_index().await;
    let mut transaction = verdict.transaction();
    for (resource, payload) in RESOURCES.iter().zip(way.payloads) {
        let branch = transaction.add(name(resource), (*payload).into()).unwrap();
        if way.delegated && branch.number as usize == way.payloads.len() {
            transaction.decided_by(branch.number);
        }
    }
    let decision = transaction.commit().await.unwrap();
    assert_eq!(decision.outcome, Outcome::Committed, "{}", way.what);
    assert_eq!(decision.log_index - before, way.appends, "{}", way.what);
    while verdict.get(transaction.xid()).await.unwrap().state != State::Ended {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    for (place, asked) in way.asked.iter().enumerate() {
        let (earlier, now) = (earlier[place], count()[place]);
        let seen = (now.0 - earlier.0, now.1 - earlier.1, now.2 - earlier.2);
        assert_eq!(seen, *asked, "{}, {}", way.what, RESOURCES[place]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_and_questions_of_each_way_to_commit() {
    let troubles: [Troubles; 3] = Default::default();
    let wraps = [0, 1, 2].map(|place| troubles[place].at(RESOURCES[place]));
    let wrap = move |resource: &str, manager| wraps.iter().fold(manager, |manager, wrap| wrap(resource, manager));
    let cluster = Cluster::start_with(&wrap).await;
    let verdict = cluster.client();
    // The first once more, now that everybody is connected.
    commit(&cluster, &verdict, &troubles, &WAYS[0]).await;
    for way in &WAYS {
        commit(&cluster, &verdict, &troubles, way).await;
    }
}
