//! Small building blocks that every file shares: a checksum at the end, and replacing a whole file at once.

use super::disk::Disk;
use super::error::{Doing, StorageError};

/// Files that are being made bear this ending; one that is found on opening was never finished.
pub(super) const UNFINISHED: &str = ".new";

/// Appends the CRC32C of what is there.
pub(super) fn seal(bytes: &mut Vec<u8>) {
    let crc = crc32c::crc32c(bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
}

/// What is before the checksum at the end, if that is right.
pub(super) fn unseal(bytes: &[u8]) -> Option<&[u8]> {
    let (content, crc) = bytes.split_last_chunk::<4>()?;
    (u32::from_le_bytes(*crc) == crc32c::crc32c(content)).then_some(content)
}

/// Writes a file that is there whole after a crash, or not at all (then an older one of that name is).
pub(super) fn replace_file(disk: &dyn Disk, name: &str, parts: &[&[u8]]) -> Result<(), StorageError> {
    let unfinished = format!("{name}{UNFINISHED}");
    let mut file = disk.create(&unfinished).doing("creating", &unfinished)?;
    let mut at = 0;
    for part in parts {
        file.write_at(at, part).doing("writing", &unfinished)?;
        at += part.len() as u64;
    }
    file.sync().map_err(|e| StorageError::sync(&unfinished, e))?;
    disk.rename(&unfinished, name).doing("renaming", &unfinished)?;
    disk.sync_dir().map_err(|e| StorageError::sync("the data directory", e))
}

pub(super) fn sector_up(size: u64) -> u64 {
    size.next_multiple_of(super::disk::SECTOR as u64)
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
