//! What is kept of a search: the killers, in `sim-tests/seeds`, and the table of the documentation.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use verdict_sim_tests::mutants::{self, How};

use super::{Row, search::Found};

const KILLERS: &str = "sim-tests/seeds/killers";
const TABLE: &str = "docs/mutants.md";

/// A seed for each bug that finds it.
#[derive(Debug, Default)]
pub(super) struct Killers(BTreeMap<u8, (u64, String)>);

impl Killers {
    /// Those that are recorded.
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(root.join(KILLERS)).map_err(|error| format!("{KILLERS}: {error}"))?;
        Ok(Self(mutants::killers(&text).map_err(|error| format!("{KILLERS}: {error}"))?))
    }

    pub(super) fn of(&self, number: u8) -> Option<u64> {
        self.0.get(&number).map(|(seed, _)| *seed)
    }

    pub(super) fn set(&mut self, number: u8, found: Option<Found>) {
        match found {
            Some(Found { seed, invariant, .. }) => drop(self.0.insert(number, (seed, invariant))),
            None => drop(self.0.remove(&number)),
        }
    }

    pub(super) fn write(&self, root: &Path) -> Result<(), String> {
        let mut text = "# Seeded bugs, each with a seed that finds it and the sentence that it breaks first.\n\
                        # Renewed by `sim mutants --record` whenever the plan or the workload has changed.\n"
            .to_owned();
        for (number, (seed, invariant)) in &self.0 {
            let _infallible = writeln!(text, "M{number} {seed} {invariant}");
        }
        fs::write(root.join(KILLERS), text).map_err(|error| format!("{KILLERS}: {error}"))
    }
}

/// One row for the terminal.
pub(super) fn line(row: &Row) -> String {
    let name = row.mutant.name();
    match (&row.found, row.mutant.how) {
        (Some(Found { tried, seed, invariant, what }), _) => {
            let what: String = what.chars().take(160).collect();
            let outdated = if row.outdated { ", not by its recorded killer" } else { "" };
            format!(
                "{name:<4} found after {tried} seeds, {:.0} s, by seed {seed}{outdated}: {invariant}: {what}",
                row.seconds
            )
        }
        (None, How::Not(why)) => format!("{name:<4} not expressible: {why}"),
        (None, _) => format!("{name:<4} NOT FOUND, {:.0} s: {}", row.seconds, row.mutant.sentence),
    }
}

/// Writes the table.
pub(super) fn write_table(root: &Path, rows: &[Row], seeds: u64) -> Result<(), String> {
    let mut text = format!(
        "# Seeded bugs\n\n\
         Written by `sim mutants --record`: how many fresh seeds it takes until each is found, {seeds} at most. A wrapper \
         sits around a public seam of the product; a patch (sim-tests/mutants) is applied to a scratch copy that is built \
         apart, and switched on at run time. M0 changes nothing: the patched program with no bug switched on gives the \
         same traces as the plain one, and passes.\n\n\
         | | what is wrong | put in by | seeds | found by |\n|---|---|---|---|---|\n"
    );
    for row in rows {
        let (name, sentence) = (row.mutant.name(), row.mutant.sentence);
        let (kind, seeds, by) = match (row.mutant.how, &row.found) {
            (How::Not(why), _) => ("—", "—".to_owned(), why.to_owned()),
            (how, found) => {
                let kind = if matches!(how, How::Patch) { "patch" } else { "wrapper" };
                match found {
                    Some(found) => (kind, found.tried.to_string(), found.invariant.clone()),
                    None => (kind, "**not found**".to_owned(), String::new()),
                }
            }
        };
        let _infallible = writeln!(text, "| {name} | {sentence} | {kind} | {seeds} | {by} |");
    }
    fs::write(root.join(TABLE), text).map_err(|error| format!("{TABLE}: {error}"))
}
