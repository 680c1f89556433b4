//! The gRPC services. Any node takes any call: what only the leader can answer is brought to it.
//!
//! ```text
//!   client ──▶ route ── leads? ──▶ Call::serve ──▶ reply, with the leader's id and address
//!                  └── follows ──▶ Peer.Forward ──▶ the leader's Call::serve
//! ```
//!
//! A forwarded call is never forwarded again: a node that was leader a moment ago says so.

mod branches;
mod failure;
mod operator;
mod peer;
mod route;
mod transactions;

use std::sync::Arc;

use verdict_proto::{
    peer::v1::peer_server::PeerServer,
    v1::{
        branches_server::BranchesServer, operator_server::OperatorServer, transactions_server::TransactionsServer,
    },
};

use crate::peers::MAX_MESSAGE;
pub(crate) use route::Front;

/// The services of one node, each to be added to a gRPC server.
#[derive(Clone, Debug)]
pub struct Services(Arc<Front>);

impl Services {
    pub(crate) fn new(front: Front) -> Self {
        Self(Arc::new(front))
    }

    /// What clients say.
    #[must_use]
    pub fn transactions(&self) -> TransactionsServer<impl verdict_proto::v1::transactions_server::Transactions + use<>> {
        TransactionsServer::new(transactions::Service(Arc::clone(&self.0)))
    }

    /// What branches say of themselves.
    #[must_use]
    pub fn branches(&self) -> BranchesServer<impl verdict_proto::v1::branches_server::Branches + use<>> {
        BranchesServer::new(branches::Service(Arc::clone(&self.0)))
    }

    /// What operators ask for.
    #[must_use]
    pub fn operator(&self) -> OperatorServer<impl verdict_proto::v1::operator_server::Operator + use<>> {
        OperatorServer::new(operator::Service(Arc::clone(&self.0)))
    }

    /// What nodes say to each other.
    #[must_use]
    pub fn peer(&self) -> PeerServer<impl verdict_proto::peer::v1::peer_server::Peer + use<>> {
        PeerServer::new(peer::Service(Arc::clone(&self.0))).max_decoding_message_size(MAX_MESSAGE)
    }
}
