//! Log time is the time of the majority's clocks, whatever one clock shows.

use super::Evidence;
use crate::world::BEGINNING_MS;

/// By how much honest clocks are off and drift apart in a run, in milliseconds, with room for the slew.
const OFF_MS: u64 = 6_000;

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let at = evidence.oracle.at();
    let end = BEGINNING_MS.unsigned_abs() + u64::try_from(evidence.end.as_millis()).unwrap_or(u64::MAX);
    if at == 0 || (BEGINNING_MS.unsigned_abs() - OFF_MS..=end + OFF_MS).contains(&at) {
        return Vec::new();
    }
    vec![format!("log time is {at} ms, and the run went from {BEGINNING_MS} to {end}")]
}
