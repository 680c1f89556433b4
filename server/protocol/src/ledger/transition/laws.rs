//! What must hold of the table as a whole, whatever its rows say.

use super::*;

const VOTES: [Vote; 3] = [Vote::Prepared, Vote::ReadOnly, Vote::Refused];
const OUTCOMES: [Outcome; 2] = [Outcome::Committed, Outcome::Aborted];
const FITS: [Fit; 6] = [
    Fit::Same,
    Fit::New,
    Fit::Contradicts,
    Fit::TooMany { limit: 4 },
    Fit::NoRoom { limit: 9 },
    Fit::Unproven { number: 1 },
];
const SHUT: [Door; 3] = [Door::Expired, Door::Skewed { ahead_ms: 2, allowed_ms: 1 }, Door::Full { limit: 1 }];

fn standings() -> Vec<Standing> {
    let unknown = [Door::Open].into_iter().chain(SHUT).map(Standing::Unknown);
    let decided = OUTCOMES.into_iter().flat_map(|outcome| [Standing::Decided(outcome), Standing::Ended(outcome)]);
    unknown.chain([Standing::Active, Standing::Voting, Standing::Delegated]).chain(decided).collect()
}

fn events() -> Vec<Event> {
    let mut events = vec![Event::Begin, Event::Abort, Event::PresumeAbort, Event::Settle];
    events.extend(FITS.into_iter().flat_map(|fit| [Event::Enlist(fit), Event::Prepare(fit)]));
    for (committed, known) in [(true, true), (true, false), (false, true), (false, false)] {
        events.push(Event::Conclude { committed, known });
    }
    for vote in VOTES {
        for earlier in VOTES.into_iter().map(Some).chain([None]) {
            events.push(Event::Vote { vote, known: true, earlier });
        }
        events.push(Event::Vote { vote, known: false, earlier: None });
    }
    events
}

fn every_pair(law: impl Fn(Standing, Event, Ruling)) {
    for standing in standings() {
        for event in events() {
            law(standing, event, rule(standing, event));
        }
    }
}

#[test]
fn a_decided_outcome_never_changes() {
    every_pair(|standing, event, ruling| {
        if matches!(standing, Standing::Decided(_) | Standing::Ended(_)) {
            let changes = matches!(
                ruling,
                Ruling::Register
                    | Ruling::Close
                    | Ruling::Record
                    | Ruling::Abort
                    | Ruling::AbortAndRefuse(_)
                    | Ruling::Conclude
            );
            assert!(!changes, "{standing:?} {event:?} {ruling:?}");
        }
    });
}

#[test]
fn m50_what_was_delegated_is_decided_by_the_delegate_alone() {
    every_pair(|standing, event, ruling| {
        let by_delegate = matches!(event, Event::Conclude { known: true, .. });
        if standing == Standing::Delegated {
            assert_eq!(ruling == Ruling::Conclude, by_delegate, "{event:?} {ruling:?}");
            let changes = matches!(ruling, Ruling::Register | Ruling::Close | Ruling::Record | Ruling::Abort);
            assert!(!changes && !matches!(ruling, Ruling::AbortAndRefuse(_)), "{event:?} {ruling:?}");
        } else {
            assert_ne!(ruling, Ruling::Conclude, "{standing:?} {event:?}");
        }
    });
}

#[test]
fn what_is_expired_never_opens_and_is_never_decided() {
    every_pair(|standing, event, ruling| {
        if standing == Standing::Unknown(Door::Expired) {
            assert!(matches!(ruling, Ruling::Refuse(Refusal::Expired) | Ruling::Repeat), "{event:?} {ruling:?}");
        }
    });
}

#[test]
fn a_shut_door_lets_nothing_begin() {
    every_pair(|standing, event, ruling| {
        if let Standing::Unknown(door) = standing
            && door != Door::Open
        {
            assert!(!matches!(ruling, Ruling::Register | Ruling::Close), "{door:?} {event:?} {ruling:?}");
        }
    });
}

#[test]
fn a_refused_prepare_of_something_new_is_recorded_unless_it_may_be_asked_again() {
    for door in SHUT.into_iter().filter(|door| *door != Door::Expired) {
        for fit in FITS {
            let ruling = rule(Standing::Unknown(door), Event::Prepare(fit));
            assert!(matches!(ruling, Ruling::AbortAndRefuse(_)), "{door:?} {fit:?} {ruling:?}");
        }
    }
}

#[test]
fn a_vote_never_opens_a_transaction_and_counts_only_for_a_branch_of_an_undecided_one() {
    every_pair(|standing, event, ruling| {
        let Event::Vote { vote, known, earlier } = event else { return };
        assert!(!matches!(ruling, Ruling::Register | Ruling::Close | Ruling::Abort), "{standing:?} {event:?}");
        let undecided = matches!(standing, Standing::Active | Standing::Voting);
        let counts = undecided && known && (earlier.is_none() || vote == Vote::Refused);
        assert_eq!(ruling == Ruling::Record, counts, "{standing:?} {event:?} {ruling:?}");
    });
}

#[test]
fn only_prepare_closes_a_list_and_only_once() {
    every_pair(|standing, event, ruling| {
        if ruling == Ruling::Close {
            assert!(matches!(event, Event::Prepare(Fit::Same | Fit::New)), "{event:?}");
            assert!(matches!(standing, Standing::Unknown(Door::Open) | Standing::Active), "{standing:?}");
        }
    });
}

#[test]
fn nothing_is_enlisted_into_a_closed_list() {
    every_pair(|standing, event, ruling| {
        if ruling == Ruling::Register {
            assert!(matches!(standing, Standing::Unknown(Door::Open) | Standing::Active), "{standing:?} {event:?}");
        }
    });
}

#[test]
fn only_the_decided_is_settled_and_only_the_unknown_is_presumed() {
    every_pair(|standing, event, ruling| {
        if ruling == Ruling::Settle {
            assert!(matches!(standing, Standing::Decided(_)), "{standing:?} {event:?}");
        }
        if event == Event::PresumeAbort && ruling == Ruling::Abort {
            assert!(matches!(standing, Standing::Unknown(_)), "{standing:?}");
        }
    });
}

#[test]
fn a_repeat_of_what_took_effect_is_no_error() {
    for (first, then) in [
        (Event::Begin, Standing::Active),
        (Event::Enlist(Fit::Same), Standing::Active),
        (Event::Prepare(Fit::Same), Standing::Voting),
        (Event::Abort, Standing::Decided(Outcome::Aborted)),
        (Event::PresumeAbort, Standing::Ended(Outcome::Aborted)),
        (Event::Settle, Standing::Ended(Outcome::Committed)),
    ] {
        assert_eq!(rule(then, first), Ruling::Repeat, "{first:?} {then:?}");
    }
}
