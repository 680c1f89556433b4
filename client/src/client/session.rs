//! Sessions: one instance of a program at a time, and a fence against the one before.

use std::time::Duration;

use verdict_protocol::SessionRef;

use super::{Begun, CallError, Transaction, Verdict};

/// A session that this handle's instance has opened. Clones share it.
///
/// As soon as another instance opens it, everything begun or committed under this one is
/// [`RefusalCode::Fenced`](super::RefusalCode::Fenced): stop working.
#[derive(Clone, Debug)]
pub struct Session {
    verdict: Verdict,
    reference: SessionRef,
}

impl Session {
    pub(super) fn new(verdict: Verdict, reference: SessionRef) -> Self {
        Self { verdict, reference }
    }

    /// Its name and epoch.
    #[must_use]
    pub fn reference(&self) -> &SessionRef {
        &self.reference
    }

    /// A new transaction under this session, of which the cluster hears first with its first branch or its commit.
    #[must_use]
    pub fn transaction(&self) -> Transaction {
        self.verdict.transaction().under(self.reference.clone())
    }

    /// Registers a new transaction under this session, as [`Verdict::begin`] does.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn begin(&self, timeout: Duration) -> Result<Transaction, CallError> {
        let transaction = self.transaction();
        self.verdict.register(transaction.xid(), timeout, None, Some(&self.reference)).await?;
        Ok(transaction)
    }

    /// Begins once for this key, as [`Verdict::begin_once`] does.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn begin_once(&self, key: impl Into<String>, timeout: Duration) -> Result<Begun, CallError> {
        let (transaction, key) = (self.transaction(), super::handle::key_of(key.into())?);
        let taken = self.verdict.register(transaction.xid(), timeout, Some(key), Some(&self.reference)).await?;
        Ok(taken.map_or(Begun::Ours(transaction), Begun::Taken))
    }
}
