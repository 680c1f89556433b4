//! A connection of the pool's, which goes back there only if it is known to be clean.

use std::{
    fmt,
    ops::Deref,
    sync::atomic::{AtomicBool, Ordering},
};

use deadpool_postgres::{Object, Pool, PoolError, Transaction};
use tokio_postgres::{Client, Error, IsolationLevel, Statement, error::SqlState};

/// Dropped before it [is clean](Lease::is_clean), say because whoever waited went away, it is closed: what it does then,
/// nobody else has to wait for, and PostgreSQL rolls back what is open in it.
pub(super) struct Lease {
    /// Always there until it is dropped.
    connection: Option<Object>,
    clean: AtomicBool,
}

impl Lease {
    pub(super) async fn take(pool: &Pool) -> Result<Self, PoolError> {
        Ok(Self { connection: Some(pool.get().await?), clean: AtomicBool::new(false) })
    }

    /// A statement that the connection keeps.
    pub(super) async fn prepare(&self, query: &str) -> Result<Statement, Error> {
        let connection = self.connection.as_ref().expect("the connection is there until it is dropped");
        connection.prepare_cached(query).await
    }

    /// A transaction of its own. Whoever ends it says whether the connection [is clean](Self::set_clean).
    pub(super) async fn begin(&mut self, isolation: IsolationLevel) -> Result<Transaction<'_>, Error> {
        let connection = self.connection.as_mut().expect("the connection is there until it is dropped");
        connection.build_transaction().isolation_level(isolation).start().await
    }

    /// Whether it has nothing under way, and waits for work.
    pub(super) fn set_clean(&self, clean: bool) {
        self.clean.store(clean, Ordering::Release);
    }

    pub(super) fn is_clean(&self) -> bool {
        self.clean.load(Ordering::Acquire) && !self.is_closed()
    }

    /// Takes note of what came of a statement outside of any transaction block: an error that is the connection's own
    /// leaves it for nobody.
    pub(super) fn came_to<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        self.set_clean(result.as_ref().err().is_none_or(|error| !is_lost(error)));
        result
    }
}

/// Whether the connection is gone, or the server about to go: nothing is to be expected of it any more.
pub(super) fn is_lost(error: &Error) -> bool {
    let Some(code) = error.code() else { return true };
    code.code().starts_with("08")
        || [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW].contains(code)
}

impl Deref for Lease {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.connection.as_ref().expect("the connection is there until it is dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let clean = self.is_clean();
        if let Some(connection) = self.connection.take().filter(|_| !clean) {
            drop(Object::take(connection));
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("clean", &self.clean).finish_non_exhaustive()
    }
}
