//! One batch: what is written at once and synced once.
//!
//! ```text
//!   batch     header 64 bytes │ records … │ padding to a whole sector      starts on a sector
//!   header    0 "vbat"  4 version u16  6 kind u8  7 zero  8 log id u64  16 number u64  24 first index u64
//!             32 records u32  36 bytes of records u32  40 synced up to (place) u64  48 mask u64  56 zero
//!             60 crc32c of the header u32
//!   record    0 crc32c of the rest u32  4 version u16  6 zero u16  8 index u64  16 length u32  20 body
//! ```
//!
//! Everything behind the header is XORed with the mask, which is chosen so that no sector of the batch is all zeros.
//! A sector that *is* all zeros was therefore never written, and damage that leaves none cannot pass for a torn write.
//! The mask is 0 unless a body needs another one.
//!
//! A later version keeps the magic, the version and the header's checksum where they are.

use bytes::{BufMut, Bytes};

use super::disk::SECTOR;
use super::frame::{sector_up, u16_at, u32_at, u64_at};

pub(super) const MAGIC: &[u8; 4] = b"vbat";
pub(super) const VERSION: u16 = 1;
pub(super) const HEADER: usize = 64;
const RECORD_HEAD: usize = 20;

/// The largest body of a record, in bytes.
pub const MAX_BODY: usize = 32 << 20;
/// The most that the records of one batch may take together, with 20 bytes of header each.
pub const MAX_BATCH: usize = 64 << 20;

/// One entry of the log. The log does not look into its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub index: u64,
    pub body: Bytes,
}

impl Record {
    pub fn new(index: u64, body: impl Into<Bytes>) -> Self {
        Self { index, body: body.into() }
    }

    /// What it takes in a batch.
    pub(super) fn size(&self) -> usize {
        RECORD_HEAD + self.body.len()
    }
}

/// Where something stands in the log: later places compare greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u64,
}

impl Place {
    /// Before everything.
    pub(super) const NONE: Place = Place { segment: 0, offset: 0 };

    fn pack(self) -> u64 {
        self.segment << 32 | self.offset
    }

    fn unpack(packed: u64) -> Self {
        Self { segment: packed >> 32, offset: packed & u64::from(u32::MAX) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Records,
    /// Says where the next record goes: everything from there on is void (truncation), or everything before it is
    /// gone (a purge beyond the end).
    Cut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) log: u64,
    /// Counts the batches of a log, without gaps.
    pub(super) number: u64,
    pub(super) first: u64,
    pub(super) count: u32,
    pub(super) payload: u32,
    /// Everything before this place had been synced when the batch was written.
    pub(super) synced: Place,
    pub(super) mask: u64,
}

impl Header {
    /// The index after the last record.
    pub(super) fn next(&self) -> u64 {
        self.first.saturating_add(u64::from(self.count))
    }

    /// The batch's length on disk, padding included.
    pub(super) fn size(&self) -> u64 {
        sector_up(HEADER as u64 + u64::from(self.payload))
    }

    fn encode(&self) -> [u8; HEADER] {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.put_slice(MAGIC);
        bytes.put_u16_le(VERSION);
        bytes.put_u8(match self.kind {
            Kind::Records => 1,
            Kind::Cut => 2,
        });
        bytes.put_u8(0);
        bytes.put_u64_le(self.log);
        bytes.put_u64_le(self.number);
        bytes.put_u64_le(self.first);
        bytes.put_u32_le(self.count);
        bytes.put_u32_le(self.payload);
        bytes.put_u64_le(self.synced.pack());
        bytes.put_u64_le(self.mask);
        bytes.put_u32_le(0);
        super::frame::seal(&mut bytes);
        bytes.try_into().expect("the fields make 64 bytes")
    }
}

/// What stands where a header could be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Header(Header),
    Newer(u16),
    Neither,
}

pub(super) fn read_header(bytes: &[u8]) -> Found {
    let Some(bytes) = bytes.first_chunk::<HEADER>() else { return Found::Neither };
    if &bytes[..4] != MAGIC || super::frame::unseal(bytes).is_none() {
        return Found::Neither;
    }
    let version = u16_at(bytes, 4);
    if version > VERSION {
        return Found::Newer(version);
    }
    let kind = match bytes[6] {
        1 => Kind::Records,
        2 => Kind::Cut,
        _ => return Found::Neither,
    };
    Found::Header(Header {
        kind,
        log: u64_at(bytes, 8),
        number: u64_at(bytes, 16),
        first: u64_at(bytes, 24),
        count: u32_at(bytes, 32),
        payload: u32_at(bytes, 36),
        synced: Place::unpack(u64_at(bytes, 40)),
        mask: u64_at(bytes, 48),
    })
}

