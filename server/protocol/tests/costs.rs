//! What each way to commit costs, counted while the coordinator drives it: messages with the participants, forced writes,
//! appends, and how long it takes in units of a round trip `r`, a forced write `f` and an append `a`. The table in
//! docs/protocol.md is held against it, formula by formula.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use verdict_protocol::{
    BranchId, Brought, ClusterId, Command, Conclusion, Coordinator, Effect, Entry, Event, Ledger, ListedBranch,
    LogTime, NewBranch, Outcome, Patience, ProposalId, Reply, Request, Rules, Secret, Settlement, Token, Vote, Xid,
};

const START: LogTime = LogTime::from_millis(1_700_000_000_000);
const PAGE: &str = include_str!("../../../docs/protocol.md");

/// How long things take, in any unit.
#[derive(Clone, Copy, Debug)]
struct Pace {
    hop: u64,
    force: u64,
    append: u64,
}

/// A way to commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Asked,
    Brought,
    OneReads,
    AllRead,
    LastResource,
    OnePhase,
}

/// The rows of the table, by how each begins.
const WAYS: [(&str, Way); 6] = [
    ("asked by Verdict", Way::Asked),
    ("votes brought along", Way::Brought),
    ("asked, one only reads", Way::OneReads),
    ("asked, all only read", Way::AllRead),
    ("last resource", Way::LastResource),
    ("one phase", Way::OnePhase),
];

/// What was counted. Times run from the first message to a participant, or from the Commit call if that comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    decided: u64,
    held: u64,
    acknowledged: u64,
    messages: u64,
    forced: u64,
    appends: u64,
}

/// Something that happens, in the order of time and then of what caused it.
#[derive(Clone, Debug)]
enum Happens {
    Appended(ProposalId, Vec<Command>),
    Asked(BranchId),
    Delegated(BranchId),
    Told(BranchId),
    /// The participant has forced what it answers.
    Forced(BranchId, Event),
    Heard(Event),
    /// The client prepares a branch itself, and all are; it hears the outcome.
    ClientCommits,
    ClientHears,
}

struct Run {
    way: Way,
    branches: u32,
    pace: Pace,
    now: u64,
    due: BTreeMap<(u64, u64), Happens>,
    last: u64,
    ledger: Ledger,
    index: u64,
    coordinator: Coordinator,
    cost: Cost,
    locked: BTreeMap<BranchId, u64>,
    prepared: BTreeSet<BranchId>,
}

fn xid() -> Xid {
    Xid::new(START, 1, 7)
}

impl Run {
    fn of(way: Way, branches: u32, pace: Pace) -> Cost {
        let patience = Patience { least_vote_ms: 1, grace_ms: 60_000, settle_grace_ms: 60_000 };
        let mut run = Self {
            way,
            branches: if way == Way::OnePhase { 1 } else { branches },
            pace,
            now: 0,
            due: BTreeMap::new(),
            last: 0,
            ledger: Ledger::new(),
            index: 0,
            coordinator: Coordinator::new(patience),
            cost: Cost::default(),
            locked: BTreeMap::new(),
            prepared: BTreeSet::new(),
        };
        let (cluster, secret) = (ClusterId([1; 16]), Secret([1; 32]));
        run.apply(vec![Command::Found { cluster, secret, rules: Rules::default() }]);
        run.hears(Event::Lead);
        if way == Way::Brought {
            for number in 1..=run.branches {
                run.sends(Happens::Asked(BranchId { xid: xid(), number }));
            }
        } else {
            run.commits();
        }
        while let Some(((at, _), happens)) = run.due.pop_first() {
            run.now = at;
            run.happens(happens);
        }
        assert_eq!(run.ledger.outcome(xid()).map(|outcome| outcome.value()), Some(Outcome::Committed), "{way:?}");
        assert!(run.locked.is_empty(), "{way:?}: {:?} are locked", run.locked);
        run.cost
    }

    fn later(&mut self, after: u64, happens: Happens) {
        self.last += 1;
        self.due.insert((self.now + after, self.last), happens);
    }

    /// A message to or from a participant.
    fn sends(&mut self, happens: Happens) {
        self.cost.messages += 1;
        self.later(self.pace.hop, happens);
    }

