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

/// The full number of a transaction whose lower 32 bits are `low`, where the next one will be `next`. `pg_prepared_xacts`
/// shows no more than these; it is of the newest epoch or the one before.
pub(super) fn with_epoch(low: u64, next: u64) -> u64 {
    let full = next & !u64::from(u32::MAX) | low;
    if full >= next { full.saturating_sub(1 << 32) } else { full }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_gets_the_epoch_of_the_newest_or_the_one_before() {
        assert_eq!(with_epoch(734, 735), 734);
        assert_eq!(with_epoch(734, 7 << 32 | 735), 7 << 32 | 734);
        assert_eq!(with_epoch(4_294_967_000, 7 << 32 | 5), 6 << 32 | 4_294_967_000);
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
