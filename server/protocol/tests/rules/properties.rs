//! Random histories of a few transactions, each held against an oracle that was written apart from the product.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use verdict_protocol::{
    ClusterId, Command, Conclusion, Entry, Instance, Ledger, ListedBranch, NewBranch, Order, Outcome, Reason,
    ReasonCode, Resolution, Rules, Secret, SessionName, SessionRef, SettledItem, Settlement, State, Thawed, Vote, Xid,
};

use crate::{build::*, oracle::Oracle};

pub(crate) const XIDS: u64 = 4;

/// Xids of several births: one may expire, one comes from the future.
fn xids() -> impl Strategy<Value = Xid> {
    (0..XIDS).prop_map(|n| born(n * 2_500, n))
}

fn branches() -> impl Strategy<Value = Vec<NewBranch>> {
    // Now and then a number stands for something else.
    let branch = (1_u32..5, prop::bool::weighted(0.05))
        .prop_map(|(number, odd)| NewBranch { payload: vec![u8::from(odd)].into(), ..new(number) });
    prop::collection::vec(branch, 0..4)
}

fn votes() -> impl Strategy<Value = Vote> {
    prop_oneof![6 => Just(Vote::Prepared), 2 => Just(Vote::ReadOnly), 1 => Just(Vote::Refused)]
}

fn session_name() -> SessionName {
    "till".to_owned().try_into().unwrap()
}

fn sessions() -> impl Strategy<Value = Option<SessionRef>> {
    prop::option::weighted(0.3, (1_u64..4).prop_map(|epoch| SessionRef { name: session_name(), epoch }))
}

pub(crate) fn commands() -> impl Strategy<Value = Command> {
    let given = prop::option::weighted(0.5, votes());
    let listed = (branches(), prop::collection::vec(given, 4)).prop_map(|(branches, votes)| {
        let with = |(branch, vote): (NewBranch, Option<Vote>)| ListedBranch { branch, vote: vote.map(brought) };
        branches.into_iter().zip(votes).map(with).collect()
    });
    let settlement = prop_oneof![9 => Just(Settlement::Done), 1 => Just(Settlement::HeuristicMixed)];
    let item = (xids(), 1_u32..5, settlement)
        .prop_map(|(xid, number, settlement)| SettledItem { branch: branch(xid, number), settlement });
    let keys = prop::option::weighted(0.5, (0_u8..2).prop_map(|n| key(&n.to_string())));
    let resolution = prop_oneof![
        prop_oneof![Just(Outcome::Committed), Just(Outcome::Aborted)].prop_map(Resolution::Decide),
        (1_u32..5, prop_oneof![Just(Settlement::Done), Just(Settlement::HeuristicHazard)])
            .prop_map(|(number, settlement)| Resolution::Settle { number, settlement }),
    ];
    prop_oneof![
        3 => (xids(), 0_u64..20_000, keys, sessions()).prop_map(|(xid, timeout_ms, key, session)| Command::Begin {
            xid,
            timeout_ms,
            key,
            session
        }),
        1 => (0_u8..3).prop_map(|n| Command::OpenSession { name: session_name(), instance: Instance([n; 16]) }),
        4 => (xids(), branches(), 0_u64..20_000)
            .prop_map(|(xid, branches, timeout_ms)| Command::Enlist { xid, branches, timeout_ms }),
        4 => (xids(), listed, 0_u64..20_000, prop::option::weighted(0.3, 1_u32..5), sessions()).prop_map(
            |(xid, branches, vote_timeout_ms, delegate, session)| Command::Prepare {
                xid,
                branches,
                vote_timeout_ms,
                delegate,
                session
            }
        ),
        3 => (xids(), 1_u32..5, any::<bool>()).prop_map(|(xid, number, committed)| {
            let conclusion = if committed { Conclusion::Committed } else { Conclusion::Fenced(None) };
            Command::Conclude { branch: branch(xid, number), conclusion }
        }),
        1 => (xids(), resolution, any::<bool>())
            .prop_map(|(xid, resolution, force)| Command::Resolve { xid, resolution, word: word(), force }),
        1 => (xids(), any::<bool>()).prop_map(|(xid, force)| Command::Forget { xid, word: word(), force }),
        12 => (xids(), 1_u32..5, votes()).prop_map(|(xid, number, v)| vote(xid, number, v)),
        1 => xids().prop_map(|xid| Command::Abort { xid, reason: Reason::new(ReasonCode::Rollback, "enough") }),
        1 => xids().prop_map(|xid| Command::PresumeAbort { xid }),
        4 => prop::collection::vec(item, 1..4).prop_map(|items| Command::Settled { items }),
    ]
}

/// Entries a little apart in time; now and then far.
pub(crate) fn history() -> impl Strategy<Value = Vec<(u64, Vec<Command>)>> {
    let pause = prop_oneof![20 => 0_u64..100, 1 => 0_u64..20_000];
    prop::collection::vec((pause, prop::collection::vec(commands(), 0..4)), 1..60)
}