    fn commits(&mut self) {
        let payload = bytes::Bytes::new();
        let listed = |number| {
            let branch = NewBranch { number, resource: "db".try_into().unwrap(), payload: payload.clone() };
            let brought = Brought { vote: Vote::Prepared, reason: None, proven: true };
            ListedBranch { branch, vote: (self.way == Way::Brought).then_some(brought) }
        };
        let delegate = matches!(self.way, Way::LastResource | Way::OnePhase).then_some(self.branches);
        let branches = (1..=self.branches).map(listed).collect();
        let request = Request::Commit { xid: xid(), branches, vote_timeout_ms: 60_000, delegate, session: None };
        self.hears(Event::Request { token: Token(1), request });
    }

    fn apply(&mut self, commands: Vec<Command>) -> Vec<verdict_protocol::Answer> {
        self.index += 1;
        let applied = self.ledger.apply(self.index, &Entry { at: START, commands });
        self.hears(Event::Applied { changes: applied.changes });
        applied.answers
    }

    fn hears(&mut self, event: Event) {
        for effect in self.coordinator.handle(START, event, &self.ledger) {
            match effect {
                Effect::Propose { proposal, commands } => {
                    self.cost.appends += 1;
                    self.later(self.pace.append, Happens::Appended(proposal, commands));
                }
                Effect::Ask { branch, .. } => self.sends(Happens::Asked(branch)),
                Effect::Delegate { branch, .. } => self.sends(Happens::Delegated(branch)),
                Effect::Tell { branch, .. } => {
                    self.decides();
                    self.sends(Happens::Told(branch));
                }
                Effect::Reply { reply: Reply::Decided { .. }, .. } => {
                    self.decides();
                    self.later(self.pace.hop, Happens::ClientHears);
                }
                Effect::Reply { reply, .. } => panic!("{:?}: {reply:?}", self.way),
                // It rides along with other entries.
                Effect::ProposeLater { .. } | Effect::WakeAt(_) | Effect::Report(_) => {}
            }
        }
    }

    fn decides(&mut self) {
        if self.cost.decided == 0 {
            (self.cost.decided, self.cost.acknowledged) = (self.now, self.now);
        }
    }

    fn free(&mut self, branch: BranchId) {
        let locked = self.locked.remove(&branch).unwrap();
        self.cost.held = self.cost.held.max(self.now - locked);
    }

    fn forces(&mut self, branch: BranchId, event: Event) {
        self.cost.forced += 1;
        self.later(self.pace.force, Happens::Forced(branch, event));
    }

    fn only_reads(&self, branch: BranchId) -> bool {
        self.way == Way::AllRead || (self.way == Way::OneReads && branch.number == 1)
    }

    fn happens(&mut self, happens: Happens) {
        match happens {
            Happens::Appended(proposal, commands) => {
                let answers = self.apply(commands);
                self.hears(Event::Answered { proposal, answers });
            }
            Happens::Asked(branch) if self.only_reads(branch) => {
                self.sends(Happens::Heard(Event::Voted { branch, vote: Vote::ReadOnly, reason: None }));
            }
            Happens::Asked(branch) => {
                self.locked.insert(branch, self.now);
                self.forces(branch, Event::Voted { branch, vote: Vote::Prepared, reason: None });
            }
            Happens::Delegated(branch) => {
                self.locked.insert(branch, self.now);
                self.forces(branch, Event::Concluded { branch, conclusion: Conclusion::Committed });
            }
            Happens::Told(branch) => {
                self.forces(branch, Event::Acknowledged { branch, settlement: Settlement::Done });
            }
            Happens::Forced(branch, answer) => {
                if !matches!(answer, Event::Voted { .. }) {
                    self.free(branch);
                }
                self.sends(Happens::Heard(answer));
            }
            // What the client hears who drives his branches himself.
            Happens::Heard(Event::Voted { branch, .. }) if self.way == Way::Brought => {
                self.prepared.insert(branch);
                if self.prepared.len() as u64 == u64::from(self.branches) {
                    self.later(self.pace.hop, Happens::ClientCommits);
                }
            }
            Happens::Heard(event) => {
                if matches!(event, Event::Acknowledged { .. }) {
                    self.cost.acknowledged = self.now;
                }
                if self.way != Way::Brought {
                    self.hears(event);
                }
            }
            Happens::ClientCommits => self.commits(),
            Happens::ClientHears => {
                for branch in std::mem::take(&mut self.prepared) {
                    self.sends(Happens::Told(branch));
                }
            }
        }
    }
}

