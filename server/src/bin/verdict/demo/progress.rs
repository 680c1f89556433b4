//! What is seen while it runs: a bar, and a line for each thing that happens. On standard error.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{MissedTickBehavior, interval};
use verdict_client::ClusterStatus;

use super::{board::Board, oracle::Oracle};
use crate::client::grouped;

const REDRAW_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(super) fn new(total: usize) -> Self {
        let bar = ProgressBar::new(total as u64);
        let style = ProgressStyle::with_template("{bar:28} {pos:>5}/{len}  {msg}").expect("the template is valid");
        bar.set_style(style.progress_chars("━╸ "));
        Self { bar }
    }

    /// A line above the bar.
    pub(super) fn line(&self, board: &Board, what: &str) {
        let at = board.start().elapsed().as_secs_f64();
        self.plain(&format!("{at:6.2} s  {what}"));
    }

    pub(super) fn plain(&self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }

    /// Redraws until it is dropped.
    pub(super) async fn run(&self, board: &Board, oracle: &Oracle) {
        let mut ticks = interval(REDRAW_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let asked = Instant::now();
            let nodes = oracle.all().await;
            self.draw(board, nodes.into_iter().flatten());
            // A node that does not answer holds this up, not the bookings.
            tracing::trace!(took = ?asked.elapsed(), "asked all nodes");
        }
    }

    fn draw(&self, board: &Board, nodes: impl Iterator<Item = ClusterStatus>) {
        let leader = nodes.filter(|status| status.leader == Some(status.node)).max_by_key(|status| status.term);
        let counts = board.counts();
        let (leads, in_doubt) = match leader {
            Some(status) => (format!("node {} leads", status.node), grouped(status.in_doubt)),
            None => ("no leader".to_owned(), "?".to_owned()),
        };
        self.bar.set_position(counts.done as u64);
        self.bar.set_message(format!(
            "{:>4} commits/s  {} aborted  {in_doubt} in doubt  {leads}",
            board.rate(),
            grouped(counts.aborted as u64),
        ));
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
