//! The replica: Raft over the log files, the somebody else's state machine, and the links to the peers.

pub(crate) mod errors;
pub(crate) mod link;
pub(crate) mod machine;
pub(crate) mod options;
pub(crate) mod replica;
pub(crate) mod status;
