//! Three nodes of Verdict in this process, for whoever has no cluster at hand.

use std::{collections::BTreeMap, error::Error, path::Path};

use tonic::transport::server::Server;
use verdict_proto::{
    peer::v1::peer_server::PeerServer,
    v1::{
        branches_server::BranchesServer, operator_server::OperatorServer, sessions_server::SessionsServer,
        transactions_server::TransactionsServer,
    },
};
use verdict_raft_log::NodeId;
use verdict_server::{MAX_MESSAGE, Node, Options, Reach, Seams};

use crate::payments::listen;

/// Starts them, for as long as this program runs, and returns where they serve. `resources` are the participants, each
/// with its address.
pub(crate) async fn start(data: &Path, resources: &[(&str, String)]) -> Result<Vec<String>, Box<dyn Error>> {
    let mut incoming = Vec::new();
    let mut nodes = BTreeMap::new();
    for node in (1..=3).map(NodeId) {
        let listener = listen(([127, 0, 0, 1], 0).into())?;
        nodes.insert(node, listener.local_addr()?.to_string());
        incoming.push((node, listener));
    }
    for (number, listener) in incoming {
        let mut options = Options::new("shop", number, nodes.clone());
        for (name, address) in resources {
            options.resources.insert((*name).try_into()?, Reach::Endpoint(format!("http://{address}")));
        }
        let node = Node::start(options, Seams::production(&data.join(format!("node-{number}")))?).await?;
        let services = node.services().clone();
        let router = Server::builder()
            .add_service(TransactionsServer::new(services.transactions()))
            .add_service(SessionsServer::new(services.sessions()))
            .add_service(BranchesServer::new(services.branches()))
            .add_service(OperatorServer::new(services.operator()))
            .add_service(PeerServer::new(services.peer()).max_decoding_message_size(MAX_MESSAGE));
        drop(tokio::spawn(async move {
            if let Err(error) = router.serve_with_incoming(listener).await {
                eprintln!("node {number} has stopped: {error}");
            }
            node.stop().await;
        }));
    }
    Ok(nodes.into_values().collect())
}
