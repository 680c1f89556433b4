//! Each seeded bug is found, by the sentence that it breaks, on a short way.

use std::collections::BTreeSet;

use crate::{
    ALL, BROUGHT, FORGED, HALF_BROUGHT, LAST_RESOURCE, MOST_STATES, NONE, ONE, ONE_PHASE, ONE_THREE, SECOND, TWO,
    TWO_BROUGHT,
    bugs::Bug,
    enlisting,
    explore::{Walk, explore},
    participant::Temper::{Reader, Willing},
    scenario,
    scenario::{Left, NO_FAULTS, Plan, Scenario},
    settled_by_its_client,
    two::{attempts, instances, two},
};

fn one(commits: &'static [crate::Attempt], left: Left) -> Scenario {
    scenario([Willing; 3], commits, left)
}

/// One transaction: the bug, the sentence that it breaks, and where it shows.
fn cases() -> Vec<(Bug, &'static str, Scenario)> {
    let election = Left { elections: 1, ..NO_FAULTS };
    let unreachable = Left { unreachable: 1, ..NO_FAULTS };
    let rollback = Left { rollbacks: 1, ..NO_FAULTS };
    let inquiry = Left { inquiries: 1, ..NO_FAULTS };
    let push = Left { pushes: 1, ..NO_FAULTS };
    let register = Left { registers: 1, ..NO_FAULTS };
    vec![
        (Bug::M5, "I1", one(&[TWO], NO_FAULTS)),
        (Bug::M6, "I5", one(&[ALL], election)),
        (Bug::M7, "I3", one(&[TWO], NO_FAULTS)),
        (Bug::M8, "I1", one(&[TWO], Left { wakes: 1, ..NO_FAULTS })),
        (Bug::M9, "I3", one(&[TWO], unreachable)),
        (Bug::M10, "I1", enlisting(&[1], one(&[ONE], Left { pushes: 1, ..rollback }))),
        (Bug::M11, "I6", one(&[TWO], register)),
        (Bug::M13, "I9", one(&[TWO], rollback)),
        (Bug::M24, "I5", one(&[TWO], unreachable)),
        (Bug::M25, "I5", enlisting(&[1, 2], one(&[NONE], rollback))),
        (Bug::M26, "I3", one(&[HALF_BROUGHT], inquiry)),
        (Bug::M41, "I5", enlisting(&[1], one(&[NONE], push))),
        (Bug::M42, "I3", enlisting(&[1], one(&[SECOND], NO_FAULTS))),
        (Bug::M43, "I1", one(&[ONE_THREE, ONE], Left { inquiries: 1, ..election })),
        (Bug::M44, "I1", one(&[BROUGHT], inquiry)),
        (Bug::M46, "I1", one(&[TWO_BROUGHT], Left { interruptions: 1, ..NO_FAULTS })),
        (Bug::M47, "I3", one(&[TWO], Left { restarts: 1, ..NO_FAULTS })),
        (Bug::M48, "I1", one(&[TWO_BROUGHT], Left { ages: 1, ..NO_FAULTS })),
        (Bug::M50, "I", one(&[LAST_RESOURCE], rollback)),
        (Bug::M51, "I3", one(&[ONE_PHASE], NO_FAULTS)),
        (Bug::M52, "I3", one(&[LAST_RESOURCE], NO_FAULTS)),
        (Bug::VoteToldEarly, "I6", enlisting(&[1], one(&[NONE], push))),
        (Bug::EnlistToldEarly, "I6", enlisting(&[1], one(&[NONE], NO_FAULTS))),
        (Bug::VoteCreates, "I3", one(&[ONE], push)),
        (
            Bug::RefusalIgnored,
            "I3",
            scenario([Reader, Willing, Willing], &[TWO], Left { restarts: 1, pushes: 2, ..NO_FAULTS }),
        ),
        (Bug::Forged, "I3", enlisting(&[1], one(&[FORGED], NO_FAULTS))),
        (Bug::SettledByItsClient, "I5", settled_by_its_client(one(&[TWO_BROUGHT], NO_FAULTS))),
        (Bug::FenceForgotten, "I5", one(&[ONE_PHASE], Left { wakes: 2, unreachable: 1, ..NO_FAULTS })),
        (Bug::Unforced, "I", one(&[LAST_RESOURCE], Left { words: 1, ..NO_FAULTS })),
    ]
}

/// Two transactions that share a session or a key.
fn shared() -> Vec<(Bug, &'static str, Scenario)> {
    let sessions = || two(instances(), [Willing; 3], NO_FAULTS);
    let keys = |left| two(attempts(), [Willing; 3], left);
    let [first, second] = instances();
    let early = || two([Plan { begins: 1, ..first }, second], [Willing; 3], NO_FAULTS);
    let again = || two([Plan { opens: 2, ..first }, second], [Willing; 3], NO_FAULTS);
    let rollback = Left { rollbacks: 1, ..NO_FAULTS };
    let same = [first, Plan { instance: Some(1), begins: 1, ..second }];
    vec![
        (Bug::M22, "I3", sessions()),
        (Bug::M45, "I3", sessions()),
        (Bug::M57, "I10", sessions()),
        (Bug::SessionForgotten, "I3", early()),
        (Bug::SessionAbortsVotes, "I3", sessions()),
        (Bug::NonceIgnored, "I10", again()),
        (Bug::EndsTheNext, "I4", two(same, [Willing; 3], rollback)),
        (Bug::KeyForgotten, "I3", keys(NO_FAULTS)),
        (Bug::KeyKept, "I11", keys(rollback)),
    ]
}

#[test]
fn seeded_bugs_are_found() {
    let cases: Vec<_> = cases().into_iter().chain(shared()).collect();
    let named: BTreeSet<usize> = cases.iter().map(|(bug, ..)| *bug as usize).collect();
    assert_eq!(named.len(), Bug::COUNT, "every seeded bug has a world in which it shows");
    let mut missed = Vec::new();
    for (bug, sentence, scenario) in cases {
        let walk = Walk { breadth_first: true, most_states: MOST_STATES };
        match explore(Scenario { bug, ..scenario }, walk) {
            Ok(seen) => missed.push(format!("{bug:?} is not found: {seen:?}")),
            Err(trace) => {
                println!("{bug:?}: {trace}");
                if !trace.starts_with(sentence) || trace.lines().count() >= 25 {
                    missed.push(format!("{bug:?} is found late, or breaks another sentence than {sentence}: {trace}"));
                }
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
