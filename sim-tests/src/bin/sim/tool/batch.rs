//! Many seeds.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use verdict_sim_tests::{
    flaws::Flaw,
    overrides::Overrides,
    page,
    report::Report,
    swarm::{self, Batch, Flow},
};

use super::{
    code, flaw, fresh,
    replay::{seconds, show},
};

#[derive(Args, Debug)]
pub(super) struct Options {
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed; the time of day if it is not given.
    #[arg(long)]
    first: Option<u64>,
    /// How many at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// A seeded bug.
    #[arg(long, value_parser = flaw)]
    flaw: Option<Flaw>,
    /// Goes on after a seed that failed.
    #[arg(long)]
    keep_going: bool,
    /// Writes the run's report into this folder: report.json and report.html.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

/// How often a batch says how far it is, where there is no terminal to draw a bar on.
const SAYS_EVERY: Duration = Duration::from_secs(15);

pub(super) fn run(options: &Options) -> ExitCode {
    let first = options.first.unwrap_or_else(fresh);
    let batch = Batch { first, seeds: options.seeds, jobs: options.jobs, flaw: options.flaw };
    println!("seeds {first} to {}", first.saturating_add(batch.seeds.saturating_sub(1)));
    let begun = Instant::now();
    let mut progress = Progress::new(batch.seeds);
    let totals = swarm::many(&batch, |report| {
        progress.step(report);
        if report.passed() {
            return Flow::Go;
        }
        progress.suspend(|| {
            show(report);
            println!("  {}", swarm::reproduce(report.seed, batch.flaw, &Overrides::default()));
        });
        if options.keep_going { Flow::Go } else { Flow::Stop }
    });
    progress.bar.finish_and_clear();
    let took = begun.elapsed();
    print!("{totals}");
    println!("{} of wall time", seconds(took));
    let wrong = totals.shortcomings();
    for shortcoming in &wrong {
        println!("FAILED: {shortcoming}");
    }
    if let Some(folder) = &options.report {
        match page::write(folder, &batch, &totals, took) {
            Ok(page) => println!("report: {}", page.display()),
            Err(error) => {
                eprintln!("the report can't be written into {}: {error}", folder.display());
                return ExitCode::FAILURE;
            }
        }
    }
    code(wrong.is_empty())
}

/// A bar where somebody looks, a line now and then where nobody does.
struct Progress {
    bar: ProgressBar,
    begun: Instant,
    said: Instant,
    failed: u64,
}

impl Progress {
    fn new(seeds: u64) -> Self {
        let bar = ProgressBar::new(seeds);
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {per_sec}, {eta} left {msg}");
        bar.set_style(style.expect("the template is right"));
        Self { bar, begun: Instant::now(), said: Instant::now(), failed: 0 }
    }

    fn step(&mut self, report: &Report) {
        self.bar.inc(1);
        if !report.passed() {
            self.failed += 1;
            self.bar.set_message(format!("{} FAILED", self.failed));
        }
        if self.bar.is_hidden() && self.said.elapsed() > SAYS_EVERY {
            self.said = Instant::now();
            let (done, all, took) = (self.bar.position(), self.bar.length().unwrap_or(0), self.begun.elapsed());
            eprintln!("{done} of {all} seeds, {} failed, {}", self.failed, seconds(took));
        }
    }

    fn suspend(&self, say: impl FnOnce()) {
        self.bar.suspend(say);
    }
}
