//! What the log must know before it reads its segments.
//!
//! ```text
//!   log-marks.slots   newest segment u64 │ 0, or 1 and the last purged index u64, purge mark …   (little endian)
//! ```

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};

use super::disk::Disk;
use super::error::{Damage, StorageError};
use super::slots::{MAX_VALUE, SlotFile};

const FILE: &str = "log-marks.slots";
const HEAD: usize = 17;

/// The largest purge mark, in bytes.
pub const MAX_MARK: usize = MAX_VALUE - HEAD;

/// Up to where records were purged, and what the owner of the log wants to remember of the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purged {
    pub index: u64,
    pub mark: Bytes,
}

#[derive(Debug)]
pub(super) struct Marks {
    slots: SlotFile,
    pub(super) newest: u64,
    pub(super) purged: Option<Purged>,
}

impl Marks {
    /// Makes the file, or a new one in the place of one that is damaged.
    pub(super) fn create(disk: &Arc<dyn Disk>, newest: u64, purged: Option<Purged>) -> Result<Self, StorageError> {
        let slots = SlotFile::create(disk, FILE, Some(encode(newest, purged.as_ref())?))?;
        Ok(Self { slots, newest, purged })
    }

    /// `None` when there is no such file.
    pub(super) fn open(disk: &Arc<dyn Disk>) -> Result<Option<Self>, StorageError> {
        let Some(slots) = SlotFile::open(disk, FILE)? else { return Ok(None) };
        let (newest, purged) = match slots.value() {
            None => (0, None),
            Some(value) => decode(value.clone()).ok_or_else(|| Damage::whole(FILE, 0, "its content makes no sense"))?,
        };
        Ok(Some(Self { slots, newest, purged }))
    }

    /// The index after the last purged record.
    pub(super) fn after_purged(&self) -> u64 {
        self.purged.as_ref().map_or(0, |purged| purged.index + 1)
    }

    pub(super) fn save(&mut self, newest: u64, purged: Option<Purged>) -> Result<(), StorageError> {
        self.slots.save(encode(newest, purged.as_ref())?)?;
        (self.newest, self.purged) = (newest, purged);
        Ok(())
    }
}

fn encode(newest: u64, purged: Option<&Purged>) -> Result<Bytes, StorageError> {
    let mut value = Vec::new();
    value.put_u64_le(newest);
    match purged {
        None => value.put_u8(0),
        Some(purged) if purged.mark.len() > MAX_MARK => {
            return Err(StorageError::TooLarge { what: "a purge mark", size: purged.mark.len(), limit: MAX_MARK });
        }
        Some(purged) => {
            value.put_u8(1);
            value.put_u64_le(purged.index);
            value.put_slice(&purged.mark);
        }
    }
    Ok(value.into())
}

fn decode(mut value: Bytes) -> Option<(u64, Option<Purged>)> {
    let newest = value.try_get_u64_le().ok()?;
    let purged = match value.try_get_u8().ok()? {
        0 => None,
        1 => Some(Purged { index: value.try_get_u64_le().ok()?, mark: value }),
        _ => return None,
    };
    Some((newest, purged))
}
