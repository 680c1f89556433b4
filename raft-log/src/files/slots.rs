//! A small value that is replaced often and must never be lost: the ballot, the purge point.
//!
//! ```text
//!   file      slot 0: 8 sectors │ slot 1: 8 sectors          generations alternate between the slots
//!   sector    0 "vslt"  4 version u16  6 part u8  7 parts u8  8 generation u64  16 length u32
//!             20 a part of the value, up to 488 bytes         508 crc32c u32            (little endian)
//! ```
//!
//! Promise: [`SlotFile::save`] returns when the value is durable; a crash in the middle leaves the previous one. A
//! disk writes a sector whole or not at all, so after a crash every sector is right by itself: one that is not was
//! damaged, and the file then gives no value at all rather than the previous one, because an older ballot could be
//! given twice.

use std::sync::Arc;

use bytes::{BufMut, Bytes};

use super::disk::{Disk, DiskFile, SECTOR};
use super::error::{Damage, Doing, StorageError};
use super::frame::{replace_file, seal, u16_at, u32_at, u64_at, unseal};

const MAGIC: &[u8; 4] = b"vslt";
const VERSION: u16 = 1;

const HEAD: usize = 20;
const PART: usize = SECTOR - HEAD - 4;
const PARTS: usize = 8;
const SLOT: usize = PARTS * SECTOR;

/// The largest value, in bytes.
pub const MAX_VALUE: usize = PARTS * PART;

/// A durable value of up to [`MAX_VALUE`] bytes.
#[derive(Debug)]
pub struct SlotFile {
    name: String,
    file: Box<dyn DiskFile>,
    /// Of the current value; 0 means that none was ever saved.
    generation: u64,
    /// Where the current value stands; the next one goes to the other slot.
    slot: usize,
    /// At least as high as any generation in the file, those of torn writes included.
    highest: u64,
    value: Option<Bytes>,
    /// After a failed write or sync nothing is known about the file until it is opened again.
    failed: Option<StorageError>,
}

impl SlotFile {
    /// Makes a file, with a value or without; durable on return. One that is there is replaced.
    pub fn create(disk: &Arc<dyn Disk>, name: &str, value: Option<Bytes>) -> Result<Self, StorageError> {
        let mut image = slot_image(PARTS, 0, &[]);
        let second = slot_image(PARTS, 0, &[]);
        if let Some(value) = value {
            check_size(&value)?;
            image = slot_image(PARTS, 1, &value);
        }
        image.extend_from_slice(&second);
        replace_file(&**disk, name, &[&image])?;
        Self::open(disk, name)?.ok_or_else(|| Damage::whole(name, 0, "the file vanished while it was made").into())
    }

    /// Opens a file and makes sure that the value found is durable. `None` when there is no such file.
    ///
    /// # Errors
    /// `Damage` when the value cannot be told for certain.
    pub fn open(disk: &Arc<dyn Disk>, name: &str) -> Result<Option<Self>, StorageError> {
        let file = match disk.open(name) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StorageError::of("opening", name, error)),
        };
        let size = file.size().doing("measuring", name)?;
        if size != 2 * SLOT as u64 {
            return Err(Damage::whole(name, size.min(2 * SLOT as u64), format!("it is {size} bytes long")).into());
        }
        let mut image = vec![0; 2 * SLOT];
        file.read_at(0, &mut image).doing("reading", name)?;
        let slots = [read_slot(name, &image, 0)?, read_slot(name, &image, 1)?];
        let (slot, generation, value) = match &slots {
            [Slot::Whole(a, va), Slot::Whole(b, vb)] => {
                if a >= b {
                    (0, *a, va.clone())
                } else {
                    (1, *b, vb.clone())
                }
            }
            [Slot::Whole(a, value), Slot::Torn(b)] if b > a => (0, *a, value.clone()),
            [Slot::Torn(a), Slot::Whole(b, value)] if a > b => (1, *b, value.clone()),
            _ => return Err(Damage::whole(name, 0, "its sectors do not belong together").into()),
        };
        let highest = slots.iter().map(Slot::generation).max().unwrap_or(0);
        let value = (generation > 0).then_some(value);
        let mut this = Self { name: name.into(), file, generation, slot, highest, value, failed: None };
        this.make_durable(&image)?;
        Ok(Some(this))
    }

    pub fn value(&self) -> Option<&Bytes> {
        self.value.as_ref()
    }

    /// Replaces the value; durable on return.
    ///
    /// # Errors
    /// After an error the old value or the new one may be found when the file is opened again, and nothing more can be
    /// saved before that.
    pub fn save(&mut self, value: Bytes) -> Result<(), StorageError> {
        if let Some(first) = &self.failed {
            return Err(first.again());
        }
        check_size(&value)?;
        let (slot, generation) = (1 - self.slot, self.highest + 1);
        let image = slot_image(value.len().div_ceil(PART).max(1), generation, &value);
        let wrote = self
            .file
            .write_at((slot * SLOT) as u64, &image)
            .doing("writing", &self.name)
            .and_then(|()| self.file.sync().map_err(|e| StorageError::sync(&self.name, e)));
        if let Err(error) = wrote {
            self.failed = Some(error.clone());
            return Err(error);
        }
        (self.slot, self.generation, self.highest, self.value) = (slot, generation, generation, Some(value));
        Ok(())
    }

    /// What was read may stand in the cache of the operating system alone, after a sync that failed: write it again
    /// before anybody relies on it.
    fn make_durable(&mut self, image: &[u8]) -> Result<(), StorageError> {
        let at = self.slot * SLOT;
        self.file.write_at(at as u64, &image[at..at + SLOT]).doing("writing", &self.name)?;
        self.file.sync().map_err(|e| StorageError::sync(&self.name, e))
    }
}

