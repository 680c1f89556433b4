//! `sim mutants`: how many seeds it takes until each seeded bug is found.

mod records;
mod scratch;
mod search;

use std::{
    path::Path,
    process::ExitCode,
    sync::{Mutex, PoisonError},
    thread,
    time::Instant,
};

use verdict_sim_tests::{
    mutants::{self, How, Mutant},
    swarm,
};

use records::Killers;
use search::{Found, Patched};

/// Seeds on which the patched program, with no bug switched on, must do what this one does.
const CONTROLS: u64 = 20;

/// What to do with the seeded bugs.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Within how many seeds each must be found.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first seed; the time of day if it is not given.
    #[arg(long)]
    first: Option<u64>,
    /// How many are looked for at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Only these, by number: M1,M16
    #[arg(long, value_delimiter = ',', value_parser = named)]
    only: Vec<&'static Mutant>,
    /// Only says whether the patches fit; builds nothing.
    #[arg(long)]
    check: bool,
    /// Tries the recorded killer of each first: quick. Fresh seeds only where it does not kill any more.
    #[arg(long)]
    recorded: bool,
    /// Records the killers that were found, and writes the table into the documentation.
    #[arg(long)]
    record: bool,
    /// Looks for the bug that this very program has been built and told to have.
    #[arg(long, hide = true)]
    within: bool,
    /// Shows the trace hashes of the first seeds.
    #[arg(long, hide = true)]
    hashes: bool,
}

fn named(name: &str) -> Result<&'static Mutant, String> {
    mutants::of_name(name)
        .ok_or_else(|| format!("no seeded bug {name:?}; they are called M1 to M{}", mutants::ALL.len()))
}

/// What came of one.
struct Row {
    mutant: &'static Mutant,
    found: Option<Found>,
    /// It was to be found by its recorded killer, and was not.
    outdated: bool,
    seconds: f64,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    match try_run(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn try_run(arguments: &Arguments) -> Result<bool, String> {
    let first = arguments.first.unwrap_or_else(super::tool::fresh);
    if arguments.hashes {
        for seed in first..first + arguments.seeds {
            println!("{seed} {:016x}", swarm::one(seed, None, false).hash);
        }
        return Ok(true);
    }
    if arguments.within {
        search::within(first, arguments.seeds);
        return Ok(true);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("sim-tests lies in no workspace")?;
    if arguments.check {
        let count = scratch::check(root)?;
        println!("{count} patches fit");
        return Ok(true);
    }
    let chosen: Vec<&'static Mutant> = match arguments.only.as_slice() {
        [] => mutants::ALL.iter().collect(),
        only => only.to_vec(),
    };
    let patched = if chosen.iter().any(|mutant| matches!(mutant.how, How::Patch)) {
        let begun = Instant::now();
        let patched = Patched(scratch::build(root)?);
        println!("patched and built in {:.0} s", begun.elapsed().as_secs_f64());
        control(&patched, first)?;
        Some(patched)
    } else {
        None
    };
    let killers = if arguments.recorded { Killers::read(root)? } else { Killers::default() };
    let begun = Instant::now();
    let rows = look_for(&chosen, arguments, first, patched.as_ref(), &killers)?;
    println!("{:.0} s of wall time", begun.elapsed().as_secs_f64());
    if rows.iter().any(|row| row.outdated) {
        println!("recorded killers that kill no more: renew them with `sim mutants --record`");
    }
    if arguments.record {
        let mut killers = if arguments.only.is_empty() { Killers::default() } else { Killers::read(root)? };
        for row in &rows {
            killers.set(row.mutant.number, row.found.clone());
        }
        killers.write(root)?;
        if arguments.only.is_empty() {
            records::write_table(root, &rows, arguments.seeds)?;
        }
    }
    Ok(rows.iter().all(|row| row.found.is_some() || matches!(row.mutant.how, How::Not(_))))
}

/// M0: with no bug switched on, the patched program does the same as this one, and finds nothing.
fn control(patched: &Patched, first: u64) -> Result<(), String> {
    let theirs = patched.hashes(first, CONTROLS)?;
    for (seed, theirs) in theirs {
        let ours = swarm::one(seed, None, false);
        if let Some(violation) = ours.violations.first() {
            return Err(format!("M0 is not clean: seed {seed} finds {violation}"));
        }
        if ours.hash != theirs {
            return Err(format!(
                "with no bug switched on, the patched program does something else with seed {seed}: {theirs:016x}, not \
                 {:016x}: a patch changes more than its bug",
                ours.hash
            ));
        }
    }
    println!("M0   changes nothing in {CONTROLS} seeds, and passes");
    Ok(())
}

fn look_for(
    chosen: &[&'static Mutant],
    arguments: &Arguments,
    first: u64,
    patched: Option<&Patched>,
    killers: &Killers,
) -> Result<Vec<Row>, String> {
    let next = Mutex::new(chosen.iter().enumerate());
    let rows = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let Some((at, mutant)) = lock(&next).next() else { return };
                    let row = one(mutant, arguments.seeds, first, patched, killers);
                    if let Ok(row) = &row {
                        println!("{}", records::line(row));
                    }
                    lock(&rows).push((at, row));
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_by_key(|(at, _)| *at);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn one(
    mutant: &'static Mutant,
    seeds: u64,
    first: u64,
    patched: Option<&Patched>,
    killers: &Killers,
) -> Result<Row, String> {
    let begun = Instant::now();
    let look = |first, seeds| match (mutant.how, patched) {
        (How::Wrapper(flaw), _) => Ok(search::wrapped(flaw, first, seeds)),
        (How::Patch, Some(patched)) => patched.search(&mutant.name(), first, seeds),
        (How::Patch, None) | (How::Not(_), _) => Ok(None),
    };
    let recorded = killers.of(mutant.number);
    let mut found = match recorded {
        Some(seed) => look(seed, 1)?,
        None => None,
    };
    let outdated = recorded.is_some() && found.is_none();
    if found.is_none() {
        found = look(first, seeds)?;
    }
    Ok(Row { mutant, found, outdated, seconds: begun.elapsed().as_secs_f64() })
}
