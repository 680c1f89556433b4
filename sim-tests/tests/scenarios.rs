//! The four situations of two-phase commit: the textbook's figures, and what Verdict makes of them.
#![cfg(madsim)]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use verdict_protocol::Outcome;
use verdict_sim_tests::classic::{self, Figures, Millis, Situation};

fn ms(whole: u128) -> Millis {
    Millis::new(whole, 0)
}

#[test]
fn a_classic_coordinator_shows_the_textbooks_figures() {
    let a = classic::classic(Situation::AllYes);
    assert_eq!(a.outcome, Outcome::Committed);
    assert_eq!((a.sent, a.free, a.held, a.acknowledged), (ms(5), Millis::new(7, 5), ms(7), ms(8)));
    assert_eq!((a.messages, a.forced), (12, 7));

    let b = classic::classic(Situation::OneNo);
    assert_eq!(b.outcome, Outcome::Aborted);
    assert_eq!((b.messages, b.forced, b.wallet_free), (10, 5, Millis::new(0, 5)));

    let c = classic::classic(Situation::DiesWaiting);
    assert_eq!(c.outcome, Outcome::Aborted);
    assert_eq!((c.sent, c.held, c.acknowledged), (ms(30_003), ms(30_005), ms(30_006)));

    let d = classic::classic(Situation::DiesDecided);
    assert_eq!(d.outcome, Outcome::Committed);
    assert_eq!((d.sent, d.held, d.acknowledged), (ms(30_005), ms(30_007), ms(30_008)));
}

#[test]
fn verdict_frees_the_locks_within_one_election() {
    // A round to a majority instead of one forced write: a hop there and one back more.
    let a = classic::verdict(Situation::AllYes);
    assert_eq!(a.outcome, Outcome::Committed);
    assert_eq!((a.sent, a.free, a.held, a.acknowledged), (ms(6), Millis::new(8, 5), ms(8), ms(9)));
    assert_eq!((a.messages, a.forced), (12, 6));

    let b = classic::verdict(Situation::OneNo);
    assert_eq!(b.outcome, Outcome::Aborted);
    assert_eq!(b.wallet_free, Millis::new(0, 5));

    let bound = Millis::from(classic::one_election());
    for situation in [Situation::DiesWaiting, Situation::DiesDecided] {
        let figures @ Figures { outcome, held, .. } = classic::verdict(situation);
        // In both the votes, or the request for them, had reached a majority: it goes on, and commits.
        assert_eq!(outcome, Outcome::Committed, "{situation}");
        assert!(held < bound, "{situation}: {held} is above {bound}: {figures:?}");
        assert!(held > ms(100), "{situation}: the leader did not die: {figures:?}");
    }
    assert!(classic::one_election() < Duration::from_secs(1));
}

#[test]
fn a_hot_row_takes_what_its_locks_let_it() {
    let (baseline, verdict) = classic::hot_row();
    assert_eq!(baseline, 142, "1,000 ms / 7.0 ms");
    // A decision may have to wait for the append before it.
    assert!((90..=125).contains(&verdict), "1,000 ms / 8.0 ms and a little, and {verdict} were seen");
}

#[test]
fn the_readme_has_this_table() {
    let page = std::fs::read_to_string(classic::README).unwrap();
    let table = classic::table();
    assert!(page.contains(&table), "renew it with `sim scenarios --record`:\n{table}");
}
