//! What an application must know of its cluster before it prepares anything.

use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::time::{Instant, sleep};
use verdict_protocol::{ClusterId, ResourceName};

use crate::{CallError, Verdict};

/// Why a resource can't be used now.
#[derive(Debug, Error)]
pub enum ClusterError {
    #[error("the cluster can't be asked for its name")]
    Away(#[source] CallError),
    #[error("the cluster is not founded yet: ask again once it has a leader")]
    NotFounded,
    #[error("the cluster doesn't take branches of it, so nothing is prepared there")]
    NotConfigured(#[source] CallError),
}

/// The pause before the cluster is asked again for its name.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// The cluster's name, which all branches bear, if it has an agent of the resource: what nobody looks after would stay
/// prepared for ever.
pub(in crate::resource) async fn cluster_of(
    verdict: &Verdict,
    resource: &ResourceName,
) -> Result<ClusterId, ClusterError> {
    let cluster = name_of_cluster(verdict).await?;
    // The cluster judges the name when a branch registers: one does, and is rolled back.
    let mut trial = verdict.transaction();
    trial.enlist(resource.clone(), Bytes::new()).await.map_err(ClusterError::NotConfigured)?;
    // If that is not heard, its timeout does the same.
    drop(trial.rollback("a program has looked whether the resource is known").await);
    Ok(cluster)
}

/// A node that has just been started does not know it yet: asked until the deadline.
async fn name_of_cluster(verdict: &Verdict) -> Result<ClusterId, ClusterError> {
    let by = Instant::now() + verdict.deadline();
    loop {
        let status = verdict.cluster_status().await.map_err(ClusterError::Away)?;
        match status.cluster {
            Some(cluster) => return Ok(cluster),
            None if Instant::now() + ASK_AGAIN >= by => return Err(ClusterError::NotFounded),
            None => sleep(ASK_AGAIN).await,
        }
    }
}
