//! Wall clocks that are off.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use verdict_client::{Clock, LogTime};

use crate::{history::now, plan::Skew};

/// What a true clock shows at the beginning, in milliseconds since the epoch.
pub const BEGINNING_MS: i64 = 1_900_000_000_000;

/// A clock with an offset and a drift, and by how many milliseconds it has jumped.
#[derive(Clone, Debug)]
pub(super) struct SkewedClock {
    pub skew: Skew,
    pub jump: Arc<AtomicI64>,
    /// It shows only multiples of so many milliseconds.
    pub step_ms: i64,
}

impl Clock for SkewedClock {
    fn now(&self) -> LogTime {
        let elapsed = i64::try_from(now().as_millis()).unwrap_or(i64::MAX);
        let Skew { offset_ms, drift } = self.skew;
        let shown =
            BEGINNING_MS + elapsed + elapsed * drift / 1_000_000 + offset_ms + self.jump.load(Ordering::Relaxed);
        LogTime::from_millis(u64::try_from(shown - shown % self.step_ms).unwrap_or(0))
    }
}
