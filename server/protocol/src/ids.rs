//! Names of things: transactions, branches, resources, clusters. Each is checked where it enters and trusted after.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::{Builder, Uuid, Variant};

use crate::LogTime;

/// A global transaction's id, made by its client: 128 bits in UUIDv7's layout (RFC 9562, section 5.7).
///
/// Birth time in milliseconds since the epoch (48 bits), a group number (12 bits), the rest random (62 bits).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Xid(Uuid);

impl Xid {
    /// The largest group number.
    pub const MAX_GROUP: u16 = 0x0FFF;

    /// Makes an id. Only the low 48 bits of `birth` count, the low 12 of `group` and the low 62 of `random`.
    #[must_use]
    pub fn new(birth: LogTime, group: u16, random: u64) -> Self {
        let mut tail = [0; 10];
        tail[..2].copy_from_slice(&group.to_be_bytes());
        tail[2..].copy_from_slice(&random.to_be_bytes());
        Self(Builder::from_unix_timestamp_millis(birth.as_millis(), &tail).into_uuid())
    }

    /// Takes an id from the wire.
    ///
    /// # Errors
    /// [`IdError::Xid`] unless it is 16 bytes in UUIDv7's layout.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, IdError> {
        let uuid = Uuid::from_slice(bytes).map_err(|_| IdError::Xid)?;
        if uuid.get_version_num() != 7 || uuid.get_variant() != Variant::RFC4122 {
            return Err(IdError::Xid);
        }
        Ok(Self(uuid))
    }

    /// Reads the hyphenated text form that [`fmt::Display`] writes.
    ///
    /// # Errors
    /// [`IdError::Xid`] unless it is a UUIDv7.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        Self::from_slice(Uuid::try_parse(text).map_err(|_| IdError::Xid)?.as_bytes())
    }

    /// The 16 bytes that go over the wire.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// When its client says it was born.
    #[must_use]
    pub fn birth(&self) -> LogTime {
        let bytes = self.as_bytes();
        LogTime::from_millis(bytes[..6].iter().fold(0, |millis, byte| millis << 8 | u64::from(*byte)))
    }

    /// The group it lives in.
    #[must_use]
    pub fn group(&self) -> u16 {
        let bytes = self.as_bytes();
        u16::from_be_bytes([bytes[6], bytes[7]]) & Self::MAX_GROUP
    }
}

impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The number of a branch within its transaction, chosen by the client.
pub type BranchNumber = u32;

/// One participant's part of a transaction (XA's gtrid and bqual).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BranchId {
    pub xid: Xid,
    pub number: BranchNumber,
}

impl fmt::Display for BranchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.xid, self.number)
    }
}

/// The name of a participant: 1 to 64 of `a-z`, `0-9`, `-`, `_`, `.`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourceName(String);

impl ResourceName {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 64;

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ResourceName {
    type Error = IdError;

    fn try_from(name: String) -> Result<Self, IdError> {
        let fits = (1..=Self::MAX_LEN).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b));
        if fits { Ok(Self(name)) } else { Err(IdError::Resource(name)) }
    }
}

impl TryFrom<&str> for ResourceName {
    type Error = IdError;

    fn try_from(name: &str) -> Result<Self, IdError> {
        name.to_owned().try_into()
    }
}

impl From<ResourceName> for String {
    fn from(name: ResourceName) -> Self {
        name.0
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text of 1 to 128 bytes without control characters, as clients name things.
macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident, $error:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The longest one, in bytes.
            pub const MAX_LEN: usize = 128;

            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                let fits = (1..=Self::MAX_LEN).contains(&text.len()) && !text.chars().any(char::is_control);
                if fits { Ok(Self(text)) } else { Err(IdError::$error) }
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )+};
}

texts! {
    /// An idempotency key: whoever begins under it first has the right to work, until that attempt is aborted.
    Key, Key;
    /// The name of a client's session: one instance at a time works under it.
    SessionName, Session;
}

/// Which run of a program it is that opens a session: random, and the same as long as it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instance(pub [u8; 16]);

/// A session as a client works under it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionRef {
    pub name: SessionName,
    /// Raised whenever another instance opens the session: whoever works under an older one is fenced.
    pub epoch: u64,
}

/// 16 random bytes made when a cluster was founded; the prefix of every branch name in a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterId(pub [u8; 16]);

/// A name that is none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdError {
    #[error("an xid is 16 bytes in UUIDv7's layout (in text: 8-4-4-4-12 hex digits, version 7)")]
    Xid,
    #[error("an idempotency key is 1 to 128 bytes of text without control characters")]
    Key,
    #[error("a session's name is 1 to 128 bytes of text without control characters")]
    Session,
    #[error("a resource name is 1 to 64 of a-z 0-9 - _ . but this is {0:?}")]
    Resource(String),
}