/// Encodes a batch into `buffer`, whose content is replaced. Sets `payload`, `count` and `mask` in the header.
pub(super) fn encode(header: &mut Header, records: &[Record], buffer: &mut Vec<u8>) {
    let payload: usize = records.iter().map(Record::size).sum();
    header.count = u32::try_from(records.len()).expect("limited by MAX_BATCH");
    header.payload = u32::try_from(payload).expect("limited by MAX_BATCH");
    let size = usize::try_from(header.size()).expect("limited by MAX_BATCH");
    buffer.clear();
    buffer.reserve(size);
    buffer.resize(HEADER, 0);
    for record in records {
        let start = buffer.len();
        buffer.put_u32_le(0);
        buffer.put_u16_le(VERSION);
        buffer.put_u16_le(0);
        buffer.put_u64_le(record.index);
        buffer.put_u32_le(u32::try_from(record.body.len()).expect("limited by MAX_BODY"));
        buffer.put_slice(&record.body);
        let crc = crc32c::crc32c(&buffer[start + 4..]);
        buffer[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    }
    buffer.resize(size, 0);
    header.mask = mask_for(header.number, buffer);
    buffer[..HEADER].copy_from_slice(&header.encode());
}

/// Masks what is behind the header so that no sector is all zeros, and returns the mask.
fn mask_for(number: u64, buffer: &mut [u8]) -> u64 {
    let mut mask = 0;
    // A sector rules out one mask at most, so this ends.
    for attempt in 0_u64.. {
        // The first sector has the header, which is not encoded yet.
        if !buffer[SECTOR..].chunks(SECTOR).any(is_zero) {
            break;
        }
        let next = mix(number ^ attempt << 48);
        apply_mask(mask ^ next, &mut buffer[HEADER..]);
        mask = next;
    }
    mask
}

/// The finalizer of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn apply_mask(mask: u64, bytes: &mut [u8]) {
    if mask == 0 {
        return;
    }
    let mask = mask.to_le_bytes();
    for word in bytes.chunks_mut(8) {
        for (byte, mask) in word.iter_mut().zip(mask) {
            *byte ^= mask;
        }
    }
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// A record that cannot be believed: where in the batch, and what is wrong.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadRecord {
    pub(super) at: usize,
    pub(super) what: String,
    /// The format version, if that is what is wrong.
    pub(super) newer: Option<u16>,
}

/// Decodes the records of a batch whose header was read; `batch` is all of it, header and padding included.
pub(super) fn decode(header: &Header, mut batch: Vec<u8>) -> Result<Vec<Record>, BadRecord> {
    apply_mask(header.mask, &mut batch[HEADER..]);
    let mut records = Vec::with_capacity(header.count.min(1 << 16) as usize);
    let batch = Bytes::from(batch);
    let end = HEADER + header.payload as usize;
    let mut at = HEADER;
    let bad = |at, what: &str| BadRecord { at, what: what.into(), newer: None };
    for index in header.first..header.next() {
        if end - at < RECORD_HEAD {
            return Err(bad(at, "a record does not fit into its batch"));
        }
        let length = u32_at(&batch, at + 16) as usize;
        if end - at - RECORD_HEAD < length {
            return Err(bad(at, "a record does not fit into its batch"));
        }
        let record = at + RECORD_HEAD + length;
        if u32_at(&batch, at) != crc32c::crc32c(&batch[at + 4..record]) {
            return Err(bad(at, "a record's checksum is wrong"));
        }
        let version = u16_at(&batch, at + 4);
        if version > VERSION {
            return Err(BadRecord { at, what: format!("version {version}"), newer: Some(version) });
        }
        if u64_at(&batch, at + 8) != index {
            return Err(bad(at, "a record has another index than its place"));
        }
        records.push(Record { index, body: batch.slice(at + RECORD_HEAD..record) });
        at = record;
    }
    if at != end {
        return Err(bad(at, "a batch is longer than its records"));
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn header() -> Header {
        let synced = Place { segment: 3, offset: 1024 };
        Header { kind: Kind::Records, log: 7, number: 9, first: 5, count: 0, payload: 0, synced, mask: 0 }
    }

    #[test]
    fn a_batch_reads_back() {
        let records: Vec<_> = (5..9).map(|i| Record::new(i, vec![u8::try_from(i).unwrap(); 300])).collect();
        let (mut head, mut buffer) = (header(), Vec::new());
        encode(&mut head, &records, &mut buffer);
        assert_eq!(buffer.len() % 512, 0);
        assert_eq!(read_header(&buffer), Found::Header(head));
        assert_eq!(head.mask, 0);
        assert_eq!(decode(&head, buffer).unwrap(), records);
    }

    #[test]
    fn no_sector_of_a_batch_is_all_zeros() {
        for size in [0, 1, 440, 900, 5000, 100_000] {
            let records = [Record::new(5, vec![0; size]), Record::new(6, vec![0; 3])];
            let (mut head, mut buffer) = (header(), Vec::new());
            encode(&mut head, &records, &mut buffer);
            assert!(!buffer.chunks(512).any(is_zero), "{size}");
            assert_eq!(decode(&head, buffer).unwrap(), records);
        }
    }

    #[test]
    fn a_flipped_bit_is_found_wherever_it_is_not_padding() {
        let records = [Record::new(5, vec![1; 30]), Record::new(6, vec![2; 30])];
        let (mut head, mut buffer) = (header(), Vec::new());
        encode(&mut head, &records, &mut buffer);
        for bit in 0..(HEADER + head.payload as usize) * 8 {
            let mut flipped = buffer.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match read_header(&flipped) {
                Found::Header(read) => assert!(decode(&read, flipped).is_err(), "bit {bit}"),
                other => assert_eq!(other, Found::Neither, "bit {bit}"),
            }
        }
    }
}