pub(crate) fn entries(history: Vec<(u64, Vec<Command>)>) -> Vec<Entry> {
    let rules = Rules { max_branches: 3, ..RULES };
    let mut entries = vec![Entry {
        at: at(0),
        commands: vec![Command::Found { cluster: ClusterId([3; 16]), secret: Secret([4; 32]), rules }],
    }];
    let mut ms = 0;
    for (pause, commands) in history {
        ms += pause;
        entries.push(Entry { at: at(ms), commands });
    }
    entries
}

pub(crate) fn sections(ledger: &Ledger) -> Vec<(String, Bytes)> {
    ledger.freeze().sections().into_iter().map(|(id, body)| (id, body())).collect()
}

/// What a ledger says of one transaction must be what the log says, or that it is not kept any more.
fn check(
    ledger: &Ledger,
    oracle: &Oracle,
    xid: Xid,
    before: Option<Outcome>,
) -> Result<Option<Outcome>, TestCaseError> {
    let status = ledger.status(xid);
    let said = status.outcome.map(|outcome| (outcome.value(), outcome.index()));
    let expected = oracle.of(xid).and_then(|history| history.outcome);
    match status.state {
        State::Expired => {
            prop_assert!(oracle.is_behind_horizon(xid), "{xid} is forgotten before it is behind the horizon");
            prop_assert_eq!(said, None);
            prop_assert!(expected.is_some() || oracle.of(xid).is_none(), "an undecided transaction is forgotten");
        }
        State::Unknown => prop_assert!(oracle.of(xid).is_none(), "{} is unknown, and the log knows it", xid),
        State::Active | State::Voting | State::Delegated => {
            let history = oracle.of(xid);
            prop_assert!(history.is_some_and(|history| history.closed == (status.state != State::Active)));
            prop_assert!(history.is_some_and(|history| history.delegated == (status.state == State::Delegated)));
            prop_assert_eq!(expected, None, "I3");
        }
        State::Decided | State::Ended => prop_assert_eq!(said, expected, "I1, I3"),
    }
    if let Some(before) = before {
        let now = said.map(|(outcome, _)| outcome);
        prop_assert!(now == Some(before) || status.state == State::Expired, "I2: {before} became {now:?}");
    }
    for number in 1..5 {
        let may = oracle.may_commit(xid, number);
        match ledger.order(branch(xid, number)) {
            Order::Commit(_) => prop_assert!(may, "{}:{} hears COMMIT", xid, number),
            Order::Rollback(_) | Order::RollbackUnlisted => {
                prop_assert!(!may || status.state == State::Expired, "{}:{} hears ROLLBACK", xid, number);
            }
            Order::Wait => prop_assert_eq!(oracle.outcome(xid), None),
        }
    }
    Ok(said.map(|(outcome, _)| outcome).or(before))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn i1_i2_i3_the_ledger_says_what_the_log_says(history in history()) {
        let (mut ledger, mut oracle) = (Ledger::new(), Oracle::default());
        let mut register: BTreeMap<Xid, Option<Outcome>> = BTreeMap::new();
        for (entry, index) in entries(history).iter().zip(1..) {
            let applied = ledger.apply(index, entry);
            oracle.apply(index, entry);
            prop_assert_eq!(applied.answers.len(), entry.commands.len());
            for n in 0..XIDS {
                let xid = born(n * 2_500, n);
                let before = register.get(&xid).copied().flatten();
                register.insert(xid, check(&ledger, &oracle, xid, before)?);
            }
            for n in 0..2_u8 {
                let key = key(&n.to_string());
                let holder = ledger.key_holder(&key).map(|(xid, _)| xid);
                prop_assert_eq!(holder, oracle.holder(&key), "I11: one attempt at a time has the key");
            }
            let recount = ledger.open().filter(|(_, open)| open.is_in_doubt()).count() as u64;
            prop_assert_eq!(ledger.in_doubt_count(), recount);
        }
    }

    #[test]
    fn i17_replicas_are_equal_to_the_byte_whenever_they_were_thawed(
        history in history(),
        cut in any::<prop::sample::Index>(),
    ) {
        let entries = entries(history);
        let cut = cut.index(entries.len());
        let (mut one, mut other) = (Ledger::new(), Ledger::new());
        for (place, entry) in entries.iter().enumerate() {
            let decoded = Entry::decode(&entry.encode()).unwrap();
            let index = place as u64 + 1;
            prop_assert_eq!(one.apply(index, entry), other.apply(index, &decoded));
            if place == cut {
                let mut thawed = Ledger::new();
                thawed.thaw(Thawed::decode(sections(&other)).unwrap());
                other = thawed;
            }
        }
        prop_assert_eq!(sections(&one), sections(&other));
        prop_assert_eq!(format!("{one:?}"), format!("{other:?}"));
    }
}
