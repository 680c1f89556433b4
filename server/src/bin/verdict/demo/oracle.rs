//! What the cluster says of itself, node by node.

use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tokio::time::sleep;
use verdict_client::{ClusterStatus, Options, OptionsError, Verdict};

/// How often a node is asked while something is waited for.
const ASK_EVERY: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Oracle {
    nodes: Vec<(u64, Verdict)>,
}

impl Oracle {
    /// A handle for each node, so that each speaks for itself.
    pub(super) fn new(addresses: &[String]) -> Result<Self, OptionsError> {
        let handle = |address: &String| {
            let quick = Duration::from_millis(300);
            Verdict::new(Options { deadline: quick, attempt_timeout: quick, ..Options::new([address]) })
        };
        let nodes =
            (1..).zip(addresses).map(|(number, address)| Ok((number, handle(address)?))).collect::<Result<_, _>>()?;
        Ok(Self { nodes })
    }

    /// Waits until a node other than `except` leads, by its own word.
    pub(super) async fn leader(&self, except: Option<u64>) -> u64 {
        let others = self.nodes.iter().filter(|(node, _)| Some(*node) != except);
        select_all(others.map(|(node, handle)| {
            Box::pin(async move {
                loop {
                    match handle.cluster_status().await {
                        Ok(status) if status.leader == Some(*node) => return *node,
                        Ok(_) | Err(_) => sleep(ASK_EVERY).await,
                    }
                }
            })
        }))
        .await
        .0
    }

    /// Waits until `node` is as wanted.
    pub(super) async fn node_is(&self, node: u64, mut wanted: impl FnMut(&ClusterStatus) -> bool) -> ClusterStatus {
        let handle = self.nodes.iter().find(|(number, _)| *number == node).map(|(_, handle)| handle);
        let handle = handle.expect("the demo has nodes 1 to 3");
        loop {
            match handle.cluster_status().await {
                Ok(status) if wanted(&status) => return status,
                Ok(_) | Err(_) => sleep(ASK_EVERY).await,
            }
        }
    }

    /// What each node says now; none where it says nothing.
    pub(super) async fn all(&self) -> Vec<Option<ClusterStatus>> {
        join_all(self.nodes.iter().map(|(_, handle)| async { handle.cluster_status().await.ok() })).await
    }
}
