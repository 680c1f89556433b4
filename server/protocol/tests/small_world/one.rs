//! One transaction in full.

use crate::{
    ALL, BROUGHT, FORGED, HALF_BROUGHT, LAST, LAST_RESOURCE, LAST_RESOURCE_BROUGHT, NONE, ONE, ONE_PHASE, ONE_THREE,
    TWO, TWO_BROUGHT, enlisting,
    participant::Temper::{MayRefuse, Reader, Willing},
    scenario,
    scenario::{Left, NO_FAULTS, OldLeader, Scenario},
    settled_by_its_client, walk,
};

#[test]
fn without_faults_every_yes_commits() {
    let votes_are_asked = scenario([Willing, Willing, Reader], &[ALL, ALL], NO_FAULTS);
    let enlisted = enlisting(&[1, 2], scenario([Willing; 3], &[LAST, LAST], NO_FAULTS));
    let brought = scenario([Willing; 3], &[BROUGHT, BROUGHT], NO_FAULTS);
    for scenario in [votes_are_asked, enlisted, brought] {
        let seen = walk("no faults", scenario);
        assert_eq!(seen.aborted, 0, "I4: {seen:?}");
    }
}

#[test]
fn a_leader_change_and_a_client_that_retries() {
    let left = Left { elections: 1, ..NO_FAULTS };
    let seen = walk("leader change", scenario([Willing, MayRefuse, Willing], &[ALL, ALL], left));
    assert!(seen.committed > 0 && seen.aborted > 0, "{seen:?}");
}

#[test]
fn the_leadership_goes_and_comes_back() {
    let left = Left { elections: 2, ..NO_FAULTS };
    walk("two leader changes", scenario([Willing, MayRefuse, Willing], &[ALL], left));
}

#[test]
fn a_deposed_leader_that_does_not_know_it() {
    let left = Left { elections: 1, ..NO_FAULTS };
    let scenario = scenario([Willing, Reader, MayRefuse], &[ONE_THREE, ONE_THREE], left);
    walk("lingering leader", Scenario { old_leader: OldLeader::Lingers, ..scenario });
}

#[test]
fn a_rollback_at_any_time() {
    walk("rollback", scenario([Willing, MayRefuse, Willing], &[ALL], Left { rollbacks: 1, ..NO_FAULTS }));
    let left = Left { rollbacks: 1, elections: 1, ..NO_FAULTS };
    walk("rollback and leader change", scenario([Willing; 3], &[TWO, TWO], left));
}

#[test]
fn a_deadline_at_any_time() {
    walk("deadline", scenario([Willing, Reader, Willing], &[ALL], Left { wakes: 1, ..NO_FAULTS }));
    let left = Left { wakes: 1, elections: 1, ..NO_FAULTS };
    walk("deadline and leader change", scenario([Willing, MayRefuse, Willing], &[TWO], left));
}

#[test]
fn participants_that_cannot_be_reached() {
    let left = Left { unreachable: 1, wakes: 1, ..NO_FAULTS };
    walk("unreachable", scenario([Willing, Reader, Willing], &[TWO], left));
    let left = Left { unreachable: 2, comes: 1, elections: 1, ..NO_FAULTS };
    walk("unreachable, and then they come", scenario([Willing; 3], &[TWO], left));
    let left = Left { unreachable: 1, comes: 2, wakes: 1, ..NO_FAULTS };
    walk("one phase, and then they come", scenario([Willing; 3], &[ONE_PHASE], left));
}

#[test]
fn votes_that_go_to_the_log_one_by_one() {
    let slow = |scenario| Scenario { vote_timeout_ms: 2_000, ..scenario };
    let left = Left { wakes: 2, elections: 1, ..NO_FAULTS };
    let seen = walk("slow voting", slow(scenario([Willing, MayRefuse, Willing], &[TWO], left)));
    assert!(seen.committed > 0 && seen.aborted > 0, "{seen:?}");
    let left = Left { wakes: 2, interruptions: 1, ..NO_FAULTS };
    walk("slow voting, interruptions", slow(scenario([Willing; 3], &[ALL], left)));
}

#[test]
fn a_proposer_that_does_not_learn_what_became_of_it() {
    let left = Left { interruptions: 2, wakes: 1, ..NO_FAULTS };
    walk("interruptions", scenario([Willing; 3], &[TWO], left));
}

#[test]
fn a_participant_that_restarts() {
    let left = Left { restarts: 1, elections: 1, ..NO_FAULTS };
    walk("restart", scenario([Willing, Reader, Willing], &[ALL, ALL], left));
}

#[test]
fn votes_brought_along_and_branches_that_ask_before_the_list_is_there() {
    let left = Left { inquiries: 1, ..NO_FAULTS };
    let seen = walk("brought votes", scenario([Willing; 3], &[BROUGHT, BROUGHT], left));
    assert!(seen.committed > 0 && seen.aborted > 0, "presumed aborted, or committed first: {seen:?}");
}

#[test]
fn a_client_that_settles_what_it_has_prepared_or_dies() {
    let left = Left { elections: 1, reports: 1, ..NO_FAULTS };
    let scenario_of = |attempts, left| settled_by_its_client(scenario([Willing; 3], attempts, left));
    let seen = walk("settled by its client", scenario_of(&[TWO_BROUGHT, TWO_BROUGHT], left));
    assert!(seen.committed > 0, "{seen:?}");
    let left = Left { reports: 1, wakes: 1, inquiries: 1, rollbacks: 1, ..NO_FAULTS };
    walk("settled by its client, deadline", scenario_of(&[HALF_BROUGHT], left));
}

