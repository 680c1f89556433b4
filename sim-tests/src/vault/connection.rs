//! A client's session.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};
use verdict_client::{
    participant::{NotAnswered, Voted},
    resource::xa::{BranchName, Finished},
};
use verdict_protocol::{Outcome, Settlement};

use super::Vault;
use crate::{history::What, world::Shared};

/// How long a client waits for its database.
const WITHIN: Duration = Duration::from_secs(1);

/// A client's session. Dropped, it disconnects, once what it has sent is done.
pub struct Connection {
    vault: Vault,
    number: u64,
}

impl Connection {
    /// At a database that is down it is closed at once.
    #[must_use]
    pub fn open(vault: &Vault) -> Arc<Self> {
        let state = &mut *vault.state();
        state.last_connection += 1;
        if state.up {
            state.connections.insert(state.last_connection);
        }
        Arc::new(Self { vault: vault.clone(), number: state.last_connection })
    }

    /// Does a branch's work and prepares it: its vote, and the evidence that goes along.
    ///
    /// # Errors
    /// [`NotAnswered`] if it is not known whether it is prepared, or will be.
    pub async fn prepare(
        self: &Arc<Self>,
        shared: &Shared,
        name: BranchName,
        payload: Bytes,
    ) -> Result<(Voted, Bytes), NotAnswered> {
        self.sends(shared, move |own| own.vault.prepare(own.number, name, &payload)).await?
    }

    /// Ends a branch that it has prepared.
    ///
    /// # Errors
    /// [`NotAnswered`] unless it was there, and has ended as it should.
    pub async fn finish(
        self: &Arc<Self>,
        shared: &Shared,
        name: BranchName,
        outcome: Outcome,
    ) -> Result<(), NotAnswered> {
        let finish = move |own: &Self| {
            if !own.vault.state().connections.contains(&own.number) {
                return Err(NotAnswered::unavailable("the connection is closed"));
            }
            match own.vault.end(name, outcome, Some(own.number), b"") {
                Finished::Done => {
                    let settled = What::Settled { branch: name.branch, outcome, settlement: Settlement::Done };
                    own.vault.0.history.record(own.vault.0.place, settled);
                    Ok(())
                }
                other => Err(NotAnswered::unavailable(format!("{name}: {other:?}"))),
            }
        };
        self.sends(shared, finish).await?
    }

    /// What is sent is done in its time, whether or not anybody waits for it.
    async fn sends<T: Send + 'static>(
        self: &Arc<Self>,
        shared: &Shared,
        what: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, NotAnswered> {
        let (own, (tell, told)) = (Arc::clone(self), oneshot::channel());
        let (there, back) = (self.vault.travel(), self.vault.travel());
        shared.sky.lives_on(async move {
            sleep(there).await;
            let said = what(&own);
            sleep(back).await;
            drop(tell.send(said));
        });
        match timeout(WITHIN, told).await {
            Ok(Ok(said)) => Ok(said),
            Ok(Err(_)) | Err(_) => Err(NotAnswered::unavailable("the database does not answer")),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.vault.state().connections.remove(&self.number);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("vault", &self.vault).field("number", &self.number).finish()
    }
}
