//! Snapshots as Raft sees them: sections in the store, decoded beside the apply worker.
//!
//! Promise: no call here does file work on a worker of the asynchronous runtime, and a snapshot that is older than
//! the current one never replaces it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::machine::{Machine, Section};
use super::types::SnapshotMeta;
use super::wire::OfferedSection;
use crate::files::{Damage, Manifest, SectionId, SnapshotStore, StorageError, StoredSection};
use crate::runtime;

/// A snapshot on its way between store, machine and peers.
pub(crate) struct SnapshotData<M: Machine> {
    /// What it consists of, in the order in which it is decoded. The bodies are in the store.
    pub(crate) sections: Vec<OfferedSection>,
    /// Its state, if it has been decoded: then it is to be installed and not yet the current one.
    pub(crate) thawed: Option<M::Thawed>,
}

impl<M: Machine> std::fmt::Debug for SnapshotData<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotData").field("sections", &self.sections.len()).finish_non_exhaustive()
    }
}

pub(crate) type Current = (SnapshotMeta, Vec<OfferedSection>);

/// The snapshots of this node.
#[derive(Clone)]
pub(crate) struct Snapshots {
    /// Locked only beside the runtime's workers, for as long as a file is read or written.
    /// `None` after it was closed.
    store: Arc<Mutex<Option<SnapshotStore>>>,
    view: Arc<Mutex<View>>,
}

#[derive(Default)]
struct View {
    current: Option<Current>,
    /// Parts of a snapshot that a peer is sending: not to be cleared away.
    incoming: Vec<StoredSection>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Snapshots {
    /// Takes over a store that was opened.
    ///
    /// # Errors
    /// When what the manifest says about the snapshot cannot be read.
    pub(crate) fn new(store: SnapshotStore) -> io::Result<Self> {
        let current = match store.current() {
            None => None,
            Some(manifest) => {
                let meta = postcard::from_bytes(&manifest.meta).map_err(io::Error::other)?;
                Some((meta, manifest.sections.iter().map(offered).collect()))
            }
        };
        let view = View { current, incoming: Vec::new() };
        Ok(Self { store: Arc::new(Mutex::new(Some(store))), view: Arc::new(Mutex::new(view)) })
    }

    async fn with_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut SnapshotStore) -> Result<T, StorageError> + Send + 'static,
    ) -> io::Result<T> {
        let store = Arc::clone(&self.store);
        Ok(runtime::beside(move || work(lock(&store).as_mut().ok_or(StorageError::Closed)?)).await??)
    }

    /// Closes the store once what is under way is done.
    pub(crate) async fn close(&self) {
        let store = Arc::clone(&self.store);
        // It fails only when the runtime ends, and the process with it.
        runtime::beside(move || drop(lock(&store).take())).await.ok();
    }

    /// The current snapshot.
    pub(crate) fn current(&self) -> Option<Current> {
        lock(&self.view).current.clone()
    }

    /// Which of these sections are not stored here; they are kept from now on if they come.
    pub(crate) async fn missing(&self, sections: &[OfferedSection]) -> io::Result<Vec<String>> {
        let sections = stored(sections)?;
        lock(&self.view).incoming.clone_from(&sections);
        let missing =
            self.with_store(move |store| Ok(store.missing(&Manifest { meta: Bytes::new(), sections }))).await?;
        Ok(missing.into_iter().map(|section| section.id.as_str().to_owned()).collect())
    }

    /// Whether this section is stored here.
    pub(crate) async fn has(&self, section: &OfferedSection) -> io::Result<bool> {
        let section = stored_section(section)?;
        self.with_store(move |store| Ok(store.stored(&section.id) == Some(&section))).await
    }

    /// Stores a section that a peer sent.
    pub(crate) async fn stage(&self, section: &OfferedSection, body: Bytes) -> io::Result<()> {
        let section = stored_section(section)?;
        self.with_store(move |store| store.put_offered(&section, &body)).await
    }

    /// Reads a section.
    pub(crate) async fn section(&self, section: &OfferedSection) -> io::Result<Bytes> {
        let section = stored_section(section)?;
        self.with_store(move |store| store.read(&section)).await
    }

    /// Reads the current snapshot once over. If something of it is damaged, there is no current snapshot any more, and
    /// this is what is wrong.
    pub(crate) async fn check(&self) -> io::Result<Option<Damage>> {
        let sections = self.current().map(|(_, sections)| sections).unwrap_or_default();
        for section in stored(&sections)? {
            let read = self.with_store(move |store| match store.read(&section) {
                Err(StorageError::Damage(damage)) => Ok(Some(damage)),
                read => read.map(|_whole| None),
            });
            if let Some(damage) = read.await? {
                lock(&self.view).current = None;
                return Ok(Some(damage));
            }
        }
        Ok(None)
    }

    /// Reads and decodes a snapshot whose sections are all stored.
    pub(crate) async fn load<M: Machine>(&self, sections: &[OfferedSection]) -> io::Result<M::Thawed> {
        let mut bodies = Vec::with_capacity(sections.len());
        for section in sections {
            bodies.push((section.id.clone(), self.section(section).await?));
        }
        runtime::beside(move || M::decode(bodies)).await?.map_err(io::Error::other)
    }

    /// Makes and stores the sections that are not stored yet, then makes the snapshot the current one, unless a newer
    /// one is.
    pub(crate) async fn build(&self, meta: SnapshotMeta, sections: Vec<Section>) -> io::Result<()> {
        let mut made = Vec::with_capacity(sections.len());
        for section in sections {
            // One call a section: what else wants the store comes in between.
            let Section { id, body } = section;
            let section = self.with_store(move |store| store.put(SectionId::new(id)?, body)).await?;
            made.push(offered(&section));
        }
        self.replace(meta, made).await
    }

    /// Makes a snapshot whose sections are all stored the current one, unless a newer one is.
    pub(crate) async fn replace(&self, meta: SnapshotMeta, sections: Vec<OfferedSection>) -> io::Result<()> {
        let encoded: Bytes = postcard::to_allocvec(&meta).map_err(io::Error::other)?.into();
        let manifest = Manifest { meta: encoded, sections: stored(&sections)? };
        let view = Arc::clone(&self.view);
        self.with_store(move |store| {
            // Within the store's lock, so that nobody replaces it between the look and the deed.
            let newer = lock(&view).current.as_ref().is_some_and(|(current, _)| current.last_log_id > meta.last_log_id);
            if newer {
                return Ok(());
            }
            store.commit(manifest)?;
            let keep = {
                let mut view = lock(&view);
                view.current = Some((meta, sections));
                view.incoming.clone()
            };
            // The new snapshot counts already; what could not be removed is removed the next time.
            if let Err(error) = store.remove_unreferenced(&keep) {
                tracing::warn!(%error, "old sections of snapshots could not be removed");
            }
            Ok(())
        })
        .await
    }
}

fn offered(section: &StoredSection) -> OfferedSection {
    OfferedSection { id: section.id.as_str().to_owned(), length: section.len, checksum: section.crc }
}

fn stored_section(section: &OfferedSection) -> io::Result<StoredSection> {
    Ok(StoredSection { id: SectionId::new(section.id.as_str())?, crc: section.checksum, len: section.length })
}

fn stored(sections: &[OfferedSection]) -> io::Result<Vec<StoredSection>> {
    sections.iter().map(stored_section).collect()
}
