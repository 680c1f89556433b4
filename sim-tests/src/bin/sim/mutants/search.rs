//! Looks for one seeded bug, seed by seed: here, or in the patched program.

use std::{path::PathBuf, process::Command, str::FromStr};

use verdict_sim_tests::{
    flaws::Flaw,
    report::Report,
    swarm::{self, Batch, Flow},
};

/// The variable that switches a patched bug on.
const SWITCH: &str = "VERDICT_MUTANT";

/// A seed that found the bug.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Seeds until then, this one included.
    pub(super) tried: u64,
    pub(super) seed: u64,
    pub(super) invariant: String,
    pub(super) what: String,
}

/// The patched program.
#[derive(Debug)]
pub(super) struct Patched(pub(super) PathBuf);

/// Looks for a wrapper's bug.
pub(super) fn wrapped(flaw: Flaw, first: u64, seeds: u64) -> Option<Found> {
    search(Some(flaw), first, seeds, |_| {})
}

/// Looks for the bug that this program has, and says on the output what [`Patched::search`] reads.
pub(super) fn within(first: u64, seeds: u64) {
    // If the program itself dies, this line says of which seed.
    match search(None, first, seeds, |seed| println!("at\t{seed}")) {
        Some(Found { tried, seed, invariant, what }) => {
            println!("found\t{tried}\t{seed}\t{invariant}\t{}", what.replace(['\n', '\t'], " "));
        }
        None => println!("none"),
    }
}

fn search(flaw: Option<Flaw>, first: u64, seeds: u64, mut next: impl FnMut(u64)) -> Option<Found> {
    let mut tried = 0;
    let mut found = None;
    next(first);
    swarm::many(&Batch { first, seeds, jobs: 1, flaw }, |report: &Report| {
        tried += 1;
        match report.violations.first() {
            None => {
                next(report.seed + 1);
                Flow::Go
            }
            Some(violation) => {
                let (invariant, what) = (violation.invariant.to_owned(), violation.what.clone());
                found = Some(Found { tried, seed: report.seed, invariant, what });
                Flow::Stop
            }
        }
    });
    found
}

impl Patched {
    fn output(&self, bug: &str, arguments: &[String]) -> Result<String, String> {
        let mut command = Command::new(&self.0);
        let output = command.arg("mutants").args(arguments).env(SWITCH, bug).output();
        let output = output.map_err(|error| format!("{} does not run: {error}", self.0.display()))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The trace hashes of seeds with no bug switched on.
    pub(super) fn hashes(&self, first: u64, seeds: u64) -> Result<Vec<(u64, u64)>, String> {
        let output = self.output("", &strings(["--hashes", "--first"], first, "--seeds", seeds))?;
        let parse = |line: &str| {
            let (seed, hash) = line.split_once(' ')?;
            Some((seed.parse().ok()?, u64::from_str_radix(hash, 16).ok()?))
        };
        let hashes: Vec<_> = output.lines().filter_map(parse).collect();
        if hashes.len() as u64 == seeds {
            Ok(hashes)
        } else {
            Err(format!("the patched program, with no bug switched on, ended early: {output:?}"))
        }
    }

    /// Looks for a patch's bug.
    pub(super) fn search(&self, bug: &str, first: u64, seeds: u64) -> Result<Option<Found>, String> {
        let output = self.output(bug, &strings(["--within", "--first"], first, "--seeds", seeds))?;
        let mut at = first;
        for line in output.lines() {
            match *line.split('\t').collect::<Vec<_>>().as_slice() {
                ["at", seed] => at = number(seed)?,
                ["found", tried, seed, invariant, what] => {
                    let (tried, seed) = (number(tried)?, number(seed)?);
                    return Ok(Some(Found { tried, seed, invariant: invariant.to_owned(), what: what.to_owned() }));
                }
                ["none"] => return Ok(None),
                _ => {}
            }
        }
        let (invariant, what) = ("the process".to_owned(), "it died".to_owned());
        Ok(Some(Found { tried: at - first + 1, seed: at, invariant, what }))
    }
}

fn strings(before: [&str; 2], first: u64, between: &str, seeds: u64) -> Vec<String> {
    let [flag, name] = before.map(str::to_owned);
    vec![flag, name, first.to_string(), between.to_owned(), seeds.to_string()]
}

fn number(text: &str) -> Result<u64, String> {
    u64::from_str(text).map_err(|_| format!("the patched program said {text:?} where a number belongs"))
}
