//! The contract for the state machine whose commands are replicated.

use bytes::Bytes;

use crate::Position;

/// Somebody else's state machine.
///
/// `apply`, `freeze` and `thaw` run one after another on the apply worker, which is a task of the asynchronous
/// runtime: none may block. They must be functions of the state and their arguments alone: no clock, no randomness,
/// no iteration over hash maps.
pub trait Machine: Send + 'static {
    /// A cheap copy of the state (shared structure, not a deep copy); it is encoded off the apply worker.
    type Frozen: Send + 'static;
    /// A decoded snapshot, ready to be swapped in.
    type Thawed: Send + 'static;

    /// Applies one entry. The answer goes to whoever proposed it here; on other replicas it is dropped.
    ///
    /// Each entry is applied once between two `thaw`s, in index order. Indices have gaps: entries of Raft's own use
    /// some. After a restart entries that were applied before are applied again, onto the last snapshot or onto the
    /// state as it was constructed.
    fn apply(&mut self, at: Position, entry: Bytes) -> Bytes;

    /// Takes a cheap copy of the state for a snapshot. Blocks `apply` while it runs.
    fn freeze(&mut self) -> Self::Frozen;

    /// Cuts a frozen state into sections. Runs beside `apply`; may take long.
    ///
    /// An id names its content for ever, on every replica: a section whose id is already stored is neither made nor
    /// written again, and one that a peer already has is not sent. So a part that still changes bears a new id each
    /// time, for example the index of its last change. Ids: 1 to 200 bytes of `[a-z0-9.-]`.
    fn encode(frozen: Self::Frozen) -> Vec<Section>;

    /// Decodes the sections of a snapshot, in the order in which `encode` gave them. Runs beside `apply`.
    ///
    /// # Errors
    /// When the sections are not this version's, or not whole; the snapshot is then refused and the state stays.
    fn decode(sections: Vec<(String, Bytes)>) -> Result<Self::Thawed, DecodeError>;

    /// Replaces the state. May bring the very state that is there already.
    fn thaw(&mut self, thawed: Self::Thawed);
}

/// One part of a snapshot; its body is made only if it is not stored yet.
pub struct Section {
    pub id: String,
    pub body: Box<dyn FnOnce() -> Bytes + Send>,
}

impl Section {
    /// A section whose body is made when it is needed.
    pub fn new(id: impl Into<String>, body: impl FnOnce() -> Bytes + Send + 'static) -> Self {
        Self { id: id.into(), body: Box::new(body) }
    }
}

impl std::fmt::Debug for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Section").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A snapshot that this machine cannot take in: what was wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct DecodeError {
    what: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl DecodeError {
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), source: None }
    }

    pub fn caused_by(what: impl Into<String>, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { what: what.into(), source: Some(source.into()) }
    }
}
