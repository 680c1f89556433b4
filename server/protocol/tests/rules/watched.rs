//! What whoever watches is told.

use std::collections::BTreeMap;

use proptest::prelude::*;
use verdict_protocol::{
    Command, Conclusion, Entry, Ledger, NewBranch, Outcome, Reason, ReasonCode, Settlement, Step, Thawed, Transition,
    Xid,
};

use crate::{build::*, properties};

/// The steps of one entry.
fn steps(log: &mut Log, commands: Vec<Command>) -> Vec<Step> {
    told(log, commands).into_iter().map(|transition| transition.step).collect()
}

fn told(log: &mut Log, commands: Vec<Command>) -> Vec<Transition> {
    log.index += 1;
    log.ledger.apply(log.index, &Entry { at: log.now, commands }).transitions
}

fn decided(log: &Log, x: Xid) -> Step {
    Step::Decided { outcome: log.ledger.outcome(x).unwrap(), reason: log.ledger.status(x).reason.cloned() }
}

#[test]
fn a_transaction_tells_its_whole_life() {
    let (mut log, x) = (Log::new(), xid(1));
    assert_eq!(steps(&mut log, vec![enlist(x, &[1, 2])]), [Step::Begun]);
    assert_eq!(steps(&mut log, vec![enlist(x, &[3])]), [], "a branch more is no step");
    assert_eq!(steps(&mut log, vec![prepare(x, vec![])]), [Step::Voting]);
    assert_eq!(steps(&mut log, vec![prepare(x, vec![]), vote(x, 1, PREPARED)]), []);
    let last = steps(&mut log, vec![vote(x, 2, READ_ONLY), vote(x, 3, PREPARED)]);
    assert_eq!(last, [decided(&log, x)]);
    let settles = |branch| Step::Settled { branch, settlement: Settlement::Done };
    assert_eq!(steps(&mut log, vec![settled(x, 1)]), [settles(1)]);
    assert_eq!(steps(&mut log, vec![settled(x, 1), settled(x, 3)]), [settles(3), Step::Ended], "once");
    assert_eq!(steps(&mut log, vec![settled(x, 3), abort(x)]), [], "late");
}

#[test]
fn what_one_entry_decides_it_tells_at_once() {
    let (mut log, x) = (Log::new(), xid(1));
    let all = steps(&mut log, vec![prepare(x, voted(&[(1, READ_ONLY)]))]);
    assert_eq!(all, [decided(&log, x), Step::Ended], "it never voted in the log");
    let y = xid(2);
    let presumed = told(&mut log, vec![Command::PresumeAbort { xid: y }]);
    let step = decided(&log, y);
    assert!(matches!(&step, Step::Decided { reason: Some(reason), .. } if reason.code == ReasonCode::Presumed));
    let nowhere = |step| Transition { xid: y, resources: [].into(), step };
    assert_eq!(presumed, [nowhere(step), nowhere(Step::Ended)]);
}

#[test]
fn a_delegate_settles_by_deciding() {
    let (mut log, x) = (Log::new(), xid(1));
    let delegating =
        Command::Prepare { xid: x, branches: listed(&[1]), vote_timeout_ms: 2_000, delegate: Some(1), session: None };
    assert_eq!(steps(&mut log, vec![delegating]), [Step::Delegated { branch: 1 }]);
    let word = steps(&mut log, vec![Command::Conclude { branch: branch(x, 1), conclusion: Conclusion::Committed }]);
    let settled = Step::Settled { branch: 1, settlement: Settlement::Done };
    assert_eq!(word, [settled, decided(&log, x), Step::Ended]);
}

#[test]
fn a_broken_promise_and_an_operators_word_are_told() {
    let (mut log, x) = (Log::new(), xid(1));
    log.ok(prepare(x, listed(&[1, 2])));
    log.ok(vote(x, 1, PREPARED));
    let broken = steps(&mut log, vec![vote(x, 1, REFUSED)]);
    assert_eq!(broken, [Step::PromiseBroken { branch: 1 }, decided(&log, x)]);
    let forgotten = steps(&mut log, vec![Command::Forget { xid: x, word: word(), force: true }]);
    assert_eq!(forgotten, [Step::Ended]);
}

