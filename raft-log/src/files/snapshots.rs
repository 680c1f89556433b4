//! Snapshots: a manifest that names sections.
//!
//! ```text
//!   section-<id>-<crc>-<length>.sec   0 "vsec"  4 version u16  6 zero u16  8 length u64  16 crc32c of the body u32
//!                                     20 crc32c of the header u32  24 body
//!   snapshot.manifest                 0 "vman"  4 version u16  6 zero u16  8 meta length u32  12 sections u32
//!                                     16 meta, sections: id length u16, id, crc32c u32, length u64 … crc32c u32
//! ```
//!
//! Promise: [`SnapshotStore::commit`] returns when the manifest and every section that it names are durable; a crash
//! before leaves the previous snapshot. A section's id names its content for ever, so one that is there is not made
//! and not written again. What is read was checked.
//!
//! A purge of the log waits for `commit`; removing sections that are named no more does too.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};

use super::disk::Disk;
use super::error::{Damage, Doing, StorageError};
use super::frame::{UNFINISHED, replace_file, seal, u16_at, u32_at, u64_at, unseal};

pub(super) const MANIFEST: &str = "snapshot.manifest";
const MANIFEST_MAGIC: &[u8; 4] = b"vman";
const SECTION_MAGIC: &[u8; 4] = b"vsec";
const VERSION: u16 = 1;
const SECTION_HEADER: usize = 24;
/// The longest id of a section, in bytes.
pub const MAX_SECTION_ID: usize = 200;

/// Names a section: 1 to [`MAX_SECTION_ID`] bytes of `[a-z0-9.-]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectionId(String);

impl SectionId {
    /// # Errors
    /// `Misuse` when it has other characters or another length.
    pub fn new(id: impl Into<String>) -> Result<Self, StorageError> {
        let id = id.into();
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'.' || byte == b'-';
        if id.is_empty() || id.len() > MAX_SECTION_ID || !id.bytes().all(fits) {
            return Err(StorageError::Misuse(format!("section id {id:?} is not 1 to 200 bytes of [a-z0-9.-]")));
        }
        Ok(Self(id))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A section that is stored, or that somebody offers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredSection {
    pub id: SectionId,
    /// CRC32C of the body.
    pub crc: u32,
    pub len: u64,
}

impl StoredSection {
    pub fn of(id: SectionId, body: &[u8]) -> Self {
        Self { id, crc: crc32c::crc32c(body), len: body.len() as u64 }
    }

    fn file(&self) -> String {
        format!("section-{}-{:08x}-{:x}.sec", self.id.0, self.crc, self.len)
    }

    fn of_file(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix("section-")?.strip_suffix(".sec")?.rsplitn(3, '-');
        let len = u64::from_str_radix(parts.next()?, 16).ok()?;
        let crc = u32::from_str_radix(parts.next()?, 16).ok()?;
        Some(Self { id: SectionId::new(parts.next()?).ok()?, crc, len })
    }
}

/// A snapshot: what its owner wants to remember, and the sections in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    pub meta: Bytes,
    pub sections: Vec<StoredSection>,
}

/// The snapshots of a node. See the module.
#[derive(Debug)]
pub struct SnapshotStore {
    disk: Arc<dyn Disk>,
    stored: BTreeMap<SectionId, StoredSection>,
    current: Option<Manifest>,
}

impl SnapshotStore {
    /// Opens the store; sections are checked when they are read.
    ///
    /// When the manifest is not what was written, or a section that it names is missing, the store opens without a
    /// current snapshot and says what is damaged: the log before that snapshot is purged, so a peer must give one.
    ///
    /// # Errors
    /// `Newer`; when the disk fails.
    pub fn open(disk: Arc<dyn Disk>) -> Result<(Self, Option<Damage>), StorageError> {
        disk.sync_dir().map_err(|e| StorageError::sync("the data directory", e))?;
        let mut stored = BTreeMap::new();
        for name in disk.list().doing("listing", "the data directory")? {
            if let Some(section) = StoredSection::of_file(&name) {
                stored.insert(section.id.clone(), section);
            } else if name.strip_suffix(UNFINISHED).is_some_and(|n| n == MANIFEST || n.starts_with("section-")) {
                disk.remove(&name).doing("removing", &name)?;
            }
        }
        let mut store = Self { disk, stored, current: None };
        let found = read_whole(&*store.disk, MANIFEST)?.map(|bytes| decode_manifest(&bytes)).transpose();
        let damage = match found {
            Ok(Some(manifest)) => match store.missing(&manifest).first() {
                None => {
                    store.current = Some(manifest);
                    None
                }
                Some(section) => Some(Damage::whole(&section.file(), 0, "it is missing")),
            },
            Ok(None) => None,
            Err(StorageError::Damage(damage)) => Some(damage),
            Err(error) => return Err(error),
        };
        Ok((store, damage))
    }

