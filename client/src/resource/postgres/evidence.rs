//! By what PostgreSQL can tell how a transaction ended: its number, with its epoch, and the timeline that it is of. On
//! another timeline the same number may be another transaction's.

use std::{fmt, str::FromStr};

use bytes::Bytes;

/// `734@1`: transaction 734 of timeline 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Evidence {
    pub(super) xid8: u64,
    pub(super) timeline: u32,
}

impl Evidence {
    /// None if it is something else that was brought along.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        std::str::from_utf8(bytes).ok()?.parse().ok()
    }

    pub(super) fn to_bytes(self) -> Bytes {
        self.to_string().into()
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.xid8, self.timeline)
    }
}

impl FromStr for Evidence {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (xid8, timeline) = text.split_once('@').ok_or(())?;
        Ok(Self { xid8: xid8.parse().map_err(drop)?, timeline: timeline.parse().map_err(drop)? })
    }
}

/// The full number of a transaction whose lower 32 bits are `low`: the one nearest to `near`, which is that of another
/// transaction of these days. `pg_prepared_xacts` shows no more than the lower bits; PostgreSQL keeps all that run within
/// 2³¹ of each other.
pub(super) fn with_epoch(low: u32, near: u64) -> u64 {
    #[allow(clippy::cast_possible_truncation, reason = "the lower bits are what is wanted")]
    let behind = (near as u32).wrapping_sub(low).cast_signed();
    near.saturating_add_signed(-i64::from(behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_gets_the_epoch_that_brings_it_nearest() {
        for (low, near, full) in [
            (734, 735, 734),
            // Nothing that began later has ended.
            (734, 734, 734),
            (736, 734, 736),
            (734, 7 << 32 | 735, 7 << 32 | 734),
            (4_294_967_000, 7 << 32 | 5, 6 << 32 | 4_294_967_000),
            (5, 6 << 32 | 4_294_967_000, 7 << 32 | 5),
        ] {
            assert_eq!(with_epoch(low, near), full, "{low} near {near}");
        }
    }

    #[test]
    fn evidence_is_read_as_it_was_written_and_nothing_else_is() {
        let evidence = Evidence { xid8: 7 << 32 | 734, timeline: 3 };
        assert_eq!(Evidence::read(&evidence.to_bytes()), Some(evidence));
        for other in ["", "734", "@", "734@", "-1@1", "734@1@1", "734@4294967296", "5.00"] {
            assert_eq!(Evidence::read(other.as_bytes()), None, "{other}");
        }
    }
}
