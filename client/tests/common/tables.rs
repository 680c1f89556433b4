//! What the tests of all branch tables in servers send, and what must hold of each.

#![allow(dead_code, reason = "each test uses a part")]

use std::{collections::BTreeSet, error::Error, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, future::join_all, stream};
use verdict_client::{
    BranchId, ClusterId, Conclusion, LogTime, Settlement, Vote, Xid,
    participant::{NotAnswered, OnePhase, Prepare, ResourceManager, Settle, Stamp, Voted},
};

pub(crate) const NOW: u64 = 1_700_000_000_000;
pub(crate) const STAMP: Stamp =
    Stamp { cluster: ClusterId([7; 16]), incarnation: 2, term: 1, horizon: LogTime::from_millis(1) };

pub(crate) fn branch(n: u64) -> BranchId {
    BranchId { xid: Xid::new(LogTime::from_millis(NOW + n), 0, n), number: 1 }
}

pub(crate) fn number(branch: BranchId) -> u64 {
    u64::from_be_bytes(branch.xid.as_bytes()[8..].try_into().unwrap()) & u64::from(u32::MAX)
}

/// A transaction's name in SQL.
pub(crate) fn hex(n: u64) -> String {
    branch(n).xid.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn prepare(n: u64, payload: &'static str) -> Prepare {
    Prepare {
        stamp: STAMP,
        branch: branch(n),
        resource: "seats".try_into().unwrap(),
        payload: Bytes::from_static(payload.as_bytes()),
        vote_timeout: Duration::from_secs(60),
        credential: None,
    }
}

pub(crate) fn settle(n: u64) -> Settle {
    Settle { stamp: STAMP, branch: branch(n), resource: "seats".try_into().unwrap(), payload: Bytes::new() }
}

pub(crate) fn one_phase(n: u64, payload: &'static str, fence: bool) -> OnePhase {
    let Prepare { stamp, branch, resource, payload, .. } = prepare(n, payload);
    OnePhase { stamp, branch, resource, payload, fence }
}

/// With the horizon so many milliseconds past [`NOW`].
pub(crate) fn passing(settle: Settle, horizon: u64) -> Settle {
    Settle { stamp: Stamp { horizon: LogTime::from_millis(NOW + horizon), ..STAMP }, ..settle }
}

/// An error with its causes.
pub(crate) fn said(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", said(source)),
        None => error.to_string(),
    }
}

pub(crate) fn unanswered<T: std::fmt::Debug>(answer: Result<T, NotAnswered>) -> String {
    said(&answer.unwrap_err())
}

/// The database's code, and whether it may be tried again.
pub(crate) fn refused(answer: Result<Voted, NotAnswered>) -> (String, bool) {
    let voted = answer.unwrap();
    assert_eq!(voted.vote, Vote::Refused);
    let reason = voted.reason.unwrap();
    (reason.source_code, reason.retryable)
}

pub(crate) async fn vote(table: &dyn ResourceManager, n: u64, payload: &'static str) -> Vote {
    table.prepare(prepare(n, payload)).await.unwrap().vote
}

/// Prepare, rollback and a fence of one branch at the same time, at two processes: whoever comes first, all agree.
pub(crate) async fn rivals_agree(tables: [&dyn ResourceManager; 2], branches: u64) {
    for n in 0..branches {
        let (first, second) = (tables[usize::try_from(n % 2).unwrap()], tables[usize::try_from((n + 1) % 2).unwrap()]);
        let rival = async {
            match n % 3 {
                0 => first.rollback(settle(n)).await.map(|settled| assert_eq!(settled.settlement, Settlement::Done)),
                1 => first.commit_one_phase(one_phase(n, "one seat", true)).await.map(|said| {
                    assert!(matches!(said, Conclusion::Fenced(_)), "{said:?}");
                }),
                _ => first.rollback(passing(settle(n), n)).await.map(drop),
            }
        };
        let late = async { second.prepare(prepare(n, "one seat")).await.map(|voted| voted.vote) };
        let (rival, late, twin) = tokio::join!(rival, late, second.prepare(prepare(n, "one seat")));
        rival.unwrap();
        drop((late, twin));
        // It has ended, whatever came of the race.
        assert_eq!(first.prepare(prepare(n, "one seat")).await.unwrap().vote, Vote::Refused, "{n}");
    }
    assert_eq!(tables[0].recover(usize::MAX).await.unwrap(), []);
}

