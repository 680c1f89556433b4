//! Snapshots: design.md section 9.

use std::collections::BTreeMap;

use bytes::Bytes;
use verdict_protocol::{Ledger, Outcome, SnapshotError, Thawed};

use crate::build::*;

fn busy() -> Log {
    let mut log = Log::new();
    for n in 0..40 {
        log.now = at(n * 400);
        let x = born(n * 400, n);
        match n % 4 {
            0 => log.ok(prepare(x, voted(&[(1, PREPARED), (2, READ_ONLY)]))),
            1 => log.ok(enlist(x, &[1, 2])),
            2 => log.ok(abort(x)),
            _ => log.ok(prepare(x, listed(&[1]))),
        }
        if n % 8 == 0 {
            log.ok(settled(x, 1));
        }
    }
    log
}

fn thaw(sections: Vec<(String, Bytes)>) -> Ledger {
    let mut ledger = Ledger::new();
    ledger.thaw(Thawed::decode(sections).unwrap());
    ledger
}

#[test]
fn m16_m20_a_snapshot_is_the_ledger_to_the_byte() {
    let log = busy();
    let again = Log { ledger: thaw(log.sections()), ..log.clone() };
    assert_eq!(log.sections(), again.sections());
    assert_eq!(log.ledger.in_doubt_count(), again.ledger.in_doubt_count());
    assert_eq!(format!("{:?}", log.ledger), format!("{:?}", again.ledger));
}

#[test]
fn a_thawed_ledger_goes_on_like_the_other() {
    let (mut log, mut again) = (busy(), busy());
    again.ledger = thaw(log.sections());
    for log in [&mut log, &mut again] {
        log.clock(17_000);
        log.ok(settled(born(4 * 400, 4), 1));
        log.ok(vote(born(3 * 400, 3), 1, PREPARED));
        assert_eq!(log.outcome(born(3 * 400, 3)), Some(Outcome::Committed));
    }
    assert_eq!(log.sections(), again.sections());
}

#[test]
fn sealed_buckets_never_change_and_keep_their_names() {
    let mut log = busy();
    let mut sealed: BTreeMap<String, Bytes> = BTreeMap::new();
    for step in 0..30 {
        log.clock(16_000 + step * 300);
        log.ok(abort(born(15_900 + step * 300, 1_000 + step)));
        // Decided later, and from the future.
        log.ok(settled(born(0, 0), 2));
        log.ok(verdict_protocol::Command::PresumeAbort { xid: born(90_000, step) });
        for (id, body) in log.sections() {
            if id.contains("-at-") {
                continue;
            }
            let first = sealed.entry(id.clone()).or_insert_with(|| body.clone());
            assert_eq!(*first, body, "{id} was sealed, and has changed");
        }
    }
    assert!(sealed.len() > 15, "{:?}", sealed.keys());
}

#[test]
fn a_frozen_ledger_does_not_follow_the_living_one() {
    let mut log = busy();
    let (before, frozen) = (log.sections(), log.ledger.freeze());
    log.ok(vote(born(3 * 400, 3), 1, PREPARED));
    let frozen: Vec<_> = frozen.sections().into_iter().map(|(id, body)| (id, body())).collect();
    assert_eq!(before, frozen);
}

#[test]
fn what_is_no_snapshot_is_refused_by_name() {
    let sections = busy().sections();
    let refused = |sections| Thawed::decode(sections).unwrap_err();
    assert!(matches!(refused(Vec::new()), SnapshotError::Open(0)));
    let mut two = sections.clone();
    two.push(sections.last().unwrap().clone());
    assert!(matches!(refused(two), SnapshotError::Open(2)));
    let strange = vec![("closet".to_owned(), Bytes::new())];
    assert!(matches!(refused(strange), SnapshotError::Name(name) if name == "closet"));
    for place in [0, sections.len() - 1] {
        let mut newer = sections.clone();
        let mut body = newer[place].1.to_vec();
        body[0] += 1;
        newer[place].1 = body.into();
        assert!(matches!(refused(newer), SnapshotError::Newer { found: 2, .. }));
        let mut cut = sections.clone();
        cut[place].1 = cut[place].1.slice(..cut[place].1.len() / 2);
        assert!(matches!(refused(cut), SnapshotError::Malformed { .. }));
    }
}
