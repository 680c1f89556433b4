//! The gRPC services. Any node takes any call: what only the leader can answer is brought to it.
//!
//! ```text
//!   client ──▶ route ── leads? ──▶ Call::serve ──▶ reply, with the leader's id and address
//!                  └── follows ──▶ Peer.Forward ──▶ the leader's Call::serve
//! ```
//!
//! A forwarded call is never forwarded again: a node that was leader a moment ago says so.

mod attach;
mod branches;
mod failure;
mod operator;
mod peer;
mod route;
mod sessions;
mod transactions;
mod watch;

use std::sync::Arc;

use verdict_proto::{
    peer::v1::peer_server::Peer,
    v1::{
        branches_server::Branches, operator_server::Operator, sessions_server::Sessions,
        transactions_server::Transactions,
    },
};

pub(crate) use route::Front;

/// What one node answers, one service each. Serve them all at the node's address:
///
/// ```no_run
/// # async fn serve(node: verdict_server::Node, address: std::net::SocketAddr) -> Result<(), tonic::transport::Error> {
/// use verdict_proto::{
///     peer::v1::peer_server::PeerServer,
///     v1::{
///         branches_server::BranchesServer, operator_server::OperatorServer, sessions_server::SessionsServer,
///         transactions_server::TransactionsServer,
///     },
/// };
///
/// let services = node.services();
/// tonic::transport::Server::builder()
///     .add_service(TransactionsServer::new(services.transactions()))
///     .add_service(SessionsServer::new(services.sessions()))
///     .add_service(BranchesServer::new(services.branches()))
///     .add_service(OperatorServer::new(services.operator()))
///     .add_service(PeerServer::new(services.peer()).max_decoding_message_size(verdict_server::MAX_MESSAGE))
///     .serve(address)
///     .await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Services(Arc<Front>);

impl Services {
    pub(crate) fn new(front: Front) -> Self {
        Self(Arc::new(front))
    }

    /// What clients say.
    #[must_use]
    pub fn transactions(&self) -> impl Transactions + use<> {
        transactions::Service(Arc::clone(&self.0))
    }

    /// One instance of a client at a time.
    #[must_use]
    pub fn sessions(&self) -> impl Sessions + use<> {
        sessions::Service(Arc::clone(&self.0))
    }

    /// What branches say of themselves.
    #[must_use]
    pub fn branches(&self) -> impl Branches + use<> {
        branches::Service(Arc::clone(&self.0))
    }

    /// What operators ask for.
    #[must_use]
    pub fn operator(&self) -> impl Operator + use<> {
        operator::Service(Arc::clone(&self.0))
    }

    /// What nodes say to each other: messages of up to [`MAX_MESSAGE`](crate::MAX_MESSAGE) bytes.
    #[must_use]
    pub fn peer(&self) -> impl Peer + use<> {
        peer::Service(Arc::clone(&self.0))
    }
}
