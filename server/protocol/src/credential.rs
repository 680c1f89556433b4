//! What shows that a branch speaks for itself: a keyed hash over its id, that nobody makes without the cluster's secret.

use std::fmt;

use hmac::{Hmac, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::BranchId;

/// 32 random bytes made when the cluster was founded. Known to its nodes only.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Handed out to who enlists a branch or is asked to prepare it; shown by who votes for it or says how it was settled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Credential([u8; Self::LEN]);

impl Credential {
    /// In bytes: HMAC-SHA256 (RFC 2104), cut to its first half.
    pub const LEN: usize = 16;

    /// Takes one from the wire; none if it has another length.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(..)")
    }
}

impl Secret {
    #[must_use]
    pub fn credential(&self, branch: BranchId) -> Credential {
        let mut whole = [0; Credential::LEN];
        whole.copy_from_slice(&self.keyed(branch).finalize().into_bytes()[..Credential::LEN]);
        Credential(whole)
    }

    /// Whether this is the branch's credential, in a time that does not tell how much of it is right.
    #[must_use]
    pub fn admits(&self, branch: BranchId, credential: &Credential) -> bool {
        self.keyed(branch).verify_truncated_left(&credential.0).is_ok()
    }

    fn keyed(&self, branch: BranchId) -> Hmac<Sha256> {
        let mut keyed = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length is taken");
        keyed.update(branch.xid.as_bytes());
        keyed.update(&branch.number.to_be_bytes());
        keyed
    }
}