#[test]
fn resources_are_those_of_the_branches_that_are_known() {
    let (mut log, x) = (Log::new(), xid(1));
    let at = |number, resource: &str| NewBranch { resource: resource.try_into().unwrap(), ..new(number) };
    let branches = vec![at(1, "wallet"), at(2, "seats"), at(3, "wallet")];
    let begun = told(&mut log, vec![Command::Enlist { xid: x, branches, timeout_ms: 5_000 }]);
    let names = |transition: &Transition| -> Vec<String> {
        transition.resources.iter().map(|name| name.as_str().to_owned()).collect()
    };
    assert_eq!(names(&begun[0]), ["seats", "wallet"]);
    let aborted = told(&mut log, vec![abort(x), settled(x, 3)]);
    assert_eq!(aborted.iter().map(names).collect::<Vec<_>>(), [vec!["seats", "wallet"], vec!["wallet"]]);
    let reason = Reason::new(ReasonCode::Rollback, "the client gave up");
    let size: usize = aborted.iter().map(Transition::size).sum();
    assert!(size > 2 * size_of::<Transition>() + reason.text.len(), "texts and names count: {size}");
}

/// What may follow upon what was told of one transaction.
fn follows(before: Option<&Step>, step: &Step) -> bool {
    let undecided = matches!(before, None | Some(Step::Begun | Step::Voting | Step::Delegated { .. }));
    match step {
        Step::Begun => before.is_none(),
        Step::Voting => matches!(before, None | Some(Step::Begun)),
        Step::Delegated { .. } => matches!(before, None | Some(Step::Begun | Step::Voting)),
        Step::Decided { .. } => undecided || matches!(before, Some(Step::Settled { .. })),
        // A delegate's word comes before what it decides.
        Step::Settled { .. } => {
            matches!(before, Some(Step::Delegated { .. } | Step::Decided { .. } | Step::Settled { .. }))
        }
        Step::Ended => matches!(before, Some(Step::Decided { .. } | Step::Settled { .. })),
        Step::PromiseBroken { .. } => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    /// So a watcher goes on at any node, whatever snapshot it was thawed from.
    #[test]
    fn every_node_tells_the_same_of_an_index(
        history in properties::history(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 3),
    ) {
        let entries = properties::entries(history);
        let cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(entries.len())).collect();
        let (mut one, mut other) = (Ledger::new(), Ledger::new());
        for (place, entry) in entries.iter().enumerate() {
            let index = place as u64 + 1;
            let decoded = Entry::decode(&entry.encode()).unwrap();
            prop_assert_eq!(one.apply(index, entry).transitions, other.apply(index, &decoded).transitions);
            if cuts.contains(&place) {
                let mut thawed = Ledger::new();
                thawed.thaw(Thawed::decode(properties::sections(&other)).unwrap());
                other = thawed;
            }
        }
    }

    #[test]
    fn each_decision_is_told_once_and_in_order(history in properties::history()) {
        let mut ledger = Ledger::new();
        let mut last: BTreeMap<Xid, Step> = BTreeMap::new();
        let mut outcomes: BTreeMap<Xid, Outcome> = BTreeMap::new();
        for (entry, index) in properties::entries(history).iter().zip(1..) {
            for Transition { xid, step, .. } in ledger.apply(index, entry).transitions {
                prop_assert!(follows(last.get(&xid), &step), "{} {:?} after {:?}", xid, step, last.get(&xid));
                if let Step::Decided { outcome, .. } = &step {
                    prop_assert_eq!(outcome.index(), index);
                    prop_assert_eq!(outcomes.insert(xid, outcome.value()), None, "{} is decided twice", xid);
                }
                if !matches!(step, Step::PromiseBroken { .. }) {
                    last.insert(xid, step);
                }
            }
            for n in 0..properties::XIDS {
                let xid = born(n * 2_500, n);
                if let Some(known) = ledger.outcome(xid) {
                    prop_assert_eq!(outcomes.get(&xid), Some(&known.value()), "{} was decided in silence", xid);
                }
            }
        }
    }
}
