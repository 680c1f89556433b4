//! Nothing acknowledged is lost or altered silently, over random histories with crashes; and the check that says so
//! catches seeded bugs.
//!
//! `VERDICT_HISTORIES=n` runs n histories instead of 12,000; `VERDICT_SEED=s` runs the one of that seed.
#![cfg(not(madsim))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod harness;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use harness::buggy::Bug;
use harness::coverage::Coverage;
use harness::run;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

#[test]
fn nothing_acknowledged_is_lost_or_altered_silently() {
    if let Some(seed) = number("VERDICT_SEED") {
        run(seed, Bug::None).unwrap();
        return;
    }
    let count = number("VERDICT_HISTORIES").unwrap_or(12_000);
    let (next, total) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Coverage::default())));
    let threads: Vec<_> = (0..std::thread::available_parallelism().map_or(2, usize::from))
        .map(|_| {
            let (next, total) = (next.clone(), total.clone());
            std::thread::spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count {
                        return;
                    }
                    let coverage = run(seed, Bug::None).unwrap_or_else(|why| panic!("{why}"));
                    total.lock().unwrap().add(&coverage);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
    let total = *total.lock().unwrap();
    println!("{count} histories: {total:?}");
    if count >= 1000 {
        assert!(total.crashes > count, "each history has crashes");
        for part in [total.kills, total.failures, total.damages, total.repairs, total.torn, total.purges] {
            assert!(part > count / 20, "the histories do too little: {total:?}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..50 {
        assert_eq!(run(seed, Bug::None), run(seed, Bug::None));
    }
}

fn is_caught(bug: Bug) {
    let caught = (0..3000).find_map(|seed| run(seed, bug).err().map(|why| (seed, why)));
    let (seed, why) = caught.unwrap_or_else(|| panic!("{bug:?} was not caught in 3000 histories"));
    println!("{bug:?} was caught at seed {seed}: {why}");
}

#[test]
fn m1_a_skipped_sync_of_a_ballot_is_caught() {
    is_caught(Bug::SkipBallotSync);
}

#[test]
fn m2_a_skipped_sync_of_an_append_is_caught() {
    is_caught(Bug::SkipAppendSync);
}

#[test]
fn m3_an_append_reported_before_its_sync_is_caught() {
    is_caught(Bug::ReportEarly);
}

#[test]
fn m18_a_purge_before_the_snapshot_is_synced_is_caught() {
    is_caught(Bug::PurgeBeforeSnapshot);
}

#[test]
fn m19_a_purge_point_that_is_not_persisted_is_caught() {
    is_caught(Bug::SkipMarksSync);
}

#[test]
fn m35_a_log_cut_at_the_first_bad_checksum_is_caught() {
    is_caught(Bug::CutAtBadChecksum);
}

#[test]
fn m36_going_on_after_a_failed_sync_is_caught() {
    is_caught(Bug::IgnoreFailedSync);
}

#[test]
fn names_that_are_not_made_durable_are_caught() {
    is_caught(Bug::SkipDirSync);
}
