//! How durations are spread: constant memory, however many there are.

use std::{fmt, time::Duration};

use hdrhistogram::Histogram;

/// A histogram of durations between a microsecond and an hour, exact to 1 %.
#[derive(Clone, Debug)]
pub struct Spread(Histogram<u64>);

const MOST_MICROS: u64 = 3_600_000_000;

impl Default for Spread {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, MOST_MICROS, 2).expect("the bounds are right"))
    }
}

impl Spread {
    pub fn record(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(MOST_MICROS);
        self.0.saturating_record(micros);
    }

    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The duration that this share of all does not exceed.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_micros(self.0.value_at_quantile(share))
    }

    #[must_use]
    pub fn most(&self) -> Duration {
        Duration::from_micros(self.0.max())
    }

    /// How many lie in each third of an octave or so: the upper end and the count of each step of a logarithmic scale,
    /// from the first that is not empty to the last.
    #[must_use]
    pub fn steps(&self) -> Vec<(Duration, u64)> {
        let mut steps = Vec::new();
        let mut before = 0;
        let mut end = 100.0_f64;
        while before < MOST_MICROS {
            let to = whole(end).min(MOST_MICROS);
            let count = self.0.count_between(before, to.saturating_sub(1));
            if count > 0 || !steps.is_empty() {
                steps.push((Duration::from_micros(to), count));
            }
            before = to;
            // Twelve steps for each power of ten.
            end *= 10_f64.powf(1.0 / 12.0);
        }
        while steps.last().is_some_and(|(_, count)| *count == 0) {
            steps.pop();
        }
        steps
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 100 and an hour in microseconds")]
fn whole(micros: f64) -> u64 {
    micros.round() as u64
}

impl FromIterator<Duration> for Spread {
    fn from_iter<T: IntoIterator<Item = Duration>>(durations: T) -> Self {
        let mut spread = Self::default();
        durations.into_iter().for_each(|duration| spread.record(duration));
        spread
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |share| self.quantile(share);
        let (p50, p99, p999) = (of(0.5), of(0.99), of(0.999));
        write!(f, "p50 {p50:?}, p99 {p99:?}, p99.9 {p999:?}, most {:?} ({} in all)", self.most(), self.count())
    }
}
