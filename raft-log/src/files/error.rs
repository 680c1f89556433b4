//! What can go wrong with the files, each with what to do about it.

use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// What went wrong with the files of this node.
///
/// After any of `NoSpace`, `SyncFailed`, `Io` the log is stopped: it acknowledges nothing more until it is opened
/// again, and answers `Stopped`.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StorageError {
    #[error("no room left on the disk for {file}; nothing is acknowledged until there is: make room and start again")]
    NoSpace { file: String, source: Arc<io::Error> },
    #[error(
        "syncing {file} failed, what was last written to it may be gone and is not acknowledged: look at the disk and its kernel messages, then start again"
    )]
    SyncFailed { file: String, source: Arc<io::Error> },
    #[error("{doing} {file} failed: look at the disk and its kernel messages, then start again")]
    Io { doing: &'static str, file: String, source: Arc<io::Error> },
    #[error(transparent)]
    Damage(#[from] Damage),
    #[error(
        "{file} has format version {found} at byte {offset} and this program reads up to {supported}: start a newer program"
    )]
    Newer { file: String, offset: u64, found: u16, supported: u16 },
    #[error(
        "{file} belongs to the log {found:#018x} and not to {expected:#018x}: give this node its own data directory"
    )]
    Foreign { file: String, found: u64, expected: u64 },
    #[error("records must follow each other: {expected} is next and {found} was given")]
    Gap { expected: u64, found: u64 },
    #[error("{size} bytes are more than the {limit} that {what} may have")]
    TooLarge { what: &'static str, size: usize, limit: usize },
    #[error("{0}")]
    Misuse(String),
    #[error("stopped by an earlier failure; start again once its cause is gone")]
    Stopped(#[source] Arc<StorageError>),
    #[error("the log is closed")]
    Closed,
}

/// Acknowledged data may be gone from this node: it must neither elect nor lead before it was repaired from a peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{file} is damaged at byte {offset}: {what}; records {} to {}{} may be gone: fetch them from a peer",
    lost.start(), lost.end(), if *open_ended { " and later ones" } else { "" }
)]
pub struct Damage {
    pub file: String,
    /// In bytes from the start of the file.
    pub offset: u64,
    pub what: String,
    /// The records that may be gone. Empty (start after end) when only records that cannot be named may be.
    pub lost: RangeInclusive<u64>,
    /// Whether records behind `lost` may have been there too.
    pub open_ended: bool,
}

impl Damage {
    /// A whole file that cannot be believed, so that nothing is known of what was there.
    pub(crate) fn whole(file: &str, offset: u64, what: impl Into<String>) -> Self {
        Self { file: file.into(), offset, what: what.into(), lost: 0..=0, open_ended: true }
    }
}

impl StorageError {
    /// Sorts what the disk answered while `doing` something to `file`.
    pub(crate) fn of(doing: &'static str, file: &str, source: io::Error) -> Self {
        let file = file.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { file, source: source.into() },
            _ => Self::Io { doing, file, source: source.into() },
        }
    }

    /// A sync that failed, of whatever kind.
    pub(crate) fn sync(file: &str, source: io::Error) -> Self {
        Self::SyncFailed { file: file.to_owned(), source: source.into() }
    }

    /// The failure that everything stopped for, however often it was wrapped.
    pub fn root(&self) -> &StorageError {
        match self {
            Self::Stopped(first) => first.root(),
            other => other,
        }
    }

    /// The same, said again to somebody who comes after it.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Stopped(_) | Self::Damage(_) | Self::Closed => self.clone(),
            first => Self::Stopped(Arc::new(first.clone())),
        }
    }
}

impl From<StorageError> for io::Error {
    fn from(error: StorageError) -> io::Error {
        let kind = match error.root() {
            StorageError::NoSpace { .. } => io::ErrorKind::StorageFull,
            StorageError::SyncFailed { source, .. } | StorageError::Io { source, .. } => source.kind(),
            StorageError::Damage(_) | StorageError::Newer { .. } | StorageError::Foreign { .. } => {
                io::ErrorKind::InvalidData
            }
            StorageError::Gap { .. } | StorageError::TooLarge { .. } | StorageError::Misuse(_) => {
                io::ErrorKind::InvalidInput
            }
            StorageError::Stopped(_) | StorageError::Closed => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// Names the file and the deed in an error of the disk.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str, file: &str) -> Result<T, StorageError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str, file: &str) -> Result<T, StorageError> {
        self.map_err(|source| StorageError::of(doing, file, source))
    }
}
