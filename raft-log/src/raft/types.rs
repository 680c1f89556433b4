//! The types that Raft is instantiated with. Nothing of this leaves the crate.

use std::fmt;

use bytes::Bytes;
use openraft::impls::leader_id_adv;
use openraft::{BasicNode, Membership};

use crate::runtime::Runtime;

/// A command or an answer: bytes that nobody here looks into.
#[derive(Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(from = "Vec<u8>", into = "Vec<u8>")]
pub(crate) struct Body(pub(crate) Bytes);

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<Body> for Vec<u8> {
    fn from(body: Body) -> Self {
        body.0.into()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Display for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

openraft::declare_raft_types!(
    /// Several leaders may follow each other within one term, ordered by node: two candidates that stand at the same
    /// time do not block each other.
    pub(crate) TypeConfig:
        D = Body,
        R = Body,
        NodeId = u64,
        Node = BasicNode,
        AsyncRuntime = Runtime,
);

pub(crate) type LeaderId = leader_id_adv::LeaderId<u64, u64>;
pub(crate) type LogId = openraft::LogId<LeaderId>;
pub(crate) type Ballot = openraft::Vote<LeaderId>;
pub(crate) type Entry = openraft::type_config::alias::EntryOf<TypeConfig>;
pub(crate) type Payload = openraft::EntryPayload<Body, u64, BasicNode>;
pub(crate) type Members = Membership<u64, BasicNode>;
pub(crate) type StoredMembers = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<TypeConfig>;

/// Where an entry stands, for those outside.
pub(crate) fn position(id: &LogId) -> crate::Position {
    crate::Position { index: id.index, term: id.leader_id.term }
}
