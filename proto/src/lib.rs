//! The code generated from Verdict's `.proto` files, and nothing else.

#![allow(clippy::all, missing_docs, reason = "generated code")]

/// What clients, participants and operators speak.
pub mod v1 {
    tonic::include_proto!("verdict.v1");
}

/// What the nodes of one cluster speak to each other.
pub mod peer {
    pub mod v1 {
        tonic::include_proto!("verdict.peer.v1");
    }
}

/// The descriptors of both packages, for gRPC reflection: an encoded `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/verdict.descriptors"));
