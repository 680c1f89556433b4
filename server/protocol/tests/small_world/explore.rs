//! Visits every state that a scenario can reach, each once.

use std::{
    collections::{HashMap, VecDeque},
    fmt::{self, Write as _},
    rc::Rc,
    time::Duration,
};

use verdict_protocol::Outcome;

use crate::{
    action::Action,
    heal::{Healed, UnderWay, heal},
    scenario::{CLIENTS, Scenario},
    world::World,
};

/// What a walk saw.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub states: usize,
    pub steps: usize,
    /// What became of transactions when each state healed, and all that was under way arrived.
    pub committed: usize,
    pub aborted: usize,
    /// Aborted because the client had not asked to commit.
    pub never_asked: usize,
    /// Nothing was ever decided: the client never got through.
    pub undecided: usize,
    pub took: Duration,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, steps, committed, aborted, never_asked, undecided, took } = self;
        write!(f, "{states} states, {steps} steps in {:.1} s; healed to ", took.as_secs_f64())?;
        write!(f, "COMMITTED {committed}, ABORTED {aborted}, never asked {never_asked}, undecided {undecided}")
    }
}

impl Seen {
    fn count(&mut self, world: &World, outcomes: [Option<Outcome>; CLIENTS]) {
        for (client, outcome) in outcomes.into_iter().enumerate() {
            if world.scenario.clients[client].commits.is_empty() {
                continue;
            }
            match outcome {
                Some(Outcome::Committed) => self.committed += 1,
                Some(Outcome::Aborted) if world.clients[client].commits_sent == 0 => self.never_asked += 1,
                Some(Outcome::Aborted) => self.aborted += 1,
                None => self.undecided += 1,
            }
        }
    }
}

/// How to walk.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// Breadth first finds the shortest trace, depth first needs little memory.
    pub breadth_first: bool,
    /// A walk that would see more fails: the scenario has outgrown its purpose.
    pub most_states: usize,
}

/// Walks the whole scenario.
///
/// # Errors
/// The trace of a state that breaks an invariant, readable.
pub fn explore(scenario: Scenario, walk: Walk) -> Result<Seen, String> {
    let scenario = Rc::new(scenario);
    let start = World::new(&scenario);
    let began = clock();
    let mut seen = Seen::default();
    // Which state each was first reached from, and how.
    let mut parents: HashMap<u64, Option<(u64, Action)>> = HashMap::new();
    let mut ahead = VecDeque::from([(start.digest(), start)]);
    parents.insert(ahead[0].0, None);
    let mut actions = Vec::new();
    let mut healed = Healed::new();
    while let Some((digest, world)) = if walk.breadth_first { ahead.pop_front() } else { ahead.pop_back() } {
        seen.states += 1;
        if seen.states > walk.most_states {
            return Err(trace(&scenario, &parents, digest, None, &format!("more than {} states", walk.most_states)));
        }
        world.actions(&mut actions);
        for action in &actions {
            seen.steps += 1;
            let next =
                world.after(*action).map_err(|wrong| trace(&scenario, &parents, digest, Some(*action), &wrong))?;
            let next_digest = next.digest();
            if let std::collections::hash_map::Entry::Vacant(vacant) = parents.entry(next_digest) {
                vacant.insert(Some((digest, *action)));
                ahead.push_back((next_digest, next));
            }
        }
        let wrong = |wrong: String| trace(&scenario, &parents, digest, None, &wrong);
        heal(&world, UnderWay::IsLost, &mut healed).map_err(wrong)?;
        seen.count(&world, heal(&world, UnderWay::Arrives, &mut healed).map_err(wrong)?);
    }
    seen.took = began.elapsed();
    Ok(seen)
}

#[allow(clippy::disallowed_methods, reason = "how long a walk takes is printed, and nothing depends on it")]
fn clock() -> std::time::Instant {
    std::time::Instant::now()
}

/// Replays the way to a state, and tells each step.
fn trace(
    scenario: &Rc<Scenario>,
    parents: &HashMap<u64, Option<(u64, Action)>>,
    last: u64,
    breaking: Option<Action>,
    wrong: &str,
) -> String {
    let mut way: Vec<Action> = breaking.into_iter().collect();
    let mut at = last;
    while let Some(Some((parent, action))) = parents.get(&at) {
        way.push(*action);
        at = *parent;
    }
    let mut world = World::new(scenario);
    let mut text = format!("{wrong}\n");
    for (step, action) in way.iter().rev().enumerate() {
        world.notes = Some(Vec::new());
        // The last step of a trace may be the one that fails.
        let failed = world.step(*action).is_err();
        let notes = world.notes.take().unwrap_or_default().join("; ");
        let arrow = if notes.is_empty() { "" } else { " → " };
        let mark = if failed { " ✗" } else { "" };
        writeln!(text, "  {:2}. {action}{arrow}{notes}{mark}", step + 1).expect("writing to a string");
    }
    if breaking.is_none() {
        text.push_str("      and then nothing fails any more\n");
    }
    text
}