/// Prepares branches and commits every other one while `kill` runs; tells what it was told.
pub(crate) async fn work_until_killed(
    table: &dyn ResourceManager,
    branches: std::ops::Range<u64>,
    kill: impl AsyncFnOnce(),
    after: u64,
) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let (mut prepared, mut committed) = (BTreeSet::new(), BTreeSet::new());
    let work = stream::iter(branches).map(async |n| {
        let voted = table.prepare(prepare(n, "one seat")).await;
        let was_prepared = voted.is_ok_and(|voted| voted.vote == Vote::Prepared);
        let settled = was_prepared && n % 2 == 0 && table.commit(settle(n)).await.is_ok();
        (n, was_prepared, settled)
    });
    let mut work = std::pin::pin!(work.buffer_unordered(8));
    let mut kill = Some(kill);
    let mut failed = 0;
    while let Some((n, was_prepared, was_committed)) = work.next().await {
        prepared.extend(was_prepared.then_some(n));
        committed.extend(was_committed.then_some(n));
        failed += usize::from(!was_prepared);
        if prepared.len() as u64 == after
            && let Some(kill) = kill.take()
        {
            kill().await;
        }
        if failed >= 8 {
            break;
        }
    }
    assert!(kill.is_none() && failed > 0, "it was not killed in the middle of its work");
    (prepared, committed)
}

/// What a table that was opened again must say of what it has said before; returns how many were in doubt. `state` is the
/// service's own row: 1 reserved, 2 confirmed.
pub(crate) async fn holds_what_it_said(
    table: &dyn ResourceManager,
    (prepared, committed): (BTreeSet<u64>, BTreeSet<u64>),
    state: impl AsyncFn(u64) -> Option<i32>,
) -> usize {
    let held: BTreeSet<u64> = table.recover(usize::MAX).await.unwrap().into_iter().map(number).collect();
    for n in &committed {
        assert_eq!(state(*n).await, Some(2), "{n} was committed");
        assert!(!held.contains(n), "{n} was committed");
        // The acknowledgement may have been lost: told again, it is done once.
        assert_eq!(table.commit(settle(*n)).await.unwrap().settlement, Settlement::Done);
        assert_eq!(state(*n).await, Some(2));
    }
    for n in prepared.difference(&committed) {
        // An even one may have been committed without having said so.
        assert!(held.contains(n) || (n % 2 == 0 && state(*n).await == Some(2)), "{n} was prepared");
    }
    for n in &held {
        assert_eq!(state(*n).await, Some(1), "{n} is held, so it is reserved");
        assert_eq!(vote(table, *n, "one seat").await, Vote::Prepared);
        assert_eq!(table.commit(settle(*n)).await.unwrap().settlement, Settlement::Done);
        assert_eq!(state(*n).await, Some(2));
    }
    assert_eq!(table.recover(1).await.unwrap(), []);
    held.len()
}

/// Finished branches go in bounded batches once the horizon has passed them; what is promised stays.
pub(crate) async fn drops_what_the_horizon_has_passed(table: &dyn ResourceManager, rows: impl AsyncFn() -> u64) {
    let count = 600;
    let calls = |calls: std::ops::Range<u64>| stream::iter(calls);
    calls(0..count)
        .for_each_concurrent(16, async |n| assert_eq!(vote(table, n, "one seat").await, Vote::Prepared))
        .await;
    calls(1..count).for_each_concurrent(16, async |n| drop(table.commit(settle(n)).await.unwrap())).await;
    assert_eq!(rows().await, count);
    let mut left = count;
    for _ in 0..3 {
        table.rollback(passing(settle(count + 1), 10_000)).await.unwrap();
        let now = rows().await;
        assert!(now < left && left - now <= 256, "{left} rows became {now}");
        left = now;
    }
    assert_eq!(left, 1, "only the promise is left");
    assert_eq!(table.recover(9).await.unwrap(), [branch(0)]);
    // Finished behind the horizon: kept a while longer, for the repeats that are still under way.
    for _ in 0..2 {
        assert_eq!(table.commit(passing(settle(0), 10_000)).await.unwrap().settlement, Settlement::Done);
    }
    assert_eq!(table.commit(passing(settle(0), 3_710_000)).await.unwrap().settlement, Settlement::Done);
    assert_eq!(rows().await, 0);
}

/// Many branches that want the same row at once; returns how many were prepared. Whoever has to make way too often says so.
pub(crate) async fn crowd(table: &dyn ResourceManager, branches: std::ops::Range<u64>) -> u64 {
    let votes = join_all(branches.map(|n| table.prepare(prepare(n, "one seat")))).await;
    let mut prepared = 0;
    for voted in votes {
        let voted = voted.unwrap();
        match voted.vote {
            Vote::Prepared => prepared += 1,
            Vote::Refused => assert!(voted.reason.unwrap().retryable),
            Vote::ReadOnly => panic!("nobody only reads"),
        }
    }
    prepared
}
