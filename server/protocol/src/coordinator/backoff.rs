//! How long to wait before a participant is asked or told again.

use crate::BranchId;

/// The first retry comes about so long after the failure, in milliseconds.
pub const FIRST_RETRY_MS: u64 = 50;
/// Later ones never wait longer than this, in milliseconds: it bounds how long a participant that is back stays in
/// doubt.
pub const LONGEST_RETRY_MS: u64 = 2_000;

/// Exponential backoff with jitter: attempt `n` waits between half and all of `FIRST_RETRY_MS · 2ⁿ`.
///
/// The jitter is a hash of branch and attempt: as spread as chance over branches, and the same in every replay.
#[derive(Clone, Copy, Debug)]
pub struct Backoff;

impl Backoff {
    /// Milliseconds to wait after failed attempt number `attempt` (the first is 0).
    #[must_use]
    pub fn delay_ms(branch: BranchId, attempt: u32) -> u64 {
        let full = FIRST_RETRY_MS.saturating_mul(1 << attempt.min(16)).min(LONGEST_RETRY_MS);
        let (high, low) = branch.xid.as_bytes().split_at(8);
        let half = |bytes: &[u8]| bytes.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        let seed = half(high) ^ half(low).rotate_left(17) ^ (u64::from(branch.number) << 32) ^ u64::from(attempt);
        full / 2 + mix(seed) % (full / 2 + 1)
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LogTime, Xid};

    #[test]
    fn delays_grow_to_a_bound_and_differ_between_branches() {
        let branch = |n| BranchId { xid: Xid::new(LogTime::from_millis(1), 0, n), number: 1 };
        for attempt in 0..40 {
            let full = (FIRST_RETRY_MS << attempt.min(16)).min(LONGEST_RETRY_MS);
            let delays: std::collections::BTreeSet<u64> =
                (0..100).map(|n| Backoff::delay_ms(branch(n), attempt)).collect();
            assert!(delays.iter().all(|delay| (full / 2..=full).contains(delay)), "attempt {attempt}: {delays:?}");
            assert!(delays.len() > 10, "attempt {attempt} has hardly any jitter: {delays:?}");
        }
    }
}
