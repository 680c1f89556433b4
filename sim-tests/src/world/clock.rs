//! Wall clocks that are off.

use verdict_client::{Clock, LogTime};

use crate::{history::now, plan::Skew};

/// What a true clock shows at the beginning, in milliseconds since the epoch.
const BEGINNING_MS: i64 = 1_900_000_000_000;

/// A clock with an offset and a drift.
#[derive(Clone, Copy, Debug)]
pub(super) struct SkewedClock(pub Skew);

impl Clock for SkewedClock {
    fn now(&self) -> LogTime {
        let elapsed = i64::try_from(now().as_millis()).unwrap_or(i64::MAX);
        let Skew { offset_ms, drift } = self.0;
        let shown = BEGINNING_MS + elapsed + elapsed * drift / 1_000_000 + offset_ms;
        LogTime::from_millis(u64::try_from(shown).unwrap_or(0))
    }
}