    /// The last snapshot that was committed.
    pub fn current(&self) -> Option<&Manifest> {
        self.current.as_ref()
    }

    /// The stored section of this id.
    pub fn stored(&self, id: &SectionId) -> Option<&StoredSection> {
        self.stored.get(id)
    }

    /// Which sections of an offered snapshot are not here.
    pub fn missing(&self, manifest: &Manifest) -> Vec<StoredSection> {
        let is_missing = |section: &&StoredSection| self.stored.get(&section.id) != Some(*section);
        manifest.sections.iter().filter(is_missing).cloned().collect()
    }

    /// Stores a section, durable on return. The body is made only if no section of this id is stored.
    pub fn put(&mut self, id: SectionId, body: impl FnOnce() -> Bytes) -> Result<StoredSection, StorageError> {
        if let Some(section) = self.stored.get(&id) {
            return Ok(section.clone());
        }
        let body = body();
        let section = StoredSection::of(id, &body);
        self.write(&section, &body)?;
        Ok(section)
    }

    /// Stores a section that somebody offered, durable on return; nothing is written if it is here.
    ///
    /// # Errors
    /// `Misuse` when the body is not the section's, or another one of this id is part of the current snapshot.
    pub fn put_offered(&mut self, section: &StoredSection, body: &[u8]) -> Result<(), StorageError> {
        if StoredSection::of(section.id.clone(), body) != *section {
            let why = format!("section {} came with another length or checksum than was offered", section.id.0);
            return Err(StorageError::Misuse(why));
        }
        match self.stored.get(&section.id) {
            Some(stored) if stored == section => return Ok(()),
            Some(stored) if self.current.as_ref().is_some_and(|current| current.sections.contains(stored)) => {
                let why = format!("section {} is stored with another content, in use", section.id.0);
                return Err(StorageError::Misuse(why));
            }
            Some(stored) => self.disk.remove(&stored.file()).doing("removing", &stored.file())?,
            None => {}
        }
        self.write(section, body)
    }

    fn write(&mut self, section: &StoredSection, body: &[u8]) -> Result<(), StorageError> {
        let mut header = Vec::with_capacity(SECTION_HEADER);
        header.put_slice(SECTION_MAGIC);
        header.put_u16_le(VERSION);
        header.put_u16_le(0);
        header.put_u64_le(section.len);
        header.put_u32_le(section.crc);
        seal(&mut header);
        replace_file(&*self.disk, &section.file(), &[&header, body])?;
        self.stored.insert(section.id.clone(), section.clone());
        Ok(())
    }

    /// Reads a section and checks it.
    ///
    /// # Errors
    /// `Damage` when it is not what was written or not there: it then counts as missing, so that it can be put again.
    /// `Newer`.
    pub fn read(&mut self, section: &StoredSection) -> Result<Bytes, StorageError> {
        let read = self.read_checked(section);
        if matches!(read, Err(StorageError::Damage(_))) && self.stored.get(&section.id) == Some(section) {
            self.stored.remove(&section.id);
        }
        read
    }

    fn read_checked(&self, section: &StoredSection) -> Result<Bytes, StorageError> {
        let name = section.file();
        let bytes = read_whole(&*self.disk, &name)?.ok_or_else(|| Damage::whole(&name, 0, "it is missing"))?;
        let header = bytes.get(..SECTION_HEADER).and_then(unseal);
        if header.is_none() || &bytes[..4] != SECTION_MAGIC {
            return Err(Damage::whole(&name, 0, "its header's checksum is wrong").into());
        }
        let version = u16_at(&bytes, 4);
        if version > VERSION {
            return Err(StorageError::Newer { file: name, offset: 0, found: version, supported: VERSION });
        }
        let body = bytes.slice(SECTION_HEADER..);
        let (len, crc) = (u64_at(&bytes, 8), u32_at(&bytes, 16));
        if (len, crc) != (section.len, section.crc) || StoredSection::of(section.id.clone(), &body) != *section {
            return Err(Damage::whole(&name, SECTION_HEADER as u64, "its checksum is wrong").into());
        }
        Ok(body)
    }

