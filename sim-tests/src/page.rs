//! A run's report: `report.json` for machines, `report.html` for people, the same content, and nothing from elsewhere.

mod draw;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;

use crate::{
    chart::Chart,
    overrides::Overrides,
    report::{Shown, Totals},
    spread::Spread,
    swarm::{self, Batch},
};

/// Everything that the report says. Durations are in milliseconds.
#[derive(Debug, Serialize)]
struct Page {
    first: u64,
    seeds: u64,
    flaw: Option<String>,
    passed: bool,
    /// Why not.
    shortcomings: Vec<String>,
    failed: u64,
    simulated_hours: f64,
    wall_seconds: f64,
    jobs: usize,
    dangers: Vec<Danger>,
    counters: Vec<(String, u64)>,
    spreads: Vec<Durations>,
    longest: Option<Longest>,
    failures: Vec<Seed>,
    sample: Vec<Seed>,
}

#[derive(Debug, Serialize)]
struct Danger {
    name: String,
    met: u64,
    least: u64,
}

/// What was blocked longest while a majority was connected.
#[derive(Debug, Serialize)]
struct Longest {
    lasted: f64,
    seed: u64,
    what: String,
}

#[derive(Debug, Serialize)]
struct Durations {
    name: String,
    count: u64,
    p50: f64,
    p99: f64,
    p999: f64,
    most: f64,
    /// The upper end of each step, and how many are in it.
    steps: Vec<(f64, u64)>,
}

#[derive(Debug, Serialize)]
struct Seed {
    seed: u64,
    hash: String,
    violations: Vec<String>,
    reproduce: String,
    chart: Chart,
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

impl Durations {
    fn of(name: &str, spread: &Spread) -> Self {
        Self {
            name: name.to_owned(),
            count: spread.count(),
            p50: millis(spread.quantile(0.5)),
            p99: millis(spread.quantile(0.99)),
            p999: millis(spread.quantile(0.999)),
            most: millis(spread.most()),
            steps: spread.steps().into_iter().map(|(to, count)| (millis(to), count)).collect(),
        }
    }
}

impl Page {
    fn of(batch: &Batch, totals: &Totals, took: Duration) -> Self {
        let seed = |shown: &Shown| Seed {
            seed: shown.seed,
            hash: format!("{:016x}", shown.hash),
            violations: shown.violations.iter().map(ToString::to_string).collect(),
            reproduce: swarm::reproduce(shown.seed, batch.flaw, &Overrides::default()),
            chart: shown.chart.clone(),
        };
        let plain = |name: &&&'static str| !name.starts_with("! ");
        let shortcomings = totals.shortcomings();
        Self {
            first: batch.first,
            seeds: totals.seeds,
            flaw: batch.flaw.map(|flaw| flaw.to_string()),
            passed: shortcomings.is_empty(),
            shortcomings,
            failed: totals.failed,
            simulated_hours: totals.simulated.as_secs_f64() / 3_600.0,
            wall_seconds: took.as_secs_f64(),
            jobs: batch.jobs,
            dangers: totals
                .dangers()
                .into_iter()
                .map(|(name, met, least)| Danger { name: name.trim_start_matches("! ").to_owned(), met, least })
                .collect(),
            counters: totals
                .counters
                .keys()
                .filter(plain)
                .map(|name| ((*name).to_owned(), totals.counters[name]))
                .collect(),
            spreads: totals
                .spreads
                .iter()
                .filter(|(_, spread)| spread.count() > 0)
                .map(|(name, spread)| Durations::of(name, spread))
                .collect(),
            longest: totals.longest.as_ref().map(|(lasted, seed, what)| Longest {
                lasted: millis(*lasted),
                seed: *seed,
                what: what.clone(),
            }),
            failures: totals.failures.iter().map(seed).collect(),
            sample: totals.sample.iter().map(seed).collect(),
        }
    }
}

/// Writes both into a folder, which is made if it is not there; the path of the page.
///
/// # Errors
/// The folder or a file can't be written.
pub fn write(folder: &Path, batch: &Batch, totals: &Totals, took: Duration) -> io::Result<PathBuf> {
    let page = Page::of(batch, totals, took);
    fs::create_dir_all(folder)?;
    fs::write(folder.join("report.json"), serde_json::to_vec_pretty(&page).map_err(io::Error::other)?)?;
    let path = folder.join("report.html");
    fs::write(&path, draw::html(&page))?;
    Ok(path)
}
