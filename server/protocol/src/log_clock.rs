//! Log time: what the leader stamps entries with.
//!
//! Within a term it advances with the leader's monotonic clock, slewed in bounded steps towards the median of the
//! majority's wall clocks. One node whose clock is a year ahead changes nothing: of two clocks the median is the
//! earlier.

use crate::LogTime;

/// Log time may run this much faster or slower than the monotonic clock, in thousandths.
const SLEW_PER_MILLE: u64 = 100;

/// A leader's clock for one term.
#[derive(Clone, Debug)]
pub struct LogClock {
    /// The log time at the monotonic time `since_us`.
    base_us: u64,
    since_us: u64,
    target_us: Option<u64>,
}

impl LogClock {
    /// Starts a term's clock: not before the last entry applied, and at the median wall clock if that is later.
    ///
    /// `monotonic_us` is the leader's own monotonic clock in microseconds, from any origin; `walls` are wall clocks of
    /// at least a majority of the nodes, the leader's included, in milliseconds since the epoch.
    #[must_use]
    pub fn start(last: LogTime, monotonic_us: u64, walls: &mut [u64]) -> Self {
        let start = last.as_millis().max(median(walls).unwrap_or(0));
        Self { base_us: start.saturating_mul(1000), since_us: monotonic_us, target_us: None }
    }

    /// Takes in the majority's wall clocks as they are at `monotonic_us`.
    pub fn steer(&mut self, monotonic_us: u64, walls: &mut [u64]) {
        self.advance(monotonic_us);
        self.target_us = median(walls).map(|wall| wall.saturating_mul(1000));
    }

    /// The log time at `monotonic_us`. Never runs backwards.
    pub fn now(&mut self, monotonic_us: u64) -> LogTime {
        self.advance(monotonic_us);
        LogTime::from_millis(self.base_us / 1000)
    }

    fn advance(&mut self, monotonic_us: u64) {
        let elapsed = monotonic_us.saturating_sub(self.since_us);
        let straight = self.base_us.saturating_add(elapsed);
        let most = elapsed.saturating_mul(SLEW_PER_MILLE) / 1000;
        let target = self.target_us.map(|target| target.saturating_add(elapsed));
        self.base_us = match target {
            Some(target) => target.clamp(straight.saturating_sub(most), straight.saturating_add(most)),
            None => straight,
        };
        self.target_us = target;
        self.since_us = self.since_us.max(monotonic_us);
    }
}

/// The lower median.
fn median(walls: &mut [u64]) -> Option<u64> {
    walls.sort_unstable();
    walls.get(walls.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR_MS: u64 = 365 * 24 * 3_600_000;

    #[test]
    fn one_clock_a_year_ahead_changes_nothing() {
        let mut clock = LogClock::start(LogTime::from_millis(1_000), 0, &mut [2_000, 2_000 + YEAR_MS]);
        assert_eq!(clock.now(0).as_millis(), 2_000);
        clock.steer(1_000_000, &mut [3_000, 3_000, YEAR_MS]);
        assert_eq!(clock.now(2_000_000).as_millis(), 4_000);
    }

    #[test]
    fn it_never_runs_backwards_and_slews_in_bounded_steps() {
        let mut clock = LogClock::start(LogTime::from_millis(1_000_000), 0, &mut [10, 20]);
        let mut last = clock.now(0);
        for second in 1..100 {
            clock.steer(second * 1_000_000, &mut [10, 20, 30]);
            let now = clock.now(second * 1_000_000 + 500_000);
            assert!(now > last, "{now:?} after {last:?}");
            assert!(now.since(last) <= 1_650, "{now:?} after {last:?}");
            last = now;
        }
        assert!(last.as_millis() < 1_000_000 + 92_000, "it slows down towards the majority: {last:?}");
    }

    #[test]
    fn it_slews_however_often_it_is_read() {
        let mut clock = LogClock::start(LogTime::from_millis(1_000), 0, &mut []);
        clock.steer(0, &mut [5_000]);
        for step in 1..=100_000 {
            clock.now(step * 100);
        }
        assert_eq!(clock.now(10_000_000).as_millis(), 12_000);
    }

    #[test]
    fn a_late_reading_of_the_monotonic_clock_does_not_turn_it_back() {
        let mut clock = LogClock::start(LogTime::from_millis(5), 1_000, &mut []);
        let later = clock.now(9_000_000);
        assert_eq!(clock.now(1_000), later);
    }
}