    /// Makes a snapshot the current one, durable on return.
    ///
    /// # Errors
    /// `Misuse` when a section of it is not stored.
    pub fn commit(&mut self, manifest: Manifest) -> Result<(), StorageError> {
        if let Some(section) = self.missing(&manifest).first() {
            return Err(StorageError::Misuse(format!("section {} of the snapshot is not stored", section.id.0)));
        }
        replace_file(&*self.disk, MANIFEST, &[&encode_manifest(&manifest)])?;
        self.current = Some(manifest);
        Ok(())
    }

    /// Removes the sections that neither the current snapshot names nor `keep` holds; returns how many.
    pub fn remove_unreferenced(&mut self, keep: &[StoredSection]) -> Result<usize, StorageError> {
        let current = self.current.iter().flat_map(|manifest| &manifest.sections);
        let needed: std::collections::BTreeSet<StoredSection> = current.chain(keep).cloned().collect();
        let doomed: Vec<_> = self.stored.values().filter(|section| !needed.contains(section)).cloned().collect();
        for section in &doomed {
            self.disk.remove(&section.file()).doing("removing", &section.file())?;
            self.stored.remove(&section.id);
        }
        Ok(doomed.len())
    }
}

fn read_whole(disk: &dyn Disk, name: &str) -> Result<Option<Bytes>, StorageError> {
    let file = match disk.open(name) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StorageError::of("opening", name, error)),
    };
    let size = file.size().doing("measuring", name)?;
    let mut bytes = vec![0; usize::try_from(size).expect("snapshots fit into memory")];
    file.read_at(0, &mut bytes).doing("reading", name)?;
    Ok(Some(bytes.into()))
}

fn encode_manifest(manifest: &Manifest) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_slice(MANIFEST_MAGIC);
    bytes.put_u16_le(VERSION);
    bytes.put_u16_le(0);
    bytes.put_u32_le(u32::try_from(manifest.meta.len()).expect("a snapshot's meta is small"));
    bytes.put_u32_le(u32::try_from(manifest.sections.len()).expect("sections fit into memory"));
    bytes.put_slice(&manifest.meta);
    for section in &manifest.sections {
        bytes.put_u16_le(u16::try_from(section.id.0.len()).expect("at most 200"));
        bytes.put_slice(section.id.0.as_bytes());
        bytes.put_u32_le(section.crc);
        bytes.put_u64_le(section.len);
    }
    seal(&mut bytes);
    bytes
}

fn decode_manifest(bytes: &Bytes) -> Result<Manifest, StorageError> {
    let damage = |what| StorageError::from(Damage::whole(MANIFEST, 0, what));
    let content = unseal(bytes).filter(|content| content.len() >= 16 && &content[..4] == MANIFEST_MAGIC);
    let content = content.ok_or_else(|| damage("its checksum is wrong"))?;
    let version = u16_at(content, 4);
    if version > VERSION {
        return Err(StorageError::Newer { file: MANIFEST.into(), offset: 0, found: version, supported: VERSION });
    }
    let (meta, count) = (u32_at(content, 8) as usize, u32_at(content, 12));
    let rest = bytes.slice(16..content.len());
    let parse = || -> Option<Manifest> {
        let mut rest = rest;
        let meta = (rest.len() >= meta).then(|| rest.split_to(meta))?;
        let mut sections = Vec::new();
        for _ in 0..count {
            let len = usize::from(rest.try_get_u16_le().ok()?);
            let id = (rest.len() >= len).then(|| rest.split_to(len))?;
            let id = SectionId::new(std::str::from_utf8(&id).ok()?).ok()?;
            sections.push(StoredSection { id, crc: rest.try_get_u32_le().ok()?, len: rest.try_get_u64_le().ok()? });
        }
        rest.is_empty().then_some(Manifest { meta, sections })
    };
    parse().ok_or_else(|| damage("its content makes no sense"))
}