/// What a formula of the table comes to: sums of `3r`, `r/2`, `4N`, `7` and `max(x, y)`.
fn value(formula: &str, names: &BTreeMap<char, u64>) -> u64 {
    let (mut sum, mut sign, mut depth, mut from) = (0_i64, 1_i64, 0_i32, 0);
    let mut add = |term: &str, sign: i64| sum += sign * i64::try_from(term_value(term.trim(), names)).unwrap();
    for (place, letter) in formula.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            '+' | '−' if depth == 0 => {
                add(&formula[from..place], sign);
                (sign, from) = (if letter == '+' { 1 } else { -1 }, place + letter.len_utf8());
            }
            _ => {}
        }
    }
    add(&formula[from..], sign);
    u64::try_from(sum).unwrap()
}

fn term_value(term: &str, names: &BTreeMap<char, u64>) -> u64 {
    if let Some(inner) = term.strip_prefix("max(").and_then(|rest| rest.strip_suffix(')')) {
        let (one, other) = inner.split_once(", ").unwrap();
        return value(one, names).max(value(other, names));
    }
    let (term, divisor) = term.strip_suffix("/2").map_or((term, 1), |term| (term, 2));
    let digits = term.trim_end_matches(char::is_alphabetic);
    let factor: u64 = if digits.is_empty() { 1 } else { digits.parse().unwrap() };
    let name = term[digits.len()..].chars().next();
    factor * name.map_or(1, |name| names[&name]) / divisor
}

/// The cells of the table's row that begins so, without its name.
fn row(name: &str) -> Vec<&'static str> {
    let line = PAGE.lines().find(|line| line.starts_with(&format!("| {name} |")));
    let line = line.unwrap_or_else(|| panic!("docs/protocol.md has no row {name:?}"));
    line.trim_matches('|').split('|').skip(1).map(str::trim).collect()
}

#[test]
fn the_table_of_the_page_is_what_is_counted() {
    let paces = [(500, 2_000, 3_000), (500, 2_000, 10), (5_000, 100, 9_000), (10, 7_000, 40), (300, 300, 601)];
    for (name, way) in WAYS {
        let cells = row(name);
        for ((hop, force, append), branches) in paces.into_iter().flat_map(|pace| [(pace, 2), (pace, 3), (pace, 8)]) {
            let cost = Run::of(way, branches, Pace { hop, force, append });
            let names = [('r', hop * 2), ('f', force), ('a', append), ('N', u64::from(branches))].into();
            let counted = [cost.decided, cost.held, cost.acknowledged, cost.messages, cost.forced, cost.appends];
            for (cell, counted) in cells.iter().zip(counted) {
                let says = value(cell, &names);
                assert_eq!(says, counted, "{name}: {cell} with {names:?}: {cost:?}");
            }
            assert_eq!(cells.len(), counted.len(), "{name}");
        }
    }
}

/// With the figures of the page that has them: 5 and 6 ms to the decision, 7 and 8 ms of locks, 8 and 9 ms in all.
#[test]
fn next_to_the_textbook() {
    let pace = Pace { hop: 500, force: 2_000, append: 3_000 };
    let names = [('r', 1_000), ('f', 2_000), ('a', 3_000), ('N', 3)].into();
    let classic: Vec<u64> = row("classic 2PC, one disk").into_iter().map(|cell| value(cell, &names)).collect();
    assert_eq!(classic, [5_000, 7_000, 8_000, 12, 7, 0]);
    let asked = Run::of(Way::Asked, 3, pace);
    let expected = Cost { decided: 6_000, held: 8_000, acknowledged: 9_000, messages: 12, forced: 6, appends: 2 };
    assert_eq!(asked, expected);
}