#[test]
fn votes_that_are_forged() {
    let left = Left { elections: 1, pushes: 1, ..NO_FAULTS };
    let seen = walk("forged", enlisting(&[1], scenario([Willing; 3], &[FORGED, NONE], left)));
    assert!(seen.committed > 0, "{seen:?}");
}

#[test]
fn branches_that_push_their_votes() {
    let left = Left { pushes: 1, elections: 1, ..NO_FAULTS };
    walk("pushed votes", enlisting(&[1, 2, 3], scenario([Willing, Reader, Willing], &[NONE], left)));
}

#[test]
fn one_branch_that_decides() {
    let left = Left { elections: 1, rollbacks: 1, wakes: 1, ..NO_FAULTS };
    let seen = walk("one phase", scenario([Willing, Willing, MayRefuse], &[ONE_PHASE, ONE_PHASE], left));
    assert!(seen.committed > 0 && seen.aborted > 0, "{seen:?}");
    let left = Left { restarts: 1, unreachable: 1, wakes: 1, ..NO_FAULTS };
    walk("one phase, restart", scenario([Willing; 3], &[ONE_PHASE], left));
}

#[test]
fn a_last_resource_decides_after_the_others() {
    let left = Left { elections: 1, rollbacks: 1, ..NO_FAULTS };
    let seen = walk("last resource", scenario([Willing, Willing, MayRefuse], &[LAST_RESOURCE, LAST_RESOURCE], left));
    assert!(seen.committed > 0 && seen.aborted > 0, "{seen:?}");
    let left = Left { wakes: 2, unreachable: 1, restarts: 1, ..NO_FAULTS };
    walk("last resource, deadline", scenario([MayRefuse, Willing, Willing], &[LAST_RESOURCE], left));
    let left = Left { elections: 1, inquiries: 1, ..NO_FAULTS };
    walk("last resource, votes brought", scenario([Willing; 3], &[LAST_RESOURCE_BROUGHT, LAST_RESOURCE_BROUGHT], left));
    let left = Left { elections: 1, ..NO_FAULTS };
    let lingering = scenario([Willing; 3], &[LAST_RESOURCE], left);
    walk("last resource, lingering leader", Scenario { old_leader: OldLeader::Lingers, ..lingering });
}

#[test]
fn a_branch_that_is_left_out_of_the_list() {
    let left = Left { inquiries: 1, elections: 1, ..NO_FAULTS };
    walk("left out", scenario([Willing; 3], &[ONE_THREE, ONE], left));
}

#[test]
fn services_that_enlist_themselves_while_the_list_is_being_closed() {
    let left = Left { registers: 1, elections: 1, ..NO_FAULTS };
    let seen = walk("enlisting races", scenario([Willing; 3], &[TWO, TWO], left));
    assert!(seen.committed > 0, "{seen:?}");
    let left = Left { registers: 1, pushes: 1, rollbacks: 1, ..NO_FAULTS };
    walk("enlisting and pushing", scenario([Willing; 3], &[ONE], left));
}

#[test]
fn votes_that_come_before_during_and_after_the_list_is_closed() {
    let left = Left { pushes: 2, ..NO_FAULTS };
    let seen = walk("early votes", enlisting(&[1, 2], scenario([Willing; 3], &[NONE, NONE], left)));
    assert!(seen.committed > 0, "{seen:?}");
    let left = Left { pushes: 1, inquiries: 1, rollbacks: 1, ..NO_FAULTS };
    walk("early votes and presumption", scenario([Willing; 3], &[TWO], left));
}

#[test]
fn an_operator_without_force() {
    let left = Left { words: 1, ..NO_FAULTS };
    walk("operator", scenario([Willing, MayRefuse, Willing], &[TWO], left));
    let seen = walk("operator and last resource", scenario([Willing; 3], &[LAST_RESOURCE], left));
    assert!(seen.committed > 0 && seen.aborted > 0, "{seen:?}");
}

#[test]
fn everything_may_be_older_than_the_horizon() {
    let left = Left { ages: 1, inquiries: 1, ..NO_FAULTS };
    walk("horizon, votes brought", scenario([Willing; 3], &[TWO_BROUGHT, TWO_BROUGHT], left));
    let left = Left { ages: 1, elections: 1, ..NO_FAULTS };
    walk("horizon", scenario([Willing; 3], &[TWO, TWO], left));
}

#[test]
fn several_faults_at_once() {
    let left = Left { elections: 1, rollbacks: 1, ..NO_FAULTS };
    walk("three branches", scenario([Willing, MayRefuse, Reader], &[ALL], left));
    let left = Left { elections: 1, rollbacks: 1, unreachable: 1, ..NO_FAULTS };
    walk("two branches, one out of reach", scenario([MayRefuse, Willing, Willing], &[TWO], left));
    let left = Left { elections: 1, wakes: 1, inquiries: 1, restarts: 1, ..NO_FAULTS };
    walk("two branches, a participant restarts", scenario([Willing; 3], &[TWO], left));
}

#[test]
fn several_faults_while_one_branch_decides() {
    let left = Left { elections: 1, rollbacks: 1, wakes: 1, unreachable: 1, ..NO_FAULTS };
    let seen = walk("last resource, several faults", scenario([Willing; 3], &[LAST_RESOURCE], left));
    assert!(seen.committed > 0 && seen.aborted > 0, "{seen:?}");
}