enum Slot {
    Whole(u64, Bytes),
    /// A write that did not get through, with its generation.
    Torn(u64),
}

impl Slot {
    fn generation(&self) -> u64 {
        match self {
            Self::Whole(generation, _) | Self::Torn(generation) => *generation,
        }
    }
}

fn check_size(value: &[u8]) -> Result<(), StorageError> {
    if value.len() > MAX_VALUE {
        return Err(StorageError::TooLarge { what: "a small value", size: value.len(), limit: MAX_VALUE });
    }
    Ok(())
}

fn slot_image(parts: usize, generation: u64, value: &[u8]) -> Vec<u8> {
    let mut image = Vec::with_capacity(parts * SECTOR);
    for part in 0..parts {
        let piece = &value[(part * PART).min(value.len())..((part + 1) * PART).min(value.len())];
        image.extend_from_slice(&sector(part, parts, generation, value.len(), piece));
    }
    image
}

fn sector(part: usize, parts: usize, generation: u64, length: usize, piece: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SECTOR);
    bytes.put_slice(MAGIC);
    bytes.put_u16_le(VERSION);
    bytes.put_u8(u8::try_from(part).expect("at most 8 parts"));
    bytes.put_u8(u8::try_from(parts).expect("at most 8 parts"));
    bytes.put_u64_le(generation);
    bytes.put_u32_le(u32::try_from(length).expect("at most MAX_VALUE"));
    bytes.put_slice(piece);
    bytes.resize(SECTOR - 4, 0);
    seal(&mut bytes);
    bytes
}

fn read_slot(name: &str, image: &[u8], slot: usize) -> Result<Slot, StorageError> {
    let sectors: Vec<&[u8]> = image[slot * SLOT..(slot + 1) * SLOT].chunks(SECTOR).collect();
    for (part, bytes) in sectors.iter().enumerate() {
        let offset = (slot * SLOT + part * SECTOR) as u64;
        if unseal(bytes).is_none() || &bytes[..4] != MAGIC || usize::from(bytes[6]) != part {
            return Err(Damage::whole(name, offset, "a sector's checksum is wrong").into());
        }
        let version = u16_at(bytes, 4);
        if version > VERSION {
            return Err(StorageError::Newer { file: name.into(), offset, found: version, supported: VERSION });
        }
    }
    let generation = |bytes: &[u8]| u64_at(bytes, 8);
    let newest = sectors.iter().map(|bytes| generation(bytes)).max().unwrap_or(0);
    let (first, parts) = (sectors[0], usize::from(sectors[0][7]).min(PARTS));
    // A shorter value leaves older parts behind it, so only newer ones betray a write that did not get through.
    if generation(first) < newest || sectors[..parts].iter().any(|bytes| generation(bytes) != newest) {
        return Ok(Slot::Torn(newest));
    }
    let length = (u32_at(first, 16) as usize).min(parts * PART);
    let mut value = Vec::with_capacity(length);
    for bytes in &sectors[..parts] {
        let rest = (length - value.len()).min(PART);
        value.extend_from_slice(&bytes[HEAD..HEAD + rest]);
    }
    Ok(Slot::Whole(newest, value.into()))
}
